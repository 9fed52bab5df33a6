package fake

import (
	"context"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"berth.dev/berth/internal/agent/runtime"
	"berth.dev/berth/internal/fault"
	"berth.dev/berth/internal/wire/run"
)

// script runs the fake's little language. Statements stand on lines or between semicolons:
//
//	print("text")   print(6*7)    a line on standard output
//	warn("text")                  a line on standard error
//	print(input())                asks, then prints the answer
//	sleep 1.5                     lets that many seconds pass on the engine's clock
//	exit 3                        ends with that code; sys.exit(3) and exit(3) do too
//
// Statements it does not know print themselves on standard error and count as exit code 1 at the end, so
// that a test that mistypes one sees it. The engine's mutex guards it.
type script struct {
	e        *Engine
	todo     []string
	records  []record
	base     int64 // sequence number of records[0]
	seen     int64 // first sequence number that a caller who does not count has not got
	code     int
	over     bool
	asking   bool
	answer   func(string)
	sleeping func() bool
	changed  chan struct{}

	output   func(string) // replaces records, for batch commands
	finished func(code int)
}

type record struct {
	kind   run.ConsoleType // empty for statuses
	text   string
	status run.Status
}

func newScript(e *Engine, text string) *script {
	s := &script{e: e}
	for part := range strings.FieldsFuncSeq(text, func(c rune) bool { return c == '\n' || c == ';' }) {
		if part = strings.TrimSpace(part); part != "" && !strings.HasPrefix(part, "#") && !strings.HasPrefix(part, "import ") {
			s.todo = append(s.todo, part)
		}
	}
	return s
}

func (s *script) add(r record) {
	if s.output != nil {
		if r.text != "" {
			s.output(r.text)
		}
	} else {
		s.records = append(s.records, r)
	}
	if s.changed != nil {
		close(s.changed)
		s.changed = nil
	}
}

func (s *script) wait() <-chan struct{} {
	if s.changed == nil {
		s.changed = make(chan struct{})
	}
	return s.changed
}

// step runs statements until one waits.
func (s *script) step() {
	for !s.over && !s.asking && s.sleeping == nil {
		if len(s.todo) == 0 {
			s.finish(s.code)
			return
		}
		st := s.todo[0]
		s.todo = s.todo[1:]
		s.execute(st)
	}
}

func (s *script) execute(st string) {
	verb, arg := st, ""
	if i := strings.IndexAny(st, " ("); i >= 0 {
		verb, arg = st[:i], strings.TrimSpace(strings.TrimSuffix(strings.TrimPrefix(strings.TrimSpace(st[i:]), "("), ")"))
	}
	switch verb {
	case "print":
		if strings.HasPrefix(arg, "input(") {
			s.asking = true
			s.answer = func(text string) { s.add(record{kind: run.Stdout, text: text + "\n"}) }
			s.add(record{status: run.StatusWaitingInput})
			return
		}
		s.add(record{kind: run.Stdout, text: value(arg) + "\n"})
	case "warn":
		s.add(record{kind: run.Stderr, text: value(arg) + "\n"})
	case "sleep", "time.sleep":
		seconds, err := strconv.ParseFloat(arg, 64)
		if err != nil || seconds <= 0 {
			return
		}
		s.sleeping = s.e.opt.After(time.Duration(seconds*float64(time.Second)), func() {
			s.e.mu.Lock()
			defer s.e.mu.Unlock()
			s.sleeping = nil
			s.step()
		})
	case "exit", "sys.exit":
		code, err := strconv.Atoi(arg)
		if err != nil && arg != "" {
			code = 1
		}
		s.finish(code)
	default:
		s.code = 1
		s.add(record{kind: run.Stderr, text: "the fake runner does not know: " + st + "\n"})
	}
}

// value evaluates "text", 'text', or a sum or product of two whole numbers; anything else stands for itself.
func value(arg string) string {
	if n := len(arg); n >= 2 && (arg[0] == '"' || arg[0] == '\'') && arg[n-1] == arg[0] {
		return arg[1 : n-1]
	}
	for _, op := range "*+" {
		a, b, ok := strings.Cut(arg, string(op))
		x, err1 := strconv.Atoi(strings.TrimSpace(a))
		y, err2 := strconv.Atoi(strings.TrimSpace(b))
		if !ok || err1 != nil || err2 != nil {
			continue
		}
		if op == '*' {
			return strconv.Itoa(x * y)
		}
		return strconv.Itoa(x + y)
	}
	return arg
}

func (s *script) finish(code int) {
	if s.over {
		return
	}
	s.over, s.code, s.asking = true, code, false
	s.add(record{status: run.StatusFinished})
	if s.finished != nil {
		s.finished(code)
	}
}

func (s *script) stop() {
	if s.sleeping != nil {
		s.sleeping()
		s.sleeping = nil
	}
}

