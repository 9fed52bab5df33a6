package app_test

import (
	"context"
	"crypto/ed25519"
	"encoding/json"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/fault"
	"berth.dev/berth/internal/manager/app"
	"berth.dev/berth/internal/wire/proxy"
)

// verified is the grant of a circuit's first target, as an agent reads it.
func (r *rig) verified(s *app.Service, c proxy.Circuit) proxy.Grant {
	r.t.Helper()
	raw, err := s.GrantKeys(r.t.Context())
	r.must(err)
	var keys []ed25519.PublicKey
	for _, k := range raw {
		keys = append(keys, k)
	}
	g, err := proxy.VerifyGrant(c.Targets[0].Grant, keys)
	r.must(err)
	return g
}

// A circuit comes with a grant for its proxy, kernel, generation and port, which is renewed before it expires and says the same at
// all managers.
func TestGrants(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	ctx := t.Context()
	r.sql(`UPDATE kernels SET generation = 7 WHERE id = $1`, r.kernel)
	r.deps.ClusterID = "cluster-1"
	var err error
	r.Service, err = app.New(r.deps)
	r.must(err)
	two, err := app.New(r.deps)
	r.must(err)
	c := r.launched("web").Circuit
	want := proxy.Grant{Circuit: c.ID, Kernel: cluster.KernelID(r.kernel), Generation: 7, Port: 9001, Proxy: "p", Issuer: "cluster-1",
		Expires: r.clock().Add(proxy.GrantLife).Truncate(time.Second)}
	require.Equal(t, want, r.verified(two, c))
	require.Equal(t, want, r.verified(two, *r.circuit(c.ID)), "a look-up brings it too")

	r.run(r.Service, r.store)
	watch, err := r.Watch(ctx, "p")
	r.must(err)
	defer watch.Close()
	var w watched
	w.take(t, r.Service, watch, r.clock())
	require.Equal(t, want, r.verified(two, w.circuits[c.ID]))
	news := func() int {
		circuits, _, full := watch.Take(r.clock())
		require.False(t, full)
		r.must(r.Grant(ctx, watch, circuits))
		for _, c := range circuits {
			w.circuits[c.ID] = c
		}
		return len(circuits)
	}
	r.advance(proxy.GrantLife - proxy.GrantRenewal - 2*time.Second)
	require.Zero(t, news(), "it is not time yet")
	r.advance(4 * time.Second)
	require.Equal(t, 1, news())
	renewed := w.circuits[c.ID]
	require.Equal(t, c.Revision, renewed.Revision, "nothing else has changed")
	want.Expires = r.clock().Add(proxy.GrantLife).Truncate(time.Second)
	require.Equal(t, want, r.verified(two, renewed))
	require.Zero(t, news())

	// Keys take turns; an agent that was away for a day understands every grant.
	keys := func() [][]byte { k, err := two.GrantKeys(ctx); r.must(err); return k }
	first := keys()
	require.Len(t, first, 1)
	r.advance(8 * 24 * time.Hour)
	both := keys()
	require.Len(t, both, 2)
	r.see(instance())
	old := r.launched("sshd").Circuit
	_, err = proxy.VerifyGrant(old.Targets[0].Grant, []ed25519.PublicKey{first[0]})
	require.NoError(t, err, "a new key does not sign before agents know it")
	r.advance(proxy.GrantLife + time.Minute)
	r.see(instance())
	fresh := r.launched("jupyter").Circuit
	_, err = proxy.VerifyGrant(fresh.Targets[0].Grant, []ed25519.PublicKey{first[0]})
	require.ErrorIs(t, err, proxy.ErrGrantKey)
	r.verified(two, fresh)
	require.Contains(t, keys(), first[0], "what it signed is good for a day")
	r.advance(proxy.GrantLife + 2*time.Hour)
	require.NotContains(t, keys(), first[0])
}

