package administration

import (
	"berth.dev/berth/api/admin"
	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/manager/httpapi/route"
	"berth.dev/berth/internal/manager/resource"
)

func (h *Handlers) limits(c route.Call) error {
	p, err := c.Params()
	if err != nil {
		return err
	}
	user, project, group := p.Text("user", ""), p.Text("group", "default"), p.Text("scaling_group|scalingGroup", "")
	if err := p.Err(); err != nil {
		return err
	}
	l, err := h.Resources.Limits(c.Context(), c.Actor(), user, project, group)
	if err != nil {
		return err
	}
	out := admin.Limits{User: l.User, AccessKey: l.AccessKey, Project: l.Project, Domain: l.Domain, ResourceGroups: l.ResourceGroups,
		Limits: make([]admin.Limit, 0, len(l.Lines))}
	for _, line := range l.Lines {
		out.Limits = append(out.Limits, limitOf(line))
	}
	return route.OK(c, out)
}

// The wire's texts for no limit and for what is not shown.
const (
	infinity = "Infinity"
	hidden   = "NaN"
)

func limitOf(line resource.LimitLine) admin.Limit {
	counts := line.Kind != resource.LimitOfSession && !line.Slot // plain numbers
	amount := func(v cluster.Amount) string {
		if counts {
			v = cluster.Whole(int64(v))
		}
		return v.String()
	}
	out := admin.Limit{Kind: line.Kind, What: line.What, Left: infinity, Levels: make([]admin.LimitLevel, 0, len(line.Levels))}
	for i, l := range line.Levels {
		v := admin.LimitLevel{Level: l.Level, Name: l.Name, Policy: l.Policy, Limit: infinity, Left: infinity, Used: amount(l.Used),
			Binds: i == line.Binds}
		if l.Limited {
			v.Limit, v.Left = amount(l.Limit), amount(l.Left)
		}
		if l.Hidden {
			v.Limit, v.Used, v.Left = hidden, hidden, hidden
		}
		if v.Binds {
			out.Left = v.Left
		}
		out.Levels = append(out.Levels, v)
	}
	return out
}

func (h *Handlers) why(c route.Call) error {
	p, err := c.Params()
	if err != nil {
		return err
	}
	user, action, object := p.Text("user", ""), p.Need("action"), p.Need("object")
	if err := p.Err(); err != nil {
		return err
	}
	w, err := h.Tenancy.Explain(c.Context(), c.Actor(), user, action, object)
	if err != nil {
		return err
	}
	out := admin.Why{User: w.User, Action: w.Action, Object: w.Object, Allowed: w.Allowed, Because: w.Because, Needs: w.Needs,
		ReadsOnly: w.ReadsOnly, Inactive: w.Inactive}
	return route.OK(c, out)
}
