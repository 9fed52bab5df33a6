package app_test

import (
	"fmt"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"berth.dev/berth/internal/fault"
	"berth.dev/berth/internal/manager/app"
	"berth.dev/berth/internal/manager/authz"
	"berth.dev/berth/internal/wire/proxy"
	"berth.dev/berth/internal/wire/run"
)

// TestLaunchFlow: start, launch, redeem, and everything about tokens and codes that must not work.
func TestLaunchFlow(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	ctx := t.Context()
	l, err := r.Start(ctx, r.alice, "My Lab", "", app.Want{App: "jupyter", Arguments: map[string]any{"--x": "1"}})
	r.must(err)
	require.Equal(t, "https://apps.example.org", l.Address)
	require.Equal(t, map[string]any{"--x": "1"}, r.runners.last.Arguments)
	require.NotContains(t, fmt.Sprint(r.count(`SELECT count(*) FROM app_launches WHERE encode(token_hash, 'escape') LIKE '%' || $1 || '%'`,
		l.Token)), "1", "only its hash is kept")

	req := proxy.LaunchRequest{Proxy: "p", Token: l.Token, Session: r.session, App: "jupyter", Protocol: "http", Client: laptop}
	got, err := r.Launch(ctx, req)
	r.must(err)
	c := got.Circuit
	require.False(t, got.Reused)
	require.Equal(t, "/lab", got.Path)
	require.Regexp(t, `^jupyter-my-lab-[a-z0-9]{8}$`, c.Label)
	require.Equal(t, "https://"+c.Label+".apps.example.org:8443", got.URL)
	require.Equal(t, proxy.AgentAddress{ID: "a1", Address: "10.0.0.1:7000", Socket: "/run/a1.sock", BootID: "boot-1"}, c.Targets[0].Agent)
	require.Equal(t, []int{1, 1}, []int{len(c.Targets), c.Targets[0].Weight})
	require.Equal(t, []any{8888, "http", r.session, "My Lab", string(r.alice.UserID), false, int64(1), r.kernel},
		[]any{c.Targets[0].Port, c.Protocol, c.Session, c.Name, c.Owner, c.Public, c.Epoch, string(c.Targets[0].Kernel)})
	require.Positive(t, c.Revision)

	_, err = r.Launch(ctx, req)
	wantReason(t, err, "launch-used", "a launch token works once")
	again := r.launched("jupyter")
	require.True(t, again.Reused, "the app is published already")
	require.Equal(t, c.ID, again.Circuit.ID)
	require.NotEqual(t, got.Code, again.Code)

	in, err := r.redeem(c.ID, got.Code)
	r.must(err)
	require.Equal(t, proxy.RedeemReply{User: string(r.alice.UserID), Epoch: 1, ExpiresAt: r.clock().Add(app.TicketLife), Path: "/lab"}, in)
	_, err = r.redeem(c.ID, got.Code)
	wantReason(t, err, "bad-code", "a code works once")
	_, err = r.Redeem(ctx, "other", proxy.RedeemRequest{Circuit: c.ID, Code: again.Code, Client: laptop})
	wantReason(t, err, "bad-code", "another proxy")
	_, err = r.redeem(c.ID, again.Code)
	wantReason(t, err, "bad-code", "whoever showed it first used it up")

	other := r.launched("web")
	_, err = r.redeem(c.ID, other.Code)
	wantReason(t, err, "bad-code", "a code of another circuit")
	_, err = r.redeem(other.Circuit.ID, other.Code)
	r.must(err)
	late := r.launched("web")
	r.advance(5 * time.Minute)
	r.see(instance())
	_, err = r.redeem(late.Circuit.ID, late.Code)
	wantReason(t, err, "bad-code", "a code that is too old")

	for name, change := range map[string]func(*proxy.LaunchRequest){
		"no token":        func(q *proxy.LaunchRequest) { q.Token = "" },
		"a made-up token": func(q *proxy.LaunchRequest) { q.Token = strings.Repeat("x", 43) },
		"another session": func(q *proxy.LaunchRequest) { q.Session, _ = r.running(r.alice, "other") },
		"no session":      func(q *proxy.LaunchRequest) { q.Session = "../x" },
	} {
		_, err := r.launch("web", change)
		wantReason(t, err, "bad-launch-token", name)
	}
	_, err = r.launch("web", func(q *proxy.LaunchRequest) { q.App = "nothing" })
	wantReason(t, err, "launch-changed", "another app than the token's")
	conf, err := r.Conf(ctx, "p", proxy.ConfRequest{Session: r.session, AccessKey: "Kalice"})
	r.must(err)
	_, err = r.launch("web", func(q *proxy.LaunchRequest) { q.App, q.Token = "nothing", conf.Token })
	wantKind(t, err, fault.NotFound, "an app that is not there")
	_, err = r.launch("web", func(q *proxy.LaunchRequest) { q.Envs = "{" })
	wantKind(t, err, fault.Invalid, "envs that are no JSON")
	_, err = r.launch("web", func(q *proxy.LaunchRequest) { q.Proxy = "unknown" })
	wantKind(t, err, fault.Conflict, "a proxy that did not announce itself")
	req.Token = r.token(r.alice, "web")
	r.advance(11 * time.Minute)
	r.see(instance())
	_, err = r.Launch(ctx, req)
	wantReason(t, err, "bad-launch-token", "a token that is too old")
	req.Token = r.token(r.alice, "web")
	r.sql(`UPDATE users SET status = 'inactive' WHERE id = $1`, r.alice.UserID)
	_, err = r.Launch(ctx, req)
	wantReason(t, err, "bad-launch-token", "a user who was made inactive")
}

