package agent

import (
	"fmt"
	"net"
	"os"
	"strconv"
	"strings"
	"time"

	"berth.dev/berth/internal/agent/ledger"
	"berth.dev/berth/internal/cluster"
)

func (c Config) validateHostPorts() error {
	if _, err := cluster.ParsePortRange(c.HostPorts); err != nil {
		return fmt.Errorf("read agent.host_ports: %w", err)
	}
	return nil
}

// hostPorts are the ports that the keeper leases. The configuration was validated.
func (c Config) hostPorts() cluster.PortRange {
	r, _ := cluster.ParsePortRange(c.HostPorts)
	return r
}

// passingPorts is where Linux says which ports it gives to connections of any program.
const passingPorts = "/proc/sys/net/ipv4/ip_local_port_range"

// overlap says in words that ports of a range may be taken by connections of any program of the host; "" when none may. passing is what
// Linux says of these.
func overlap(r cluster.PortRange, passing string) string {
	f := strings.Fields(passing)
	if r.Size() == 0 || len(f) != 2 {
		return ""
	}
	first, err1 := strconv.Atoi(f[0])
	last, err2 := strconv.Atoi(f[1])
	if err1 != nil || err2 != nil || r.Last < first || r.First > last {
		return ""
	}
	return fmt.Sprintf("agent.host_ports (%s) overlaps the ports %d-%d, which this host's kernel gives to connections of any program: "+
		"sessions in the host's network may find theirs taken; choose others, "+
		"or reserve them with net.ipv4.ip_local_reserved_ports", r, first, last)
}

// warnOfPorts logs that leased ports may be taken by others.
func (a *Agent) warnOfPorts() {
	text, _ := os.ReadFile(passingPorts) // elsewhere than on Linux there is none
	if w := overlap(a.c.hostPorts(), string(text)); w != "" {
		a.d.Log.Warn(w)
	}
}

// portFree reports that nothing listens on a TCP port of this host, on whatever address.
func portFree(port int) bool {
	l, err := net.Listen("tcp", net.JoinHostPort("", strconv.Itoa(port)))
	if err != nil {
		return false
	}
	return l.Close() == nil
}

// leaseFindings names ports of this host that are leased to kernels which have ended and have no container.
func leaseFindings(records map[cluster.KernelID]*ledger.Record, containers map[cluster.KernelID]bool, now time.Time) []Finding {
	var out []Finding
	for id, r := range records {
		if len(r.HostPorts) == 0 || r.Final == nil || containers[id] || now.Sub(r.EndsAt) <= time.Minute {
			continue
		}
		var ports []string
		for _, p := range r.HostPorts {
			ports = append(ports, strconv.Itoa(p))
		}
		out = append(out, Finding{Kind: "host-ports", Object: strings.Join(ports, ","), Kernel: id,
			Problem: "these ports are leased to a kernel that has ended", Next: "start the agent; it takes them back"})
	}
	return out
}
