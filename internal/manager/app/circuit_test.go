package app_test

import (
	"context"
	"io"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"berth.dev/berth/internal/fault"
	"berth.dev/berth/internal/manager/app"
	"berth.dev/berth/internal/manager/authz"
	"berth.dev/berth/internal/manager/store"
	"berth.dev/berth/internal/manager/store/storetest"
	"berth.dev/berth/internal/wire/proxy"
)

func codeOf(t *testing.T, link string) string {
	t.Helper()
	u, err := url.Parse(link)
	require.NoError(t, err)
	require.Equal(t, "/setup", u.Path)
	return u.Query().Get("token")
}

// TestSharing: who may visit a circuit as its shares change, and who may change them.
func TestSharing(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	ctx := t.Context()
	c := r.launched("jupyter").Circuit
	enters := func(a authz.Actor) error {
		e, err := r.Enter(ctx, a, c.ID)
		if err != nil {
			return err
		}
		keys, err := r.Keys(ctx, "p")
		r.must(err)
		ticket, ok := proxy.ReadTicket(e.Ticket.Ticket, keys)
		require.True(t, ok)
		require.Equal(t, []any{c.ID, string(a.UserID), r.circuit(c.ID).Epoch}, []any{ticket.Circuit, ticket.User, ticket.Epoch})
		in, err := r.redeem(c.ID, codeOf(t, e.URL))
		r.must(err)
		require.Equal(t, string(a.UserID), in.User)
		return nil
	}
	patch := func(ch app.Change) app.Circuit {
		t.Helper()
		v, err := r.Patch(ctx, r.alice, c.ID, ch)
		r.must(err)
		return v
	}
	for _, a := range []authz.Actor{r.alice, r.admin, r.super} {
		require.NoError(t, enters(a), a.Email)
	}
	for _, a := range []authz.Actor{r.bob, r.carol, r.mallory} {
		wantKind(t, enters(a), fault.NotFound, "a stranger: "+a.Email)
	}

	v := patch(app.Change{SharedUsers: &[]string{"carol@x"}, SharedProjects: &[]string{"proj"}})
	require.Equal(t, []string{"carol@x"}, v.SharedUsers)
	require.Equal(t, []string{"proj"}, v.SharedProjects)
	require.EqualValues(t, 1, r.circuit(c.ID).Epoch, "whoever is in stays when others come")
	require.NoError(t, enters(r.bob), "through the project")
	require.NoError(t, enters(r.carol), "by name")
	wantKind(t, enters(r.mallory), fault.NotFound, "of another domain")
	_, err := r.Patch(ctx, r.bob, c.ID, app.Change{Public: new(true)})
	wantKind(t, err, fault.Denied, "a visitor changes nothing")
	wantKind(t, r.Delete(ctx, r.bob, c.ID), fault.Denied, "a visitor closes nothing")

	list, err := r.Circuits(ctx, r.bob, "", "")
	r.must(err)
	require.Len(t, list, 1)
	require.False(t, list[0].Mine)
	require.Empty(t, list[0].SharedUsers, "visitors do not see with whom else it is shared")
	require.Equal(t, "https://"+c.Label+".apps.example.org:8443", list[0].URL)
	list, err = r.Circuits(ctx, r.mallory, "", "")
	r.must(err)
	require.Empty(t, list)
	list, err = r.Circuits(ctx, r.admin, r.session, "")
	r.must(err)
	require.Len(t, list, 1)
	require.True(t, list[0].Mine)

	for name, ch := range map[string]app.Change{
		"a user of another domain": {SharedUsers: &[]string{"mallory@x"}},
		"an unknown user":          {SharedUsers: &[]string{"nobody@x"}},
		"a foreign project":        {SharedProjects: &[]string{"default"}},
		"the past":                 {ExpiresAt: new(r.clock().Add(-time.Second))},
		"no address":               {Allowed: &[]string{"here"}},
	} {
		_, err := r.Patch(ctx, r.alice, c.ID, ch)
		wantKind(t, err, fault.Invalid, name)
	}

	// A code that was made before the share is taken away does not let in after it.
	e, err := r.Enter(ctx, r.carol, c.ID)
	r.must(err)
	patch(app.Change{SharedUsers: &[]string{}})
	require.EqualValues(t, 2, r.circuit(c.ID).Epoch, "taking a share away ends tickets")
	_, err = r.redeem(c.ID, codeOf(t, e.URL))
	wantReason(t, err, "bad-code", "lost the right meanwhile")
	wantKind(t, enters(r.carol), fault.NotFound, "not shared any more")
	require.NoError(t, enters(r.bob), "the project's share stayed")
	r.sql(`DELETE FROM project_members WHERE user_id = $1`, r.bob.UserID)
	require.EqualValues(t, 3, r.circuit(c.ID).Epoch, "leaving the project ends tickets")
	wantKind(t, enters(r.bob), fault.NotFound, "left the project")

	patch(app.Change{Public: new(true), Allowed: &[]string{"203.0.113.0/24"}})
	require.NoError(t, enters(r.mallory), "everybody")
	e, err = r.Enter(ctx, r.mallory, c.ID)
	r.must(err)
	patch(app.Change{Allowed: &[]string{"198.51.100.1"}})
	_, err = r.redeem(c.ID, codeOf(t, e.URL))
	wantReason(t, err, "address-not-allowed", "from elsewhere")
	patch(app.Change{Public: new(false), Allowed: &[]string{}})
	require.EqualValues(t, 4, r.circuit(c.ID).Epoch, "closing to the public ends tickets")
	wantKind(t, enters(r.mallory), fault.NotFound, "closed again")

	end := r.clock().Add(time.Hour)
	patch(app.Change{ExpiresAt: &end})
	in, err := r.redeem(c.ID, r.launched("jupyter").Code)
	r.must(err)
	require.Equal(t, end, in.ExpiresAt, "no ticket outlives its circuit")
	patch(app.Change{ExpiresAt: new(time.Time{})})
	require.Nil(t, r.circuit(c.ID).ExpiresAt)
	patch(app.Change{ExpiresAt: &end})
	r.advance(time.Hour)
	_, err = r.Enter(ctx, r.alice, c.ID)
	wantKind(t, err, fault.NotFound, "its time is over")
	r.must(r.Expire(ctx))
	require.Nil(t, r.circuit(c.ID))
	wantKind(t, r.Delete(ctx, r.alice, c.ID), fault.NotFound, "gone")
	for _, id := range []string{"", "x", "00000000-0000-4000-8000-000000000000"} {
		wantKind(t, r.Delete(ctx, r.alice, id), fault.NotFound, id)
	}
}

