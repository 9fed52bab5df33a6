// Package app starts, watches and stops the apps of a session: programs of the image that listen on a port, declared by the
// image's label and described by a definition inside the image, or well known.
//
// It carries no byte of theirs (the runner's tunnels do) and knows no protocol but wire/run. Nothing here runs while
// nobody asks, but one goroutine for each app that was started, which waits for its end.
package app

import (
	"context"
	"log/slog"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"berth.dev/berth/internal/fault"
	"berth.dev/berth/internal/runner/proc"
	"berth.dev/berth/internal/wire/run"
)

// Config says what apps there are and how they run.
type Config struct {
	Apps []run.AppPort // declared, in the order of lists
	Own  []run.AppPort // served by the runner itself

	DefinitionDir string // DefinitionDir outside tests
	LogDir        string // private to the runner; is there
	NetDir        string // /proc/self/net outside tests
	Dir, Home     string // of the session's user
	Env           []string
	User          *proc.Credential
	UID           int // whose listeners are noticed
	RuntimePath   string
	Only          []int // the ports of the host that are the session's; none where it has a network of its own
	Table         *proc.Table
	Log           *slog.Logger
	Policy        Policy
	Now           func() time.Time
}

// Policy is when an app is given up. Zero values mean the defaults.
type Policy struct {
	ReadyWithin time.Duration // from its start to its first answer, 5 min
	DetachedIn  time.Duration // from a successful end before the first answer to that of what it left behind, 5 s
	StopGrace   time.Duration // SIGTERM to SIGKILL, 10 s
	Restarts    int           // after failures within Window, 5
	Window      time.Duration // 10 min
	Pause       time.Duration // before the first restart, doubled for each within Window up to half a minute, 500 ms
}

func (p Policy) withDefaults() Policy {
	def := func(d *time.Duration, v time.Duration) {
		if *d == 0 {
			*d = v
		}
	}
	def(&p.ReadyWithin, 5*time.Minute)
	def(&p.DetachedIn, 5*time.Second)
	def(&p.StopGrace, 10*time.Second)
	def(&p.Window, 10*time.Minute)
	def(&p.Pause, 500*time.Millisecond)
	if p.Restarts == 0 {
		p.Restarts = 5
	}
	return p
}

// maxApps bounds how many declared apps are served.
const maxApps = 128

// Set holds the apps of one session.
type Set struct {
	c       Config
	ctx     context.Context
	cancel  context.CancelFunc
	tasks   sync.WaitGroup
	noticer *noticer
	plans   planCache
	files   chan struct{} // holds one for each action on files under way, those that nobody waits for any more as well

	mu      sync.Mutex
	apps    []*app
	changed chan struct{} // closed, and made anew, with every change
	closed  bool
}

// app is one declared or well-known app. Set.mu guards what changes.
type app struct {
	run.AppPort
	origin run.AppOrigin
	log    *output

	state    run.AppState // of what was started here
	detail   string
	pid      int
	restarts int
	started  time.Time
	life     *life // nil: nothing was started, or it is over
}

// life is one start with all its restarts.
type life struct {
	stop     context.CancelFunc
	stopping bool
	over     chan struct{} // closed when all its processes have ended
	err      error         // after over: why it failed, nil when it was stopped or ended well
}

// New returns a set; nothing is started.
func New(c Config) *Set {
	c.Policy = c.Policy.withDefaults()
	if c.Now == nil {
		c.Now = time.Now
	}
	s := &Set{c: c, changed: make(chan struct{}), files: make(chan struct{}, maxAside)}
	s.ctx, s.cancel = context.WithCancel(context.Background())
	s.noticer = &noticer{uid: c.UID, now: c.Now, read: func() ([]listener, error) { return listeners(c.NetDir) }}
	for _, p := range c.Apps[:min(len(c.Apps), maxApps)] {
		if len(p.Ports) == 0 || !fileName.MatchString(p.Name) || slices.ContainsFunc(s.apps, func(a *app) bool { return a.Name == p.Name }) ||
			slices.ContainsFunc(c.Own, func(o run.AppPort) bool { return o.Name == p.Name }) {
			continue
		}
		s.apps = append(s.apps, &app{AppPort: p, origin: run.AppDeclared, state: run.AppStopped, log: newOutput(c.LogDir, p.Name, c.Now)})
	}
	others := slices.Clone(c.Own)
	for _, a := range s.apps {
		others = append(others, a.AppPort)
	}
	for _, p := range installable(others) {
		s.apps = append(s.apps, &app{AppPort: p, origin: run.AppInstalled, state: run.AppStopped, log: newOutput(c.LogDir, p.Name, c.Now)})
	}
	return s
}

