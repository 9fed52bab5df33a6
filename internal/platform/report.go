package platform

import (
	"fmt"
	"strings"
	"time"

	"berth.dev/berth/internal/agent"
	"berth.dev/berth/internal/appproxy"
	"berth.dev/berth/internal/chassis"
	"berth.dev/berth/internal/storage"
)

// Report is what `berth status` shows of a running cluster.
type Report struct {
	Running  bool      `json:"running"`
	Ready    bool      `json:"ready"`
	Phase    string    `json:"phase"`
	Pid      int       `json:"pid"`
	Version  string    `json:"version"`
	StateDir string    `json:"state_dir"`
	Started  time.Time `json:"started_at"`
	API      string    `json:"api"`
	// TLS says whether the way to the API is encrypted.
	TLS    Encryption `json:"tls"`
	Agents string     `json:"agent_port"`
	Email  string     `json:"admin_email"`
	// Storage is where clients transfer files.
	Storage string       `json:"storage"`
	Volumes []VolumeLine `json:"volumes,omitempty"`
	// Apps is how visitors reach the apps of sessions; nil when the app proxy is turned off.
	Apps *appproxy.Status `json:"apps,omitempty"`
	// Web is how browsers reach the web server; "" when it is turned off.
	Web string `json:"web,omitempty"`
	// Notes are things that an operator should know although the cluster is up.
	Notes    []string              `json:"notes,omitempty"`
	Services []chassis.CheckResult `json:"services"`
	Backends map[string]string     `json:"backends,omitempty"`
}

// VolumeLine is a volume in `berth status`.
type VolumeLine struct {
	Host     string `json:"host"`
	Backend  string `json:"backend"`
	Path     string `json:"path"`
	Problem  string `json:"problem,omitempty"`
	Capacity int64  `json:"capacity_bytes,omitempty"`
	Used     int64  `json:"used_bytes,omitempty"`
}

func (v VolumeLine) sick() bool { return v.Problem != "" }

// Healthy reports whether every part of a cluster is well and sessions can be created.
func (r Report) Healthy() bool {
	for _, s := range r.Services {
		if !s.OK {
			return false
		}
	}
	for _, v := range r.Volumes {
		if v.sick() {
			return false
		}
	}
	return r.Ready && (r.Apps == nil || r.Apps.Problem == "")
}

func (v VolumeLine) String() string {
	if v.sick() {
		return fmt.Sprintf("%s  NOT WELL: %s", v.Host, v.Problem)
	}
	return fmt.Sprintf("%s  %s at %s, %.1f of %.1f GiB used", v.Host, v.Backend, v.Path, float64(v.Used)/(1<<30), float64(v.Capacity)/(1<<30))
}

// volumeLines is empty while there is no proxy yet.
func volumeLines(p *storage.Proxy) []VolumeLine {
	if p == nil {
		return nil
	}
	var out []VolumeLine
	for _, v := range p.Volumes() {
		out = append(out, VolumeLine{Host: p.Name() + ":" + v.Name, Backend: v.Backend, Path: v.Path, Problem: v.Problem,
			Capacity: v.CapacityBytes, Used: v.UsedBytes})
	}
	return out
}

// Counts are what the API says about the cluster's content.
type Counts struct {
	Agents   map[string]int `json:"agents"`
	Sessions map[string]int `json:"sessions"`
}

// Finding is something that should not be, or should be looked at.
type Finding struct {
	// Warning is true for what does not make doctor fail.
	Warning bool   `json:"warning,omitempty"`
	Kind    string `json:"kind"`
	Object  string `json:"object"`
	Problem string `json:"problem"`
	Next    string `json:"next,omitempty"`
}

// AgentFindings are the findings of an agent.
func AgentFindings(in []agent.Finding) []Finding {
	var out []Finding
	for _, f := range in {
		object := f.Object
		if f.Kernel != "" && !strings.Contains(object, string(f.Kernel)) {
			object += " (kernel " + string(f.Kernel) + ")"
		}
		// Directories on their way out have an owner: the agent that deletes them in the background.
		// What bounds sessions less than it could is as the operator set the machine up.
		warning := f.Kind == "deletion" || f.Kind == "disk-bounds" || f.Kind == "user-numbers"
		out = append(out, Finding{Warning: warning, Kind: f.Kind, Object: object, Problem: f.Problem, Next: f.Next})
	}
	return out
}

// StorageFindings are the findings of a storage proxy.
func StorageFindings(in []storage.Finding) []Finding {
	var out []Finding
	for _, f := range in {
		out = append(out, Finding{Warning: f.Warning, Kind: f.Kind, Object: f.Object, Problem: f.Problem, Next: f.Next})
	}
	return out
}

// AppProxyFindings are the findings of an app proxy.
func AppProxyFindings(in []appproxy.Finding) []Finding {
	var out []Finding
	for _, f := range in {
		out = append(out, Finding{Warning: f.Warning, Kind: f.Kind, Object: f.Object, Problem: f.Problem, Next: f.Next})
	}
	return out
}
