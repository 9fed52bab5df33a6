package httpapi

import (
	"fmt"
	"slices"
	"strconv"
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
	k := idle.Checker{Name: c.r.PathValue("name"), Description: p.text("description", ""), Type: rule.Type(p.need("type")),
		InitialGrace: p.span("initial_grace_period"), NewUserGrace: p.span("new_user_grace_period"), WarnBefore: 5 * time.Minute,
		DryRun: p.flag("dry_run", false), Enabled: p.flag("enabled", true)}
	if p.has("warn_before") {
		k.WarnBefore = p.span("warn_before")
	}
	for _, t := range p.list("target_session_types") {
		k.Targets = append(k.Targets, cluster.SessionType(t))
	}
	spec := p.object("spec")
	for _, name := range sortedKeys(spec.body) {
		if !slices.Contains(specFields, name) {
			spec.fail(name, "is not known; use one of %v", specFields)
		}
	}
	k.Spec = idle.Spec{
		MaxLifetime:          int64(spec.number("max_lifetime_seconds", 0, 0, maxSpan)),
		MaxNetworkInactivity: int64(spec.number("max_network_inactivity_seconds", 0, 0, maxSpan)),
		Window:               int64(spec.number("time_window_seconds", 0, 0, maxSpan)),
		Operator:             rule.Operator(spec.text("thresholds_check_operator", "")),
	}
	if k.Spec.Operator == "" && k.Type == "utilization" {
		k.Spec.Operator = "and"
	}
	thresholds := spec.object("resource_thresholds")
	for _, name := range sortedKeys(thresholds.body) {
		v, ok := thresholds.real(name)
		if ok {
			if k.Spec.Thresholds == nil {
				k.Spec.Thresholds = map[string]float64{}
			}
			k.Spec.Thresholds[name] = v
		}
	}
	for i, b := range p.objects("bindings") {
		for _, name := range sortedKeys(b.body) {
			if !slices.Contains([]string{"domain", "project", "project_name", "resource_group"}, name) {
				b.fail(name, "is not known; use domain, project or resource_group, or nothing for the whole cluster")
			}
		}
		k.Bindings = append(
			k.Bindings,
			idle.Binding{Domain: b.text("domain", ""), Project: b.text("project", ""), ResourceGroup: b.text("resource_group", "")},
		)
		if i >= 1000 {
			p.fail("bindings", "are too many")
			break
		}
	}
	if err := p.err(); err != nil {
		return err
	}
	if err := a.idle.SetChecker(c.ctx(), c.actor, k); err != nil {
		return err
	}
	return c.nothing()
}

// real reads a number; ok is false when it is none, which is noted.
func (p *params) real(name string) (v float64, ok bool) {
	raw, _ := p.get(name)
	text, ok := scalar(raw)
	if ok {
		var err error
		v, err = strconv.ParseFloat(text, 64)
		ok = err == nil
	}
	if !ok {
		p.fail(name, "must be a number")
	}
	return v, ok
}

// objects reads a list of objects.
func (p *params) objects(name string) []*params {
	v, ok := p.get(name)
	if !ok {
		return nil
	}
	items, ok := v.([]any)
	if !ok {
		p.fail(name, "must be a list of objects")
		return nil
	}
	out := make([]*params, 0, len(items))
	for i, item := range items {
		m, ok := item.(map[string]any)
		if !ok {
			p.fail(name, "must be a list of objects")
			return nil
		}
		out = append(out, &params{body: m, prefix: fmt.Sprintf("%s%s[%d].", p.prefix, name, i), bad: p.bad})
	}
	return out
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
	d, reason := p.span("for|duration"), p.text("reason", "")
	if !p.has("for|duration") {
		p.fail("for", "is required")
	}
	if err := p.err(); err != nil {
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