// TestInactiveUsers: a visitor who is made inactive is thrown out, an owner publishes nothing any more.
func TestInactiveUsers(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	got := r.launched("sshd")
	_, err := r.redeem(got.Circuit.ID, got.Code)
	r.must(err)
	_, err = r.Patch(t.Context(), r.alice, got.Circuit.ID, app.Change{SharedUsers: &[]string{"carol@x"}})
	r.must(err)
	r.sql(`UPDATE users SET status = 'inactive' WHERE id = $1`, r.carol.UserID)
	now := r.circuit(got.Circuit.ID)
	require.EqualValues(t, 2, now.Epoch)
	require.Empty(t, now.Admitted)
	r.sql(`UPDATE users SET status = 'inactive' WHERE id = $1`, r.alice.UserID)
	require.Nil(t, r.circuit(got.Circuit.ID))
}

// TestTicketsOfPrograms: a ticket names a circuit that a label tells apart, and codes of raw apps are redeemed at the proxy.
func TestTicketsOfPrograms(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	ctx := t.Context()
	first, err := r.Ticket(ctx, r.alice, "My Lab", "", app.Want{App: "sshd"})
	r.must(err)
	require.Equal(t, "https://apps.example.org", first.URL)
	c := r.circuit(first.Circuit)
	require.Equal(t, []any{proxy.ModeSubdomain, "tcp", 2200}, []any{c.Mode, c.Protocol, c.Targets[0].Port}, "no port is spent")
	second, err := r.Ticket(ctx, r.alice, "My Lab", "", app.Want{App: "sshd"})
	r.must(err)
	require.Equal(t, first.Circuit, second.Circuit)
	got := r.launched("sshd")
	require.NotEqual(t, first.Circuit, got.Circuit.ID, "a launch of raw TCP needs a port")
	e, err := r.Enter(ctx, r.alice, got.Circuit.ID)
	r.must(err)
	require.True(t, strings.HasPrefix(e.URL, "https://apps.example.org/setup?circuit="+got.Circuit.ID), e.URL)
	for _, w := range []app.Want{{}, {Port: 70000}, {Port: -1}} {
		_, err := r.Ticket(ctx, r.alice, "My Lab", "", w)
		wantKind(t, err, fault.Invalid, "bad port")
	}
	require.NoError(t, r.Stop(ctx, r.alice, "My Lab", "", "sshd"))
	require.Nil(t, r.circuit(got.Circuit.ID), "stopping an app closes its circuits")
	wantKind(t, r.Stop(ctx, r.alice, "My Lab", "", "nope"), fault.NotFound, "unknown")
}

