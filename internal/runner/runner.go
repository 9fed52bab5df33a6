// Package runner is PID 1 of every container: it reaps and signals processes, executes cells,
// batches and the command of a batch session as the session's user, keeps terminals, gives access to
// the home directory, and serves all of that on a unix socket in the protocol of wire/run.
//
// It talks to the agent only, holds no policy and no state that must outlive the container,
// except the result of a batch command, which it writes to a file before it tells anyone.
//
// The process itself stays root where it was started as root (to start processes as the session's user and
// to signal them: SETUID, SETGID and KILL; CHOWN only when the agent left directories to root); files are
// touched with the user's own permissions. Everything else runs as that user.
// It needs no shell, no libc, no /tmp and no /etc/passwd in the image.
package runner

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"sync"
	"syscall"
	"time"

	"berth.dev/berth/internal/runner/app"
	"berth.dev/berth/internal/runner/cell"
	"berth.dev/berth/internal/runner/files"
	"berth.dev/berth/internal/runner/output"
	"berth.dev/berth/internal/runner/proc"
	"berth.dev/berth/internal/runner/python"
	"berth.dev/berth/internal/runner/recipe"
	"berth.dev/berth/internal/runner/sshd"
	"berth.dev/berth/internal/runner/terminal"
	"berth.dev/berth/internal/wire/run"
)

// Runner serves one container.
type Runner struct {
	cfg     run.Config
	log     *slog.Logger
	started time.Time
	env     []string
	user    *proc.Credential
	shell   string

	recipe  recipe.Recipe
	tool    string
	hasTool bool
	python  *python.Interpreter // nil: cells run by recipe

	table     *proc.Table
	queue     *queue
	terminals *terminal.Set
	tree      files.Tree
	own       *intrinsicSet
	ssh       *sshd.Server
	peers     *peers // nil: the only kernel of its session
	apps      *app.Set
	carried   chan struct{} // has one for every tunnel that is carried
	out, err  *mirror

	tasks sync.WaitGroup
	stop  chan time.Duration // asks Run to end, with this grace

	mu      sync.Mutex
	input   net.Listener
	uploads []string // the latest upload's files
	batchSt run.BatchState
	streams int
}

// New prepares a runner from a valid configuration. The process must not wait for children
// of its own elsewhere (see proc).
func New(cfg run.Config, stdout, stderr io.Writer) (*Runner, error) {
	level := slog.LevelInfo
	_ = level.UnmarshalText([]byte(cfg.LogLevel)) // an unknown name leaves info
	r := &Runner{cfg: cfg, started: time.Now(), user: credential(cfg.User), stop: make(chan time.Duration, 1),
		batchSt: run.BatchState{Phase: run.BatchNone}}
	drop := cfg.SessionType != "batch" // a batch session's log is its result, a cell's is a copy
	r.out, r.err = newMirror(stdout, drop), newMirror(stderr, drop)
	r.log = slog.New(slog.NewTextHandler(r.err, &slog.HandlerOptions{Level: level}))
	if err := r.prepareDirs(); err != nil {
		return nil, err
	}
	r.shell = findShell(cfg.User.Shell)
	r.env = userEnv(os.Environ(), cfg, r.shell)
	if err := proc.AsUser(r.user, func() error { // a tool that the user cannot reach is of no use
		r.recipe, r.tool, r.hasTool = recipe.Choose(cfg.Runtime.Type, cfg.Runtime.Path, r.env)
		return nil
	}); err != nil {
		return nil, err
	}
	r.table = proc.NewTable()
	if cfg.Confine {
		r.hold()
	}
	r.queue = newQueue(cfg.Limits, r.spillDir(), r.mirror)
	r.tree = files.Tree{Home: cfg.User.Home, User: r.user, MaxBytes: cfg.Limits.MaxUpload, MaxFiles: cfg.Limits.MaxFiles}
	r.terminals = terminal.NewSet(terminal.Config{Shell: r.shell, Dir: r.workDir(), Env: r.env, User: r.user, Table: r.table,
		Scrollback: cfg.Limits.Scrollback, Max: cfg.Limits.MaxTerminals})
	if r.recipe.Name == "python" && r.hasTool {
		if err := python.Install(r.libDir()); err != nil {
			return nil, err
		}
		r.python = python.New(python.Config{Path: r.tool, LibDir: r.libDir(), UserDir: r.userDir(), Dir: r.workDir(), Env: r.env, User: r.user,
			Table: r.table, Log: r.log,
			Stray:    func(stream, text string) { logSink{r}.Text(stream, text) },
			NoKernel: recipe.Getenv(r.env, "BERTH_NO_IPYKERNEL") != ""})
	}
	if err := sshd.EnsureSessionKey(cfg.User.Home, r.user); err != nil {
		r.log.Warn("clients that download the session's key cannot log in by SSH", "err", err)
	}
	r.carried = make(chan struct{}, maxCarried)
	own := r.intrinsics()
	var err error
	if r.peers, err = r.newPeers(); err != nil {
		return nil, err
	}
	apps, err := r.newApps(own)
	if err != nil {
		return nil, fmt.Errorf("prepare apps: %w", err)
	}
	r.apps = apps
	r.own = newIntrinsicSet(own, func(app string, panicked any, stack []byte) {
		r.log.Error("an app of the runner broke down", "app", app, "panic", panicked, "stack", string(stack))
	})
	return r, nil
}

