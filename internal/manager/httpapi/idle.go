package httpapi

import (
	"slices"
	"time"

	"berth.dev/berth/api"
	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/manager/idle"
	"berth.dev/berth/internal/manager/idle/rule"
	"berth.dev/berth/internal/manager/session"
)

// The routes of this file are our extensions; see docs/api-extensions.md.
func (a *API) idleRoutes() {
	a.handle(signedOnly, a.idleCheckers, "GET /resource/idle-checkers")
	a.handle(signedOnly, a.setIdleChecker, "PUT /resource/idle-checkers/{name}")
	a.handle(signedOnly, a.removeIdleChecker, "DELETE /resource/idle-checkers/{name}")
	a.handle(signedOnly, a.idleReport, "GET /resource/idle-report")
	a.handle(signedOnly, a.keepAlive, withKernel("POST", "/{s}/keep-alive")...)
	a.handle(signedOnly, a.endKeepAlive, withKernel("DELETE", "/{s}/keep-alive")...)
}

func (a *API) idleCheckers(c *call) error {
	found, err := a.idle.Checkers(c.ctx(), c.actor)
	if err != nil {
		return err
	}
	list := make([]api.IdleChecker, len(found))
	for i, k := range found {
		bindings := make([]api.IdleBinding, len(k.Bindings))
		for j, b := range k.Bindings {
			bindings[j] = api.IdleBinding{Domain: b.Domain, Project: b.Project, ProjectName: b.ProjectName, ResourceGroup: b.ResourceGroup}
		}
		list[i] = api.IdleChecker{
			Name: k.Name, Description: k.Description, Type: string(k.Type), Targets: texts(k.Targets),
			InitialGrace: k.InitialGrace.Seconds(), NewUserGrace: k.NewUserGrace.Seconds(), WarnBefore: new(k.WarnBefore.Seconds()),
			DryRun: k.DryRun, Enabled: k.Enabled, Bindings: bindings, CreatedAt: isoTime(k.CreatedAt), ModifiedAt: isoTime(k.ModifiedAt),
			Spec: api.IdleSpec{
				MaxLifetime: k.Spec.MaxLifetime, MaxNetworkInactivity: k.Spec.MaxNetworkInactivity, Window: k.Spec.Window,
				Operator: string(k.Spec.Operator), Thresholds: k.Spec.Thresholds,
			},
		}
	}
	return c.ok(api.IdleCheckerList{Checkers: list})
}

// specFields are the members of a specification; others are refused, so that a misspelt limit does not end or spare sessions.
var specFields = []string{
	"max_lifetime_seconds", "max_network_inactivity_seconds", "time_window_seconds", "thresholds_check_operator", "resource_thresholds",
}

const maxSpan = 10 * 365 * 24 * 60 * 60

func (a *API) setIdleChecker(c *call) error {
	p, err := c.params()
	if err != nil {
		return err
	}
	k := idle.Checker{Name: c.r.PathValue("name"), Description: p.Text("description", ""), Type: rule.Type(p.Need("type")),
		InitialGrace: p.Span("initial_grace_period"), NewUserGrace: p.Span("new_user_grace_period"), WarnBefore: 5 * time.Minute,
		DryRun: p.Flag("dry_run", false), Enabled: p.Flag("enabled", true)}
	if p.Has("warn_before") {
		k.WarnBefore = p.Span("warn_before")
	}
	for _, t := range p.List("target_session_types") {
		k.Targets = append(k.Targets, cluster.SessionType(t))
	}
	spec := p.Object("spec")
	for _, name := range sortedKeys(spec.Members()) {
		if !slices.Contains(specFields, name) {
			spec.Fail(name, "is not known; use one of %v", specFields)
		}
	}
	k.Spec = idle.Spec{
		MaxLifetime:          int64(spec.Number("max_lifetime_seconds", 0, 0, maxSpan)),
		MaxNetworkInactivity: int64(spec.Number("max_network_inactivity_seconds", 0, 0, maxSpan)),
		Window:               int64(spec.Number("time_window_seconds", 0, 0, maxSpan)),
		Operator:             rule.Operator(spec.Text("thresholds_check_operator", "")),
	}
	if k.Spec.Operator == "" && k.Type == "utilization" {
		k.Spec.Operator = "and"
	}
	thresholds := spec.Object("resource_thresholds")
	for _, name := range sortedKeys(thresholds.Members()) {
		v, ok := thresholds.Real(name)
		if ok {
			if k.Spec.Thresholds == nil {
				k.Spec.Thresholds = map[string]float64{}
			}
			k.Spec.Thresholds[name] = v
		}
	}
	for i, b := range p.Objects("bindings") {
		for _, name := range sortedKeys(b.Members()) {
			if !slices.Contains([]string{"domain", "project", "project_name", "resource_group"}, name) {
				b.Fail(name, "is not known; use domain, project or resource_group, or nothing for the whole cluster")
			}
		}
		k.Bindings = append(
			k.Bindings,
			idle.Binding{Domain: b.Text("domain", ""), Project: b.Text("project", ""), ResourceGroup: b.Text("resource_group", "")},
		)
		if i >= 1000 {
			p.Fail("bindings", "are too many")
			break
		}
	}
	if err := p.Err(); err != nil {
		return err
	}
	if err := a.idle.SetChecker(c.ctx(), c.actor, k); err != nil {
		return err
	}
	return c.nothing()
}