// TestKeysRotate: new keys check before they sign, old ones check for as long as tickets live.
func TestKeysRotate(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	ctx := t.Context()
	keys := func() [][]byte { k, err := r.Keys(ctx, "p"); r.must(err); return k }
	one := keys()
	require.Len(t, one, 1)
	other, err := app.New(r.deps)
	r.must(err)
	same, err := other.Keys(ctx, "p")
	r.must(err)
	require.Equal(t, one, same, "managers share them")
	r.advance(24 * time.Hour)
	two := keys()
	require.Len(t, two, 2)
	require.Equal(t, one[0], two[0], "the old one still signs")
	same, err = other.Keys(ctx, "p")
	r.must(err)
	require.Equal(t, two, same)
	r.advance(10 * time.Minute)
	three := keys()
	require.Equal(t, [][]byte{two[1], two[0]}, three)
	r.advance(app.TicketLife)
	require.Contains(t, keys(), one[0])
	r.advance(12 * time.Hour)
	require.NotContains(t, keys(), one[0])
	r.advance(100 * 24 * time.Hour)
	require.Len(t, keys(), 2, "after a long sleep")
}

// TestSessionEnds: what is published goes with the kernel, at once and for good.
func TestSessionEnds(t *testing.T) {
	t.Parallel()
	for _, end := range []string{"TERMINATING", "TERMINATED", "RESTARTING", "ERROR"} {
		t.Run(end, func(t *testing.T) {
			t.Parallel()
			r := newRig(t)
			c := r.launched("jupyter")
			r.move(r.session, r.kernel, "LOST")
			require.NotNil(t, r.circuit(c.Circuit.ID), "an agent that is away keeps its circuits")
			r.move(r.session, r.kernel, "RUNNING")
			require.NotNil(t, r.circuit(c.Circuit.ID))
			r.move(r.session, r.kernel, end)
			require.Nil(t, r.circuit(c.Circuit.ID))
			_, err := r.redeem(c.Circuit.ID, c.Code)
			wantReason(t, err, "bad-code", "nothing is left")
			require.Zero(t, r.count(`SELECT count(*) FROM circuits`))
			found, err := r.Findings(t.Context())
			r.must(err)
			require.Empty(t, found)
		})
	}
}

