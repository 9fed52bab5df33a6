package fake

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"slices"
	"strconv"
	"sync"
	"syscall"
	"time"

	"berth.dev/berth/internal/agent/runtime"
	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/fault"
	"berth.dev/berth/internal/wire/run"
	"berth.dev/berth/internal/wire/tunnel"
)

// Serve answers one connection to an app; the connection is closed when it returns.
type Serve func(conn net.Conn)

// DefaultApp is what containers serve when Options.App is nil: a page for HTTP, an echo for everything else.
func DefaultApp(spec runtime.Spec, app run.AppPort) Serve {
	if app.Protocol == run.AppHTTP {
		return HTTP(Page(spec, app))
	}
	return Echo
}

// Echo sends back what comes.
func Echo(conn net.Conn) { _, _ = io.Copy(conn, conn) }

// HTTP serves connections with a handler, upgrades included.
func HTTP(h http.Handler) Serve {
	return func(conn net.Conn) {
		l := &oneConn{conn: make(chan net.Conn, 1), over: make(chan struct{})}
		l.conn <- &endingConn{Conn: conn, end: sync.OnceFunc(func() { close(l.over) })}
		srv := &http.Server{Handler: h, ReadHeaderTimeout: time.Minute}
		_ = srv.Serve(l) // ends with the connection
	}
}

// Page tells which app of which kernel answers and what it was asked.
func Page(spec runtime.Spec, app run.AppPort) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
		w.Header().Set("Content-Type", "text/plain; charset=utf-8")
		fmt.Fprintf(w, "app %s of kernel %s\n%s %s\nHost: %s\n", app.Name, spec.Identity.Kernel, q.Method, q.URL.RequestURI(), q.Host)
		_ = q.Header.Write(w) // a reader that left
		_, _ = io.Copy(w, q.Body)
	})
}

// oneConn is a listener with one connection.
type oneConn struct {
	conn chan net.Conn
	over chan struct{}
}

func (l *oneConn) Accept() (net.Conn, error) {
	select {
	case c := <-l.conn:
		return c, nil
	case <-l.over:
		return nil, net.ErrClosed
	}
}
func (l *oneConn) Close() error   { return nil }
func (l *oneConn) Addr() net.Addr { return &net.UnixAddr{Name: "fake", Net: "unix"} }

// endingConn tells when it is closed.
type endingConn struct {
	net.Conn
	end func()
}

func (c *endingConn) Close() error {
	defer c.end()
	return c.Conn.Close()
}

func (c *endingConn) CloseWrite() error { return c.Conn.(interface{ CloseWrite() error }).CloseWrite() }

// own are the apps that every real runner serves itself.
var own = []run.AppPort{
	{Name: "sshd", Protocol: run.AppTCP, Ports: []int{tunnel.PortSSH}},
	{Name: "sftp", Protocol: run.AppTCP, Ports: []int{tunnel.PortSFTP}},
	{Name: "ttyd", Protocol: run.AppHTTP, Ports: []int{tunnel.PortTerminal}},
}

// apps are the apps of one container. The engine's mutex guards them.
type apps struct {
	states map[string]run.App // of declared apps that were started
	heard  map[int]heard      // ports that programs of the session listen on
	conns  map[net.Conn]int   // the apps' ends, by port
}

type heard struct {
	protocol run.AppProtocol
	serve    Serve
}

func (r *runner) declared() []run.AppPort {
	if r.cfg == nil {
		return nil
	}
	return r.cfg.Apps
}

// Listen makes a program of a kernel's session listen on a port until stop is called: a declared app on that port answers
// with it, any other port is noticed.
func (e *Engine) Listen(kernel cluster.KernelID, port int, protocol run.AppProtocol, serve Serve) (stop func(), err error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for k, c := range e.containers {
		if k.kernel != kernel || c.phase != runtime.PhaseRunning {
			continue
		}
		r := e.runnerOf(c)
		if r.apps.heard == nil {
			r.apps.heard = map[int]heard{}
		}
		r.apps.heard[port] = heard{protocol, serve}
		return func() {
			e.mu.Lock()
			defer e.mu.Unlock()
			delete(r.apps.heard, port)
			r.hangUp(port)
		}, nil
	}
	return nil, fault.NotFoundf("the container of kernel %s does not run", kernel)
}

// CrashApp ends a started app of a kernel for good, as one that failed too often.
func (e *Engine) CrashApp(kernel cluster.KernelID, name, detail string) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	for k, c := range e.containers {
		if k.kernel != kernel {
			continue
		}
		r := e.runnerOf(c)
		a, ok := r.apps.states[name]
		if !ok {
			break
		}
		r.apps.states[name] = run.App{AppPort: a.AppPort, Origin: run.AppDeclared, State: run.AppFailed, Detail: detail}
		for _, p := range a.Ports {
			r.hangUp(p)
		}
		return nil
	}
	return fault.NotFoundf("no app %s was started in kernel %s", name, kernel)
}