// TestWhoMayStart: the owner and administrators, nobody else, and only while the session runs.
func TestWhoMayStart(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	ctx := t.Context()
	for _, a := range []authz.Actor{r.alice, r.admin, r.super} {
		_, err := r.Start(ctx, a, r.session, "", app.Want{App: "web"})
		require.NoError(t, err, a.Email)
	}
	reply, err := r.Launch(ctx, proxy.LaunchRequest{Proxy: "p", Token: r.token(r.admin, "web"), Session: r.session, App: "web"})
	r.must(err)
	require.Equal(t, string(r.alice.UserID), reply.Circuit.Owner, "circuits are the session's owner's")
	in, err := r.redeem(reply.Circuit.ID, reply.Code)
	r.must(err)
	require.Equal(t, string(r.admin.UserID), in.User)
	for _, a := range []authz.Actor{r.bob, r.mallory, {}} {
		for what, do := range map[string]func() error{
			"start":  func() error { _, err := r.Start(ctx, a, r.session, "", app.Want{App: "web"}); return err },
			"stop":   func() error { return r.Stop(ctx, a, r.session, "", "web") },
			"ticket": func() error { _, err := r.Ticket(ctx, a, r.session, "", app.Want{App: "web"}); return err },
			"reach":  func() error { _, err := r.Reach(ctx, a, r.session, "", app.Want{Port: 1234}); return err },
			"list":   func() error { _, err := r.Apps(ctx, a, r.session, ""); return err },
			"ways":   func() error { _, err := r.Circuits(ctx, a, r.session, ""); return err },
			"patch":  func() error { _, err := r.Patch(ctx, a, reply.Circuit.ID, app.Change{RevokeTickets: true}); return err },
			"delete": func() error { return r.Delete(ctx, a, reply.Circuit.ID) },
			"enter":  func() error { _, err := r.Enter(ctx, a, reply.Circuit.ID); return err },
		} {
			err := do()
			if k := fault.KindOf(err); k != fault.NotFound && k != fault.Denied || err == nil {
				t.Errorf("%s by %q: %v", what, a.Email, err)
			}
		}
	}
	_, err = r.Start(ctx, r.monitor, r.session, "", app.Want{App: "web"})
	wantKind(t, err, fault.Denied, "monitors read only")
	_, err = r.Enter(ctx, r.monitor, reply.Circuit.ID)
	wantKind(t, err, fault.Denied, "monitors do not visit")

	_, err = r.Conf(ctx, "p", proxy.ConfRequest{Session: r.session, AccessKey: "Kbob"})
	wantKind(t, err, fault.NotFound, "the access key must be the session's")
	conf, err := r.Conf(ctx, "p", proxy.ConfRequest{Session: r.session, AccessKey: "Kalice"})
	r.must(err)
	_, err = r.Launch(ctx, proxy.LaunchRequest{Proxy: "p", Token: conf.Token, Session: r.session, App: "jupyter"})
	r.must(err)

	r.move(r.session, r.kernel, "LOST")
	_, err = r.Launch(ctx, proxy.LaunchRequest{Proxy: "p", Token: conf.Token, Session: r.session, App: "jupyter"})
	wantKind(t, err, fault.Unavailable, "its agent is away")
	r.move(r.session, r.kernel, "TERMINATING")
	_, err = r.Launch(ctx, proxy.LaunchRequest{Proxy: "p", Token: conf.Token, Session: r.session, App: "jupyter"})
	wantReason(t, err, "existing-session-not-running", "a session that ends")
	_, err = r.Conf(ctx, "p", proxy.ConfRequest{Session: r.session, AccessKey: "Kalice"})
	wantReason(t, err, "existing-session-not-running", "conf of a session that ends")
}

