package administration

import (
	"berth.dev/berth/api/admin"
	"berth.dev/berth/internal/fault"
	"berth.dev/berth/internal/manager/httpapi/params"
	"berth.dev/berth/internal/manager/httpapi/route"
	"berth.dev/berth/internal/manager/seal"
	"berth.dev/berth/internal/manager/tenancy/apply"
	"berth.dev/berth/internal/manager/tenancy/plan"
	"berth.dev/berth/internal/manager/tenancy/purge"
)

func (h *Handlers) exportTenancy(c route.Call) error {
	p, err := c.Params()
	if err != nil {
		return err
	}
	domain, format := p.Text("domain", ""), p.Text("format", string(apply.YAML))
	if err := p.Err(); err != nil {
		return err
	}
	text, err := h.Tenancies.Export(c.Context(), c.Actor(), domain, apply.Format(format))
	if err != nil {
		return err
	}
	return route.OK(c, admin.Tenancy{Format: format, Text: text})
}

func (h *Handlers) planTenancy(c route.Call) error {
	p, err := c.Params()
	if err != nil {
		return err
	}
	r := apply.Request{Format: apply.Format(p.Text("format", string(apply.YAML))), Text: p.Text("text", ""), Prune: p.Flag("prune", false)}
	if err := p.Err(); err != nil {
		return err
	}
	plan, err := h.Tenancies.Plan(c.Context(), c.Actor(), r)
	if err != nil {
		return err
	}
	out := admin.TenancyPlan{Changes: make([]admin.TenancyChange, 0, len(plan.Changes)), Notes: append([]string{}, plan.Notes...),
		Summary: plan.Summary()}
	for _, one := range plan.Changes {
		out.Changes = append(out.Changes, admin.TenancyChange{Kind: string(one.Kind), Domain: one.Domain, Name: one.Name, Make: one.Make,
			From: one.From, To: one.To, Words: one.Words()})
	}
	return route.OK(c, out)
}

// previewEnd says what becomes of what somebody has when they are made inactive or purged.
func (h *Handlers) previewEnd(c route.Call) error {
	p, err := c.Params()
	if err != nil {
		return err
	}
	kind, ref, end := purge.Kind(p.Need("kind")), p.Need("ref"), p.Text("end", admin.Inactive)
	o := purge.Options{EndSessions: p.Flag("end_sessions", false), PurgeShared: p.Flag("purge_shared_vfolders", false),
		Contents: p.Flag("contents", false)}
	if end != admin.Inactive && end != admin.Purged {
		p.Fail("end", "must be inactive or purged")
	}
	if err := p.Err(); err != nil {
		return err
	}
	var plan purge.Plan
	if end == admin.Purged {
		plan, err = h.Purges.Preview(c.Context(), c.Actor(), kind, ref, o)
	} else {
		plan, err = h.Purges.PreviewInactive(c.Context(), c.Actor(), kind, ref)
	}
	if err != nil {
		return err
	}
	out := admin.PurgePlan{Name: plan.Name, Domain: plan.Domain, Items: make([]admin.PurgeItem, len(plan.Items)), Refusal: plan.Refusal}
	for i, of := range plan.Items {
		out.Items[i] = admin.PurgeItem{What: of.What, Count: of.Count, Names: append([]string{}, of.Names...), Fate: of.Fate}
	}
	return route.OK(c, out)
}

// stepOf reads a change.
func stepOf(p *params.Set) apply.Step {
	s := apply.Step{Change: plan.Change{Kind: plan.Kind(p.Need("kind")), Domain: p.Text("domain_name", ""), Name: p.Need("name"),
		Make: p.Flag("make", false), From: p.Texts("from"), To: p.Texts("to")}, Letter: p.Flag("letter", false)}
	if text := p.Text("password", ""); text != "" {
		s.Password = new(seal.Secret(text))
	}
	return s
}

func (h *Handlers) applyTenancy(c route.Call) error {
	p, err := c.Params()
	if err != nil {
		return err
	}
	var steps []apply.Step
	for _, one := range p.Objects("changes") {
		steps = append(steps, stepOf(one))
	}
	if err := p.Err(); err != nil {
		return err
	}
	results, err := h.Tenancies.Apply(c.Context(), c.Actor(), steps)
	if err != nil {
		return err
	}
	out := admin.TenancyResults{Results: make([]admin.TenancyResult, 0, len(results))}
	for _, r := range results {
		one := admin.TenancyResult{State: "done"}
		switch {
		case r.Err != nil:
			one = admin.TenancyResult{State: "failed", Error: r.Err.Error(), Next: fault.NextOf(r.Err), Reason: fault.ReasonOf(r.Err)}
		case r.Already:
			one.State = "already"
		}
		out.Results = append(out.Results, one)
	}
	return route.OK(c, out)
}
