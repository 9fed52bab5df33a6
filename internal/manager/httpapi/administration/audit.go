package administration

import (
	"berth.dev/berth/api"
	"berth.dev/berth/api/admin"
	"berth.dev/berth/internal/manager/audit"
	"berth.dev/berth/internal/manager/httpapi/route"
)

func (h *Handlers) auditLog(c route.Call) error {
	p, err := c.Params()
	if err != nil {
		return err
	}
	q := audit.Query{Filter: p.Text("filter", ""), Order: p.Text("order", ""), Limit: p.Number("limit", 20, 1, 100),
		Offset: p.Number("offset", 0, 0, 10_000_000)}
	if p.Has("after") {
		q.After = new(int64(p.Number("after", 0, 0, 1<<53)))
	}
	if err := p.Err(); err != nil {
		return err
	}
	page, err := h.Audit.List(c.Context(), c.Actor(), q)
	if err != nil {
		return err
	}
	out := admin.AuditPage{Items: make([]admin.AuditEntry, 0, len(page.Items)), TotalCount: page.Total}
	for _, e := range page.Items {
		v := admin.AuditEntry{ID: e.ID, At: api.TimeText(e.At), Action: e.Action, Object: e.Object, Result: e.Result, Reason: e.Reason,
			UserID: e.UserID, Email: e.Email, Role: e.Role, Domain: e.Domain, AccessKey: e.AccessKey, ActingFor: e.ActingFor,
			Token: e.Token, Address: e.Address, RequestID: e.RequestID, Means: e.Means, Changes: []admin.AuditChange{},
			ChangeCount: e.ChangeCount}
		if e.Attempts > 1 {
			v.Attempts = e.Attempts
		}
		for _, ch := range e.Changes {
			v.Changes = append(v.Changes, admin.AuditChange{Table: ch.Table, Key: ch.Key, Before: ch.Before, After: ch.After})
		}
		out.Items = append(out.Items, v)
	}
	return route.OK(c, out)
}
