package runner

import (
	"context"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/runner/cell"
	"berth.dev/berth/internal/runner/output"
	"berth.dev/berth/internal/runner/proc"
	"berth.dev/berth/internal/runner/recipe"
	"berth.dev/berth/internal/wire/run"
)

// work executes runs, one after the other, until ctx ends.
func (r *Runner) work(ctx context.Context) {
	for {
		j := r.queue.next(ctx)
		if j == nil {
			return
		}
		stop := r.watchReader(j)
		words := r.outOfMemory()
		exit := r.execute(j)
		if text := words(); text != "" { // the last line says why the program is gone
			j.TextNow(cell.Stderr, text+"\n")
		}
		stop()
		r.queue.end(j, run.StatusFinished, exit)
	}
}

func (r *Runner) execute(j *job) int {
	if j.ctx.Err() != nil {
		return 130
	}
	if j.mode == run.ModeBatch {
		return r.batch(j)
	}
	if r.python != nil {
		return r.python.Query(j.ctx, j.code, j)
	}
	return r.queryRecipe(j)
}

// An abandoned run is interrupted maxInsist times, insistEvery or the abandonment apart; then its
// interpreter is ended.
const (
	insistEvery = 2 * time.Second
	maxInsist   = 5
)

// watchReader interrupts the run when others wait, it cannot go on without a reader and has none, or when its reader is gone for longer
// than it said it could be.
func (r *Runner) watchReader(j *job) (stop func()) {
	abandoned := max(time.Duration(r.cfg.Limits.AbandonMS)*time.Millisecond, 10*time.Millisecond)
	done := make(chan struct{})
	go func() {
		tick := time.NewTicker(abandoned / 6)
		defer tick.Stop()
		var pressed int
		var last time.Time
		for {
			select {
			case <-done:
				return
			case now := <-tick.C:
				blocked, since := j.blocked()
				left := j.deserted(now)
				first := pressed == 0 && (left || blocked && now.Sub(since) > abandoned && r.queue.crowded())
				// An interpreter may swallow an interrupt that meets it outside the cell's own code.
				again := pressed > 0 && now.Sub(last) > max(abandoned, insistEvery)
				switch {
				case first, again && pressed < maxInsist:
					r.log.Warn("a run was interrupted: its reader left", "run", j.id, "others_wait", !left)
					r.interrupt(j.id)
					pressed, last = pressed+1, now
				case again && r.python != nil:
					r.log.Warn("the interpreter was ended: it ignores interrupts while others wait", "run", j.id)
					r.python.Kill()
					last = now
				}
			}
		}
	}()
	return func() { close(done) }
}

// interrupt sends the run what Ctrl-C would; a command that was interrupted twice is terminated, then killed.
func (r *Runner) interrupt(id string) bool {
	j := r.queue.interrupt(id)
	if j == nil {
		return false
	}
	j.mu.Lock()
	if j.done {
		j.mu.Unlock()
		return false
	}
	j.presses++
	presses, p := j.presses, j.process
	j.mu.Unlock()
	j.log.Loosen()
	j.cancel()
	if p != nil {
		p.Signal([]syscall.Signal{syscall.SIGINT, syscall.SIGTERM, syscall.SIGKILL}[min(presses, 3)-1])
	} else if r.python != nil {
		r.python.Interrupt()
	}
	return true
}

// queryRecipe runs a cell by the recipe of the image's language.
func (r *Runner) queryRecipe(j *job) int {
	if !r.hasTool {
		j.TextNow(cell.Stderr, fmt.Sprintf("This image (runtime type %q) has nothing to execute code with: no %s was found.\n",
			r.cfg.Runtime.Type, toolNames(r.recipe)))
		return 127
	}
	var dir string
	if err := proc.AsUser(r.user, func() (err error) {
		if dir, err = os.MkdirTemp(r.userDir(), "cell-"); err != nil {
			return err
		}
		return os.WriteFile(filepath.Join(dir, r.recipe.Query.File), []byte(j.code), 0o600)
	}); err != nil {
		j.TextNow(cell.Stderr, "The cell could not be written: "+err.Error()+"\n")
		return 126
	}
	// A left-over in a private directory does no harm.
	defer func() { _ = proc.AsUser(r.user, func() error { return os.RemoveAll(dir) }) }()
	vars := map[string][]string{"{tool}": {r.tool}, "{src}": {filepath.Join(dir, r.recipe.Query.File)},
		"{out}": {filepath.Join(dir, "cell.out")}}
	if b := r.recipe.Query.Build; len(b) > 0 {
		if st := r.command(j, command{argv: recipe.Expand(b, vars), env: r.env}); st.Code != 0 {
			return st.Code
		}
	}
	return r.command(j, command{argv: recipe.Expand(r.recipe.Query.Run, vars), env: r.batchEnv()}).Code
}

