package scheduler_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"berth.dev/berth/internal/scheduler"
)

// TestEncryptedNetworksAreWhereAgentsEncrypt: kernels that reach each other over agents run where that can be encrypted, if it is to be,
// and say why they wait. Who needs no such network runs anywhere.
func TestEncryptedNetworksAreWhereAgentsEncrypt(t *testing.T) {
	t.Parallel()
	clear := agent("a", 8, 8)
	clear.Unencrypted = "it has no /dev/net/tun"
	sealed := agent("b", 2, 8)
	gang := job(1, 10, 0, ask(1, 1))
	gang.Kernels = append(gang.Kernels, job(2, 10, 0, ask(1, 1)).Kernels...)
	gang.Connected = true
	alone := job(1, 10, 0, ask(1, 1))
	near, placed := gang, gang
	near.Connected = false
	placed.Encrypted = true
	for name, c := range map[string]struct {
		group   bool
		agents  []scheduler.Agent
		session scheduler.Session
		on      string
	}{
		"in clear":                 {false, []scheduler.Agent{clear}, gang, "a"},
		"encrypted":                {true, []scheduler.Agent{clear, sealed}, gang, "b"},
		"encrypted before":         {false, []scheduler.Agent{clear, sealed}, placed, "b"},
		"one kernel":               {true, []scheduler.Agent{clear}, alone, "a"},
		"no agent encrypts":        {true, []scheduler.Agent{clear}, gang, ""},
		"none for the one before":  {false, []scheduler.Agent{clear}, placed, ""},
		"kernels of a single node": {true, []scheduler.Agent{clear}, near, "a"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d := plan(t, scheduler.Snapshot{Group: scheduler.Group{EncryptedNetworks: c.group}, Agents: c.agents,
				Pending: []scheduler.Session{c.session}})["s01"]
			if c.on == "" {
				require.Equal(t, scheduler.WaitsForAgent, d.Hold.Reason)
				require.Equal(t, "no agent can take it: of 1 agents, 1 that cannot encrypt its network, "+
					"agent a encrypts none: it has no /dev/net/tun", d.Hold.Text)
				require.Equal(t, map[string]int{"unencrypted": 1}, d.Hold.Rejected)
				require.Contains(t, d.Hold.Remedies[0], "have one of 1 agents encrypt networks")
				return
			}
			require.Len(t, d.Placements, len(c.session.Kernels))
			for _, p := range d.Placements {
				require.EqualValues(t, c.on, p.Agent)
			}
		})
	}
}
