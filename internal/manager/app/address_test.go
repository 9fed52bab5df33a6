package app_test

import (
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"

	"berth.dev/berth/internal/fault"
	"berth.dev/berth/internal/manager/app"
	"berth.dev/berth/internal/manager/authz"
	"berth.dev/berth/internal/wire/proxy"
)

// Users who may come from some networks only open apps from there alone, and what they get is good from there alone.
func TestVisitorsComeFromTheirNetworks(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	ctx := t.Context()
	allow := func(list ...string) {
		r.sql(`UPDATE users SET allowed_client_ip = $1 WHERE id = $2`, list, r.alice.UserID)
	}
	allow("203.0.113.0/24")
	got := r.launched("jupyter")
	reply, err := r.redeem(got.Circuit.ID, got.Code)
	r.must(err)
	require.Equal(t, []string{"203.0.113.0/24"}, reply.Clients)

	_, err = r.launch("jupyter", func(q *proxy.LaunchRequest) { q.Client = netip.MustParseAddr("198.51.100.1") })
	wantReason(t, err, "address-not-allowed", "a launch token elsewhere")
	_, err = r.launch("jupyter", func(q *proxy.LaunchRequest) { q.Client = netip.Addr{} })
	wantReason(t, err, "address-not-allowed", "an address that is not known")
	again := r.launched("jupyter")
	_, err = r.Redeem(ctx, "p", proxy.RedeemRequest{Circuit: again.Circuit.ID, Code: again.Code, Client: netip.MustParseAddr("198.51.100.1")})
	wantReason(t, err, "address-not-allowed", "a code elsewhere")

	keys, err := r.Keys(ctx, "p")
	r.must(err)
	networks := func(text string) []string {
		ticket, ok := proxy.ReadTicket(text, keys)
		require.True(t, ok)
		return ticket.Clients
	}
	ticket, err := r.Ticket(ctx, r.alice, "My Lab", "", app.Want{App: "jupyter"})
	r.must(err)
	require.Equal(t, []string{"203.0.113.0/24"}, networks(ticket.Ticket))
	e, err := r.Enter(ctx, r.alice, got.Circuit.ID)
	r.must(err)
	require.Equal(t, []string{"203.0.113.0/24"}, networks(e.Ticket.Ticket))

	allow()
	free, err := r.Ticket(ctx, r.alice, "My Lab", "", app.Want{App: "jupyter"})
	r.must(err)
	require.Empty(t, networks(free.Ticket))
}

// What was obtained ends with the way in by which it was: a list of addresses that changes, a keypair that is revoked or removed.
func TestTicketsEndWithTheWayIn(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]string{
		"a new list":    `UPDATE users SET allowed_client_ip = '{203.0.113.0/24}' WHERE id = $1`,
		"a revoked key": `UPDATE keypairs SET is_active = false WHERE user_id = $1`,
		"a removed key": `DELETE FROM keypairs WHERE access_key = 'Kspare' AND user_id = $1`,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for _, who := range []string{"owner", "shared with", "member", "administrator"} {
				r := newRig(t)
				ctx := t.Context()
				visitor := map[string]authz.Actor{"owner": r.alice, "shared with": r.carol, "member": r.bob, "administrator": r.admin}[who]
				r.sql(`INSERT INTO keypairs (access_key, secret_sealed, user_id, resource_policy) VALUES ('Kspare', '\x01', $1, 'default')`,
					visitor.UserID)
				mine, other := r.launched("sshd"), r.launched("web")
				_, err := r.redeem(mine.Circuit.ID, mine.Code)
				r.must(err)
				_, err = r.Patch(ctx, r.alice, mine.Circuit.ID, app.Change{SharedUsers: &[]string{"carol@x"}, SharedProjects: &[]string{"proj"}})
				r.must(err)
				_, err = r.Enter(ctx, visitor, mine.Circuit.ID)
				r.must(err)
				token := r.token(r.alice, "web")
				before, others := r.circuit(mine.Circuit.ID).Epoch, r.circuit(other.Circuit.ID).Epoch
				r.sql(change, visitor.UserID)
				now := r.circuit(mine.Circuit.ID)
				require.Greater(t, now.Epoch, before, who)
				require.Empty(t, now.Admitted, who)
				_, err = r.Launch(ctx, proxy.LaunchRequest{Proxy: "p", Token: token, Session: r.session, App: "web", Client: laptop})
				if who == "owner" {
					wantReason(t, err, "bad-launch-token", who)
				} else {
					r.must(err)
					require.Equal(t, others, r.circuit(other.Circuit.ID).Epoch, "%s: what is not theirs stays", who)
				}
			}
		})
	}
}

// The users of an inactive domain publish and visit nothing.
func TestInactiveDomains(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	ctx := t.Context()
	got := r.launched("sshd")
	_, err := r.redeem(got.Circuit.ID, got.Code)
	r.must(err)
	token := r.token(r.alice, "web")
	second := r.launched("jupyter")
	r.sql(`UPDATE domains SET is_active = false WHERE name = 'd'`)
	require.Nil(t, r.circuit(got.Circuit.ID))
	_, err = r.Launch(ctx, proxy.LaunchRequest{Proxy: "p", Token: token, Session: r.session, App: "web", Client: laptop})
	wantKind(t, err, fault.Denied, "a launch token")
	_, err = r.redeem(second.Circuit.ID, second.Code)
	wantReason(t, err, "bad-code", "a code")
	_, err = r.Ticket(ctx, r.alice, "My Lab", "", app.Want{App: "jupyter"})
	wantKind(t, err, fault.Denied, "a ticket")
	r.sql(`UPDATE domains SET is_active = true WHERE name = 'd'`)
	_, err = r.Ticket(ctx, r.alice, "My Lab", "", app.Want{App: "jupyter"})
	r.must(err)
}
