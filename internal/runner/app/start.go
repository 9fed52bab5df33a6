package app

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"berth.dev/berth/internal/fault"
	"berth.dev/berth/internal/runner/proc"
	"berth.dev/berth/internal/runner/recipe"
	"berth.dev/berth/internal/wire/run"
)

// startWait is how long a start waits for its app when the request does not say.
const startWait = 20 * time.Second

// Start starts an app unless it runs, and waits as run.AppStartRequest says. Who comes while it is being started waits for
// the same start.
func (s *Set) Start(ctx context.Context, name string, req run.AppStartRequest) (run.AppStartResult, error) {
	wait := time.Duration(req.WaitMS) * time.Millisecond
	switch {
	case wait < 0:
		return run.AppStartResult{}, fault.Invalidf("wait_ms is negative")
	case wait == 0:
		wait = startWait
	}
	within, cancel := context.WithTimeout(ctx, min(wait, run.MaxWait))
	defer cancel()
	if p, ok := s.own(name); ok {
		port, err := portOf(p, req.Port)
		return run.AppStartResult{App: run.App{AppPort: p, Origin: run.AppIntrinsic, State: run.AppReady}, Port: port}, err
	}
	a := s.find(name)
	if a == nil {
		port, ok := noticedPort(name)
		if !ok {
			return run.AppStartResult{}, s.unknown(name)
		}
		return s.startNoticed(within, port)
	}
	port, err := portOf(a.AppPort, req.Port)
	if err != nil {
		return run.AppStartResult{}, err
	}
	p := s.planNow(a)
	if p.waits {
		return s.awaitOther(within, ctx, a, p, port)
	}
	return s.startDeclared(within, ctx, a, p, port, req)
}

func portOf(p run.AppPort, asked int) (int, error) {
	if asked == 0 {
		return p.Ports[0], nil
	}
	if !slices.Contains(p.Ports, asked) {
		return 0, fault.Invalidf("app %s does not listen on port %d", p.Name, asked).
			WithNext("its ports are %s", strings.Trim(strings.Join(strings.Fields(fmt.Sprint(p.Ports)), ", "), "[]"))
	}
	return asked, nil
}

// startNoticed answers for a port that a program of the session listens on.
func (s *Set) startNoticed(ctx context.Context, port int) (run.AppStartResult, error) {
	if err := s.Serves(port); err != nil {
		return run.AppStartResult{}, err
	}
	if !answers(ctx, port, run.AppTCP) {
		return run.AppStartResult{}, nobodyListens(port)
	}
	protocol := run.AppTCP
	if l, ok := s.noticer.listening()[port]; ok {
		protocol = s.noticer.protocols(ctx, []listener{l}, openPatience)[port]
	}
	return run.AppStartResult{App: run.App{AppPort: noticedApp(port, protocol), Origin: run.AppNoticed, State: run.AppReady}, Port: port}, nil
}

func nobodyListens(port int) error {
	return fault.Unavailablef("nothing listens on port %d in the session", port).WithReason("app-refused").
		WithNext("start the program that should listen on port %d (on 127.0.0.1 or 0.0.0.0), then try again", port)
}

// awaitOther waits for an app that the session starts itself.
func (s *Set) awaitOther(within, ctx context.Context, a *app, p plan, port int) (run.AppStartResult, error) {
	if !await(within, port, run.AppTCP) {
		if ctx.Err() != nil {
			return run.AppStartResult{}, ctx.Err()
		}
		return run.AppStartResult{}, nobodyListens(port)
	}
	return run.AppStartResult{App: s.seen(a, p), Port: port}, nil
}

// seen is the view of an app, by listeners that are read now.
func (s *Set) seen(a *app, p plan) run.App {
	s.noticer.forget()
	open := s.noticer.listening()
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.view(a, p, open)
}