// read takes up to one status, acknowledging what the caller has seen.
func (s *script) read(id string, from *int64) (res run.StepResult, ready bool) {
	at := s.seen
	if from != nil {
		at = max(*from, s.base)
		if drop := min(at-s.base, int64(len(s.records))); drop > 0 {
			s.records, s.base = s.records[drop:], s.base+drop
		}
	}
	res = run.StepResult{RunID: id, Status: run.StatusContinued, Console: []run.Console{}, Seq: at}
	for at < s.base+int64(len(s.records)) {
		r := s.records[at-s.base]
		at++
		res.Seq = at
		if r.status == "" {
			res.Console = append(res.Console, run.Console{Type: r.kind, Data: r.text})
			continue
		}
		res.Status = r.status
		switch r.status {
		case run.StatusWaitingInput:
			if !s.asking {
				res.Status = run.StatusContinued
				continue // answered since
			}
			res.Options = &run.StepOptions{}
		case run.StatusFinished:
			code := s.code
			res.ExitCode = &code
		}
		break
	}
	s.seen = max(s.seen, at)
	return res, res.Status != run.StatusContinued
}

func (e *Engine) serveHello(_ context.Context, r *runner, _ *http.Request) (any, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	state := run.KernelIdle
	if r.busy != "" {
		state = run.KernelBusy
	}
	return run.Hello{
		Version: run.Version, MinVersion: run.MinVersion, Build: "fake", KernelID: string(r.c.key.kernel), PID: 1, StartedAt: r.c.started,
		Runtime:      run.RuntimeInfo{Type: "python", How: "shim"},
		Capabilities: []string{run.CanApps, run.CanBatch, run.CanDial, run.CanInput, run.CanQuery},
		Kernel:       run.KernelInfo{State: state, Runs: r.count}, Batch: r.batch,
	}, nil
}

func (e *Engine) serveBatch(_ context.Context, r *runner, _ *http.Request) (any, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	return r.batch, nil
}

func (e *Engine) serveInterrupt(_ context.Context, r *runner, req *http.Request) (any, error) {
	var in run.InterruptRequest
	if err := decode(req, &in); err != nil {
		return nil, err
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	s := r.runs[r.busy]
	if s == nil || s.over || in.RunID != "" && in.RunID != r.busy {
		return run.InterruptResult{}, nil
	}
	s.stop()
	s.add(record{kind: run.Stderr, text: "KeyboardInterrupt\n"})
	s.finish(130)
	return run.InterruptResult{Interrupted: true}, nil
}

func (e *Engine) serveShutdown(_ context.Context, r *runner, req *http.Request) (any, error) {
	var in run.ShutdownRequest
	if err := decode(req, &in); err != nil {
		return nil, err
	}
	// The answer comes before the end.
	e.opt.After(time.Millisecond, func() {
		e.mu.Lock()
		defer e.mu.Unlock()
		e.exit(r.c, r.asked(outcome{code: r.c.program.StopCode}))
	})
	return struct{}{}, nil
}

func (e *Engine) serveStep(ctx context.Context, r *runner, req *http.Request) (any, error) {
	id := req.PathValue("id")
	var in run.StepRequest
	if err := decode(req, &in); err != nil {
		return nil, err
	}
	e.mu.Lock()
	s, err := r.begin(id, in)
	if err != nil {
		e.mu.Unlock()
		return nil, err
	}
	late := make(chan struct{})
	if in.WaitMS > 0 {
		// The caller's patience is real time, whatever clock the sessions live on.
		t := time.AfterFunc(min(time.Duration(in.WaitMS)*time.Millisecond, run.MaxWait), func() { close(late) })
		defer t.Stop()
	} else {
		close(late)
	}
	for {
		res, ready := s.read(id, in.From)
		if ready || len(res.Console) > 0 {
			e.mu.Unlock()
			return res, nil
		}
		changed := s.wait()
		e.mu.Unlock()
		select {
		case <-changed:
		case <-late:
			return res, nil
		case <-ctx.Done():
			return nil, ctx.Err()
		}
		e.mu.Lock()
	}
}

// begin starts or finds the run of a step; the engine's mutex is held.
func (r *runner) begin(id string, in run.StepRequest) (*script, error) {
	s := r.runs[id]
	if r.c.phase != runtime.PhaseRunning && s == nil {
		return nil, fault.Unavailablef("the container of kernel %s does not run", r.c.key.kernel)
	}
	switch in.Mode {
	case run.ModeContinue:
		if s == nil {
			return nil, fault.NotFoundf("there is no run %s", id)
		}
		return s, nil
	case run.ModeInput:
		if s == nil || !s.asking {
			return nil, fault.Conflictf("run %s does not wait for input", id)
		}
		s.asking = false
		s.answer(in.Code)
		s.step()
		return s, nil
	case run.ModeQuery, run.ModeBatch:
	default:
		return nil, fault.Invalidf("%q is not a mode of execution", in.Mode)
	}
	if s != nil && (in.From != nil || !s.over || s.seen < s.base+int64(len(s.records))) {
		return s, nil // a repeated start
	}
	if busy := r.runs[r.busy]; busy != nil && !busy.over && r.busy != id {
		return nil, fault.Conflictf("run %s is still running", r.busy)
	}
	text := in.Code
	if in.Mode == run.ModeBatch && in.Options != nil {
		for _, part := range []*string{in.Options.Build, in.Options.Exec} {
			if part != nil && *part != "*" {
				text += "\n" + *part
			}
		}
	}
	s = newScript(r.e, text)
	s.finished = func(int) { r.count++ }
	r.order = append(slices.DeleteFunc(r.order, func(old string) bool { return old == id }), id)
	for len(r.order) > keepRuns {
		delete(r.runs, r.order[0])
		r.order = r.order[1:]
	}
	r.runs[id], r.busy = s, id
	s.step()
	return s, nil
}
