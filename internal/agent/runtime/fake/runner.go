package fake

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"path"
	"path/filepath"
	"strings"
	"time"

	"berth.dev/berth/internal/agent/runtime"
	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/fault"
	"berth.dev/berth/internal/wire/run"
)

// DefaultProgram is a container with a runner: it lives until it is asked to end, or until its
// batch command ends.
func DefaultProgram(runtime.Spec) Program {
	return Program{Output: "runner started\n"}
}

// runner is the fake PID 1 of one container. The engine's mutex guards it.
type runner struct {
	e   *Engine
	c   *container
	cfg *run.Config // nil when the container mounts none: then no token is asked for
	// result, started and ended are where the batch result and the markers go on this host; empty when nowhere.
	result, started, ended string

	runs  map[string]*script
	order []string // ids of runs, oldest first
	busy  string   // id of the run that runs
	count int64
	batch run.BatchState
	job   *script
	apps  apps
}

// keepRuns bounds the finished runs that are remembered.
const keepRuns = 8

// runnerOf returns the container's runner, reading its mounted configuration on first use; the engine's mutex is held.
func (e *Engine) runnerOf(c *container) *runner {
	if c.runner == nil {
		c.runner = &runner{e: e, c: c, runs: map[string]*script{}, batch: run.BatchState{Phase: run.BatchNone}}
		c.runner.configure()
	}
	return c.runner
}

// configure looks for the runner's configuration as the runner does: its path is the argument, seen
// through the container's mounts.
func (r *runner) configure() {
	for _, arg := range r.c.spec.Entry[1:] {
		host := hostPath(r.c.spec.Mounts, arg)
		if host == "" {
			continue
		}
		cfg, err := run.LoadConfig(host)
		if err != nil {
			continue
		}
		r.cfg = &cfg
		r.result = hostPath(r.c.spec.Mounts, cfg.ResultFile)
		r.started, r.ended = hostPath(r.c.spec.Mounts, cfg.StartedFile()), hostPath(r.c.spec.Mounts, cfg.EndedFile())
		return
	}
}

// hostPath translates a container path through the longest mount above it.
func hostPath(mounts []runtime.Mount, p string) string {
	best, out := -1, ""
	for _, m := range mounts {
		rel, ok := strings.CutPrefix(path.Clean(p), path.Clean(m.Target))
		if !ok || rel != "" && rel[0] != '/' || len(m.Target) <= best {
			continue
		}
		best, out = len(m.Target), filepath.Join(m.Source, filepath.FromSlash(rel))
	}
	return out
}