// Close stops all apps without waiting for them; nothing starts after it.
func (s *Set) Close() {
	s.mu.Lock()
	s.closed = true
	s.mu.Unlock()
	s.cancel()
}

// Wait returns when every app has ended.
func (s *Set) Wait() {
	s.tasks.Wait()
	for _, a := range s.apps {
		a.log.close()
	}
}

// noticedName is what ports that are noticed are called.
const noticedName = "port-"

func noticedPort(name string) (int, bool) {
	text, ok := strings.CutPrefix(name, noticedName)
	port, err := strconv.Atoi(text)
	return port, ok && err == nil && port > 0 && port < 65536 && strconv.Itoa(port) == text
}

func (s *Set) find(name string) *app {
	i := slices.IndexFunc(s.apps, func(a *app) bool { return a.Name == name })
	if i < 0 {
		return nil
	}
	return s.apps[i]
}

func (s *Set) own(name string) (run.AppPort, bool) {
	i := slices.IndexFunc(s.c.Own, func(p run.AppPort) bool { return p.Name == name })
	if i < 0 {
		return run.AppPort{}, false
	}
	return s.c.Own[i], true
}

func (s *Set) unknown(name string) error {
	var names []string
	for _, p := range s.c.Own {
		names = append(names, p.Name)
	}
	for _, a := range s.apps {
		if a.origin == run.AppDeclared {
			names = append(names, a.Name)
		}
	}
	e := fault.NotFoundf("the session has no app %q", name).WithReason("no-such-app")
	if len(names) == 0 {
		return e.WithNext("name a port that a program of the session listens on, such as port-8888")
	}
	return e.WithNext("choose one of %s, or name a port that a program of the session listens on, such as port-8888",
		strings.Join(names, ", "))
}

// List tells about all apps.
func (s *Set) List(ctx context.Context) run.AppList {
	out := run.AppList{Apps: []run.App{}}
	taken := map[int]bool{}
	for _, p := range s.c.Own {
		out.Apps = append(out.Apps, run.App{AppPort: p, Origin: run.AppIntrinsic, State: run.AppReady})
		taken[p.Ports[0]] = true
	}
	plans := s.plansOf(s.apps)
	open := s.noticer.listening()
	s.mu.Lock()
	for i, a := range s.apps {
		if a.origin == run.AppInstalled && a.life == nil && a.state == run.AppStopped && plans[i].err != nil {
			continue // it is not installed; whoever listens there is somebody else
		}
		out.Apps = append(out.Apps, s.view(a, plans[i], open))
		for _, p := range a.Ports {
			taken[p] = true
		}
	}
	s.mu.Unlock()
	out.Apps = append(out.Apps, s.noticed(ctx, open, taken)...)
	return out
}

// noticed are the apps of ports that nobody declared.
func (s *Set) noticed(ctx context.Context, open map[int]listener, taken map[int]bool) []run.App {
	low, high := passingPorts("/proc/sys/net/ipv4/ip_local_port_range")
	var found []listener
	for port, l := range open {
		if l.uid == s.c.UID && !taken[port] && s.ours(port) && (port < low || port > high) {
			found = append(found, l)
		}
	}
	slices.SortFunc(found, func(a, b listener) int { return a.port - b.port })
	found = found[:min(len(found), maxNoticed)]
	protocols := s.noticer.protocols(ctx, found, listPatience)
	var out []run.App
	for _, l := range found {
		out = append(out, run.App{AppPort: noticedApp(l.port, protocols[l.port]), Origin: run.AppNoticed, State: run.AppReady})
	}
	return out
}