// Agents are told which circuits of their running kernels ended, by this manager's own knowledge at once and by what is stored.
func TestEndedCircuits(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	ctx := t.Context()
	r.run(r.Service, r.store)
	watch, err := r.Watch(ctx, "p")
	r.must(err)
	watch.Close()
	closed, gone := r.launched("web").Circuit, r.launched("jupyter").Circuit
	soon(t, "both are known", func() bool {
		w, err := r.Watch(ctx, "p")
		r.must(err)
		defer w.Close()
		circuits, _, _ := w.Take(r.clock())
		return len(circuits) == 2
	})
	ended := func(s *app.Service, agent cluster.AgentID) []string {
		list, ok := s.EndedCircuits(agent)
		require.True(t, ok)
		return list
	}
	require.Empty(t, ended(r.Service, "a1"))
	r.must(r.Delete(ctx, r.alice, closed.ID))
	soon(t, "the agent is told", func() bool { return len(ended(r.Service, "a1")) == 1 })
	require.Equal(t, []string{closed.ID}, ended(r.Service, "a1"))
	require.Empty(t, ended(r.Service, "a2"))
	// A manager that starts now reads it.
	two, err := app.New(r.deps)
	r.must(err)
	_, ok := two.EndedCircuits("a1")
	require.False(t, ok, "agents keep what they know until it has read")
	r.run(two, nil)
	soon(t, "another manager knows", func() bool { list, ok := two.EndedCircuits("a1"); return ok && len(list) == 1 })
	r.move(r.session, r.kernel, "TERMINATED")
	three, err := app.New(r.deps)
	r.must(err)
	r.run(three, nil)
	w, err := three.Watch(ctx, "p")
	r.must(err)
	w.Close()
	require.Empty(t, ended(three, "a1"), "the end of the kernel ends %s and %s", closed.ID, gone.ID)
}

// Every name of a proxy has keys of its own, from which nobody gets to another's.
func TestKeysOfTicketsAreAProxysOwn(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	ctx := t.Context()
	p, err := r.Keys(ctx, "p")
	r.must(err)
	q, err := r.Keys(ctx, "q")
	r.must(err)
	require.Len(t, p, 1)
	require.Len(t, q, 1)
	require.NotEqual(t, p, q)
	raw, err := r.deps.Vault.Get(ctx, "app-ticket-masters")
	r.must(err)
	var kept []struct{ Key []byte }
	r.must(json.Unmarshal(raw, &kept))
	require.NotContains(t, append(p, q...), kept[0].Key, "what the keys are derived from stays with the managers")
	ticket, err := r.Ticket(ctx, r.alice, r.session, "", app.Want{App: "sshd"})
	r.must(err)
	_, ok := proxy.ReadTicket(ticket.Ticket, p)
	require.True(t, ok)
	_, ok = proxy.ReadTicket(ticket.Ticket, q)
	require.False(t, ok, "another proxy can neither check nor sign it")
}

// Tickets of the release before stay good for their life, at the proxies that had circuits then, and at no others.
func TestTicketsOverAnUpgrade(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	ctx := t.Context()
	shared := []byte("the key that all proxies knew..")
	_, err := r.deps.Vault.Update(ctx, "app-tickets", func([]byte) ([]byte, error) {
		return json.Marshal([]map[string]any{{"key": shared, "made": r.clock().Add(-time.Hour)}})
	})
	r.must(err)
	c := r.launched("jupyter").Circuit
	r.advance(time.Second)
	upgraded, err := app.New(r.deps)
	r.must(err)
	keys := func(name string) [][]byte { k, err := upgraded.Keys(ctx, name); r.must(err); return k }
	before := proxy.SignTicket(proxy.Ticket{Circuit: c.ID, User: "u", Epoch: 1, Expires: r.clock().Add(app.TicketLife)}, shared)
	own := keys("p")
	require.Len(t, own, 2)
	require.Equal(t, shared, own[0], "managers of the release before may still run: what they know signs for a moment")
	_, ok := proxy.ReadTicket(before, own)
	require.True(t, ok)
	require.NotContains(t, keys("new"), shared, "a proxy without circuits had no visitors")
	r.advance(10 * time.Minute)
	own = keys("p")
	require.Equal(t, shared, own[1], "from then on it only checks")
	r.advance(app.TicketLife - 10*time.Minute)
	require.NotContains(t, keys("p"), shared)
	_, ok = proxy.ReadTicket(before, keys("p"))
	require.False(t, ok)
}