// hangUp ends the connections to a port, to all for 0; the mutex is held.
func (r *runner) hangUp(port int) {
	for c, p := range r.apps.conns {
		if port == 0 || p == port {
			_ = c.Close()
		}
	}
}

// app is how an app is now; the mutex is held.
func (r *runner) app(p run.AppPort) run.App {
	a, ok := r.apps.states[p.Name]
	if !ok {
		a = run.App{AppPort: p, Origin: run.AppDeclared, State: run.AppStopped}
	}
	if _, listens := r.apps.heard[p.Ports[0]]; listens && a.State != run.AppReady {
		a = run.App{AppPort: p, Origin: run.AppDeclared, State: run.AppReady}
	} else if !ok && p.Protocol != run.AppPreopen && r.e.opt.App(r.c.spec, p) == nil {
		a.State, a.Detail = run.AppMissing, "the image has no program for app "+p.Name
	}
	return a
}

func (e *Engine) serveApps(_ context.Context, r *runner, _ *http.Request) (any, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	out := run.AppList{Apps: []run.App{}}
	taken := map[int]bool{}
	for _, p := range own {
		out.Apps = append(out.Apps, run.App{AppPort: p, Origin: run.AppIntrinsic, State: run.AppReady})
		taken[p.Ports[0]] = true
	}
	for _, p := range r.declared() {
		out.Apps = append(out.Apps, r.app(p))
		for _, n := range p.Ports {
			taken[n] = true
		}
	}
	var ports []int
	for n := range r.apps.heard {
		if !taken[n] {
			ports = append(ports, n)
		}
	}
	slices.Sort(ports)
	for _, n := range ports {
		out.Apps = append(out.Apps, r.noticed(n))
	}
	return out, nil
}

func (r *runner) noticed(port int) run.App {
	return run.App{AppPort: run.AppPort{Name: "port-" + strconv.Itoa(port), Protocol: r.apps.heard[port].protocol, Ports: []int{port}},
		Origin: run.AppNoticed, State: run.AppReady}
}

// find looks an app up by its name; the mutex is held.
func (r *runner) find(name string) (a run.App, err error) {
	for _, p := range own {
		if p.Name == name {
			return run.App{AppPort: p, Origin: run.AppIntrinsic, State: run.AppReady}, nil
		}
	}
	for _, p := range r.declared() {
		if p.Name == name {
			return r.app(p), nil
		}
	}
	for n := range r.apps.heard {
		if a := r.noticed(n); a.Name == name {
			return a, nil
		}
	}
	return run.App{}, fault.NotFoundf("the session has no app %q", name).WithReason("no-such-app")
}