func TestUnusedCircuitsEnd(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	ctx := t.Context()
	unused, used, public := r.launched("jupyter").Circuit, r.launched("web").Circuit, r.launched("sshd").Circuit
	_, err := r.Patch(ctx, r.alice, public.ID, app.Change{Public: new(true)})
	r.must(err)
	r.advance(20 * time.Hour)
	r.must(r.Activity(ctx, "p", proxy.Activity{Circuits: []proxy.CircuitActivity{{ID: used.ID, LastAt: r.clock()},
		{ID: "nonsense", LastAt: r.clock()}}}))
	r.must(r.Activity(ctx, "other", proxy.Activity{Circuits: []proxy.CircuitActivity{{ID: unused.ID, LastAt: r.clock()}}}))
	r.advance(5 * time.Hour)
	r.must(r.Tidy(ctx))
	require.Nil(t, r.circuit(unused.ID), "nobody used it, and another proxy's word counts for nothing")
	require.NotNil(t, r.circuit(used.ID))
	require.NotNil(t, r.circuit(public.ID), "public ones stay")
	require.Equal(t, used.Revision, r.circuit(used.ID).Revision, "use is no change")
	r.advance(48 * time.Hour)
	r.must(r.Tidy(ctx))
	require.Zero(t, r.count(`SELECT count(*) FROM app_launches`)+r.count(`SELECT count(*) FROM circuit_codes`))
	found, err := r.Findings(ctx)
	r.must(err)
	require.Len(t, found, 1)
	require.Equal(t, "circuits-without-proxy", found[0].Kind)
}

// TestActivityFeedsIdleChecks: what visitors send keeps a session from being idle; a clock that is ahead does not.
func TestActivityFeedsIdleChecks(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	c := r.launched("jupyter").Circuit
	r.sql(`DELETE FROM session_accesses`)
	r.advance(time.Hour)
	at := r.clock()
	r.must(r.Activity(t.Context(), "p", proxy.Activity{Circuits: []proxy.CircuitActivity{{ID: c.ID, LastAt: at.Add(time.Hour), Requests: 1},
		{ID: c.ID, LastAt: at.Add(-time.Minute)}}}))
	list, err := r.Circuits(t.Context(), r.alice, "", "")
	r.must(err)
	require.Equal(t, at, *list[0].LastUsed)
	// A proxy whose clock is wrong says what it shows now.
	for _, wrong := range []time.Duration{-3 * time.Hour, 3 * time.Hour} {
		r.advance(time.Minute)
		at = r.clock().Add(-time.Second)
		r.must(r.Activity(t.Context(), "p", proxy.Activity{At: r.clock().Add(wrong),
			Circuits: []proxy.CircuitActivity{{ID: c.ID, LastAt: at.Add(wrong)}}}))
		list, err = r.Circuits(t.Context(), r.alice, "", "")
		r.must(err)
		require.Equal(t, at, *list[0].LastUsed, wrong)
	}
	r.must(r.nouns.Sessions.Uses().Flush(t.Context(), r.store, r.clock()))
	require.Equal(t, 1, r.count(`SELECT count(*) FROM session_accesses WHERE session_id = $1 AND last_access = $2`, r.session, at))
}

// watched is what a proxy would know.
type watched struct {
	circuits map[string]proxy.Circuit
	fulls    int
}

func (w *watched) take(t *testing.T, s *app.Service, watch *app.Watch, now time.Time) {
	t.Helper()
	circuits, gone, full := watch.Take(now)
	require.NoError(t, s.Grant(t.Context(), watch, circuits))
	if full {
		w.fulls++
		w.circuits = map[string]proxy.Circuit{}
	}
	for _, c := range circuits {
		w.circuits[c.ID] = c
	}
	for _, id := range gone {
		delete(w.circuits, id)
	}
}

