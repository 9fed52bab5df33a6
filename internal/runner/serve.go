package runner

import (
	"bytes"
	"context"
	"crypto/subtle"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"os"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"berth.dev/berth/internal/fault"
	"berth.dev/berth/internal/runner/python"
	"berth.dev/berth/internal/wire/run"
)

// maxConns bounds the connections to the socket.
const maxConns = 256

type server struct {
	http *http.Server
	r    *Runner
}

// listen serves the socket.
func (r *Runner) listen() (*server, error) {
	_ = os.Remove(r.cfg.Socket) // of an earlier life of this container
	l, err := net.Listen("unix", r.cfg.Socket)
	if err != nil {
		return nil, fmt.Errorf("listen on %s: %w", r.cfg.Socket, err)
	}
	// The agent may run as anybody; the token, not the file's mode, says who may call.
	if err := os.Chmod(r.cfg.Socket, 0o666); err != nil {
		l.Close()
		return nil, fmt.Errorf("listen on %s: %w", r.cfg.Socket, err)
	}
	s := &server{r: r, http: &http.Server{
		Handler:           r.handler(),
		ReadHeaderTimeout: 10 * time.Second,
		IdleTimeout:       5 * time.Minute,
		MaxHeaderBytes:    64 << 10,
		ErrorLog:          log.New(io.Discard, "", 0),
		ConnContext:       func(ctx context.Context, c net.Conn) context.Context { return context.WithValue(ctx, connKey{}, c) },
	}}
	r.tasks.Add(1)
	go func() {
		defer r.tasks.Done()
		if err := s.http.Serve(&bounded{Listener: l, free: make(chan struct{}, maxConns)}); !errors.Is(err, http.ErrServerClosed) {
			r.log.Error("the runner stopped serving", "err", err)
		}
	}()
	return s, nil
}

// shutdown lets replies that are being written come to their end, briefly.
func (s *server) shutdown() {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	if s.http.Shutdown(ctx) != nil {
		_ = s.http.Close()
	}
}

// bounded accepts no more than cap(free) connections at a time, and none from inside the container.
type bounded struct {
	net.Listener
	free chan struct{}
}

func (b *bounded) Accept() (net.Conn, error) {
	b.free <- struct{}{}
	c, err := b.Listener.Accept()
	for err == nil && fromInside(c) {
		_ = c.Close()
		c, err = b.Listener.Accept()
	}
	if err != nil {
		<-b.free
		return nil, err
	}
	return &boundedConn{Conn: c, free: sync.OnceFunc(func() { <-b.free })}, nil
}

// fromInside reports whether a process of the container connected. It has no token and cannot do anything, but could take all
// places. To PID 1 of a container processes outside have no number.
func fromInside(c net.Conn) bool {
	u, ok := c.(*net.UnixConn)
	if !ok || os.Getpid() != 1 {
		return false
	}
	rc, err := u.SyscallConn()
	if err != nil {
		return false
	}
	inside := false
	_ = rc.Control(func(fd uintptr) { // the token decides where the kernel does not tell
		peer, err := syscall.GetsockoptUcred(int(fd), syscall.SOL_SOCKET, syscall.SO_PEERCRED)
		inside = err == nil && peer.Pid != 0
	})
	return inside
}

type boundedConn struct {
	net.Conn
	free func()
}

// connKey is where a request's context has its connection.
type connKey struct{}

// NetConn returns the socket itself.
func (c *boundedConn) NetConn() net.Conn { return c.Conn }

// CloseWrite lets a tunnel's end of one direction be passed on.
func (c *boundedConn) CloseWrite() error {
	if h, ok := c.Conn.(interface{ CloseWrite() error }); ok {
		return h.CloseWrite()
	}
	return errors.ErrUnsupported
}

// release gives the connection's place to another while it stays open.
func (c *boundedConn) release() { c.free() }

func (c *boundedConn) Close() error {
	c.free()
	return c.Conn.Close()
}