// startDeclared begins a life of an app, or joins the one that it has, and waits until it is ready or over.
func (s *Set) startDeclared(within, ctx context.Context, a *app, p plan, port int, req run.AppStartRequest) (run.AppStartResult, error) {
	result := func() (run.AppStartResult, error) { return run.AppStartResult{App: s.seen(a, p), Port: port}, nil }
	s.mu.Lock()
	if a.life == nil {
		s.mu.Unlock()
		// A program that listens there already is as good, and a second one would only fail. At the port of what is not
		// installed it is somebody else.
		if !(a.origin == run.AppInstalled && p.err != nil) && answers(within, port, run.AppTCP) {
			return result()
		}
		if p.err != nil {
			return run.AppStartResult{}, p.err
		}
		s.mu.Lock()
	}
	var mine *life
	for {
		switch {
		case s.closed:
			s.mu.Unlock()
			return run.AppStartResult{}, fault.Conflictf("the session ends").WithReason("session-ends")
		case mine != nil && a.life != mine:
			s.mu.Unlock()
			if mine.err != nil {
				return run.AppStartResult{}, mine.err
			}
			if mine.stopping {
				return run.AppStartResult{}, fault.Conflictf("app %s was stopped while it started", a.Name).WithReason("app-stopped").
					WithNext("start it again")
			}
			return result() // it left what answers, or ended well after it was ready
		case a.life == nil:
			if err := p.allows(req.Envs, req.Arguments); err != nil {
				s.mu.Unlock()
				return run.AppStartResult{}, err
			}
			mine = s.begin(a, p, port, req)
		case mine == nil && !a.life.stopping:
			mine = a.life
		}
		if mine != nil && a.state == run.AppReady && !mine.stopping {
			s.mu.Unlock()
			return result()
		}
		changed := s.changed
		s.mu.Unlock()
		select {
		case <-changed:
		case <-within.Done():
			if ctx.Err() != nil {
				return run.AppStartResult{}, ctx.Err()
			}
			return result()
		}
		s.mu.Lock()
	}
}

// begin starts a life. The mutex is held.
func (s *Set) begin(a *app, p plan, port int, req run.AppStartRequest) *life {
	ctx, stop := context.WithCancel(s.ctx)
	l := &life{stop: stop, over: make(chan struct{})}
	a.life, a.state, a.detail, a.pid, a.restarts, a.started = l, run.AppStarting, "", 0, 0, s.c.Now()
	a.log.forget()
	s.changes()
	s.tasks.Go(func() {
		defer stop()
		state, detail, err := s.live(ctx, a, p, port, req)
		s.c.Log.Info("an app ended", "app", a.Name, "state", state, "detail", detail)
		s.noticer.forget()
		s.mu.Lock()
		defer s.mu.Unlock()
		a.life, a.state, a.detail, a.pid, a.started, l.err = nil, state, detail, 0, time.Time{}, err
		close(l.over)
		s.changes()
	})
	return l
}

// Stop ends an app and returns when it has ended.
func (s *Set) Stop(ctx context.Context, name string) (run.App, error) {
	a := s.find(name)
	if a == nil {
		port, ok := noticedPort(name)
		if _, own := s.own(name); own {
			return run.App{}, fault.Conflictf("app %s is part of every session and cannot be stopped", name).WithReason("app-intrinsic")
		} else if ok {
			return run.App{}, notOurs(name, port)
		}
		return run.App{}, s.unknown(name)
	}
	p := s.planNow(a)
	s.mu.Lock()
	l := a.life
	if l == nil {
		a.state, a.detail, a.restarts = run.AppStopped, "", 0 // what failed is settled by that
		s.changes()
		s.mu.Unlock()
		v := s.seen(a, p)
		if v.State == run.AppReady {
			return v, notOurs(name, a.Ports[0])
		}
		return v, nil
	}
	l.stopping = true
	s.changes()
	s.mu.Unlock()
	l.stop()
	select {
	case <-l.over:
		return s.seen(a, p), nil
	case <-ctx.Done():
		return run.App{}, ctx.Err()
	}
}

func notOurs(name string, port int) error {
	return fault.Conflictf("what listens on port %d was not started as app %s", port, name).WithReason("not-ours").
		WithNext("end the program where it was started, for example in a terminal of the session")
}