func TestStartSaysWhatIsMissing(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	ctx := t.Context()
	r.runners.fail = fault.Conflictf("jupyter ended at once: no module named notebook").WithNext("install it")
	_, err := r.Start(ctx, r.alice, r.session, "", app.Want{App: "jupyter"})
	wantReason(t, err, "kernel-execution-failed", "an app that does not start")
	require.ErrorContains(t, err, "no module named notebook")
	require.Equal(t, "install it", fault.NextOf(err))
	r.runners.fail = nil
	_, err = r.Start(ctx, r.alice, r.session, "", app.Want{App: "nope"})
	require.True(t, fault.Is(err, fault.NotFound), "an unknown app: %v", err)

	r.advance(time.Minute) // the proxy said nothing for long
	_, err = r.Start(ctx, r.alice, r.session, "", app.Want{App: "web"})
	wantReason(t, err, "no-app-proxy", "no proxy")
	require.NotEmpty(t, fault.NextOf(err))
	_, err = r.Ticket(ctx, r.alice, r.session, "", app.Want{App: "web"})
	wantReason(t, err, "no-app-proxy", "no proxy")
	r.sql(`UPDATE resource_groups SET wsproxy_addr = 'https://elsewhere.example.org' WHERE name = 'default'`)
	l, err := r.Start(ctx, r.alice, r.session, "", app.Want{App: "web"})
	r.must(err)
	require.Equal(t, "https://elsewhere.example.org", l.Address, "what is configured is told as it is")

	r.runners.away = true
	_, err = r.Start(ctx, r.alice, r.session, "", app.Want{App: "web"})
	wantKind(t, err, fault.Unavailable, "the agent is not connected")
	list, err := r.Apps(ctx, r.alice, r.session, "")
	r.must(err)
	require.Equal(t, []string{"sshd", "sftp", "ttyd", "jupyter"}, names(list), "what the image declares")
	r.runners.away = false
	list, err = r.Apps(ctx, r.alice, r.session, "")
	r.must(err)
	require.Equal(t, []string{"jupyter", "sshd", "web"}, names(list), "what the runner says")
	require.Equal(t, run.AppReady, list[1].State)
}