// handler checks version and token before any route.
func (r *Runner) handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET "+run.PathHello, reply(r.serveHello))
	mux.HandleFunc("POST "+run.PathStep, r.serveStep)
	mux.HandleFunc("POST "+run.PathInterrupt, reply(r.serveInterrupt))
	mux.HandleFunc("POST "+run.PathNotice, reply(r.serveNotice))
	mux.HandleFunc("POST "+run.PathKeys, reply(r.serveKeys))
	mux.HandleFunc("POST "+run.PathPeers, reply(r.servePeers))
	mux.HandleFunc("POST "+run.PathComplete, reply(r.serveComplete))
	mux.HandleFunc("GET "+run.PathFiles, reply(r.serveFiles))
	mux.HandleFunc("POST "+run.PathUpload, reply(r.serveUpload))
	mux.HandleFunc("GET "+run.PathDownload, r.serveDownload)
	mux.HandleFunc("GET "+run.PathBatch, reply(r.serveBatch))
	mux.HandleFunc("POST "+run.PathShutdown, reply(r.serveShutdown))
	mux.HandleFunc("POST "+run.PathConfine, r.serveConfine)
	mux.HandleFunc("POST "+run.PathPTY, r.servePTY)
	mux.HandleFunc("POST "+run.PathExec, r.serveExec)
	mux.HandleFunc("POST "+run.PathDial, r.serveDial)
	mux.HandleFunc("GET "+run.PathApps, reply(r.serveApps))
	mux.HandleFunc("POST "+run.PathAppStart, reply(r.serveAppStart))
	mux.HandleFunc("POST "+run.PathAppStop, reply(r.serveAppStop))
	mux.HandleFunc("GET "+run.PathAppLog, r.serveAppLog)
	mux.HandleFunc("/", func(w http.ResponseWriter, q *http.Request) {
		run.WriteFailure(w, fault.NotFoundf("the runner has no %s %s", q.Method, q.URL.Path).WithReason(run.ReasonNoRoute))
	})
	return http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
		w.Header().Set(run.HeaderVersion, strconv.Itoa(run.Version))
		if q.URL.Path == run.PathPTY || q.URL.Path == run.PathExec {
			// The body of a stream does not end before the reply: never wait for its end.
			rc := http.NewResponseController(w)
			_ = rc.EnableFullDuplex()                                  // HTTP/1.1 on a socket can
			defer func() { _ = rc.SetReadDeadline(time.Unix(1, 0)) }() // fails after an upgrade, which closes by itself
		}
		token, ok := strings.CutPrefix(q.Header.Get("Authorization"), "Bearer ")
		if !ok || subtle.ConstantTimeCompare([]byte(token), []byte(r.cfg.Token)) != 1 {
			run.WriteFailure(w, fault.New(fault.Unauthenticated, "the token of this session's runner is missing or wrong"))
			return
		}
		if v := q.Header.Get(run.HeaderVersion); v != "" {
			if n, err := strconv.Atoi(v); err != nil || n < run.MinVersion || n > run.Version {
				run.WriteFailure(w, fault.Invalidf("this runner serves protocol versions %d to %d, not %q", run.MinVersion, run.Version, v).
					WithReason("version"))
				return
			}
		}
		mux.ServeHTTP(w, q)
	})
}

// reply turns a function into a handler that answers in JSON.
func reply[T any](fn func(*http.Request) (T, error)) http.HandlerFunc {
	return func(w http.ResponseWriter, q *http.Request) {
		v, err := fn(q)
		if err != nil {
			run.WriteFailure(w, err)
			return
		}
		_ = writeJSON(w, v) // a caller that left needs no answer
	}
}

func writeJSON(w http.ResponseWriter, v any) error {
	if fast, ok := v.(interface{ Wire() any }); ok {
		v = fast.Wire()
	}
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(v); err != nil {
		run.WriteFailure(w, err)
		return err
	}
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Content-Length", strconv.Itoa(b.Len()))
	_, err := w.Write(b.Bytes())
	return err
}

func readJSON(q *http.Request, v any) error {
	d := json.NewDecoder(io.LimitReader(q.Body, run.MaxRequest+1))
	if err := d.Decode(v); err != nil {
		if d.InputOffset() > run.MaxRequest || q.ContentLength > run.MaxRequest {
			return fault.Exhaustedf("the request has more than %d bytes", run.MaxRequest)
		}
		return fault.Invalidf("the request is not the JSON that this call takes").WithCause(err)
	}
	return nil
}

// serveKeys takes the SSH keys that may log in.
func (r *Runner) serveKeys(q *http.Request) (run.KeysResult, error) {
	var req run.KeysRequest
	if err := readJSON(q, &req); err != nil {
		return run.KeysResult{}, err
	}
	if len(req.Keys) > run.MaxKeys {
		return run.KeysResult{}, fault.Invalidf("these are %d keys, %d are the most", len(req.Keys), run.MaxKeys)
	}
	return run.KeysResult{Ended: r.ssh.SetKeys(req.Keys)}, nil
}