func (e *Engine) serveAppStart(_ context.Context, r *runner, req *http.Request) (any, error) {
	var in run.AppStartRequest
	if err := decode(req, &in); err != nil {
		return nil, err
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	a, err := r.find(req.PathValue("name"))
	if err != nil {
		return nil, err
	}
	port := in.Port
	switch {
	case port == 0:
		port = a.Ports[0]
	case !slices.Contains(a.Ports, port):
		return nil, fault.Invalidf("app %s does not listen on port %d", a.Name, port)
	}
	if a.State == run.AppReady {
		return run.AppStartResult{App: a, Port: port}, nil
	}
	if a.Protocol == run.AppPreopen {
		return nil, refused(port)
	}
	if r.e.opt.App(r.c.spec, a.AppPort) == nil {
		return nil, fault.NotFoundf("the image has no program for app %s", a.Name).WithReason("app-missing").
			WithNext("choose an image that has it")
	}
	now := e.opt.Now()
	a = run.App{AppPort: a.AppPort, Origin: run.AppDeclared, State: run.AppReady, PID: 100 + port, StartedAt: &now}
	if r.apps.states == nil {
		r.apps.states = map[string]run.App{}
	}
	r.apps.states[a.Name] = a
	return run.AppStartResult{App: a, Port: port}, nil
}

func (e *Engine) serveAppStop(_ context.Context, r *runner, req *http.Request) (any, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	a, err := r.find(req.PathValue("name"))
	if err != nil {
		return nil, err
	}
	switch {
	case a.Origin == run.AppIntrinsic:
		return nil, fault.Conflictf("app %s is part of every session and cannot be stopped", a.Name).WithReason("app-intrinsic")
	case a.State == run.AppReady && a.PID == 0:
		return nil, fault.Conflictf("what listens on port %d was not started as app %s", a.Ports[0], a.Name).WithReason("not-ours")
	}
	delete(r.apps.states, a.Name)
	for _, p := range a.Ports {
		r.hangUp(p)
	}
	return r.app(a.AppPort), nil
}

func refused(port int) error {
	return fault.Unavailablef("nothing listens on port %d in the session", port).WithReason("app-refused").
		WithNext("start the program that should listen there, then try again")
}

// listener is what answers on a port; the mutex is held.
func (r *runner) listener(port int) (Serve, bool) {
	if h, ok := r.apps.heard[port]; ok {
		return h.serve, true
	}
	for _, p := range own {
		if p.Ports[0] == port {
			s := r.e.opt.App(r.c.spec, p)
			return s, s != nil
		}
	}
	for _, a := range r.apps.states {
		if a.State == run.AppReady && slices.Contains(a.Ports, port) {
			s := r.e.opt.App(r.c.spec, a.AppPort)
			return s, s != nil
		}
	}
	return nil, false
}

// serveDial connects to what listens in a container.
func (e *Engine) serveDial(w http.ResponseWriter, q *http.Request) {
	r := q.Context().Value(runnerKey{}).(*runner)
	port, err := strconv.Atoi(q.URL.Query().Get("port"))
	switch {
	case r.cfg != nil && q.Header.Get("Authorization") != "Bearer "+r.cfg.Token:
		err = fault.New(fault.Unauthenticated, "the runner's token is missing or wrong")
	case err != nil || port < 1 || port > 65535 || !tunnel.Asked(q):
		err = fault.Invalidf("this is no request for a tunnel to a port")
	}
	var near net.Conn
	if err == nil {
		near, err = r.connect(port)
	}
	if err != nil {
		run.WriteFailure(w, err)
		return
	}
	_, _, _ = tunnel.Accept(w, q, near) // a caller that left needs no answer
}

// connect returns the caller's end of a new connection to a port.
func (r *runner) connect(port int) (net.Conn, error) {
	r.e.mu.Lock()
	defer r.e.mu.Unlock()
	serve, ok := r.listener(port)
	if !ok || r.c.phase != runtime.PhaseRunning {
		return nil, refused(port)
	}
	near, far, err := r.e.pair()
	if err != nil {
		return nil, err
	}
	if r.apps.conns == nil {
		r.apps.conns = map[net.Conn]int{}
	}
	r.apps.conns[far] = port
	go func() { // ends with the container, at the latest
		serve(far)
		_ = far.Close()
		r.e.mu.Lock()
		defer r.e.mu.Unlock()
		delete(r.apps.conns, far)
	}()
	return near, nil
}

// pair returns two connected ends: sockets where the engine's connections are, else in memory.
func (e *Engine) pair() (a, b net.Conn, err error) {
	if !e.opt.Sockets {
		a, b = pipe()
		return a, b, nil
	}
	fds, err := syscall.Socketpair(syscall.AF_UNIX, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC|syscall.SOCK_NONBLOCK, 0)
	if err != nil {
		return nil, nil, fmt.Errorf("make a pair of sockets: %w", err)
	}
	var ends [2]net.Conn
	for i, fd := range fds {
		f := os.NewFile(uintptr(fd), "fake")
		c, ferr := net.FileConn(f) // a copy
		_ = f.Close()
		ends[i], err = c, errors.Join(err, ferr)
	}
	return ends[0], ends[1], err
}

// halves is a connection in memory that can be closed by half, unlike net.Pipe.
type halves struct{ in, out net.Conn }

func pipe() (a, b net.Conn) {
	r1, w1 := net.Pipe()
	r2, w2 := net.Pipe()
	return &halves{r1, w2}, &halves{r2, w1}
}

func (h *halves) Read(p []byte) (int, error)  { return h.in.Read(p) }
func (h *halves) Write(p []byte) (int, error) { return h.out.Write(p) }
func (h *halves) CloseWrite() error           { return h.out.Close() }
func (h *halves) Close() error                { return errors.Join(h.in.Close(), h.out.Close()) }
func (h *halves) LocalAddr() net.Addr         { return h.in.LocalAddr() }
func (h *halves) RemoteAddr() net.Addr        { return h.in.RemoteAddr() }
func (h *halves) SetDeadline(t time.Time) error {
	return errors.Join(h.in.SetReadDeadline(t), h.out.SetWriteDeadline(t))
}
func (h *halves) SetReadDeadline(t time.Time) error  { return h.in.SetReadDeadline(t) }
func (h *halves) SetWriteDeadline(t time.Time) error { return h.out.SetWriteDeadline(t) }