// What a session's runner answers may be a program's of the session: none of it reaches what all proxies are told.
func TestRunnerThatLies(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	for what, lie := range map[string]run.App{
		"a long name": {AppPort: run.AppPort{Name: strings.Repeat("x", 2<<20), Protocol: run.AppHTTP, Ports: []int{1}}},
		"no name":     {AppPort: run.AppPort{Protocol: run.AppHTTP, Ports: []int{1}}},
		"a protocol":  {AppPort: run.AppPort{Name: "web", Protocol: run.AppProtocol(strings.Repeat("y", 1000)), Ports: []int{1}}},
		"a port":      {AppPort: run.AppPort{Name: "web", Protocol: run.AppHTTP, Ports: []int{70000}}},
	} {
		r.runners.apps["web"] = lie
		_, err := r.Ticket(t.Context(), r.alice, r.session, "", app.Want{App: "web"})
		wantKind(t, err, fault.Conflict, what)
		require.Less(t, len(err.Error()), 1000, what)
	}
	require.Zero(t, r.count(`SELECT count(*) FROM circuits`))
}

// TestLaunchWhereTheAgentIsNot: the proxy's manager need not be the one that the agent is connected to.
func TestLaunchWhereTheAgentIsNot(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	token := r.token(r.alice, "jupyter")
	conf, err := r.Conf(t.Context(), "p", proxy.ConfRequest{Session: r.session, AccessKey: "Kalice"})
	r.must(err)
	r.runners.away = true
	req := proxy.LaunchRequest{Proxy: "p", Token: token, Session: r.session, App: "jupyter"}
	got, err := r.Launch(t.Context(), req)
	r.must(err)
	require.Equal(t, []any{8888, "http", "/lab"}, []any{got.Circuit.Targets[0].Port, got.Circuit.Protocol, got.Path})
	req.App = "web"
	_, err = r.Launch(t.Context(), req)
	wantReason(t, err, "launch-changed", "another app than the one that was started")
	req.App, req.Token = "jupyter", conf.Token
	_, err = r.Launch(t.Context(), req)
	wantKind(t, err, fault.Unavailable, "nothing was started")
}

func names(list []run.App) []string {
	var out []string
	for _, a := range list {
		out = append(out, a.Name)
	}
	return out
}

// TestManyLaunchesAtOnce make one circuit.
func TestManyLaunchesAtOnce(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	var all sync.WaitGroup
	replies := make([]proxy.LaunchReply, 16)
	errs := make([]error, len(replies))
	for i := range replies {
		token := r.token(r.alice, "jupyter")
		all.Go(func() {
			replies[i], errs[i] = r.Launch(t.Context(), proxy.LaunchRequest{Proxy: "p", Token: token, Session: r.session, App: "jupyter"})
		})
	}
	all.Wait()
	fresh, codes := 0, map[string]bool{}
	for i, reply := range replies {
		require.NoError(t, errs[i])
		require.Equal(t, replies[0].Circuit.ID, reply.Circuit.ID)
		codes[reply.Code] = true
		if !reply.Reused {
			fresh++
		}
	}
	require.Equal(t, 1, fresh)
	require.Len(t, codes, len(replies))
	require.Equal(t, 1, r.count(`SELECT count(*) FROM circuits`))
	r.launched("jupyter", func(q *proxy.LaunchRequest) { q.NoReuse = true })
	require.Equal(t, 2, r.count(`SELECT count(*) FROM circuits`))
}

