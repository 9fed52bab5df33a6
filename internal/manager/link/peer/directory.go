// Package peer is what managers of one cluster know of each other and do for each other: they announce themselves in etcd,
// and a manager that gets a request for an agent which is connected to another one relays it there.
//
// Which manager holds an agent is one fact with one source: the row that the manager wrote when the agent registered, fenced by
// the agent's epoch. Where that manager is comes from its announcement alone, never from a caller. The manager wires it.
package peer

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"net"
	"slices"
	"sync"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"berth.dev/berth/internal/chassis"
	"berth.dev/berth/internal/manager/link/announce"
	"berth.dev/berth/internal/wire/node"
)

// Presence is how a manager announces itself.
type Presence struct {
	ID        string    `json:"id"`
	API       string    `json:"api"`    // host:port of REST and GraphQL
	Agents    string    `json:"agents"` // host:port of the agent port
	Version   string    `json:"version"`
	StartedAt time.Time `json:"started_at"`
}

const (
	maxManagers = node.MaxManagers
	maxPresence = 64 << 10
)

// Directory knows the managers that announce themselves. While etcd is away the last that is known stays true.
type Directory struct {
	etcd    *clientv3.Client
	prefix  string
	clock   chassis.Clock
	log     *slog.Logger
	changed func() // never nil

	mu   sync.Mutex
	live map[string]Presence // by id
}

// NewDirectory makes a directory of the announcements below prefix, which ends with a slash. Run must be running for it to
// learn of any. It calls changed after every change of the agent ports; changed must not block.
func NewDirectory(etcd *clientv3.Client, prefix string, clock chassis.Clock, log *slog.Logger, changed func()) *Directory {
	return &Directory{etcd: etcd, prefix: prefix, clock: clock, log: log, changed: changed, live: map[string]Presence{}}
}

// Announce keeps a manager's announcement until ctx ends.
func (d *Directory) Announce(ctx context.Context, p Presence) error {
	raw, err := json.Marshal(p)
	if err != nil {
		return fmt.Errorf("render announcement: %w", err)
	}
	return announce.Keep(ctx, d.etcd, d.clock, d.log, d.prefix+p.ID, string(raw))
}

// Run follows the announcements until ctx ends.
func (d *Directory) Run(ctx context.Context) error {
	return announce.Follow(ctx, d.etcd, d.clock, d.log, d.prefix, maxManagers, announce.Listener{
		All: d.replace,
		Put: func(id string, value []byte) {
			if p, ok := d.read(id, value); ok {
				d.put(p)
			}
		},
		Gone: func(id string) { d.change(func() { delete(d.live, id) }) },
	})
}

// change changes what is known.
func (d *Directory) change(how func()) {
	before := d.AgentPorts()
	d.mu.Lock()
	how()
	d.mu.Unlock()
	if !slices.Equal(before, d.AgentPorts()) {
		d.changed()
	}
}

func (d *Directory) replace(all map[string][]byte) {
	now := make(map[string]Presence, len(all))
	for id, value := range all {
		if p, ok := d.read(id, value); ok {
			now[id] = p
		}
	}
	d.change(func() { d.live = now })
}

func (d *Directory) put(p Presence) {
	d.change(func() {
		if _, known := d.live[p.ID]; !known && len(d.live) >= maxManagers {
			d.log.Warn("too many managers announce themselves", "manager", p.ID)
			return
		}
		d.live[p.ID] = p
	})
}

// read decodes an announcement; one that cannot be used is left out, and the log says why.
func (d *Directory) read(id string, value []byte) (p Presence, ok bool) {
	problem := ""
	switch {
	case len(value) > maxPresence:
		problem = "it is too long"
	case json.Unmarshal(value, &p) != nil:
		problem = "it is not JSON"
	case p.ID != id || id == "":
		problem = "it is of another manager than its key"
	case !isAddress(p.Agents):
		problem = "its agent port is no address"
	}
	if problem != "" {
		d.log.Warn("the announcement of a manager cannot be used", "manager", id, "problem", problem)
	}
	return p, problem == ""
}

func isAddress(text string) bool {
	host, port, err := net.SplitHostPort(text)
	return err == nil && host != "" && port != "" && len(text) <= node.MaxAddress
}

// Find returns the announcement of a manager.
func (d *Directory) Find(id string) (Presence, bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	p, ok := d.live[id]
	return p, ok
}

// Count is how many managers announce themselves, this one included.
func (d *Directory) Count() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return len(d.live)
}

// AgentPorts are the addresses of all managers' agent ports that others can reach, in order.
func (d *Directory) AgentPorts() []string {
	d.mu.Lock()
	defer d.mu.Unlock()
	out := make([]string, 0, len(d.live))
	for _, p := range d.live {
		out = append(out, p.Agents)
	}
	slices.Sort(out)
	return slices.Compact(out)
}