// Visitors and resource groups know an app proxy by its addresses. Nobody takes one of them, whether their owner is connected or not.
func TestNobodyTakesAnotherProxysAddress(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	other := proxy.Instance{Node: "n2", Version: 1, URL: "https://evil.example.org", Domain: "evil.example.org",
		DomainURL: "https://evil.example.org:8443", PortHost: "ports.example.org", PortFrom: 20003, PortTo: 20010}
	attack := func() {
		t.Helper()
		for reason, announce := range map[string][]func(*proxy.Instance){
			"proxy-url-taken": {
				func(i *proxy.Instance) { i.URL = instance().URL },
				func(i *proxy.Instance) { i.URL = instance().URL + "/" },
				func(i *proxy.Instance) { i.URL = "https://APPS.example.org" },
				func(i *proxy.Instance) { i.URL = "https://apps.example.org:443" },
			},
			"proxy-domain-taken": {
				func(i *proxy.Instance) { i.Domain = instance().Domain },
				func(i *proxy.Instance) { i.Domain = ".Apps.Example.org" },
				func(i *proxy.Instance) { i.Domain = "example.org" },
				func(i *proxy.Instance) { i.Domain = "lab.apps.example.org" },
			},
			"proxy-ports-taken": {
				func(i *proxy.Instance) { i.PortFrom = 20002 },
				func(i *proxy.Instance) { i.PortHost, i.PortFrom, i.PortTo = "Ports.example.org", 1, 65535 },
			},
		} {
			for n, change := range announce {
				evil := other
				change(&evil)
				wantReason(t, r.See(t.Context(), "evil", evil), reason, fmt.Sprint(n))
			}
		}
	}
	attack()
	r.must(r.Leave(t.Context(), "p", "n1", r.clock()))
	attack()
	r.advance(365 * 24 * time.Hour)
	r.must(r.Tidy(t.Context()))
	attack()

	r.must(r.See(t.Context(), "evil", other))
	replica := instance()
	replica.Node = "n2"
	r.must(r.See(t.Context(), "p", replica))
	wantReason(t, r.See(t.Context(), "p", other), "proxy-url-taken", "nor does the first take the second's")
	// An administrator frees them.
	r.must(r.store.FreeProxyAddresses(t.Context(), "p"))
	evil := other
	evil.URL = instance().URL
	r.must(r.See(t.Context(), "evil", evil))
	wantReason(t, r.See(t.Context(), "p", instance()), "proxy-url-taken", "it is another's now")
}

// Proxies that had one address in common before addresses had owners go on.
func TestAddressesInCommonBefore(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.sql(`INSERT INTO app_proxy_addresses (proxy, kind, address) VALUES ('old', 'url', 'https://apps.example.org')`)
	old := proxy.Instance{Node: "n1", Version: 1, URL: "https://apps.example.org"}
	r.must(r.See(t.Context(), "old", old))
	r.see(instance())
	for n, name := range []string{"dev1", "dev2"} { // as they come on one machine without any configuration
		r.must(r.See(t.Context(), name, proxy.Instance{Node: "n1", Version: 1, URL: fmt.Sprintf("http://127.0.0.1:%d", 10200+n),
			Domain: "apps.localhost", DomainURL: "http://apps.localhost:10200", PortHost: "127.0.0.1", PortFrom: 10205, PortTo: 10300}))
	}
	for n := range 40 {
		old.URL = fmt.Sprintf("https://h%d.example.org", n)
		if err := r.See(t.Context(), "old", old); err != nil {
			wantReason(t, err, "too-many-proxy-addresses", "no proxy takes addresses without end")
			require.Greater(t, n, 20)
			return
		}
	}
	t.Fatal("no bound")
}