// TestWatch: a proxy at one manager hears of what another manager does, of ends and moves, and of nothing else.
func TestWatch(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	ctx := t.Context()
	before := r.launched("jupyter").Circuit
	// Another manager: its own store, and so its own hints.
	st := otherStore(t, r.store)
	deps := r.deps
	deps.Store = st
	two, err := app.New(deps)
	r.must(err)
	r.run(r.Service, r.store)
	r.run(two, st)
	watch, err := two.Watch(ctx, "p")
	r.must(err)
	defer watch.Close()
	strange, err := two.Watch(ctx, "q")
	r.must(err)
	defer strange.Close()
	var w, none watched
	none.take(t, two, strange, r.clock())
	w.take(t, two, watch, r.clock())
	require.Equal(t, []any{1, before}, []any{w.fulls, w.circuits[before.ID]})
	until := func(what string, ok func() bool) {
		t.Helper()
		soon(t, what, func() bool { w.take(t, two, watch, r.clock()); return ok() })
	}
	c := r.launched("web").Circuit
	until("a new circuit arrives", func() bool { return w.circuits[c.ID].Revision == c.Revision })
	_, err = r.Patch(ctx, r.alice, c.ID, app.Change{RevokeTickets: true})
	r.must(err)
	until("a revocation arrives", func() bool { return w.circuits[c.ID].Epoch == 2 })
	r.sql(`UPDATE agents SET data_address = '10.0.0.9:1' WHERE id = 'a1'`)
	until("an agent that moved", func() bool {
		return w.circuits[c.ID].Targets[0].Agent.Address == "10.0.0.9:1" && w.circuits[before.ID].Targets[0].Agent.Address == "10.0.0.9:1"
	})
	r.sql(`UPDATE sessions SET name = 'new name' WHERE id = $1`, r.session)
	until("a new name", func() bool { return w.circuits[c.ID].Name == "new name" })
	r.must(r.Delete(ctx, r.alice, c.ID))
	until("one is gone", func() bool { _, ok := w.circuits[c.ID]; return !ok })
	r.move(r.session, r.kernel, "TERMINATED")
	until("the session ended", func() bool { return len(w.circuits) == 0 })
	require.Equal(t, 1, w.fulls, "changes come as changes")
	none.take(t, two, strange, r.clock())
	require.Empty(t, none.circuits)

	// A manager that was away meanwhile has the truth from the start.
	other, _ := r.running(r.bob, "later")
	l, err := r.Start(ctx, r.bob, other, "", app.Want{App: "web"})
	r.must(err)
	reply, err := r.Launch(ctx, proxy.LaunchRequest{Proxy: "p", Token: l.Token, Session: other, App: "web"})
	r.must(err)
	three, err := app.New(deps)
	r.must(err)
	r.run(three, nil)
	fresh, err := three.Watch(ctx, "p")
	r.must(err)
	defer fresh.Close()
	w = watched{}
	w.take(t, three, fresh, r.clock())
	require.Len(t, w.circuits, 1)
	require.Equal(t, reply.Circuit, w.circuits[reply.Circuit.ID])
}

// otherStore opens the same database once more.
func otherStore(t *testing.T, s *store.Store) *store.Store {
	t.Helper()
	other, err := store.Open(t.Context(), store.Config{DSN: s.Pool().Config().ConnString(), SkipMigrations: true}, testLog(t))
	require.NoError(t, err)
	t.Cleanup(other.Close)
	return other
}

// TestReach: a stream of the manager itself.
func TestReach(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	ctx := t.Context()
	r.runners.ports[9002] = func(s io.ReadWriteCloser) {
		defer s.Close()
		b := make([]byte, 4)
		if _, err := io.ReadFull(s, b); err == nil {
			_, _ = s.Write([]byte(strings.ToUpper(string(b))))
		}
	}
	way, err := r.Reach(ctx, r.alice, "My Lab", "", app.Want{App: "web", Port: 9002})
	r.must(err)
	stream, err := way.Open(ctx)
	r.must(err)
	_, err = stream.Write([]byte("ping"))
	r.must(err)
	b, err := io.ReadAll(stream)
	r.must(err)
	require.Equal(t, "PING", string(b))
	way, err = r.Reach(ctx, r.alice, "My Lab", "", app.Want{Port: 4000})
	r.must(err)
	_, err = way.Open(ctx)
	wantKind(t, err, fault.Unavailable, "nothing listens")
	_, err = r.Reach(ctx, r.alice, "My Lab", "", app.Want{App: "nope"})
	wantKind(t, err, fault.NotFound, "unknown")
}