func (r *Runner) serveHello(*http.Request) (run.Hello, error) {
	h := run.Hello{Version: run.Version, MinVersion: run.MinVersion, Build: build(), KernelID: r.cfg.KernelID, PID: os.Getpid(),
		StartedAt:    r.started,
		Runtime:      run.RuntimeInfo{Type: r.recipe.Name, Path: r.tool, How: "none"},
		Capabilities: []string{run.CanApps, run.CanBatch, run.CanConfine, run.CanDial, run.CanExec, run.CanFiles},
		Kernel:       run.KernelInfo{State: run.KernelNone},
	}
	if r.hasTool {
		h.Runtime.How = "recipe"
		h.Capabilities = append(h.Capabilities, run.CanQuery)
	}
	if r.shell != "" {
		h.Capabilities = append(h.Capabilities, run.CanPTY)
	}
	if r.python != nil {
		state, pid, how := r.python.Info()
		h.Kernel.State, h.Kernel.PID = run.KernelState(state), pid
		if h.Runtime.How = how; how == "" {
			h.Runtime.How = "unknown"
		}
		h.Capabilities = append(h.Capabilities, run.CanInput, run.CanComplete)
	}
	if r.peers != nil {
		h.Capabilities = append(h.Capabilities, run.CanPeers)
	}
	slices.Sort(h.Capabilities)
	r.queue.mu.Lock()
	h.Kernel.Runs = r.queue.count
	if r.queue.current != nil {
		h.Kernel.State = run.KernelBusy // whatever executes it: an interpreter or a recipe
	}
	r.queue.mu.Unlock()
	h.Batch, _ = r.serveBatch(nil)
	return h, nil
}

// build names the source this runner was built from.
func build() string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return ""
	}
	for _, s := range info.Settings {
		if s.Key == "vcs.revision" {
			return s.Value
		}
	}
	return info.Main.Version
}

func (r *Runner) serveBatch(*http.Request) (run.BatchState, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.batchSt, nil
}

func (r *Runner) serveStep(w http.ResponseWriter, q *http.Request) {
	var req run.StepRequest
	if err := readJSON(q, &req); err != nil {
		run.WriteFailure(w, err)
		return
	}
	res, deliver, err := r.queue.step(q.Context(), q.PathValue("id"), req)
	if err != nil {
		run.WriteFailure(w, err)
		return
	}
	if writeJSON(w, res) == nil && http.NewResponseController(w).Flush() == nil {
		deliver()
	}
}

func (r *Runner) serveInterrupt(q *http.Request) (run.InterruptResult, error) {
	var req run.InterruptRequest
	if err := readJSON(q, &req); err != nil {
		return run.InterruptResult{}, err
	}
	return run.InterruptResult{Interrupted: r.interrupt(req.RunID)}, nil
}

func (r *Runner) serveComplete(q *http.Request) (run.CompleteResult, error) {
	var req run.CompleteRequest
	res := run.CompleteResult{Completions: []string{}}
	if err := readJSON(q, &req); err != nil || r.python == nil {
		return res, err
	}
	code, cursor := req.Code, len([]rune(req.Code))
	switch o := req.Options; {
	case o.Line != "" && code == "":
		code, cursor = o.Line+o.Post, len([]rune(o.Line))
	case o != run.CompleteOptions{}:
		if at, ok := python.CursorAt(code, o.Row, o.Col); ok && (o.Row > 0 || o.Col > 0 || code == "") {
			cursor = at
		}
	}
	words, err := r.python.Complete(q.Context(), code, cursor)
	if errors.Is(err, python.ErrBusy) {
		return res, nil // as an editor expects it: nothing to offer just now
	}
	if err != nil {
		return res, fault.Unavailablef("nothing can be completed").WithCause(err)
	}
	res.Completions = append(res.Completions, words[:min(len(words), 1000)]...)
	return res, nil
}

func (r *Runner) serveFiles(q *http.Request) (run.Listing, error) {
	p := q.URL.Query().Get("path")
	if p == "" {
		p = "."
	}
	return r.tree.List(p)
}

func (r *Runner) serveUpload(q *http.Request) (run.UploadResult, error) {
	res, names, err := r.tree.Upload(q.Context(), q.Header.Get("Content-Type"), q.Body)
	if len(names) > 0 {
		r.mu.Lock()
		r.uploads = names
		r.mu.Unlock()
	}
	return res, err
}

func (r *Runner) serveDownload(w http.ResponseWriter, q *http.Request) {
	begun := false
	err := r.tree.Download(q.Context(), q.URL.Query()["path"], func() io.Writer {
		begun = true
		w.Header().Set("Content-Type", run.ContentTar)
		return w
	})
	switch {
	case err == nil:
	case !begun:
		run.WriteFailure(w, err)
	default:
		r.log.Warn("a download broke off", "err", err)
		panic(http.ErrAbortHandler) // the only way to tell the reader that the stream is not whole
	}
}

func (r *Runner) serveShutdown(q *http.Request) (struct{}, error) {
	var req run.ShutdownRequest
	if err := readJSON(q, &req); err != nil {
		return struct{}{}, err
	}
	if req.GraceMS < 0 {
		return struct{}{}, fault.Invalidf("grace_ms is negative")
	}
	select {
	case r.stop <- time.Duration(req.GraceMS) * time.Millisecond:
	default: // told before
	}
	return struct{}{}, nil
}