// An app proxy that knows a session and its access key gets a launch token only where a manager sent somebody to it.
func TestConfIsForWhatAManagerGave(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.must(r.See(t.Context(), "evil", proxy.Instance{Node: "n2", Version: 1, URL: "https://evil.example.org"}))
	conf := func(name string) error {
		_, err := r.Conf(t.Context(), name, proxy.ConfRequest{Session: r.session, AccessKey: "Kalice"})
		return err
	}
	// The default proxy of groups without an address is the first by name.
	wantKind(t, conf("evil"), fault.NotFound, "nobody started an app")
	wantKind(t, conf("p"), fault.NotFound, "nobody started an app")
	r.sql(`UPDATE resource_groups SET wsproxy_addr = 'https://apps.example.org' WHERE name = 'default'`)
	r.token(r.alice, "web")
	wantKind(t, conf("evil"), fault.NotFound, "a session of another proxy's resource group")
	r.must(conf("p"))
	r.sql(`UPDATE resource_groups SET wsproxy_addr = NULL WHERE name = 'default'`)
	wantKind(t, conf("evil"), fault.NotFound, "the manager named p")
	r.must(conf("p"))
	r.advance(11 * time.Minute)
	wantKind(t, conf("p"), fault.NotFound, "that was long ago")
	r.see(instance())
	r.must(r.See(t.Context(), "evil", proxy.Instance{Node: "n2", Version: 1, URL: "https://evil.example.org"}))
	r.token(r.alice, "web")
	r.must(conf("evil"))
	wantKind(t, conf("p"), fault.NotFound, "the manager named the other one")
}

// After a revocation the next grants of the name are those that agents obey, and no other name's change.
func TestGrantsAfterARevocation(t *testing.T) {
	t.Parallel()
	var revoked []proxy.Revocation
	r := newRig(t)
	r.deps.Revoked = func(context.Context) ([]proxy.Revocation, error) { return revoked, nil }
	var err error
	r.Service, err = app.New(r.deps)
	r.must(err)
	c := r.launched("web").Circuit
	before := r.verified(r.Service, c)
	revoked = []proxy.Revocation{proxy.Revoke("q", r.clock())}
	require.Equal(t, before, r.verified(r.Service, r.launched("web").Circuit), "another name")
	revoked = append(revoked, proxy.Revoke("p", r.clock()))
	require.True(t, revoked[1].Refuses(before))
	after := r.verified(r.Service, r.launched("web").Circuit)
	require.False(t, revoked[1].Refuses(after))
	require.Equal(t, after, r.verified(r.Service, r.launched("web").Circuit), "it is used again")
	require.Less(t, after.Expires.Sub(r.clock()), proxy.GrantLife+2*proxy.RevocationMargin)
	require.Empty(t, proxy.MergeRevocations(revoked, nil, revoked[1].Until.Add(time.Second)))
}

// Whoever opens and closes circuits of one kernel without end takes no place from the ended circuits of another.
func TestEndedCircuitsOfEveryKernelAreTold(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	_, noisy := r.running(r.alice, "noisy")
	quiet := "00000000-0000-4000-8000-00000000abcd"
	r.sql(`INSERT INTO circuit_removals (circuit_id, kernel_id, at) VALUES ($1, $2, now() - interval '1 hour')`, quiet, r.kernel)
	r.sql(`INSERT INTO circuit_removals (circuit_id, kernel_id) SELECT gen_random_uuid(), $1 FROM generate_series(1, 50)`, noisy)
	rows, err := r.store.EndedCircuits(t.Context(), proxy.GrantLife, 10)
	r.must(err)
	require.Len(t, rows, 10)
	require.Equal(t, quiet, rows[1].CircuitID)
}

// A manager whose clock was ahead goes back to grants that end in time.
func TestGrantsAfterTheClockWasPutBack(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	const ahead = 20 * time.Hour
	r.advance(ahead)
	r.see(instance())
	c := r.launched("web").Circuit
	r.run(r.Service, r.store)
	watch, err := r.Watch(t.Context(), "p")
	r.must(err)
	defer watch.Close()
	var w watched
	w.take(t, r.Service, watch, r.clock())
	r.advance(-ahead)
	latest := r.clock().Add(proxy.GrantLife)
	circuits, _, _ := watch.Take(r.clock())
	require.Len(t, circuits, 1, "the proxy is to hear the next grant")
	require.False(t, r.verified(r.Service, *r.circuit(c.ID)).Expires.After(latest))
}
