package app

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/fault"
	"berth.dev/berth/internal/manager/audit"
	"berth.dev/berth/internal/manager/authz"
	"berth.dev/berth/internal/manager/session"
	"berth.dev/berth/internal/manager/store"
	"berth.dev/berth/internal/manager/store/dbgen"
	"berth.dev/berth/internal/wire/run"
	"berth.dev/berth/internal/wire/tunnel"
)

const (
	sessionNoun = "session"
	appNoun     = "app"
)

// intrinsic are the apps of every session, in the order of lists; the runner itself serves them.
var intrinsic = []run.AppPort{
	{Name: "sshd", Protocol: run.AppTCP, Ports: []int{tunnel.PortSSH}},
	{Name: "sftp", Protocol: run.AppTCP, Ports: []int{tunnel.PortSFTP}},
	{Name: "ttyd", Protocol: run.AppHTTP, Ports: []int{tunnel.PortTerminal}},
}

// maxAppName bounds the names of apps, in bytes.
const maxAppName = 64

// listPatience bounds how long a list waits for the runner; the image's declarations do after that.
const listPatience = 5 * time.Second

// session reads what publishing needs of one and of one of its kernels, nil being the main one, and says whether the apps of that can be
// reached: nobody's right is checked.
func (s *Service) session(ctx context.Context, id cluster.SessionID, kernel *string) (dbgen.AppSessionRow, error) {
	canonical, ok := cluster.CanonicalUUID(string(id))
	if !ok {
		return dbgen.AppSessionRow{}, authz.NotFound(sessionNoun, string(id))
	}
	r, err := s.d.Store.AppSession(ctx, kernel, canonical)
	if store.Missing(err) {
		return r, authz.NotFound(sessionNoun, string(id))
	}
	if err != nil {
		return r, fmt.Errorf("find session %s: %w", id, err)
	}
	return r, reachable(r)
}

func reachable(r dbgen.AppSessionRow) error {
	switch {
	case !r.ProjectActive:
		return fault.Conflictf("project %s is not active, so the apps of its sessions are closed", r.ProjectName).
			WithNext("ask an administrator to activate it")
	case r.KernelStatus == cluster.Lost:
		return fault.Unavailablef("the agent of session %s, %s, is lost", r.Name, r.AgentID).WithNext("wait until it is back")
	case r.Status != cluster.Running || r.KernelStatus != cluster.Running || r.AgentID == "":
		return notRunning(r.Name)
	}
	return nil
}

func notRunning(name string) error {
	return fault.Conflictf("session %s is not running, so its apps cannot be reached", name).WithReason("existing-session-not-running").
		WithNext("wait until it is RUNNING, or start it again")
}

// use authorises the actor to use the apps of a session, or with a reference SESSION:KERNEL those of one of its kernels, and reads it.
func (s *Service) use(ctx context.Context, a authz.Actor, ref string,
	owner cluster.AccessKey) (dbgen.AppSessionRow, *session.Runner, error) {
	if err := authz.Authenticated(a); err != nil {
		return dbgen.AppSessionRow{}, nil, err
	}
	way, err := s.d.Sessions.Runner(ctx, a, ref, owner)
	if err != nil {
		return dbgen.AppSessionRow{}, nil, err
	}
	r, err := s.session(ctx, way.Kernel.SessionID, new(string(way.Kernel.ID)))
	if err != nil {
		return r, nil, err
	}
	return r, way, nil
}

// kernel finds a session that the actor may see with one of its kernels: the main one, or with a reference SESSION:KERNEL that one, by its
// name in the session or its id.
func (s *Service) kernel(ctx context.Context, a authz.Actor, ref string,
	owner cluster.AccessKey) (*session.Session, session.Kernel, error) {
	ref, name, _ := strings.Cut(ref, ":") // neither names nor ids of sessions have a colon
	v, err := s.d.Sessions.Find(ctx, a, ref, owner)
	if err != nil {
		return nil, session.Kernel{}, err
	}
	k, err := v.Kernel(name)
	return v, k, err
}

// place words in which session an app is, and in which of its kernels unless that is the main one.
func place(r dbgen.AppSessionRow) string {
	if r.KernelRank == 0 {
		return "session " + r.Name
	}
	return "kernel " + r.KernelName + " of session " + r.Name
}