// TestModesAndWishes: which way a circuit gets, and which wishes are refused.
func TestModesAndWishes(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	ssh := r.launched("sshd", func(q *proxy.LaunchRequest) { q.Protocol = "tcp" })
	require.Equal(t, []any{proxy.ModePort, 20000, "tcp://ports.example.org:20000"}, []any{ssh.Circuit.Mode, ssh.Circuit.Port, ssh.URL})
	own := r.launched("jupyter", func(q *proxy.LaunchRequest) { q.Mode = proxy.ModePort })
	require.Equal(t, "https://ports.example.org:20001", own.URL)
	named := r.launched("jupyter", func(q *proxy.LaunchRequest) { q.Label = "my-demo" })
	require.Equal(t, "https://my-demo.apps.example.org:8443", named.URL)
	require.True(t, r.launched("jupyter", func(q *proxy.LaunchRequest) { q.Label = "my-demo" }).Reused)

	for name, change := range map[string]func(*proxy.LaunchRequest){
		"both":              func(q *proxy.LaunchRequest) { q.Label, q.ProxyPort = "a", 20002 },
		"a bad label":       func(q *proxy.LaunchRequest) { q.Label = "a.b" },
		"a numeric label":   func(q *proxy.LaunchRequest) { q.Label = "20001" },
		"punycode":          func(q *proxy.LaunchRequest) { q.Label = "xn--80ak6aa92e" },
		"a port outside":    func(q *proxy.LaunchRequest) { q.ProxyPort = 22 },
		"an unknown mode":   func(q *proxy.LaunchRequest) { q.Mode = "magic" },
		"a bad address":     func(q *proxy.LaunchRequest) { q.Allowed = "10.0.0.0/8, host.example.org" },
		"a bad protocol":    func(q *proxy.LaunchRequest) { q.Protocol = "gopher" },
		"names for raw TCP": func(q *proxy.LaunchRequest) { q.Protocol, q.Mode = "tcp", proxy.ModeSubdomain },
		"no app":            func(q *proxy.LaunchRequest) { q.App = "" },
	} {
		_, err := r.launch("web", change)
		wantKind(t, err, fault.Invalid, name)
	}
	_, err := r.launch("web", func(q *proxy.LaunchRequest) { q.Label = "my-demo" })
	wantReason(t, err, "circuit-address-taken", "a label that is taken")
	_, err = r.launch("web", func(q *proxy.LaunchRequest) { q.ProxyPort = 20001 })
	wantReason(t, err, "circuit-address-taken", "a port that is taken")

	open := r.launched("jupyter", func(q *proxy.LaunchRequest) { q.Public, q.Allowed = true, "203.0.113.7,198.51.100.0/24" })
	require.False(t, open.Reused, "a private circuit is not opened to the public by a launch")
	require.Equal(t, []netip.Prefix{netip.MustParsePrefix("198.51.100.0/24"), netip.MustParsePrefix("203.0.113.7/32")}, open.Circuit.Allowed)
	private := r.launched("jupyter", func(q *proxy.LaunchRequest) { q.Mode = proxy.ModeSubdomain })
	require.False(t, private.Circuit.Public)

	plain := instance()
	plain.Domain, plain.DomainURL = "", ""
	r.see(plain)
	require.Equal(t, proxy.ModePort, r.launched("web").Circuit.Mode, "a proxy without names")
	plain = instance()
	plain.PortFrom, plain.PortTo, plain.PortHost = 0, 0, ""
	r.see(plain)
	_, err = r.launch("sshd", func(q *proxy.LaunchRequest) { q.NoReuse = true })
	wantKind(t, err, fault.Invalid, "raw TCP without ports")
	ticket, err := r.Ticket(t.Context(), r.alice, r.session, "", app.Want{Port: 5432})
	r.must(err)
	require.Equal(t, "port-5432", r.circuit(ticket.Circuit).App, "a tunnel needs neither")
}

// TestPortsRest: the port that was free for longest comes first, and what another user had is not given on wish at once.
func TestPortsRest(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	ctx := t.Context()
	onPort := func(q *proxy.LaunchRequest) { q.Mode, q.NoReuse = proxy.ModePort, true }
	var used []int
	take := func() string {
		c := r.launched("web", onPort).Circuit
		used = append(used, c.Port)
		return c.ID
	}
	first := take()
	r.must(r.Delete(ctx, r.alice, first))
	second := take()
	r.must(r.Delete(ctx, r.alice, second))
	take()
	take()
	last := take()
	require.Equal(t, []int{20000, 20001, 20002, 20000, 20001}, used)
	_, err := r.launch("web", onPort)
	wantReason(t, err, "no-free-port", "all in use")
	require.NotEmpty(t, fault.NextOf(err))

	r.must(r.Delete(ctx, r.alice, last))
	theirs, _ := r.running(r.bob, "theirs")
	l, err := r.Start(ctx, r.bob, theirs, "", app.Want{App: "web"})
	r.must(err)
	req := proxy.LaunchRequest{Proxy: "p", Token: l.Token, Session: theirs, App: "web", ProxyPort: 20001}
	_, err = r.Launch(ctx, req)
	wantReason(t, err, "circuit-address-taken", "alice's visitors may still have it open")
	r.sql(`UPDATE circuit_addresses SET freed_at = freed_at - interval '1 hour'`)
	_, err = r.Launch(ctx, req)
	r.must(err)
}

