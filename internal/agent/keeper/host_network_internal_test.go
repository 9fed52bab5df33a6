package keeper

import (
	"testing"

	"github.com/stretchr/testify/require"

	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/wire/run"
)

func TestPortsArePicked(t *testing.T) {
	t.Parallel()
	r := cluster.PortRange{First: 30000, Last: 30005}
	busy := func(port int) bool { return port != 30003 }
	require.Equal(t, []int{30000, 30001}, pickPorts(r, 2, 0, nil, nil))
	require.Equal(t, []int{30002, 30004}, pickPorts(r, 2, 30001, nil, busy), "somebody else listens on 30003")
	require.Equal(t, []int{30005, 30000}, pickPorts(r, 2, 30004, nil, nil), "ports rest before they are given out again")
	require.Equal(t, []int{30000, 30002}, pickPorts(r, 2, 40000, map[int]bool{30001: true}, nil), "the range was another one")
	require.Nil(t, pickPorts(r, 3, 0, map[int]bool{30000: true, 30001: true, 30002: true, 30004: true}, nil), "none of them, rather than some")
	require.Nil(t, pickPorts(cluster.PortRange{}, 1, 0, nil, nil))
}

func TestPortsHaveTheirUses(t *testing.T) {
	t.Parallel()
	s := &cluster.KernelSpec{ServicePorts: "jupyter:http:8070,board:tcp:[9001,9002]", PreopenPorts: []int{5000}, PeerSecret: "x"}
	require.Equal(t, appsOf(s), assignPorts(s, nil).apps, "a network of its own")
	s.HostNetwork = true
	require.Equal(t, 9, portsNeeded(s))
	var leased []int
	for i := range 9 {
		leased = append(leased, 30000+i)
	}
	a := assignPorts(s, leased)
	require.Equal(t, 30000, a.ssh)
	require.Equal(t, []run.AppPort{{Name: "jupyter", Protocol: run.AppHTTP, Ports: []int{30001}},
		{Name: "board", Protocol: run.AppTCP, Ports: []int{30002, 30003}}, {Name: "5000", Protocol: run.AppPreopen, Ports: []int{30004}}}, a.apps)
	env := map[string]string{"BERTH_SSH_PORT": "22", "BERTH_APP_PORTS": "of the request"}
	a.environ(env)
	require.Equal(t, map[string]string{"BERTH_NETWORK": "host", "BERTH_SSH_PORT": "30000",
		"BERTH_APP_PORTS": "jupyter=30001,board=30002+30003,5000=30004", "BERTH_FREE_PORTS": "30005,30006,30007,30008",
		"BACKENDAI_SERVICE_PORTS": "jupyter:http:30001,board:tcp:[30002,30003]", "BACKENDAI_PREOPEN_PORTS": "30004"}, env)
}