// live is all of a start: what comes before it, the process, its restarts and its end.
func (s *Set) live(ctx context.Context, a *app, p plan, port int, req run.AppStartRequest) (run.AppState, string, error) {
	stopped := func() (run.AppState, string, error) { return run.AppStopped, "", nil }
	failed := func(err error) (run.AppState, string, error) {
		if ctx.Err() != nil {
			return stopped()
		}
		a.log.note("%s", printable(err.Error()))
		if fault.ReasonOf(err) == "app-missing" {
			return run.AppMissing, wordsOf(err), err
		}
		return run.AppFailed, wordsOf(err), err
	}
	c, err := s.compose(ctx, a, p, req)
	if err != nil {
		return failed(err)
	}
	var restarts []time.Time
	ready := false // once
	for {
		a.log.note("start %s", shown(c.argv))
		end := s.once(ctx, a, c, port)
		switch {
		case ctx.Err() != nil:
			return stopped()
		case end.err != nil:
			return failed(end.err)
		case end.status.Code == 0 && (end.ready || ready):
			if answers(ctx, port, run.AppTCP) { // it went into the background; what it left is seen by its port
				return stopped()
			}
			return run.AppStopped, "it ended by itself", nil
		case end.status.Code == 0:
			within, cancel := context.WithTimeout(ctx, s.c.Policy.DetachedIn)
			left := await(within, port, probed(a.Protocol))
			cancel()
			if left {
				return stopped()
			}
			return failed(s.failure(a, "app %s ended (code 0) and left nothing that listens on port %d", a.Name, port))
		case !ready && !end.ready:
			return failed(s.failure(a, "app %s %s before it answered on port %d", a.Name, ending(end.status), port))
		}
		ready = true
		now := s.c.Now()
		restarts = slices.DeleteFunc(restarts, func(t time.Time) bool { return now.Sub(t) >= s.c.Policy.Window })
		if len(restarts) >= s.c.Policy.Restarts {
			return failed(s.failure(a, "app %s %s and was started again %d times within %s", a.Name, ending(end.status), len(restarts),
				s.c.Policy.Window))
		}
		pause := min(s.c.Policy.Pause<<len(restarts), 30*time.Second)
		restarts = append(restarts, now)
		s.mu.Lock()
		a.restarts++
		a.state, a.pid, a.detail = run.AppStarting, 0, "it "+ending(end.status)+" and is started again"
		s.changes()
		s.mu.Unlock()
		a.log.note("it %s; it is started again in %s", ending(end.status), pause)
		t := time.NewTimer(pause)
		select {
		case <-t.C:
		case <-ctx.Done():
			t.Stop()
			return stopped()
		}
	}
}

// shown is the beginning of a command for people.
func shown(argv []string) string {
	const most = 4 << 10
	var b strings.Builder
	for i, w := range argv {
		if i > 0 {
			b.WriteByte(' ')
		}
		if b.WriteString(w[:min(len(w), most)]); b.Len() > most {
			return printable(b.String()[:most]) + "…"
		}
	}
	return printable(b.String())
}

// probed is the protocol that a probe speaks.
func probed(p run.AppProtocol) run.AppProtocol {
	if p == run.AppHTTP {
		return run.AppHTTP
	}
	return run.AppTCP
}

func ending(st proc.Status) string {
	if st.Signal == syscall.SIGKILL {
		return "was killed (perhaps for want of memory)"
	}
	if st.Signal != 0 {
		return "was ended by signal " + fmt.Sprint(int(st.Signal)) + " (" + st.Signal.String() + ")"
	}
	return "ended with code " + fmt.Sprint(st.Code)
}

// failure says what happened with the last lines that the app wrote.
func (s *Set) failure(a *app, format string, args ...any) error {
	e := fault.Unavailablef(format, args...).WithReason("app-failed").
		WithNext("read the app's log; correct what it says and start the app again")
	if lines := a.log.lastLines(); lines != "" {
		e.Msg += ". Its last lines:\n" + lines
	}
	return e
}

// composed is a command with everything put in.
type composed struct {
	file      string
	argv, env []string
}

// compose does what comes before a start and puts the command together.
func (s *Set) compose(ctx context.Context, a *app, p plan, req run.AppStartRequest) (composed, error) {
	wrong := func(err error) (composed, error) {
		return composed{}, fault.Invalidf("app %s cannot be started as the image's definition says", a.Name).WithReason("app-definition").
			WithNext("correct the definition in the image, or start the program in a terminal and open port-%d", a.Ports[0]).WithCause(err)
	}
	v := s.values(a, p.program)
	if err := s.prepare(ctx, p.Definition, s.c.Env, v, a.log); err != nil {
		return wrong(err)
	}
	env, err := p.environ(s.c.Env, req.Envs, v)
	if err != nil {
		return wrong(err)
	}
	arguments, err := p.arguments(req.Arguments, v)
	if err != nil {
		return wrong(err)
	}
	file, argv, err := s.command(p.Definition, arguments, v, env)
	if fault.ReasonOf(err) == "app-missing" {
		return composed{}, err
	}
	if err != nil {
		return wrong(err)
	}
	return composed{file: file, argv: argv, env: env}, nil
}