func (r *Runner) libDir() string   { return filepath.Join(r.cfg.Dir, "lib") }
func (r *Runner) userDir() string  { return filepath.Join(r.cfg.Dir, run.UserDirName) }
func (r *Runner) spillDir() string { return filepath.Join(r.cfg.Dir, "spill") }

// prepareDirs makes what is missing in the shared directory and the home.
func (r *Runner) prepareDirs() error {
	for _, d := range []struct {
		path string
		mode os.FileMode
		mine bool
	}{{r.libDir(), 0o755, true}, {r.spillDir(), 0o700, true}, {r.userDir(), 0o700, false}, {r.cfg.User.Home, 0o755, false}} {
		err := os.Mkdir(d.path, d.mode)
		if errors.Is(err, os.ErrNotExist) {
			err = os.MkdirAll(d.path, 0o755)
		}
		if err != nil && !errors.Is(err, os.ErrExist) {
			if d.path == r.cfg.User.Home {
				r.log.Warn("the home directory cannot be made", "err", err)
				continue
			}
			return fmt.Errorf("prepare %s: %w", d.path, err)
		}
		fi, serr := os.Stat(d.path)
		if serr != nil || d.mine || r.user == nil {
			continue
		}
		owned := int(fi.Sys().(*syscall.Stat_t).Uid) == r.user.UID
		if !owned && (err == nil || d.path == r.userDir()) { // an existing home is left as it is
			if err := os.Chown(d.path, r.user.UID, r.user.GID); err != nil {
				r.log.Warn("a directory cannot be given to the session's user", "path", d.path, "err", err)
			}
		}
	}
	return nil
}

// lookPath finds a command as the session's user would.
func (r *Runner) lookPath(name string, env []string) (file string, ok bool) {
	err := proc.AsUser(r.user, func() error {
		file, ok = recipe.LookPath(name, env)
		return nil
	})
	return file, ok && err == nil
}

// mirror returns the container's stdout or stderr.
func (r *Runner) mirror(stream string) *mirror {
	if stream == cell.Stderr || stream == cell.Log {
		return r.err
	}
	return r.out
}

func (r *Runner) recentUploads() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.uploads)
}

// Run serves until it is told to end, or until the command of a batch session has ended; it
// returns the exit code for the container.
func (r *Runner) Run(signals <-chan os.Signal) int {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	srv, err := r.listen()
	if err != nil {
		r.log.Error("the runner cannot serve", "err", err)
		r.closeLogs()
		return 70
	}
	r.log.Info("the session's container is up", "kernel", r.cfg.KernelID, "runtime", r.recipe.Name, "tool", r.tool)
	finished := make(chan int, 1)
	if r.cfg.Bootstrap == "" { // a bootstrap script may install what the interpreter is to find
		r.tasks.Go(func() { r.prestart(ctx) })
	}
	job := make(chan struct{}) // closed when a batch job has come to its end, or will not begin
	r.tasks.Add(1)
	go func() {
		defer r.tasks.Done()
		ready := r.startup(ctx, finished)
		close(job)
		if !ready {
			return
		}
		if r.cfg.Bootstrap != "" {
			r.prestart(ctx)
		}
		r.work(ctx)
	}()
	code, grace := 0, time.Duration(0)
	if r.cfg.SessionType == "batch" {
		code = exitUnfinished // until the command has ended: exit code 0 means that it succeeded
	}
	select {
	case code = <-finished:
	case sig := <-signals:
		r.log.Info("the session ends", "signal", sig.String())
		grace = time.Duration(r.cfg.Limits.GraceMS) * time.Millisecond
	case grace = <-r.stop:
		r.log.Info("the session ends", "grace", grace)
	}
	r.end(cancel, srv, grace, job)
	select {
	case code = <-finished: // a batch command that was told to stop
	default:
	}
	r.table.Close()
	r.closeLogs()
	// A container that ends without this marker was ended from outside or crashed. Nothing depends on its durability.
	_ = os.WriteFile(r.cfg.EndedFile(), nil, 0o644)
	return code
}

