package app_test

import (
	"testing"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/fault"
	"berth.dev/berth/internal/manager/app"
	"berth.dev/berth/internal/wire/proxy"
)

// joined adds kernel sub1 on another agent to alice's session.
func (r *rig) joined() (kernel string) {
	r.t.Helper()
	kernel = uuid.NewString()
	r.sql(`INSERT INTO agents (id, status, resource_group, boot_id, data_address, data_socket) VALUES ('a2', 'ALIVE', 'default', 'boot-2',
		'10.0.0.2:7000', '/run/a2.sock')`)
	r.sql(`UPDATE sessions SET cluster_size = 2 WHERE id = $1`, r.session)
	r.sql(`INSERT INTO kernels (id, session_id, image, architecture, agent_id, status, requested_slots, service_ports, cluster_role,
		cluster_idx, local_rank, cluster_hostname) VALUES ($1, $2, 'img', 'x86_64', 'a2', 'RUNNING', '{}',
		'[{"name":"web","protocol":"http","ports":[9001]}]', 'sub', 1, 1, 'sub1')`, kernel, r.session)
	return kernel
}

// TestKernelsHaveAppsOfTheirOwn: an app of each kernel is published apart from those of the others, ends with its kernel, and is for whom
// the session is.
func TestKernelsHaveAppsOfTheirOwn(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	ctx := t.Context()
	sub := r.joined()
	at := r.session + ":sub1"

	main := r.launched("web").Circuit
	l, err := r.Start(ctx, r.alice, at, "", app.Want{App: "web"})
	r.must(err)
	bound, err := r.Bind(ctx, proxy.LaunchRequest{Proxy: "p", Token: l.Token, Session: r.session, App: "web", Client: laptop})
	r.must(err)
	made, err := r.Launch(ctx, proxy.LaunchRequest{Proxy: "p", Token: bound.Token, Session: r.session, App: "web", Client: laptop})
	r.must(err)
	require.False(t, made.Reused, "the circuit of the main kernel leads elsewhere")
	to := made.Circuit.Targets[0]
	require.Equal(t, []any{cluster.KernelID(sub), cluster.AgentID("a2")}, []any{to.Kernel, to.Agent.ID})
	require.Equal(t, cluster.KernelID(r.kernel), main.Targets[0].Kernel)

	ticket, err := r.Ticket(ctx, r.alice, at, "", app.Want{App: "sshd"})
	r.must(err)
	require.Equal(t, cluster.KernelID(sub), r.circuit(ticket.Circuit).Targets[0].Kernel)
	way, err := r.Reach(ctx, r.alice, r.session+":"+sub, "", app.Want{App: "sshd"})
	r.must(err)
	require.Equal(t, 2200, way.Port, "an id names a kernel, too")

	of := func(ref string) (names []string) {
		list, err := r.Circuits(ctx, r.alice, ref, "")
		r.must(err)
		for _, c := range list {
			names = append(names, c.Kernel+" "+c.App)
		}
		return names
	}
	require.ElementsMatch(t, []string{"main1 web", "sub1 web", "sub1 sshd"}, of(r.session))
	require.ElementsMatch(t, []string{"sub1 web", "sub1 sshd"}, of(at))
	require.Equal(t, []string{"main1 web"}, of(r.session+":main1"))

	// Rights are those of the session.
	_, err = r.Start(ctx, r.bob, at, "", app.Want{App: "web"})
	wantKind(t, err, fault.NotFound, "a stranger")
	_, err = r.Apps(ctx, r.bob, at, "")
	wantKind(t, err, fault.NotFound, "a stranger")
	_, err = r.Circuits(ctx, r.bob, at, "")
	wantKind(t, err, fault.NotFound, "a stranger")
	for _, ref := range []string{r.session + ":sub2", "My Lab:x"} {
		_, err = r.Start(ctx, r.alice, ref, "", app.Want{App: "web"})
		wantKind(t, err, fault.NotFound, ref)
		require.Contains(t, fault.NextOf(err), "main1, sub1", ref)
	}
	_, err = r.Start(ctx, r.alice, at, "", app.Want{App: "nope"})
	wantKind(t, err, fault.NotFound, "no such app")
	require.Contains(t, fault.NextOf(err), "berth app list --kernel sub1 My Lab")

	// Stopping an app closes what is published of it in its kernel alone.
	r.must(r.Stop(ctx, r.alice, at, "", "web"))
	require.ElementsMatch(t, []string{"main1 web", "sub1 sshd"}, of(r.session))

	// A kernel takes its circuits along, and nobody else's.
	r.sql(`UPDATE kernels SET status = 'TERMINATING' WHERE id = $1`, sub)
	require.Nil(t, r.circuit(ticket.Circuit))
	require.NotNil(t, r.circuit(main.ID))
	l2, err := r.Start(ctx, r.alice, r.session, "", app.Want{App: "jupyter"})
	r.must(err)
	_, err = r.Launch(ctx, proxy.LaunchRequest{Proxy: "p", Token: l2.Token, Session: r.session, App: "jupyter", Client: laptop})
	r.must(err)
}

// TestAKernelThatEndedIsNotPublished: what was started in a kernel is not published when that kernel has ended meanwhile, although the
// session goes on.
func TestAKernelThatEndedIsNotPublished(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	ctx := t.Context()
	sub := r.joined()
	l, err := r.Start(ctx, r.alice, r.session+":sub1", "", app.Want{App: "web"})
	r.must(err)
	r.runners.during = func() {
		_, err := r.store.Pool().Exec(ctx, `UPDATE kernels SET status = 'TERMINATING' WHERE id = $1`, sub)
		r.must(err)
	}
	_, err = r.Launch(ctx, proxy.LaunchRequest{Proxy: "p", Token: l.Token, Session: r.session, App: "web", Client: laptop})
	wantReason(t, err, "existing-session-not-running", "it ended while the app was being started")
	require.Zero(t, r.count(`SELECT count(*) FROM circuits`))
}