// command is a definition's command with its arguments, and the file that is executed.
func (s *Set) command(d Definition, arguments []string, v values, env []string) (file string, argv []string, err error) {
	if d.Line != "" {
		line, err := v.fill(d.Line)
		if err != nil {
			return "", nil, err
		}
		file, ok := s.shell(d.Shell, env)
		if !ok {
			return "", nil, missing(d.Shell)
		}
		if len(arguments) > 0 {
			line += ` "$@"`
		}
		return file, append([]string{file, "-c", line, file}, arguments...), nil
	}
	argv, err = v.fillAll(d.Command)
	if err != nil {
		return "", nil, err
	}
	if len(argv) == 0 || argv[0] == "" {
		return "", nil, errors.New("the command is empty")
	}
	name := argv[0]
	if err := proc.AsUser(s.c.User, func() error {
		var ok bool
		if file, ok = s.lookPath(name, env); !ok {
			return missing(name)
		}
		return nil
	}); err != nil {
		return "", nil, err
	}
	return file, append(argv, arguments...), nil
}

// shell finds what runs a command line: the definition's shell, bash where it names none, or at least sh.
func (s *Set) shell(given string, env []string) (file string, ok bool) {
	if given == "" {
		given = "bash"
	}
	err := proc.AsUser(s.c.User, func() error {
		for _, sh := range []string{given, "sh", "/bin/sh", "/busybox/sh"} {
			if file, ok = s.lookPath(sh, env); ok {
				return nil
			}
		}
		return nil
	})
	return file, ok && err == nil
}

// lookPath finds a program as a shell in the working directory would.
func (s *Set) lookPath(name string, env []string) (string, bool) {
	if strings.Contains(name, "/") && !filepath.IsAbs(name) {
		name = filepath.Join(s.workDir(), name)
	}
	return recipe.LookPath(name, env)
}

// outcome is how one process of an app ended.
type outcome struct {
	ready  bool // it answered before
	status proc.Status
	err    error // it could not be started, or did not become ready in time
}

// once runs the app's process until it ends or ctx does. Nothing of its group is left then, unless it ended well: such
// programs may have gone into the background.
func (s *Set) once(ctx context.Context, a *app, c composed, port int) (o outcome) {
	p, drains, err := s.spawn(c.file, c.argv, c.env, func(_ int, b []byte) { a.log.write(b) })
	if err != nil {
		o.err = fault.Unavailablef("app %s cannot be started", a.Name).WithReason("app-failed").
			WithNext("see whether the program can be run in a terminal of the session").WithCause(err)
		return o
	}
	defer func() {
		o.status = p.Status()
		if o.status.Code != 0 || ctx.Err() != nil {
			p.KillRest()
		}
		for _, d := range drains { // so that messages have its last words
			d.Settle(func(b []byte) { a.log.write(b) })
		}
		if o.err != nil && o.err != context.DeadlineExceeded {
			return
		}
		if o.err != nil {
			o.err = s.failure(a, "app %s did not answer on port %d within %s", a.Name, port, s.c.Policy.ReadyWithin)
		}
	}()
	s.mu.Lock()
	a.pid = p.PID
	s.changes()
	s.mu.Unlock()
	within, cancel := context.WithTimeout(ctx, s.c.Policy.ReadyWithin)
	defer cancel()
	watched := make(chan struct{})
	go func() {
		defer close(watched)
		select {
		case <-p.Done():
			cancel()
		case <-within.Done():
		}
	}()
	o.ready = await(within, port, probed(a.Protocol))
	late := !o.ready && errors.Is(within.Err(), context.DeadlineExceeded)
	cancel()
	<-watched
	switch {
	case ctx.Err() != nil:
		p.End(s.c.Policy.StopGrace)
		return o
	case late:
		p.End(s.c.Policy.StopGrace)
		o.err = context.DeadlineExceeded
		return o
	}
	if o.ready {
		s.noticer.forget()
		s.mu.Lock()
		a.state, a.detail = run.AppReady, ""
		s.changes()
		s.mu.Unlock()
		a.log.note("it answers on port %d", port)
	}
	select {
	case <-p.Done():
	case <-ctx.Done():
		p.End(s.c.Policy.StopGrace)
	}
	return o
}