// operand is how verbs of the command line name what place names.
func operand(r dbgen.AppSessionRow) string {
	if r.KernelRank == 0 {
		return r.Name
	}
	return "--kernel " + r.KernelName + " " + r.Name
}

func objectOf(r dbgen.AppSessionRow) authz.Object {
	return authz.Object{Name: r.Name, Owner: cluster.UserID(r.UserID), OwnerRole: authz.Role(r.OwnerRole), Domain: r.DomainName,
		Project: cluster.ProjectID(r.ProjectID)}
}

// look is the way to a session's runner for the manager's own questions.
func (s *Service) look(r dbgen.AppSessionRow) (*run.Client, error) {
	if s.d.Streams == nil {
		return nil, fault.Unavailablef("agent %s is not connected", r.AgentID)
	}
	return run.NewClient(run.Options{Transport: session.LookAtRunner(s.d.Streams, cluster.AgentID(r.AgentID),
		cluster.KernelID(r.KernelID))}), nil
}

// Apps lists the apps of a session's main kernel, or with a reference SESSION:KERNEL of that one: as its runner knows them while it runs,
// else as its image declares them (their state is "" then). Everybody who may see the session may.
func (s *Service) Apps(ctx context.Context, a authz.Actor, ref string, owner cluster.AccessKey) ([]run.App, error) {
	if err := authz.Authenticated(a); err != nil {
		return nil, err
	}
	v, k, err := s.kernel(ctx, a, ref, owner)
	if err != nil {
		return nil, err
	}
	if v.Status == cluster.Running && k.Status == cluster.Running && s.d.Streams != nil {
		ctx, cancel := context.WithTimeout(ctx, listPatience)
		defer cancel()
		c := run.NewClient(run.Options{Transport: session.LookAtRunner(s.d.Streams, k.Agent, k.ID)})
		list, err := c.Apps(ctx)
		if err == nil {
			return list.Apps, nil
		}
		s.d.Log.Debug("a runner does not list its apps", "session", v.ID, "error", err)
	}
	return declared(k.ServicePorts), nil
}

// declared are the apps of an image, with those that every session has.
func declared(ports []session.ServicePort) []run.App {
	out := make([]run.App, 0, len(intrinsic)+len(ports))
	for _, p := range intrinsic {
		out = append(out, run.App{AppPort: p, Origin: run.AppIntrinsic})
	}
	for _, p := range ports {
		out = append(out, run.App{AppPort: run.AppPort{Name: p.Name, Protocol: run.AppProtocol(p.Protocol), Ports: p.Ports},
			Origin:      run.AppDeclared,
			URLTemplate: p.URLTemplate, AllowedArguments: p.AllowedArguments, AllowedEnvs: p.AllowedEnvs})
	}
	return out
}

// Want is what somebody wants to reach: an app, started if need be, or with App "" a port of the session's own.
type Want struct {
	App string
	// Port chooses among the app's ports; 0 means its first.
	Port      int
	Envs      map[string]string
	Arguments map[string]any
}

// ParseWant reads envs and arguments as clients send them: JSON texts, "" and null meaning none.
func ParseWant(app string, port int, envs, arguments string) (Want, error) {
	w := Want{App: app, Port: port}
	for _, f := range []struct {
		name, text string
		into       any
	}{{"envs", envs, &w.Envs}, {"arguments", arguments, &w.Arguments}} {
		if f.text == "" {
			continue
		}
		if err := json.Unmarshal([]byte(f.text), f.into); err != nil {
			return w, fault.Invalidf("the %s of app %.80q are not a JSON object", f.name, app).
				WithNext(`write for example {"--flag": "value"}`)
		}
	}
	return w, nil
}

// target is an app that answers.
type target struct {
	app      string
	protocol string
	port     int // inside the kernel
	path     string
}

