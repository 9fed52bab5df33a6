package httpapi

import (
	"slices"

	"berth.dev/berth/api"
	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/manager/session"
	"berth.dev/berth/internal/manager/session/request"
)

// explanation is the wire's form of why a session waits or where it would start.
func explanation(e session.Explanation) api.Explanation {
	out := api.Explanation{
		Session: string(e.Session), Status: string(e.Status), ResourceGroup: e.Group, Reason: e.Reason, Msg: e.Text,
		Rejected: e.Rejected, Position: e.Position, Queue: e.Queue, Remedies: e.Remedies, AsOf: isoTime(e.AsOf),
	}
	if len(e.Shortfall) > 0 {
		out.Shortfall = e.Shortfall.Wire()
	}
	if !e.Estimate.IsZero() {
		out.Estimate = new(isoTime(e.Estimate))
	}
	for _, p := range e.Placements {
		devices := map[string]map[string]string{}
		for slot, amounts := range p.Devices {
			devices[string(slot)] = map[string]string{}
			for device, v := range amounts {
				devices[string(slot)][device] = v.String()
			}
		}
		out.Placements = append(out.Placements, api.PlannedKernel{Agent: string(p.Agent), Devices: devices})
	}
	out.Mounts = sessionMounts(e.Mounts)
	return out
}

// sessionMounts is the wire's form of the folders in a session, never null.
func sessionMounts(mounts []cluster.FolderMount) []api.SessionMount {
	out := make([]api.SessionMount, len(mounts))
	for i, m := range mounts {
		out[i] = api.SessionMount{Folder: string(m.Folder), Name: m.Name, Host: m.Host, UsageMode: m.Usage, Permission: string(m.Perm),
			Subpath: m.Subpath, Target: m.Target}
	}
	return out
}

// mountNames are the names of the folders in a session, each once.
func mountNames(mounts []cluster.FolderMount) []string {
	out := []string{}
	for _, m := range mounts {
		if !slices.Contains(out, m.Name) {
			out = append(out, m.Name)
		}
	}
	return out
}

// explainSession is our extension GET /session/{s}/explain.
func (a *API) explainSession(c *call) error {
	ref, who, _, err := c.refOwner()
	if err != nil {
		return err
	}
	s, e, err := a.sessions.Explain(c.ctx(), c.actor, ref, who)
	if err != nil {
		return err
	}
	out := explanation(e)
	out.Session, out.Name, out.Status = string(s.ID), s.Name, string(s.Status)
	out.Waits = s.Status == cluster.Pending && e.Reason != ""
	return c.ok(out)
}

// dryRun answers a create request that is only to be planned. Nothing is created and nothing is waited for.
func (a *API) dryRun(c *call, r request.Session) error {
	e, err := a.sessions.DryRun(c.ctx(), c.actor, r)
	if err != nil {
		return err
	}
	out := explanation(e)
	out.DryRun, out.Name, out.Waits = true, r.Name, e.Reason != ""
	return c.ok(out)
}