// startup waits for the session's network and peers, and runs the bootstrap script and the batch command. The exit code of what ends the
// session goes to finished. It returns false when the peers did not come.
func (r *Runner) startup(ctx context.Context, finished chan<- int) bool {
	r.awaitNetwork(ctx)
	if !r.awaitPeers(ctx) {
		if ctx.Err() == nil {
			finished <- run.ExitPeersMissing
		}
		return false
	}
	r.bootstrap(ctx)
	if r.cfg.SessionType == "batch" && ctx.Err() == nil {
		finished <- r.batchJob(ctx)
	}
	return true
}

// exitUnfinished is the exit code of a batch session's runner that was told to end before its command ended.
const exitUnfinished = 143

// prestart starts the interpreter ahead of the first cell, which waits for it no longer than it would have taken then.
func (r *Runner) prestart(ctx context.Context) {
	if !r.cfg.Prestart || r.python == nil || ctx.Err() != nil {
		return
	}
	if err := r.python.Start(ctx); err != nil && ctx.Err() == nil {
		r.log.Warn("Python could not be started ahead of the first cell", "err", err)
	}
}

// batchEnd is how long the result of a batch job may take to be recorded when the session is told to end. The engine ends the container
// before, where it is to end sooner.
const batchEnd = 30 * time.Second

// end stops everything that runs in the container.
func (r *Runner) end(cancel context.CancelFunc, srv *server, grace time.Duration, job <-chan struct{}) {
	cancel()
	r.queue.close()
	if r.python != nil {
		r.python.Stop()
	}
	r.terminals.Hangup()
	r.apps.Close()
	r.mu.Lock()
	if r.input != nil {
		r.input.Close()
	}
	r.mu.Unlock()
	r.table.EndAll(grace, syscall.SIGTERM, syscall.SIGCONT)
	if r.cfg.SessionType == "batch" {
		late := time.NewTimer(batchEnd)
		defer late.Stop()
		select {
		case <-job:
		case <-late.C:
			r.log.Error("the result of the batch command is not recorded yet, and nobody waits for it any longer", "after", batchEnd)
		}
	}
	srv.shutdown()
	done := make(chan struct{})
	go func() {
		r.own.close()
		r.peers.close()
		r.apps.Wait()
		r.tasks.Wait()
		close(done)
	}()
	select {
	case <-done:
	case <-time.After(2 * time.Second):
		r.log.Warn("some tasks did not end in time")
	}
}

// closeLogs writes what the container's log does not have yet. Nobody reads along with a batch job, so its log is all there is of it.
func (r *Runner) closeLogs() {
	limit := time.Second
	if r.cfg.SessionType == "batch" {
		limit = 10 * time.Second
	}
	r.out.Close(limit)
	r.err.Close(limit)
}

// Main runs the runner's command line: its only argument is the configuration file. It
// returns the exit code of the process.
func Main(args []string) int {
	if code, ok := sshd.FileServer(args); ok { // a child of PID 1, as the session's user
		return code
	}
	if len(args) == 2 && args[1] == "--version" {
		fmt.Println("berth-runner, protocol", run.Version)
		return 0
	}
	if len(args) != 2 {
		fmt.Fprintln(os.Stderr, "usage: berth-runner CONFIG-FILE\nThe agent starts it as PID 1 of a container; "+
			"see internal/wire/run for the file.")
		return 64
	}
	// SIGPIPE is taken so that a closed log does not end the container; unlike an
	// ignored signal this is not passed on to children.
	pipe := make(chan os.Signal, 1)
	signal.Notify(pipe, syscall.SIGPIPE)
	signals := make(chan os.Signal, 4)
	signal.Notify(signals, syscall.SIGTERM, syscall.SIGINT, syscall.SIGQUIT, syscall.SIGHUP)
	cfg, err := run.LoadConfig(args[1])
	if err != nil {
		fmt.Fprintln(os.Stderr, "berth-runner:", err)
		return 78
	}
	if err := fence(); err != nil {
		fmt.Fprintf(os.Stderr, "berth-runner: %v: where folders have project quotas, this session can leave them\n", err)
	}
	if os.Getpid() != 1 {
		// Orphans of our children come to us, as they do to PID 1.
		const prSetChildSubreaper = 36
		_, _, _ = syscall.RawSyscall(syscall.SYS_PRCTL, prSetChildSubreaper, 1, 0) // without it they go to init
	}
	r, err := New(cfg, os.Stdout, os.Stderr)
	if err != nil {
		fmt.Fprintln(os.Stderr, "berth-runner:", err)
		return 70
	}
	return r.Run(signals)
}

// newBatchLog makes the log of the batch command: nobody has to read it.
func (q *queue) newBatchLog(id string) *job {
	q.mu.Lock()
	defer q.mu.Unlock()
	j := q.newJob(id, output.DropOldest)
	j.mode, j.started = run.ModeBatch, true
	q.current = j
	return j
}
