package scheduling_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"berth.dev/berth/internal/manager/session/scheduling"
	"berth.dev/berth/internal/manager/store"
)

// TestTheNetworkOfHostsIsCheckedAtPlacement: a group may have changed since a session was created. What is allowed takes no network of
// sessions.
func TestTheNetworkOfHostsIsCheckedAtPlacement(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.agent("a1", 16, 1<<40)
	b.exec(`UPDATE sessions SET resource_opts = '{}'`)
	b.exec(`CREATE FUNCTION host_option() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
		NEW.resource_opts := NEW.resource_opts || '{"network": "host"}'; RETURN NEW; END $$`)
	b.exec(`CREATE TRIGGER host_option BEFORE INSERT ON sessions FOR EACH ROW EXECUTE FUNCTION host_option()`)
	planner, _ := b.measured(func(*scheduling.Config) {})
	two := b.session("", 1, 1)
	b.becomes(two, "PENDING", string(scheduling.WaitsForNetwork))
	e, err := planner.Explain(t.Context(), two)
	require.NoError(t, err)
	require.Contains(t, e.Text, "does not let sessions run in the network of their hosts any more")
	require.Contains(t, e.Remedies[0], "use_host_network")
	b.exec(`UPDATE resource_groups SET use_host_network = true`)
	b.store.Wake(store.TopicSchedule)
	b.becomes(two, "SCHEDULED", "")
	var n int
	require.NoError(t, b.store.Pool().QueryRow(t.Context(), `SELECT count(*) FROM session_networks`).Scan(&n))
	require.Zero(t, n)
}
