// Package device asks which devices agents have, and which ones sessions hold and use.
package device

import (
	"context"
	"encoding/json"
	"fmt"
	"net/url"

	"berth.dev/berth/api"
)

// Classes of distance in Device.Links; smaller is nearer. What has no class is joined by nothing better than its NUMA nodes.
const (
	Sibling = 1  // parts of one card, hyper-threads of one core
	Fast    = 2  // a direct link such as NVLink
	Switch  = 4  // one PCIe switch
	Node    = 8  // one NUMA node
	Far     = 16 // across NUMA nodes
)

// Device is a device of an agent. Hardware that fills several slots is one Device for each of them, with the same ID.
type Device struct {
	Slot    string `json:"Slot"`
	ID      string `json:"ID"`
	Model   string `json:"Model,omitempty"`
	NUMA    int    `json:"NUMA"` // -1: not known
	PCI     string `json:"PCI,omitempty"`
	Healthy bool   `json:"Healthy"`
	// Capacity is in thousandths of the slot's unit.
	Capacity int64          `json:"Capacity"`
	Links    map[string]int `json:"Links,omitempty"`
	// Problem says why it is not healthy; Memory is its own in bytes, 0 where it has none or tells none.
	Problem string `json:"Problem,omitempty"`
	Memory  int64  `json:"Memory,omitempty"`
	// Isolation is how well those who share it are kept apart: hard, driver, cooperative or none; "" is not known.
	Isolation string `json:"Isolation,omitempty"`
}

// Machine is an agent with its devices and who holds them.
type Machine struct {
	Agent         string             `json:"agent"`
	Status        string             `json:"status"`
	Schedulable   bool               `json:"schedulable"`
	ResourceGroup string             `json:"scaling_group"`
	Devices       []Device           `json:"devices"`
	Sessions      []api.AgentSession `json:"sessions"`
	// SessionCount counts all sessions; Sessions are the oldest 1,000.
	SessionCount int `json:"session_count"`
}

// OfAgent asks what an agent has and who holds it (administrators and monitors).
func OfAgent(ctx context.Context, c *api.Client, id string) (Machine, error) {
	a, err := c.Agent(ctx, id)
	if err != nil {
		return Machine{}, err
	}
	work, err := c.AgentWork(ctx, id)
	if err != nil {
		return Machine{}, err
	}
	m := Machine{Agent: a.ID, Status: a.Status, Schedulable: a.Schedulable, ResourceGroup: a.ResourceGroup, Sessions: work.Sessions,
		SessionCount: work.SessionCount}
	if len(a.Hardware) > 0 {
		var told struct {
			Devices []Device `json:"devices"`
		}
		if err := json.Unmarshal(a.Hardware, &told); err != nil {
			return Machine{}, fmt.Errorf("read what agent %s tells of its devices: %w", id, err)
		}
		m.Devices = told.Devices
	}
	return m, nil
}

// Held is a device as far as a kernel holds it. What is not known is left out.
type Held struct {
	Slot   string `json:"slot"`
	ID     string `json:"id"`
	Amount string `json:"amount"`
	Model  string `json:"model,omitempty"`
	PCI    string `json:"pci,omitempty"`
	NUMA   *int   `json:"numa,omitempty"`
	// Healthy is absent for a device that the agent does not list any more.
	Healthy *bool `json:"healthy,omitempty"`
	// Use is what was measured of the device last, while the kernel alone holds it: cuda_util in percent, cuda_mem in bytes.
	Use map[string]float64 `json:"use,omitempty"`
}

// Kernel is what a container of a session holds and uses.
type Kernel struct {
	ID       string            `json:"kernelId"`
	Hostname string            `json:"clusterHostname"`
	Status   string            `json:"status"`
	Agent    string            `json:"agent,omitempty"`
	Slots    map[string]string `json:"slots"`
	// Use is what was measured last: cpu_util in percent of a core, mem in bytes, io_read and io_write in bytes since the start,
	// cuda_util in percent of a device and the like.
	Use     map[string]float64 `json:"use,omitempty"`
	Devices []Held             `json:"devices"`
	// Why says in one sentence how its devices lie to each other.
	Why string `json:"why,omitempty"`
}

// Session is what the containers of a session hold and use.
type Session struct {
	ID      string   `json:"sessionId"`
	Name    string   `json:"sessionName"`
	User    string   `json:"userEmail"`
	Status  string   `json:"status"`
	Kernels []Kernel `json:"kernels"`
}

// Top is what running sessions hold and use, the newest first. Total counts all, of which at most 64 are told.
type Top struct {
	Sessions []Session `json:"sessions"`
	Total    int       `json:"total"`
	AsOf     string    `json:"as_of"`
}

// OfSession asks what a session holds and uses.
func OfSession(ctx context.Context, c *api.Client, session string) (Session, error) {
	var out Session
	err := c.Get(ctx, "/session/"+url.PathEscape(session)+"/devices", nil, &out)
	return out, err
}

// OfSessions asks what the caller's running sessions hold and use; with all those of everybody whom the caller may see.
func OfSessions(ctx context.Context, c *api.Client, all bool) (Top, error) {
	q := url.Values{}
	if all {
		q.Set("all", "true")
	}
	var out Top
	err := c.Get(ctx, "/resource/session-devices", q, &out)
	return out, err
}