func toolNames(rc recipe.Recipe) string {
	if len(rc.Tools) == 0 {
		return "Python and no shell"
	}
	return rc.Tools[0]
}

// batch runs the steps of batch mode.
func (r *Runner) batch(j *job) int {
	exit := 0
	if c := cleanCommand(j.opts.Clean); c != "" {
		code := r.batchStep(j, "clean", c, r.recipe.Clean)
		j.mark(run.StatusCleanFinished, markData{Exit: &code})
	}
	if c := cleanCommand(j.opts.Build); c != "" {
		exit = r.batchStep(j, "build", c, r.recipe.Build)
		j.mark(run.StatusBuildFinished, markData{Exit: &exit})
		if exit != 0 {
			return 127
		}
	}
	if c := cleanCommand(j.opts.Exec); c != "" {
		exit = r.batchStep(j, "exec", c, r.recipe.Exec)
	}
	return exit
}

func (r *Runner) batchStep(j *job, name, line string, steps []recipe.Step) int {
	if j.ctx.Err() != nil {
		return 130
	}
	if line != "*" {
		return r.commandLine(j, line, r.batchEnv())
	}
	argv, ok := recipe.Pick(steps, r.cfg.WorkDir, r.tool, r.recentUploads())
	switch {
	case ok && r.hasTool:
		return r.command(j, command{argv: argv, env: r.batchEnv()}).Code
	case ok:
		j.TextNow(cell.Stderr, fmt.Sprintf("This image has no %s to %s with.\n", toolNames(r.recipe), name))
		return 127
	case name == "exec":
		j.TextNow(cell.Stderr, fmt.Sprintf("There is nothing to run for %q: no main program and not exactly one program file is in %s. Say "+
			"which command to execute.\n", r.recipe.Name, r.cfg.WorkDir))
		return 127
	}
	return 0
}

// batchEnv lets input() of Python programs ask the run's reader.
func (r *Runner) batchEnv() []string {
	sock, err := r.inputSocket()
	if err != nil {
		r.log.Warn("programs cannot ask for input", "err", err)
		return r.env
	}
	path := filepath.Join(r.libDir(), "python")
	if old := recipe.Getenv(r.env, "PYTHONPATH"); old != "" {
		path += ":" + old
	}
	return with(r.env, "PYTHONPATH="+path, "BERTH_INPUT_SOCKET="+sock)
}

func (r *Runner) commandLine(j *job, line string, env []string) int {
	file, argv, err := recipe.CommandLine(line, env)
	if err != nil {
		j.TextNow(cell.Stderr, err.Error()+"\n")
		return 127
	}
	return r.command(j, command{file: file, argv: argv, env: env}).Code
}

// command is a process whose output goes to a run.
type command struct {
	file string // empty: found by argv[0]
	argv []string
	env  []string
	sink cell.Sink // nil: the job itself
}

// command runs a process to its end. Output that child processes left behind write later
// goes to the session's log only.
func (r *Runner) command(j *job, c command) proc.Status {
	if c.file == "" {
		file, ok := r.lookPath(c.argv[0], c.env)
		if !ok && !filepath.IsAbs(c.argv[0]) {
			file, ok = r.lookPath(filepath.Join(r.workDir(), c.argv[0]), c.env)
		}
		if !ok {
			j.TextNow(cell.Stderr, c.argv[0]+": not found in this image\n")
			return proc.Status{Code: 127}
		}
		c.file = file
	}
	var sink cell.Sink = j
	if c.sink != nil {
		sink = c.sink
	}
	p, drains, err := r.spawn(c.file, c.argv, c.env, sink)
	if err != nil {
		j.TextNow(cell.Stderr, err.Error()+"\n")
		return proc.Status{Code: proc.ExitCodeOf(err)}
	}
	j.mu.Lock()
	j.process = p
	interrupted := j.presses > 0
	j.mu.Unlock()
	if interrupted {
		p.Signal(syscall.SIGINT)
	}
	<-p.Done()
	j.mu.Lock()
	j.process = nil
	j.mu.Unlock()
	for _, d := range drains {
		d.settle(r)
	}
	return p.Status()
}