func noticedApp(port int, p run.AppProtocol) run.AppPort {
	return run.AppPort{Name: noticedName + strconv.Itoa(port), Protocol: p, Ports: []int{port}}
}

// view is an app as it is now. The mutex is held.
func (s *Set) view(a *app, p plan, open map[int]listener) run.App {
	v := run.App{AppPort: a.AppPort, Origin: a.origin, State: a.state, Detail: a.detail, PID: a.pid, Restarts: a.restarts,
		URLTemplate: p.URLTemplate, AllowedArguments: p.AllowedArguments, AllowedEnvs: p.AllowedEnvs}
	for k, arg := range p.DefaultArguments {
		if v.DefaultArguments == nil {
			v.DefaultArguments = map[string]string{}
		}
		v.DefaultArguments[k] = strings.Join(arg, " ")
	}
	if !a.started.IsZero() {
		at := a.started.UTC()
		v.StartedAt = &at
	}
	if a.life != nil {
		return v
	}
	_, listening := open[a.Ports[0]]
	switch {
	case listening && p.waits:
		v.State, v.Detail = run.AppReady, ""
	case listening:
		v.State, v.Detail = run.AppReady, "a program of the session that was started in another way listens on its port"
	case v.State != run.AppStopped || p.err == nil && !p.waits:
	case p.waits:
		v.Detail = "nothing listens on port " + strconv.Itoa(a.Ports[0]) + " yet; the session's own program is expected there"
	default:
		v.State, v.Detail = p.state, wordsOf(p.err)
	}
	return v
}

// wordsOf are a failure's words for people: what happened and what to do next.
func wordsOf(err error) string {
	text := err.Error()
	if next := fault.NextOf(err); next != "" {
		text += "; next: " + next
	}
	return text
}

// changes tells those who wait that something changed. The mutex is held.
func (s *Set) changes() {
	close(s.changed)
	s.changed = make(chan struct{})
}

// Log returns the end of what an app wrote.
func (s *Set) Log(name string, bytes int64) ([]byte, error) {
	a := s.find(name)
	if a == nil {
		if _, ok := s.own(name); ok {
			return nil, fault.NotFoundf("app %s is part of the runner and has no log of its own", name).WithReason("no-log")
		}
		return nil, s.unknown(name)
	}
	b, err := a.log.tail(bytes)
	if err != nil {
		return nil, fault.Unavailablef("read the log of app %s", name).WithCause(err)
	}
	return b, nil
}

// plan is how an app would be started now.
type plan struct {
	Definition
	program string // of a well-known app
	waits   bool   // nothing to start: the app listens by itself
	state   run.AppState
	err     error // why it cannot be started; state goes with it
}

// planCache keeps plans for a moment, because lists ask for all of them.
type planCache struct {
	mu   sync.Mutex
	at   time.Time
	last []plan
}

// plansOf looks for the definitions and programs of apps, as the session's user.
func (s *Set) plansOf(apps []*app) []plan {
	s.plans.mu.Lock()
	defer s.plans.mu.Unlock()
	if now := s.c.Now(); s.plans.last != nil && now.Sub(s.plans.at) < seenFor && !now.Before(s.plans.at) {
		return s.plans.last
	}
	out := make([]plan, len(apps))
	if err := proc.AsUser(s.c.User, func() error {
		for i, a := range apps {
			out[i] = s.planOf(a)
		}
		return nil
	}); err != nil {
		for i, a := range apps {
			out[i] = plan{state: run.AppFailed, err: fault.Unavailablef("app %s cannot be looked for", a.Name).WithCause(err)}
		}
	}
	s.plans.at, s.plans.last = s.c.Now(), out
	return out
}