// start makes an app run and says where it answers.
func start(ctx context.Context, c *run.Client, r dbgen.AppSessionRow, w Want) (target, error) {
	if w.Port < 0 || w.Port > 65535 || w.App == "" && w.Port == 0 {
		return target{}, fault.Invalidf("%d is not the port of an app", w.Port).
			WithNext("name an app, or a port from 1 to 65535")
	}
	if w.App == "" {
		return target{app: fmt.Sprintf("port-%d", w.Port), protocol: string(run.AppTCP), port: w.Port, path: "/"}, nil
	}
	if len(w.App) > maxAppName {
		return target{}, noApp(w.App, r)
	}
	got, err := c.StartApp(ctx, w.App, run.AppStartRequest{Port: w.Port, Envs: w.Envs, Arguments: w.Arguments})
	if err != nil {
		if fault.Is(err, fault.NotFound) && (fault.ReasonOf(err) == "" || fault.ReasonOf(err) == "object-not-found" ||
			fault.ReasonOf(err) == "no-such-app") {
			return target{}, noApp(w.App, r)
		}
		return target{}, startFailed(w.App, r, err)
	}
	// The runner lives among the session's own programs: what it says may be theirs.
	if got.Port < 1 || got.Port > 65535 || got.App.Name == "" || len(got.App.Name) > maxAppName ||
		!slices.Contains(visible, protocolOf(got.App)) {
		return target{}, startFailed(w.App, r, fault.Conflictf("its answer makes no sense (app %.80q, protocol %.20q, port %d)", got.App.Name,
			got.App.Protocol, got.Port))
	}
	return target{app: got.App.Name, protocol: protocolOf(got.App), port: got.Port, path: pathOf(got.App.URLTemplate, got.Port)}, nil
}

// startFailed tells apart an app that does not come up, which is the session's matter, from a way that is broken.
func startFailed(app string, r dbgen.AppSessionRow, err error) error {
	switch fault.KindOf(err) {
	case fault.Conflict, fault.Internal, fault.Timeout, fault.Exhausted:
		if errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
			break
		}
		next := fault.NextOf(err)
		if next == "" {
			next = "look at the app's log in " + place(r)
		}
		return fault.Conflictf("app %s did not start", app).WithReason("kernel-execution-failed").WithCause(err).WithNext("%s", next)
	}
	return fmt.Errorf("start app %s: %w", app, err)
}

func protocolOf(a run.App) string {
	if a.Protocol == "" {
		return string(run.AppTCP)
	}
	return string(a.Protocol)
}

func noApp(app string, r dbgen.AppSessionRow) error {
	e := authz.NotFound(appNoun, fmt.Sprintf("%.64s", app))
	if f, ok := e.(*fault.Error); ok {
		return f.WithNext("see what %s offers with `berth app list %s`", place(r), operand(r))
	}
	return e
}

// Stop ends an app and everything that is published of it.
func (s *Service) Stop(ctx context.Context, a authz.Actor, ref string, owner cluster.AccessKey, app string) (err error) {
	ctx, end := audit.Begin(ctx, s.d.Store, a, "app.stop", ref)
	defer end(&err)
	audit.ActingFor(ctx, string(owner))
	r, way, err := s.use(ctx, a, ref, owner)
	if err != nil {
		return err
	}
	if _, err := run.NewClient(run.Options{Transport: way}).StopApp(ctx, app); err != nil {
		if fault.Is(err, fault.NotFound) {
			return noApp(app, r)
		}
		return fmt.Errorf("stop app %s: %w", app, err)
	}
	return s.d.Store.Tx(ctx, func(ctx context.Context, tx *store.Tx) error {
		gone, err := tx.DropCircuitsOfApp(ctx, r.KernelID, app)
		if err != nil {
			return fmt.Errorf("close what was published of app %s: %w", app, err)
		}
		if len(gone) > 0 {
			tx.Wake(store.TopicCircuits)
		}
		return nil
	})
}

// visible are the protocols that proxies may be asked for; each app speaks one of them whatever is asked.
var visible = []string{"http", "h2", "grpc", "tcp", "preopen", "vnc", "rdp"}

// spoken is the protocol of a circuit: what the app declares, unless the visitor knows that HTTP app better.
func spoken(declared, asked string) (string, error) {
	if asked == "" || asked == declared {
		return declared, nil
	}
	if !slices.Contains(visible, asked) {
		return "", fault.Invalidf("%.40q is not a protocol of apps", asked).WithNext("use one of %v", visible)
	}
	return asked, nil
}