// drain is one output stream of a command.
type drain struct {
	*proc.Drain
	stream string
	text   *output.Decoder
	sink   cell.Sink
}

func (d *drain) settle(r *Runner) {
	rest := &output.Decoder{}
	d.Settle(func(b []byte) { _, _ = r.mirror(d.stream).Write([]byte(rest.Decode(b))) })
	if t := d.text.Flush(); t != "" {
		d.sink.Text(d.stream, t)
	}
}

// spawn starts a process with its output drained into a sink and nothing to read.
func (r *Runner) spawn(file string, argv, env []string, sink cell.Sink) (*proc.Process, []*drain, error) {
	null, err := proc.NoInput()
	if err != nil {
		return nil, nil, fmt.Errorf("open an empty input: %w", err)
	}
	ends := []*os.File{null}
	defer func() {
		for _, f := range ends {
			if f != nil {
				f.Close()
			}
		}
	}()
	var drains []*drain
	for _, stream := range []string{cell.Stdout, cell.Stderr} {
		d := &drain{stream: stream, text: &output.Decoder{}, sink: sink}
		var w *os.File
		if d.Drain, w, err = proc.Pipe(func(b []byte) { sink.Text(stream, d.text.Decode(b)) }); err != nil {
			return nil, nil, fmt.Errorf("open a pipe: %w", err)
		}
		ends, drains = append(ends, w), append(drains, d)
	}
	p, err := r.table.Start(proc.Spec{Path: file, Argv: argv, Env: env, Dir: r.workDir(), User: r.user, Files: ends})
	return p, drains, err
}

// workDir is where commands start: the configured directory, or / where it is missing.
func (r *Runner) workDir() string {
	if fi, err := os.Stat(r.cfg.WorkDir); err == nil && fi.IsDir() {
		return r.cfg.WorkDir
	}
	return "/"
}

// bootstrap runs the user's start script once. Its failure is only logged.
func (r *Runner) bootstrap(ctx context.Context) {
	if r.cfg.Bootstrap == "" {
		return
	}
	file := filepath.Join(r.libDir(), "bootstrap.sh")
	if err := os.WriteFile(file, []byte(r.cfg.Bootstrap), fs.FileMode(0o755)); err != nil {
		r.log.Error("the bootstrap script cannot be written", "err", err)
		return
	}
	argv, exe := []string{file}, file
	if len(r.cfg.Bootstrap) < 2 || r.cfg.Bootstrap[:2] != "#!" {
		sh, _, err := recipe.CommandLine("", r.env)
		if err != nil {
			r.log.Error("the bootstrap script was not run: this image has no shell")
			return
		}
		argv, exe = []string{filepath.Base(sh), file}, sh
	}
	p, drains, err := r.spawn(exe, argv, r.env, logSink{r})
	if err != nil {
		r.log.Error("the bootstrap script could not be started", "err", err)
		return
	}
	limit := time.NewTimer(time.Hour)
	defer limit.Stop()
	select {
	case <-p.Done():
	case <-ctx.Done():
		p.End(time.Second)
	case <-limit.C:
		r.log.Error("the bootstrap script was ended after one hour")
		p.End(5 * time.Second)
	}
	for _, d := range drains {
		d.settle(r)
	}
	if st := p.Status(); st.Code != 0 {
		r.log.Error("the bootstrap script failed", "exit_code", st.Code)
	}
}

// logSink writes to the session's log alone.
type logSink struct{ r *Runner }

func (s logSink) Text(stream, text string) { _, _ = s.r.mirror(stream).Write([]byte(text)) }

func (s logSink) TextNow(stream, text string) { s.Text(stream, text) }
func (s logSink) MediaNow(string, string)     {}
func (s logSink) Congested() bool             { return false }
func (s logSink) Relieved() <-chan struct{}   { return nil }
func (s logSink) Ask(bool) cell.Answer        { return cell.Answer{None: true} }

// outOfMemory begins to watch for processes of the session that are killed for want of memory. The result returns words for people when
// there were some since, else "". What else runs in the session at that time counts, too: the memory is one for all.
func (r *Runner) outOfMemory() func() string {
	before := r.table.OOMKills()
	return func() string {
		if r.table.OOMKills() <= before {
			return ""
		}
		return cluster.OutOfMemoryWords(r.cfg.Memory)
	}
}