// planNow is the plan of one app by what the image has at this moment.
func (s *Set) planNow(a *app) (p plan) {
	if err := proc.AsUser(s.c.User, func() error {
		p = s.planOf(a)
		return nil
	}); err != nil {
		p = plan{state: run.AppFailed, err: fault.Unavailablef("app %s cannot be looked for", a.Name).WithCause(err)}
	}
	return p
}

// planOf decides how one app is started. It runs with the permissions of the session's user.
func (s *Set) planOf(a *app) plan {
	if a.Protocol == run.AppPreopen {
		return plan{waits: true}
	}
	d, found, err := readDefinition(s.c.DefinitionDir, a.Name)
	switch {
	case err != nil:
		return plan{state: run.AppFailed, err: fault.Invalidf("the image's definition of app %s cannot be used", a.Name).
			WithReason("app-definition").
			WithNext("correct the definition in the image").WithCause(err)}
	case found:
		p := plan{Definition: d, waits: d.Noop}
		if !d.Noop {
			p.state, p.err = s.startable(a, d)
		}
		return p
	}
	d, program, install, ok := choose(a.Name, func(program string) (string, bool) { return s.lookPath(program, s.c.Env) })
	if ok {
		return plan{Definition: d, program: program}
	}
	if a.origin == run.AppInstalled {
		return plan{state: run.AppMissing, err: notInstalled(a.Name, install)}
	}
	e := fault.NotFoundf("the image declares app %s, but has neither a program nor a definition (%s) for it", a.Name,
		DefinitionDir+"/"+a.Name+".json").WithReason("app-missing")
	if install != "" {
		e = e.WithNext("install it in the session (%s) and start it again, or choose an image that has it", install)
	} else {
		e = e.WithNext("choose an image that has it, or start its program in the session and open port-%d", a.Ports[0])
	}
	return plan{state: run.AppMissing, err: e}
}

// startable says whether the program of a definition is there, as far as that can be known before a start.
func (s *Set) startable(a *app, d Definition) (run.AppState, error) {
	if d.Line != "" || len(d.Prestart) > 0 || len(d.Env) > 0 {
		return "", nil
	}
	word, err := s.values(a, "").fill(d.Command[0])
	if err != nil {
		return "", nil // the start says so
	}
	if _, ok := s.lookPath(word, s.c.Env); ok {
		return "", nil
	}
	return run.AppMissing, missing(word)
}

func missing(program string) error {
	return fault.NotFoundf("the program %q is not in this image", program).WithReason("app-missing").
		WithNext("install it in the session and start the app again, or choose an image that has it")
}

// values are what the texts of an app's definition may name.
func (s *Set) values(a *app, program string) values {
	ports := make([]string, len(a.Ports))
	for i, p := range a.Ports {
		ports[i] = strconv.Itoa(p)
	}
	return values{"ports": ports, "runtime_path": s.c.RuntimePath, "program": program, "home": s.c.Home, "work_dir": s.workDir()}
}

// ours reports whether a port can be the session's: in the network of its host only those that it was leased are.
func (s *Set) ours(port int) bool { return len(s.c.Only) == 0 || slices.Contains(s.c.Only, port) }

// Serves reports why a tunnel must not lead to a port; nil when it may. In the network of a host other ports are other people's, and so is
// a leased one on which somebody else listens.
func (s *Set) Serves(port int) error {
	if len(s.c.Only) == 0 {
		return nil
	}
	if !s.ours(port) {
		return fault.Deniedf("port %d is not the session's", port).WithReason("port-not-leased").
			WithNext("listen on one of the ports in $BERTH_FREE_PORTS: the session runs in the network of its host")
	}
	open, err := listeners(s.c.NetDir)
	if err != nil {
		return fault.Unavailablef("it cannot be seen who listens on port %d", port).WithCause(err)
	}
	held := false
	for _, l := range open {
		if l.port != port {
			continue
		}
		if l.uid != s.c.UID {
			return fault.Deniedf("port %d is the session's, and a program of somebody else listens on it", port).WithReason("port-not-leased").
				WithNext("restart the session, and tell an administrator")
		}
		held = true
	}
	if !held {
		return nobodyListens(port)
	}
	return nil
}
