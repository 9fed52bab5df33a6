// Package device answers which devices sessions hold and how much they use. It decodes, calls one use case, encodes. httpapi mounts it and
// does the rest.
package device

import (
	"math"
	"strings"
	"time"

	"berth.dev/berth/api"
	wire "berth.dev/berth/api/device"
	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/manager/httpapi/route"
	"berth.dev/berth/internal/manager/session"
)

// Handlers answer the routes. All fields are required.
type Handlers struct {
	Sessions *session.Service
	Now      func() time.Time
}

// Routes are all of them; both are extensions.
func (h *Handlers) Routes() []route.Route {
	return []route.Route{
		route.Signed.To("GET /session/{s}/devices", h.ofSession),
		route.Signed.To("GET /kernel/{s}/devices", h.ofSession),
		route.Signed.To("GET /resource/session-devices", h.ofSessions),
	}
}

func (h *Handlers) ofSession(c route.Call) error {
	p, err := c.Params()
	if err != nil {
		return err
	}
	owner := cluster.AccessKey(p.Text("owner_access_key|ownerAccessKey", ""))
	if err := p.Err(); err != nil {
		return err
	}
	s, err := h.Sessions.Devices(c.Context(), c.Actor(), c.Path("s"), owner)
	if err != nil {
		return err
	}
	return route.OK(c, sessionOf(s))
}

func (h *Handlers) ofSessions(c route.Call) error {
	p, err := c.Params()
	if err != nil {
		return err
	}
	all := p.Flag("all", false)
	if err := p.Err(); err != nil {
		return err
	}
	var f session.Filter
	if !all {
		f.AccessKey = c.Actor().AccessKey
	}
	sessions, total, err := h.Sessions.Top(c.Context(), c.Actor(), f)
	if err != nil {
		return err
	}
	out := wire.Top{Sessions: make([]wire.Session, len(sessions)), Total: total, AsOf: api.TimeText(h.Now())}
	for i, s := range sessions {
		out.Sessions[i] = sessionOf(s)
	}
	return route.OK(c, out)
}

func sessionOf(s session.SessionDevices) wire.Session {
	out := wire.Session{ID: string(s.Session.ID), Name: s.Session.Name, User: s.Session.UserEmail, Status: string(s.Session.Status),
		Kernels: make([]wire.Kernel, len(s.Kernels))}
	for i, k := range s.Kernels {
		out.Kernels[i] = wire.Kernel{ID: string(k.ID), Hostname: k.ClusterHostname, Status: string(k.Status), Agent: string(k.Agent),
			Slots: k.OccupiedSlots.Wire(), Use: numbers(k.LiveStat), Devices: make([]wire.Held, len(k.Devices)), Why: k.Why}
		for j, d := range k.Devices {
			held := wire.Held{Slot: string(d.Slot), ID: d.ID, Amount: d.Amount.String(), Model: d.Model, PCI: d.PCI, Use: numbers(d.Use)}
			if d.NUMA >= 0 {
				held.NUMA = &d.NUMA
			}
			if d.Known {
				held.Healthy = &d.Healthy
			}
			out.Kernels[i].Devices[j] = held
		}
	}
	return out
}

// numbers are measurements as JSON can have them, without those of single devices, which stand with the devices.
func numbers(values map[string]float64) map[string]float64 {
	out := map[string]float64{}
	for name, v := range values {
		if !strings.Contains(name, "@") && !math.IsNaN(v) && !math.IsInf(v, 0) {
			out[name] = v
		}
	}
	return out
}