func (a *API) removeIdleChecker(c *call) error {
	if err := a.idle.RemoveChecker(c.ctx(), c.actor, c.r.PathValue("name")); err != nil {
		return err
	}
	return c.nothing()
}

func (a *API) idleReport(c *call) error {
	found, total, err := a.idle.Report(c.ctx(), c.actor)
	if err != nil {
		return err
	}
	list := make([]api.IdleReport, len(found))
	for i, r := range found {
		list[i] = api.IdleReport{
			SessionID: string(r.Session), SessionName: r.Name, UserEmail: r.UserEmail, AccessKey: string(r.AccessKey), ProjectID: string(r.Project),
			ResourceGroup: r.Group, StartedAt: isoTime(r.StartedAt), LastAccess: isoTimeOrNil(r.LastAccess), Checks: checksOf(r),
		}
		if r.Keep != nil {
			list[i].KeptAliveUntil = new(isoTime(r.Keep.Until))
		}
	}
	return c.ok(api.IdleReportList{Sessions: list, Total: total})
}

// checksOf is how a session stands with its idle checks, by their type.
func checksOf(r idle.Report) map[string]api.IdleCheck {
	out := map[string]api.IdleCheck{}
	for kind, k := range r.ByType() {
		check := api.IdleCheck{
			Remaining: k.Remaining, Kind: k.Kind, Phase: string(k.Phase), Checker: k.Checker, Source: k.Source, Why: k.Why, DryRun: k.DryRun,
		}
		if k.Extra != nil {
			check.Extra = &api.IdleExtra{Operator: string(k.Extra.Operator), Resources: k.Extra.Resources}
		}
		if k.EndsAt != nil {
			check.EndsAt = new(k.EndsAt.Format(time.RFC3339Nano))
		}
		out[string(kind)] = check
	}
	return out
}

func (a *API) keepAlive(c *call) error {
	ref, who, p, err := c.refOwner()
	if err != nil {
		return err
	}
	d, reason := p.Span("for|duration"), p.Text("reason", "")
	if !p.Has("for|duration") {
		p.Fail("for", "is required")
	}
	if err := p.Err(); err != nil {
		return err
	}
	until, err := a.idle.KeepAlive(c.ctx(), c.actor, ref, who, d, reason)
	if err != nil {
		return err
	}
	if until.IsZero() {
		return c.ok(api.KeptAlive{})
	}
	return c.ok(api.KeptAlive{Until: new(isoTime(until))})
}

func (a *API) endKeepAlive(c *call) error {
	ref, who, _, err := c.refOwner()
	if err != nil {
		return err
	}
	if _, err := a.idle.KeepAlive(c.ctx(), c.actor, ref, who, 0, ""); err != nil {
		return err
	}
	return c.nothing()
}

// idleChecksOf is how a session stands with idle checks by their type; empty for one that does not run.
func (a *API) idleChecksOf(c *call, s *session.Session) (map[string]api.IdleCheck, error) {
	if s.Status != cluster.Running {
		return map[string]api.IdleCheck{}, nil
	}
	found, err := a.idle.Checks(c.ctx(), c.actor, []cluster.SessionID{s.ID})
	if err != nil {
		return nil, err
	}
	return checksOf(found[s.ID]), nil
}