// Administrators who are none any more lose their tickets of others' circuits, and nobody else loses any.
func TestAdministratorsWhoLeave(t *testing.T) {
	t.Parallel()
	for name, leave := range map[string]string{
		"inactive": `UPDATE users SET status = 'inactive' WHERE id = $1`,
		"role":     `UPDATE users SET role = 'user' WHERE id = $1`,
		"domain":   `UPDATE users SET domain_name = 'e' WHERE id = $1`,
		"owner":    `UPDATE users SET role = 'superadmin' WHERE username = 'alice-x' AND $1 <> ''`,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t)
			ctx := t.Context()
			entered, redeemed, ticketed, other := r.launched("jupyter").Circuit, r.launched("sshd").Circuit, r.launched("web").Circuit,
				r.launched("web", func(q *proxy.LaunchRequest) { q.Port = 9002 }).Circuit
			_, err := r.Enter(ctx, r.admin, entered.ID)
			r.must(err)
			e, err := r.Enter(ctx, r.admin, redeemed.ID)
			r.must(err)
			r.sql(`DELETE FROM circuit_office_tickets WHERE circuit_id = $1`, redeemed.ID) // as if the code had been all
			_, err = r.redeem(redeemed.ID, codeOf(t, e.URL))
			r.must(err)
			ticket, err := r.Ticket(ctx, r.admin, r.session, "", app.Want{App: "web"})
			r.must(err)
			require.Equal(t, ticketed.ID, ticket.Circuit)
			_, err = r.Enter(ctx, r.alice, other.ID)
			r.must(err)
			r.sql(leave, r.admin.UserID)
			for _, c := range []proxy.Circuit{entered, redeemed, ticketed} {
				require.EqualValues(t, 2, r.circuit(c.ID).Epoch, c.App)
				require.Empty(t, r.circuit(c.ID).Admitted)
			}
			require.EqualValues(t, 1, r.circuit(other.ID).Epoch, "no administrator was there")
			r.sql(`UPDATE users SET status = 'inactive' WHERE id = $1`, r.super.UserID)
			require.EqualValues(t, 2, r.circuit(entered.ID).Epoch, "one who never was there takes nobody along")
		})
	}
	r := newRig(t)
	c := r.launched("jupyter").Circuit
	_, err := r.Enter(t.Context(), r.admin, c.ID)
	r.must(err)
	r.advance(app.TicketLife)
	r.must(r.Tidy(t.Context()))
	require.Zero(t, r.count(`SELECT count(*) FROM circuit_office_tickets`))
}

// Whoever loses the right while redeeming a code of raw TCP is not let in, whichever of the two comes first.
func TestRedeemWhileRemoved(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	ctx := t.Context()
	id := r.launched("sshd").Circuit.ID
	_, err := r.Patch(ctx, r.alice, id, app.Change{SharedProjects: &[]string{"proj"}})
	r.must(err)
	e, err := r.Enter(ctx, r.bob, id)
	r.must(err)
	tx, err := r.store.Pool().Begin(ctx)
	r.must(err)
	defer func() { _ = tx.Rollback(context.Background()) }()
	_, err = tx.Exec(ctx, `DELETE FROM project_members WHERE user_id = $1`, r.bob.UserID)
	r.must(err)
	redeemed := make(chan error, 1)
	go func() {
		_, err := r.redeem(id, codeOf(t, e.URL))
		redeemed <- err
	}()
	r.waits()
	r.must(tx.Commit(ctx))
	wantReason(t, <-redeemed, "bad-code", "not a member any more")
	require.Empty(t, r.circuit(id).Admitted)

	r.must(r.store.AddMember(ctx, string(r.project), string(r.bob.UserID)))
	tx, err = r.store.Pool().Begin(ctx)
	r.must(err)
	defer func() { _ = tx.Rollback(context.Background()) }()
	_, err = tx.Exec(ctx, `SELECT id FROM circuits WHERE id = $1 FOR UPDATE`, id)
	r.must(err)
	removed := make(chan error, 1)
	go func() {
		_, err := r.store.Pool().Exec(ctx, `DELETE FROM project_members WHERE user_id = $1`, r.bob.UserID)
		removed <- err
	}()
	r.waits()
	_, err = tx.Exec(ctx, `INSERT INTO circuit_admissions (circuit_id, address, user_id, expires_at) VALUES ($1, '192.0.2.1', $2, `+
		`now() + interval '1 hour')`, id, r.bob.UserID)
	r.must(err)
	r.must(tx.Commit(ctx))
	r.must(<-removed)
	require.Empty(t, r.circuit(id).Admitted)
}

