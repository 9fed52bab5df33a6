package graphapi

import (
	"testing"

	"github.com/stretchr/testify/require"

	"berth.dev/berth/internal/manager/session"
)

// TestServicePorts: the text that clients make their list of apps from.
func TestServicePorts(t *testing.T) {
	t.Parallel()
	require.JSONEq(t, `[{"name":"sshd","protocol":"tcp","container_ports":[2200],"host_ports":[],"is_inference":false},
		{"name":"sftp","protocol":"tcp","container_ports":[2201],"host_ports":[],"is_inference":false},
		{"name":"ttyd","protocol":"http","container_ports":[7681],"host_ports":[],"is_inference":false},
		{"name":"jupyter","protocol":"http","container_ports":[8070],"host_ports":[],"is_inference":false}]`,
		*servicePorts([]session.ServicePort{{Name: "jupyter", Protocol: "http", Ports: []int{8070}}}))
}
