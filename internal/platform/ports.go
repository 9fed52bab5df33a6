package platform

import (
	"cmp"
	"encoding/json"
	"hash/fnv"
	"net"
	"os"
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

// rememberedPorts returns those of the last start; free ones, as port 0, when there was none.
func (d StateDir) rememberedPorts() ports {
	const free = "127.0.0.1:0"
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
		for _, addr := range []*string{&want.API, &want.Agent, &want.StorageClient, &want.StorageManager, &want.AppProxy,
			&want.Web} {
			ln, err := net.Listen("tcp", *addr)
			if err != nil {
				p.note("%s is taken by another program, choosing another port", *addr)
				*addr = "127.0.0.1:0"
				continue
			}
			_ = ln.Close() // only tried
		}
		want.AppPorts = chooseAppPorts(want.AppPorts, string(p.dir))
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

// appPorts is how many ports the app proxy of `berth up` has for apps, where the operator does not say.
const appPorts = 96

// chooseAppPorts finds the first of appPorts ports that look free, below those that the kernel gives to anybody. Clusters side
// by side begin their search at different places, and each keeps what it found.
func chooseAppPorts(remembered int, dir string) int {
	const first, last, step = 10400, 29900, 100
	h := fnv.New32a()
	_, _ = h.Write([]byte(dir)) // never fails
	start := int(h.Sum32()) % ((last - first) / step)
	candidates := []int{remembered}
	for i := range 20 {
		candidates = append(candidates, first+(start+i)%((last-first)/step)*step)
	}
	for _, base := range candidates {
		if base > 0 && looksFree(base, base+appPorts/2, base+appPorts-1) {
			return base
		}
	}
	return candidates[1] // ports that are taken are told of when an app wants one
}

func looksFree(ports ...int) bool {
	for _, port := range ports {
		ln, err := net.Listen("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(port)))
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
