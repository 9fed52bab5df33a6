package administration

import (
	"net/http"

	"berth.dev/berth/api"
	"berth.dev/berth/api/admin"
	"berth.dev/berth/internal/manager/httpapi/route"
	"berth.dev/berth/internal/manager/tenancy/directory"
)

func (h *Handlers) directoryStatus(c route.Call) error {
	s, err := h.Directory.Status(c.Context(), c.Actor())
	if err != nil {
		return err
	}
	out := admin.Directory{Name: s.Name, Domain: s.Domain, SyncEvery: s.SyncEvery.String(), MostRemoved: s.Limits.MostRemoved,
		MostRemovedPercent: s.Limits.MostRemovedPercent, Syncs: []admin.DirectorySync{}}
	for i := range s.Syncs {
		out.Syncs = append(out.Syncs, syncView(&s.Syncs[i]))
	}
	return route.OK(c, out)
}

func (h *Handlers) askDirectorySync(c route.Call) error {
	p, err := c.Params()
	if err != nil {
		return err
	}
	r := directory.Request{DryRun: p.Flag("dry_run", false), Allowance: p.Number("allow_removals", 0, 0, 1_000_000)}
	if err := p.Err(); err != nil {
		return err
	}
	s, err := h.Directory.Ask(c.Context(), c.Actor(), r)
	if err != nil {
		return err
	}
	return c.Answer(http.StatusAccepted, syncView(&s))
}

func (h *Handlers) directorySync(c route.Call) error {
	s, err := h.Directory.Find(c.Context(), c.Actor(), c.Path("id"))
	if err != nil {
		return err
	}
	return route.OK(c, syncView(&s))
}

func (h *Handlers) allowRemovals(c route.Call) error {
	p, err := c.Params()
	if err != nil {
		return err
	}
	provider, n := p.Need("provider"), p.Number("allow_removals", 0, 0, 1_000_000)
	if err := p.Err(); err != nil {
		return err
	}
	if err := h.Provision.AllowRemovals(c.Context(), c.Actor(), provider, n); err != nil {
		return err
	}
	return c.Nothing()
}

func syncView(s *directory.Sync) admin.DirectorySync {
	out := admin.DirectorySync{ID: s.ID, Directory: s.Directory, DryRun: s.DryRun, AskedBy: s.AskedBy, Status: s.Status, Message: s.Message,
		People: s.People, Created: s.Created, Changed: s.Changed, Removed: s.Removed, Narrowed: s.Narrowed, Refused: s.Refused,
		Diff:    s.Diff,
		AskedAt: api.Time{Time: s.AskedAt}}
	if s.EndedAt != nil {
		out.EndedAt = &api.Time{Time: *s.EndedAt}
	}
	return out
}