// A host name that people may have links to is not given to somebody else for long, and to whoever had it at once.
func TestLabelsRest(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	ctx := t.Context()
	named := func(q *proxy.LaunchRequest) { q.Label = "my-demo" }
	r.must(r.Delete(ctx, r.alice, r.launched("web", named).Circuit.ID))
	theirs, _ := r.running(r.bob, "theirs")
	l, err := r.Start(ctx, r.bob, theirs, "", app.Want{App: "web"})
	r.must(err)
	req := proxy.LaunchRequest{Proxy: "p", Token: l.Token, Session: theirs, App: "web", Label: "my-demo"}
	for _, ago := range []string{"1 hour", "20 days"} {
		r.sql(`UPDATE circuit_addresses SET freed_at = now() - $1::interval`, ago)
		r.must(r.Tidy(ctx))
		_, err = r.Launch(ctx, req)
		wantReason(t, err, "circuit-address-taken", ago)
	}
	r.must(r.Delete(ctx, r.alice, r.launched("web", named).Circuit.ID))
	r.sql(`UPDATE circuit_addresses SET freed_at = now() - interval '31 days'`)
	r.must(r.Tidy(ctx))
	require.Zero(t, r.count(`SELECT count(*) FROM circuit_addresses`))
	_, err = r.Launch(ctx, req)
	r.must(err)
}

// One user's circuits do not take the last ports from others.
func TestPortsForOthers(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	wide := instance()
	wide.PortTo = wide.PortFrom + 7
	r.see(wide)
	onPort := func(q *proxy.LaunchRequest) { q.Mode, q.NoReuse = proxy.ModePort, true }
	for range 6 {
		r.launched("web", onPort)
	}
	_, err := r.launch("web", onPort)
	wantReason(t, err, "no-free-port", "one too many of alice's")
	_, err = r.launch("web", onPort, func(q *proxy.LaunchRequest) { q.ProxyPort = wide.PortTo })
	wantReason(t, err, "no-free-port", "on wish")
	theirs, _ := r.running(r.bob, "theirs")
	l, err := r.Start(t.Context(), r.bob, theirs, "", app.Want{App: "web"})
	r.must(err)
	for range 2 {
		_, err = r.Launch(t.Context(), proxy.LaunchRequest{Proxy: "p", Token: l.Token, Session: theirs, App: "web", Mode: proxy.ModePort,
			NoReuse: true})
		r.must(err)
		l, err = r.Start(t.Context(), r.bob, theirs, "", app.Want{App: "web"})
		r.must(err)
	}
	_, err = r.Launch(t.Context(), proxy.LaunchRequest{Proxy: "p", Token: l.Token, Session: theirs, App: "web", Mode: proxy.ModePort,
		NoReuse: true})
	wantReason(t, err, "no-free-port", "all in use")
}

