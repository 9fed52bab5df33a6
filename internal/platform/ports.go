package platform

import (
	"cmp"
	"encoding/json"
	"hash/fnv"
	"net"
	"os"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"berth.dev/berth/internal/durable"
)

// How the ports of a cluster are chosen: free ones that stay the same over restarts, or the well-known ones.
const (
	PortsAuto  = "auto"
	PortsFixed = "fixed"
)

// ports are the addresses that clients and agents know; they stay the same over restarts.
type ports struct {
	API            string `json:"api"`
	Agent          string `json:"agent"`
	StorageClient  string `json:"storage_client,omitempty"`
	StorageManager string `json:"storage_manager,omitempty"`
	AppProxy       string `json:"app_proxy,omitempty"`
	Web            string `json:"web,omitempty"`
	// AppPorts is the first of appPorts ports for apps; 0 before they are chosen.
	AppPorts int `json:"app_ports,omitempty"`
}

func fixedPorts() ports {
	return ports{API: "127.0.0.1:8081", Agent: "127.0.0.1:6001", StorageClient: "127.0.0.1:6021", StorageManager: "127.0.0.1:6022",
		AppProxy: "127.0.0.1:10200", AppPorts: 10205, Web: "127.0.0.1:8090"}
}

// free is an address that choosePorts replaces.
const free = "127.0.0.1:0"

// rememberedPorts returns those of the last start; free where there was none.
func (d StateDir) rememberedPorts() ports {
	p := ports{API: free, Agent: free, StorageClient: free, StorageManager: free, AppProxy: free, Web: free}
	text, err := os.ReadFile(d.Path("ports.json"))
	if err != nil {
		return p
	}
	var old ports
	if json.Unmarshal(text, &old) != nil || old.API == "" || old.Agent == "" {
		return p
	}
	// Written before there was a storage role, or an app proxy.
	old.StorageClient, old.StorageManager = cmp.Or(old.StorageClient, free), cmp.Or(old.StorageManager, free)
	old.AppProxy, old.Web = cmp.Or(old.AppProxy, free), cmp.Or(old.Web, free)
	return old
}

func (d StateDir) rememberPorts(p ports) error {
	text, err := json.Marshal(p)
	if err != nil {
		return err
	}
	return durable.WriteFile(d.Path("ports.json"), append(text, '\n'), 0o644)
}

// choosePorts decides where the API, the agent port and the storage proxy listen. An address that the operator
// configured stays; a remembered port that somebody else took meanwhile is given up.
func (p *platform) choosePorts() ports {
	want := fixedPorts()
	if p.o.Ports == PortsAuto {
		want = p.dir.rememberedPorts()
		want.AppPorts = p.claimPorts(want.AppPorts)
		services := []*string{&want.API, &want.Agent, &want.StorageClient, &want.StorageManager, &want.AppProxy, &want.Web}
		for _, addr := range services {
			if *addr != free {
				if ln, err := net.Listen("tcp", *addr); err == nil {
					_ = ln.Close() // only tried
					continue
				}
				p.note("%s is taken by another program, choosing another port", *addr)
			}
			*addr = freeService(want.AppPorts+appPorts, services)
		}
	}
	d := DefaultSettings()
	if p.settings.Manager.Listen != d.Manager.Listen {
		want.API = p.settings.Manager.Listen
	}
	if p.settings.Manager.Agents.Listen != d.Manager.Agents.Listen {
		want.Agent = p.settings.Manager.Agents.Listen
	}
	if p.settings.Storage.ClientListen != d.Storage.ClientListen {
		want.StorageClient = p.settings.Storage.ClientListen
	}
	if p.settings.Storage.ManagerListen != d.Storage.ManagerListen {
		want.StorageManager = p.settings.Storage.ManagerListen
	}
	if p.settings.AppProxy.Listen != d.AppProxy.Listen {
		want.AppProxy = p.settings.AppProxy.Listen
	}
	if p.settings.WebServer.Listen != d.WebServer.Listen {
		want.Web = p.settings.WebServer.Listen
	}
	return want
}

// A cluster of `berth up` has portsStep ports for itself: appPorts for apps, where the operator does not say, then those of the services.
const (
	appPorts  = 96
	portsStep = 110
)

// claimPorts finds the first of portsStep ports that look free, below those that the kernel gives to anybody. Clusters side by side begin
// their search at different places, and each keeps what it found. Two that start in the same moment do not find the same: whoever holds
// the last port, for UDP, has them all. It is held until the process ends.
func (p *platform) claimPorts(remembered int) int {
	const first, last = 10400, 29900
	h := fnv.New32a()
	_, _ = h.Write([]byte(p.dir)) // never fails
	start := int(h.Sum32() % ((last - first) / portsStep))
	candidates := []int{remembered}
	for i := range 20 {
		candidates = append(candidates, first+(start+i)%((last-first)/portsStep)*portsStep)
	}
	if p.claim != nil {
		_ = p.claim.Close() // it was only bound
	}
	for _, base := range candidates {
		if base == 0 || !looksFree(base, base+appPorts/2, base+appPorts-1) {
			continue
		}
		claim, err := net.ListenPacket("udp", loopback(base+portsStep-1))
		if err == nil {
			p.claim = claim
			return base
		}
	}
	return candidates[1] // ports that are taken are told of when an app wants one
}

func loopback(port int) string { return net.JoinHostPort("127.0.0.1", strconv.Itoa(port)) }

// freeService is the address of a service on one of the few ports from first on that is none of the others'. A service that the kernel gave
// a port could lose it while it is down: the kernel gives the same one to a connection of any program.
func freeService(first int, others []*string) string {
	for port := first; port < first+portsStep-appPorts; port++ {
		addr := loopback(port)
		if !slices.ContainsFunc(others, func(o *string) bool { return *o == addr }) && looksFree(port) {
			return addr
		}
	}
	return free
}

func looksFree(ports ...int) bool {
	for _, port := range ports {
		ln, err := net.Listen("tcp", loopback(port))
		if err != nil {
			return false
		}
		_ = ln.Close() // only tried
	}
	return true
}

// reachable replaces the addresses that mean "all" by one that a client on this machine can dial.
func reachable(addr string) string {
	host, port, err := net.SplitHostPort(addr)
	if err != nil {
		return addr
	}
	if ip := net.ParseIP(host); host == "" || ip != nil && ip.IsUnspecified() {
		host = "127.0.0.1"
	}
	return net.JoinHostPort(host, port)
}

func isAddressInUse(err error) bool { return strings.Contains(err.Error(), syscall.EADDRINUSE.Error()) }