// startBatch runs the configured batch command, when the container has one.
func (e *Engine) startBatch(c *container) {
	if len(c.spec.Mounts) == 0 {
		return
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if c.phase != runtime.PhaseRunning {
		return
	}
	r := e.runnerOf(c)
	if r.cfg == nil || r.cfg.SessionType != "batch" || r.cfg.Batch == nil || r.job != nil {
		return
	}
	if _, err := os.Lstat(r.started); err == nil { // an earlier container of this generation has started it
		e.exit(c, outcome{code: 125})
		return
	}
	if r.started != "" && os.WriteFile(r.started, nil, 0o644) != nil {
		e.exit(c, outcome{code: 75})
		return
	}
	r.batch.Phase = run.BatchRunning
	e.runs[c.key]++
	r.job = newScript(e, r.cfg.Batch.Command)
	started := e.opt.Now()
	r.job.output = func(text string) { c.log.write(e.opt.Now(), text) }
	r.job.finished = func(code int) { r.finishBatch(code, started, false) }
	r.job.step()
}

// finishBatch records the result before anybody is told, then ends the container. The mutex is held.
func (r *runner) finishBatch(code int, started time.Time, cancelled bool) {
	if r.batch.Phase != run.BatchRunning {
		return
	}
	res := run.BatchResult{KernelID: string(r.c.key.kernel), ExitCode: code, StartedAt: started, EndedAt: r.e.opt.Now(), Cancelled: cancelled}
	if code > 128 {
		res.Signal = code - 128
	}
	r.batch = run.BatchState{Phase: run.BatchFinished, Result: &res}
	if r.result != "" {
		if b, err := json.Marshal(res); err == nil {
			tmp := r.result + ".new"
			if os.WriteFile(tmp, b, 0o644) == nil {
				_ = os.Rename(tmp, r.result) // a reader that finds none falls back to the exit code
			}
		}
	}
	r.e.exit(r.c, outcome{code: code})
}

// asked says how the container ends when it is asked to; the mutex is held.
func (r *runner) asked(how outcome) outcome {
	if r.batch.Phase == run.BatchRunning {
		r.finishBatch(143, r.c.started, true)
		return outcome{code: 143, signal: 15}
	}
	return how
}

// end stops everything that runs; the mutex is held.
func (r *runner) end() {
	if r.job != nil {
		r.job.stop()
	}
	for _, s := range r.runs {
		s.stop()
		s.finish(137)
	}
	r.hangUp(0)
	r.apps.states, r.apps.heard = nil, nil
}

// DialRunner connects to the runner of a running container.
func (r *Runtime) DialRunner(ctx context.Context, k cluster.KernelID) (net.Conn, error) {
	done, err := r.e.enter(ctx, Dial, k)
	if err != nil {
		return nil, err
	}
	r.e.mu.Lock()
	c, err := r.find(k)
	var run *runner
	if err == nil && c.phase != runtime.PhaseRunning {
		err = fault.Unavailablef("the container of kernel %s does not run", k)
	}
	if err == nil {
		run = r.e.runnerOf(c)
	}
	r.e.mu.Unlock()
	if err != nil {
		return nil, err
	}
	conn, err := r.e.runner.dial(ctx, run)
	if err != nil {
		return nil, err
	}
	return conn, done(nil)
}

// runnerServer serves the runners of all containers with one HTTP server over pipes: a session
// costs nothing until somebody dials it.
type runnerServer struct {
	e      *Engine
	conns  chan net.Conn
	closed chan struct{}
	http   *http.Server
	ended  chan struct{}
}

type runnerConn struct {
	net.Conn
	r *runner
}

// NetConn and CloseWrite are for tunnels.
func (c runnerConn) NetConn() net.Conn { return c.Conn }
func (c runnerConn) CloseWrite() error { return c.Conn.(interface{ CloseWrite() error }).CloseWrite() }

type runnerKey struct{}

func newRunnerServer(e *Engine) *runnerServer {
	s := &runnerServer{e: e, conns: make(chan net.Conn), closed: make(chan struct{}), ended: make(chan struct{})}
	mux := http.NewServeMux()
	handle := func(pattern string, h func(ctx context.Context, r *runner, req *http.Request) (any, error)) {
		mux.HandleFunc(pattern, func(w http.ResponseWriter, req *http.Request) {
			r := req.Context().Value(runnerKey{}).(*runner)
			w.Header().Set(run.HeaderVersion, "1")
			if r.cfg != nil && req.Header.Get("Authorization") != "Bearer "+r.cfg.Token {
				run.WriteFailure(w, fault.New(fault.Unauthenticated, "the runner's token is missing or wrong"))
				return
			}
			out, err := h(req.Context(), r, req)
			if err != nil {
				run.WriteFailure(w, err)
				return
			}
			w.Header().Set("Content-Type", "application/json")
			_ = json.NewEncoder(w).Encode(out) // a reader that went away needs no answer
		})
	}
	handle("GET "+run.PathHello, e.serveHello)
	handle("POST "+run.PathStep, e.serveStep)
	handle("POST "+run.PathInterrupt, e.serveInterrupt)
	handle("GET "+run.PathBatch, e.serveBatch)
	handle("POST "+run.PathComplete, func(context.Context, *runner, *http.Request) (any, error) {
		return run.CompleteResult{Completions: []string{}}, nil
	})
	handle("POST "+run.PathShutdown, e.serveShutdown)
	handle("POST "+run.PathKeys, e.serveKeys)
	handle("POST "+run.PathPeers, func(_ context.Context, _ *runner, req *http.Request) (any, error) {
		var in run.PeersRequest
		err := decode(req, &in)
		return run.PeersResult{Running: in.Running}, err
	})
	handle("POST "+run.PathNotice, func(context.Context, *runner, *http.Request) (any, error) { return run.NoticeResult{}, nil })
	handle("GET "+run.PathApps, e.serveApps)
	handle("POST "+run.PathAppStart, e.serveAppStart)
	handle("POST "+run.PathAppStop, e.serveAppStop)
	mux.HandleFunc("POST "+run.PathDial, e.serveDial)
	mux.HandleFunc("GET "+run.PathAppLog, func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, "the fake has no logs of apps\n")
	})
	handle("/", func(_ context.Context, _ *runner, req *http.Request) (any, error) {
		return nil, fault.Invalidf("the fake runner does not serve %s %s", req.Method, req.URL.Path)
	})
	s.http = &http.Server{
		Handler: mux, ReadHeaderTimeout: time.Minute,
		ConnContext: func(ctx context.Context, c net.Conn) context.Context {
			return context.WithValue(ctx, runnerKey{}, c.(runnerConn).r)
		},
	}
	go func() { // ends with close
		defer close(s.ended)
		_ = s.http.Serve(s) // always http.ErrServerClosed
	}()
	return s
}

func (s *runnerServer) dial(ctx context.Context, r *runner) (net.Conn, error) {
	near, far, err := s.e.pair()
	if err != nil {
		return nil, err
	}
	select {
	case s.conns <- runnerConn{far, r}:
		return near, nil
	case <-s.closed:
		err = fault.Unavailablef("the fake engine is closed")
	case <-ctx.Done():
		err = ctx.Err()
	}
	return nil, errors.Join(err, near.Close(), far.Close())
}

// Accept, Close and Addr make the server its own listener.
func (s *runnerServer) Accept() (net.Conn, error) {
	select {
	case c := <-s.conns:
		return c, nil
	case <-s.closed:
		return nil, net.ErrClosed
	}
}

func (s *runnerServer) Close() error {
	select {
	case <-s.closed:
	default:
		close(s.closed)
	}
	return nil
}

func (s *runnerServer) Addr() net.Addr { return &net.UnixAddr{Name: "fake", Net: "unix"} }

func (s *runnerServer) close() {
	_ = s.http.Close() // closes the listener, which is s, and every connection
	<-s.ended
}

func decode(req *http.Request, into any) error {
	if err := json.NewDecoder(io.LimitReader(req.Body, run.MaxRequest)).Decode(into); err != nil {
		return fault.Invalidf("the request is not what the runner expects").WithCause(err)
	}
	return nil
}