// A proxy that finds the port of a new circuit held by another program gives the circuit back.
func TestUnopenedPorts(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	onPort := func(q *proxy.LaunchRequest) { q.Mode = proxy.ModePort }
	first := r.launched("web", onPort).Circuit
	second := r.launched("web", onPort, func(q *proxy.LaunchRequest) { q.Unopened = first.ID })
	require.Equal(t, []int{20000, 20001}, []int{first.Port, second.Circuit.Port})
	require.False(t, second.Reused)
	require.Equal(t, second.Circuit.ID, r.launched("web", onPort).Circuit.ID, "one circuit is left")
	// Circuits that somebody else published are not the launch's to end.
	theirs, _ := r.running(r.bob, "theirs")
	l, err := r.Start(t.Context(), r.bob, theirs, "", app.Want{App: "web"})
	r.must(err)
	_, err = r.Launch(t.Context(), proxy.LaunchRequest{Proxy: "p", Token: l.Token, Session: theirs, App: "web", Mode: proxy.ModePort,
		Unopened: second.Circuit.ID})
	r.must(err)
	require.Equal(t, second.Circuit.ID, r.launched("web", onPort).Circuit.ID)
	// One that is public keeps its address.
	_, err = r.Patch(t.Context(), r.alice, second.Circuit.ID, app.Change{Public: new(true)})
	r.must(err)
	require.Equal(t, second.Circuit.ID, r.launched("web", onPort).Circuit.ID)
	require.NotEqual(t, second.Circuit.ID, r.launched("web", onPort,
		func(q *proxy.LaunchRequest) { q.Unopened = second.Circuit.ID }).Circuit.ID)
	require.NotNil(t, r.circuit(second.Circuit.ID))
}

// Of two replicas one cannot open a port that the other serves: its launches get another circuit, and the same one every time.
func TestReplicaThatCannotOpenAPort(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	onPort := func(q *proxy.LaunchRequest) { q.Mode = proxy.ModePort }
	passing := func(ids ...string) func(*proxy.LaunchRequest) {
		return func(q *proxy.LaunchRequest) { q.Mode, q.Passed = proxy.ModePort, ids }
	}
	served := r.launched("web", onPort)
	_, err := r.redeem(served.Circuit.ID, served.Code)
	r.must(err)
	again := r.launched("web", onPort)
	require.True(t, again.Reused)
	r.advance(time.Second) // the oldest comes first
	second := r.launched("web", passing(served.Circuit.ID))
	require.False(t, second.Reused)
	require.NotNil(t, r.circuit(served.Circuit.ID), "its visitors stay")
	third := r.launched("web", passing(served.Circuit.ID))
	require.True(t, third.Reused)
	require.Equal(t, second.Circuit.ID, third.Circuit.ID)
	require.Equal(t, served.Circuit.ID, r.launched("web", onPort).Circuit.ID, "whoever can open it gets it")
	// One that this launch made goes, unless somebody was let in or told of it meanwhile.
	r.must(r.Delete(t.Context(), r.alice, second.Circuit.ID))
	fresh := r.launched("web", passing(served.Circuit.ID))
	other := r.launched("web", passing(served.Circuit.ID))
	require.Equal(t, fresh.Circuit.ID, other.Circuit.ID)
	r.launched("web", passing(served.Circuit.ID), func(q *proxy.LaunchRequest) { q.Unopened = fresh.Circuit.ID })
	require.NotNil(t, r.circuit(fresh.Circuit.ID), "another launch has told somebody of it")
}

// Whoever is made inactive while an app is being started gets no circuit, no code and no ticket.
func TestDeactivatedWhileStarting(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	token := r.token(r.alice, "web")
	req := proxy.LaunchRequest{Proxy: "p", Token: token, Session: r.session, App: "web", Client: laptop}
	r.runners.during = func() { r.sql(`UPDATE users SET status = 'inactive' WHERE id = $1`, r.alice.UserID) }
	_, err := r.Launch(t.Context(), req)
	wantKind(t, err, fault.Denied, "a launch")
	r.sql(`UPDATE users SET status = 'active'`)
	_, err = r.Ticket(t.Context(), r.alice, r.session, "", app.Want{App: "web"})
	wantKind(t, err, fault.Denied, "a ticket")
	r.sql(`UPDATE users SET status = 'active'`)
	r.runners.during = func() { r.sql(`UPDATE users SET role = 'user' WHERE id = $1`, r.admin.UserID) }
	_, err = r.Ticket(t.Context(), r.admin, r.session, "", app.Want{App: "web"})
	wantKind(t, err, fault.NotFound, "a ticket of somebody who was an administrator when it began")
	require.Zero(t, r.count(`SELECT count(*) FROM circuits`))
	require.Zero(t, r.count(`SELECT count(*) FROM circuit_codes`))
}