// A user who is made inactive waits for what is being given out to them, and takes that away too.
func TestInactiveWhileEntering(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	ctx := t.Context()
	id := r.launched("jupyter").Circuit.ID
	tx, err := r.store.Pool().Begin(ctx)
	r.must(err)
	defer func() { _ = tx.Rollback(context.Background()) }()
	_, err = tx.Exec(ctx, `SELECT id FROM circuits WHERE id = $1 FOR UPDATE`, id)
	r.must(err)
	entered := make(chan error, 1)
	go func() {
		_, err := r.Enter(ctx, r.admin, id)
		entered <- err
	}()
	r.waits()
	left := make(chan error, 1)
	go func() {
		_, err := r.store.Pool().Exec(ctx, `UPDATE users SET status = 'inactive' WHERE id = $1`, r.admin.UserID)
		left <- err
	}()
	soon(t, "both wait", func() bool { return storetest.Waiting(t, r.store) == 2 })
	r.must(tx.Commit(ctx))
	r.must(<-entered)
	r.must(<-left)
	require.EqualValues(t, 2, r.circuit(id).Epoch)
}

// Reports of use by several proxies at once, and whatever else locks circuits, wait for each other or are tried again.
func TestReportsOfUseMeetOthers(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	ctx := t.Context()
	ids := []string{r.launched("jupyter").Circuit.ID, r.launched("web").Circuit.ID}
	slices.Sort(ids)
	gaveUp := 0
	for rounds := 0; gaveUp < 3; rounds++ {
		require.Less(t, rounds, 20, "the report never gives up")
		tx, err := r.store.Pool().Begin(ctx)
		r.must(err)
		defer func() { _ = tx.Rollback(context.Background()) }()
		// The other way round: whoever looks first gives up. The report looks a second after it began to wait, and never again: where this
		// transaction was later than that, it is the one that gives up, and the next round is another try.
		_, err = tx.Exec(ctx, `SELECT id FROM circuits WHERE id = $1 FOR UPDATE`, ids[1])
		r.must(err)
		told := make(chan error, 1)
		go func() {
			told <- r.Activity(ctx, "p", proxy.Activity{Circuits: []proxy.CircuitActivity{{ID: ids[0], LastAt: r.clock()},
				{ID: ids[1], LastAt: r.clock()}}})
		}()
		r.waits()
		_, err = tx.Exec(ctx, `SET LOCAL deadlock_timeout = '3s'`)
		r.must(err)
		_, err = tx.Exec(ctx, `SELECT id FROM circuits WHERE id = $1 FOR UPDATE`, ids[0])
		if err != nil {
			require.ErrorContains(t, err, "40P01")
			r.must(tx.Rollback(ctx))
		} else {
			gaveUp++
			r.must(tx.Commit(ctx))
		}
		require.NoError(t, <-told)
	}
	require.Equal(t, 2, r.count(`SELECT count(*) FROM circuits WHERE last_activity IS NOT NULL`))
}

// Who enters while the right to it is being taken gets nothing that outlives it.
func TestEnterWhileRevoked(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	ctx := t.Context()
	c := r.launched("jupyter").Circuit
	_, err := r.Patch(ctx, r.alice, c.ID, app.Change{SharedUsers: &[]string{"carol@x"}})
	r.must(err)
	tx, err := r.store.Pool().Begin(ctx)
	r.must(err)
	defer func() { _ = tx.Rollback(context.Background()) }()
	for _, text := range []string{
		`SELECT id FROM circuits WHERE id = $1 FOR UPDATE`, `DELETE FROM circuit_shares WHERE circuit_id = $1`,
		`UPDATE circuits SET epoch = epoch + 1 WHERE id = $1`,
	} {
		_, err := tx.Exec(ctx, text, c.ID)
		r.must(err)
	}
	entered := make(chan error, 1)
	go func() {
		_, err := r.Enter(ctx, r.carol, c.ID)
		entered <- err
	}()
	r.waits()
	r.must(tx.Commit(ctx))
	wantKind(t, <-entered, fault.NotFound, "the share is gone")
}