func TestTooManyCircuits(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	token := r.token(r.alice, "web")
	for range 64 {
		_, err := r.Launch(t.Context(), proxy.LaunchRequest{Proxy: "p", Token: token, Session: r.session, App: "web", NoReuse: true})
		r.must(err)
		token = r.token(r.alice, "web")
	}
	_, err := r.Launch(t.Context(), proxy.LaunchRequest{Proxy: "p", Token: token, Session: r.session, App: "web", NoReuse: true})
	wantKind(t, err, fault.Exhausted, "one too many")
	r.must(r.Close(t.Context(), "other", proxy.CloseRequest{Token: token, Session: r.session}))
	require.Equal(t, 64, r.count(`SELECT count(*) FROM circuits`), "another proxy closes its own only")
	r.must(r.Close(t.Context(), "p", proxy.CloseRequest{Token: token, Session: r.session}))
	require.Zero(t, r.count(`SELECT count(*) FROM circuits`))
}

// TestRawTCPAdmission: an address is let in by redeeming, and out by revoking.
func TestRawTCPAdmission(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	got := r.launched("sshd")
	require.Empty(t, got.Circuit.Admitted)
	_, err := r.redeem(got.Circuit.ID, got.Code)
	r.must(err)
	now := r.circuit(got.Circuit.ID)
	require.Equal(t, []netip.Addr{laptop}, now.Admitted)
	require.Greater(t, now.Revision, got.Circuit.Revision)
	_, err = r.Patch(t.Context(), r.alice, got.Circuit.ID, app.Change{RevokeTickets: true})
	r.must(err)
	now = r.circuit(got.Circuit.ID)
	require.Empty(t, now.Admitted)
	require.EqualValues(t, 2, now.Epoch)
	second := r.launched("sshd")
	_, err = r.redeem(second.Circuit.ID, second.Code)
	r.must(err)
	r.advance(app.TicketLife)
	r.must(r.Expire(t.Context()))
	require.Empty(t, r.circuit(got.Circuit.ID).Admitted, "admissions end")
}

// A circuit that has let in as many addresses as it may still lets those come again, and a code that met the bound is not lost.
func TestAdmissionsAreFull(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	ctx := t.Context()
	first := r.launched("sshd")
	id := first.Circuit.ID
	_, err := r.redeem(id, first.Code)
	r.must(err)
	r.sql(`INSERT INTO circuit_admissions (circuit_id, address, user_id, expires_at) SELECT $1, '198.51.100.' || n, $2, `+
		`now() + interval '1 day' FROM generate_series(1, 255) n`, id, r.alice.UserID)
	r.advance(time.Hour)
	r.see(instance())
	in, err := r.redeem(id, r.launched("sshd").Code)
	r.must(err)
	require.Equal(t, r.clock().Add(app.TicketLife), in.ExpiresAt)
	require.Equal(t, 1, r.count(`SELECT count(*) FROM circuit_admissions WHERE address = $1 AND expires_at = $2`, laptop.String(),
		in.ExpiresAt))
	code := r.launched("sshd").Code
	from := func(addr string) error {
		_, err := r.Redeem(ctx, "p", proxy.RedeemRequest{Circuit: id, Code: code, Client: netip.MustParseAddr(addr)})
		return err
	}
	wantReason(t, from("192.0.2.1"), "too-many-addresses", "one too many")
	r.sql(`DELETE FROM circuit_admissions WHERE address = '198.51.100.7'`)
	_, err = r.Patch(ctx, r.alice, id, app.Change{Allowed: &[]string{"192.0.2.0/24"}})
	r.must(err)
	wantReason(t, from("203.0.113.9"), "address-not-allowed", "from elsewhere")
	require.NoError(t, from("192.0.2.1"), "the code is still there")
	wantReason(t, from("192.0.2.1"), "bad-code", "once")
}
