package idle

import (
	"context"
	"encoding/json"
	"fmt"
	"regexp"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/fault"
	"berth.dev/berth/internal/manager/audit"
	"berth.dev/berth/internal/manager/authz"
	"berth.dev/berth/internal/manager/idle/rule"

	"berth.dev/berth/internal/manager/store"
	"berth.dev/berth/internal/manager/store/dbgen"
	"berth.dev/berth/internal/manager/store/facts"
)

// Binding says where a checker applies; all empty is the whole cluster. Project is a name or an id (ids when read).
type Binding struct {
	Domain, Project, ResourceGroup string
	ProjectName                    string // only when read
}

// Checker is a rule by which sessions count as idle. The limits of keypair policies hold besides.
type Checker struct {
	Name, Description string
	Type              rule.Type
	// Targets are the session types; empty means interactive and batch.
	Targets []cluster.SessionType
	// InitialGrace begins with the session, NewUserGrace with its user.
	InitialGrace, NewUserGrace time.Duration
	// WarnBefore is how long before the end sessions are told.
	WarnBefore time.Duration
	// DryRun only reports.
	DryRun, Enabled       bool
	Spec                  Spec
	Bindings              []Binding
	CreatedAt, ModifiedAt time.Time // only when read
}

func orNone(p *string) string {
	if p == nil {
		return ""
	}
	return *p
}

var checkerName = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$`)

const (
	maxCheckers = 200
	maxBindings = 1000
	maxGrace    = 366 * 24 * time.Hour
)

// Checkers lists all checkers (superadmins and monitors).
func (s *Service) Checkers(ctx context.Context, a authz.Actor) ([]Checker, error) {
	if err := authz.IdleCheckers.Need(a, authz.See, authz.Object{}, "list idle checkers"); err != nil {
		return nil, err
	}
	rows, err := s.d.Store.ListIdleCheckers(ctx)
	if err != nil {
		return nil, fmt.Errorf("read idle checkers: %w", err)
	}
	bindings, err := s.d.Store.ListIdleBindings(ctx)
	if err != nil {
		return nil, fmt.Errorf("read bindings of idle checkers: %w", err)
	}
	out := make([]Checker, len(rows))
	for i, r := range rows {
		c := Checker{Name: r.Name, Description: r.Description, Type: rule.Type(r.Type), Targets: []cluster.SessionType{}, DryRun: r.DryRun,
			Enabled:      r.Enabled,
			InitialGrace: time.Duration(r.InitialGracePeriod) * time.Second, NewUserGrace: time.Duration(r.NewUserGrace) * time.Second,
			WarnBefore: time.Duration(r.WarnBefore) * time.Second, Bindings: []Binding{}, CreatedAt: r.CreatedAt.UTC(),
			ModifiedAt: r.ModifiedAt.UTC()}
		for _, t := range r.TargetSessionTypes {
			c.Targets = append(c.Targets, cluster.SessionType(t))
		}
		if err := json.Unmarshal(r.Spec, &c.Spec); err != nil {
			s.d.Log.Warn("an idle checker cannot be read", "checker", r.Name, "error", err)
		}
		for _, b := range bindings {
			if b.Checker == r.Name {
				c.Bindings = append(c.Bindings, Binding{Domain: orNone(b.DomainName), Project: orNone(b.ProjectID),
					ResourceGroup: orNone(b.ResourceGroup), ProjectName: orNone(b.ProjectName)})
			}
		}
		out[i] = c
	}
	return out, nil
}

// SetChecker makes a checker or replaces the one of that name with its bindings (superadmins). Sessions feel it within seconds.
func (s *Service) SetChecker(ctx context.Context, a authz.Actor, c Checker) (err error) {
	ctx, end := audit.Begin(ctx, s.d.Store, a, "idle-checker.set", c.Name)
	defer end(&err)
	if err := authz.IdleCheckers.Need(a, authz.Administer, authz.Object{}, "change idle checkers"); err != nil {
		return err
	}
	if err := c.check(); err != nil {
		return err
	}
	if len(c.Targets) == 0 {
		c.Targets = []cluster.SessionType{cluster.Interactive, cluster.Batch}
	}
	spec, err := json.Marshal(c.Spec)
	if err != nil {
		return fmt.Errorf("encode idle checker %s: %w", c.Name, err)
	}
	bindings := make([]dbgen.IdleCheckerBinding, len(c.Bindings))
	for i, b := range c.Bindings {
		if bindings[i], err = s.idleBinding(ctx, a, b); err != nil {
			return err
		}
	}
	err = s.d.Store.Tx(ctx, func(ctx context.Context, tx *store.Tx) error {
		known, err := tx.ListIdleCheckers(ctx)
		if err != nil {
			return fmt.Errorf("read idle checkers: %w", err)
		}
		if len(known) >= maxCheckers && !slices.ContainsFunc(known, func(k dbgen.IdleChecker) bool { return k.Name == c.Name }) {
			return fault.Exhaustedf("there are %d idle checkers already", len(known)).WithReason("invalid-api-params").WithNext("remove one first")
		}
		err = tx.SetIdleChecker(ctx, dbgen.SetIdleCheckerParams{Name: c.Name, Description: c.Description, Type: string(c.Type),
			TargetSessionTypes: store.Texts(c.Targets),
			InitialGracePeriod: int64(c.InitialGrace / time.Second), NewUserGrace: int64(c.NewUserGrace / time.Second),
			WarnBefore: int64(c.WarnBefore / time.Second),
			DryRun:     c.DryRun, Enabled: c.Enabled, Spec: spec})
		if err != nil {
			return fmt.Errorf("write the checker: %w", err)
		}
		if err := tx.DropIdleBindings(ctx, c.Name); err != nil {
			return fmt.Errorf("drop its bindings: %w", err)
		}
		for _, b := range bindings {
			err := tx.AddIdleBinding(ctx, c.Name, b.DomainName, b.ProjectID, b.ResourceGroup)
			switch {
			case store.Dangling(err) && b.DomainName != nil:
				return authz.NotFound("domain", *b.DomainName)
			case store.Dangling(err) && b.ResourceGroup != nil:
				return authz.NotFound("resource group", *b.ResourceGroup)
			case err != nil:
				return fmt.Errorf("bind it: %w", err)
			}
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("set idle checker %s: %w", c.Name, err)
	}
	return nil
}

func (c Checker) check() error {
	if !checkerName.MatchString(c.Name) {
		return fault.Invalidf("%.80q is not a name for an idle checker", c.Name).
			WithNext("use 1 to 64 letters, digits, dots, dashes and underscores")
	}
	if store.Text(c.Description) != c.Description || len(c.Description) > 1000 {
		return fault.Invalidf("a description is text of 1000 bytes at most")
	}
	for _, t := range c.Targets {
		switch {
		case t == cluster.Inference:
			return fault.Invalidf("inference sessions are never idle").WithNext("target interactive, batch or system")
		case t != cluster.Interactive && t != cluster.Batch && t != cluster.System:
			return fault.Invalidf("%.40q is not a type of session", t).WithNext("target interactive, batch or system")
		case c.Type == rule.Network && t != cluster.Interactive && len(c.Targets) == 1:
			return fault.Invalidf("whether anybody uses a %s session cannot be seen", t).
				WithNext("target interactive sessions, or use another type of check")
		}
	}
	for _, v := range []struct {
		name  string
		value time.Duration
	}{{"the initial grace period", c.InitialGrace}, {"the grace of new users", c.NewUserGrace}, {"the time of warning", c.WarnBefore}} {
		if v.value < 0 || v.value > maxGrace {
			return fault.Invalidf("%s is %s", v.name, v.value).WithNext("choose 0 to 366 days")
		}
	}
	if len(c.Bindings) > maxBindings {
		return fault.Invalidf("%d bindings are too many", len(c.Bindings)).WithNext("bind it to a domain or to the whole cluster")
	}
	return c.Spec.Validate(c.Type, c.WarnBefore)
}

func (s *Service) idleBinding(ctx context.Context, a authz.Actor, b Binding) (out dbgen.IdleCheckerBinding, err error) {
	given := 0
	for _, v := range []string{b.Domain, b.Project, b.ResourceGroup} {
		if v != "" {
			given++
		}
	}
	switch {
	case given > 1:
		return out, fault.Invalidf("a binding names a domain, a project or a resource group, not several").WithNext("make one binding for each")
	case b.Domain != "":
		out.DomainName = &b.Domain
	case b.Project != "":
		p, err := s.d.Tenancy.FindProject(ctx, b.Project, a.Domain)
		if err != nil {
			return out, err
		}
		out.ProjectID = &p.ID
	case b.ResourceGroup != "":
		out.ResourceGroup = &b.ResourceGroup
	}
	return out, nil
}

// RemoveChecker removes a checker (superadmins).
func (s *Service) RemoveChecker(ctx context.Context, a authz.Actor, name string) (err error) {
	ctx, end := audit.Begin(ctx, s.d.Store, a, "idle-checker.delete", name)
	defer end(&err)
	if err := authz.IdleCheckers.Need(a, authz.Administer, authz.Object{}, "change idle checkers"); err != nil {
		return err
	}
	n, err := s.d.Store.DropIdleChecker(ctx, name)
	if err != nil {
		return fmt.Errorf("remove idle checker %s: %w", name, err)
	}
	if n == 0 {
		return authz.NotFound(checkerNoun, name)
	}
	return nil
}

// Report is how one running session stands with its checkers, the earliest end first.
type Report struct {
	Session   cluster.SessionID
	Name      string
	UserEmail string
	AccessKey cluster.AccessKey
	Project   cluster.ProjectID
	Group     string // resource group
	StartedAt time.Time
	// LastAccess is nil when nobody used it since its start.
	LastAccess *time.Time
	Keep       *rule.Grant
	// Verdicts are those of the instant At.
	Verdicts []rule.Verdict
	At       time.Time
}

const (
	// maxReport bounds the sessions of a report; reportScan those that are looked at for it.
	maxReport  = 100
	reportScan = 5000
	reportPage = 500
)

// Report tells how running sessions stand with idle checks: those of the actor, of the domain for its administrators, all for
// superadmins and monitors. The list holds at most 100 sessions, those that end first; total is the number looked at.
func (s *Service) Report(ctx context.Context, a authz.Actor) (list []Report, total int, err error) {
	if err := authz.Authenticated(a); err != nil {
		return nil, 0, err
	}
	now, after := s.d.Clock(), ""
	for total < reportScan {
		ids, err := s.reportable(ctx, a, after)
		if err != nil {
			return nil, 0, err
		}
		if len(ids) == 0 {
			break
		}
		after = ids[len(ids)-1]
		page, n, err := s.idleReports(ctx, filter{IDs: ids, Limit: len(ids)}, now, a)
		if err != nil {
			return nil, 0, err
		}
		list = append(list, page...)
		total += n
		slices.SortStableFunc(list, func(x, y Report) int { return x.first().Compare(y.first()) })
		list = list[:min(len(list), maxReport)]
		if len(ids) < reportPage {
			break
		}
	}
	return list, total, nil
}

// reportable are the next running sessions after an id that the actor may see.
func (s *Service) reportable(ctx context.Context, a authz.Actor, after string) ([]string, error) {
	var args []any
	arg := func(v any) string { args = append(args, v); return fmt.Sprintf("$%d", len(args)) }
	sql := "SELECT s.id::text FROM " + facts.Sessions.From + " WHERE s.status = 'RUNNING' AND s.ended_at IS NULL"
	if after != "" {
		sql += " AND s.id > " + arg(after) + "::uuid"
	}
	sql += " AND " + facts.Sessions.Where(a, authz.See, arg) + fmt.Sprintf(" ORDER BY s.id LIMIT %d", reportPage)
	rows, err := s.d.Store.DB().Query(ctx, sql, args...)
	if err != nil {
		return nil, fmt.Errorf("find running sessions: %w", err)
	}
	ids, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		return nil, fmt.Errorf("find running sessions: %w", err)
	}
	return ids, nil
}

// first is when the session ends; sessions that do not come last.
func (r Report) first() time.Time {
	for _, v := range r.Verdicts {
		if !v.Deadline.IsZero() {
			return v.Deadline
		}
	}
	return time.Unix(1<<40, 0)
}

// Check is how a session stands with the strictest of its checks of one type, in the wire's shape.
type Check struct {
	// Remaining is the time left in seconds, -1 when the session ends now, null when time alone does not end it.
	Remaining *int64 `json:"remaining"`
	// Kind is grace_period while the check has not begun, else expire_after.
	Kind  string `json:"remaining_time_type"`
	Extra *Extra `json:"extra"`
	// The rest is ours.
	Phase   rule.Phase `json:"phase"`
	Checker string     `json:"checker"`
	Source  string     `json:"source"`
	Why     string     `json:"why"`
	DryRun  bool       `json:"dry_run"`
	EndsAt  *time.Time `json:"ends_at"`
}

// Extra is what a check of utilisation saw: the mean and the threshold of each resource in percent; a mean that is not known is null.
type Extra struct {
	Operator  rule.Operator          `json:"thresholds_check_operator"`
	Resources map[string][2]*float64 `json:"resources"`
}

// ByType is the strictest verdict of each type: one that ends the session before one that only reports, an earlier end before a later one.
func (r Report) ByType() map[rule.Type]Check {
	out := map[rule.Type]Check{}
	for _, dry := range []bool{false, true} {
		for _, v := range r.Verdicts {
			if _, have := out[v.Checker.Type]; have || v.Checker.DryRun != dry || v.Phase == rule.Excluded && r.Keep == nil {
				continue
			}
			out[v.Checker.Type] = idleCheck(v, r.At)
		}
	}
	return out
}

func idleCheck(v rule.Verdict, now time.Time) Check {
	c := Check{Kind: "expire_after", Phase: v.Phase, Checker: v.Checker.Name, Source: v.Checker.Source, Why: v.Why, DryRun: v.Checker.DryRun}
	seconds := func(d time.Duration) *int64 {
		n := int64((d + time.Second - 1) / time.Second)
		return &n
	}
	left, ends := v.Remaining(now)
	switch {
	case v.Phase == rule.Grace:
		c.Kind, c.Remaining = "grace_period", seconds(v.Next.Sub(now))
	case v.Phase == rule.Expired:
		c.Remaining = new(int64(-1))
	case ends:
		c.Remaining = seconds(left)
	}
	if ends {
		c.EndsAt = store.UTC(&v.Deadline)
	}
	if v.Checker.Type == rule.Utilization {
		c.Extra = &Extra{Operator: v.Checker.Use.Operator, Resources: map[string][2]*float64{}}
		for _, f := range v.Figures {
			c.Extra.Resources[f.Resource] = [2]*float64{f.Percent, new(f.Threshold)}
		}
	}
	return c
}

// Checks tells how sessions stand with idle checks; those that do not run or that the actor may not see are absent.
func (s *Service) Checks(ctx context.Context, a authz.Actor, ids []cluster.SessionID) (map[cluster.SessionID]Report, error) {
	if err := authz.Authenticated(a); err != nil {
		return nil, err
	}
	out := map[cluster.SessionID]Report{}
	if len(ids) == 0 {
		return out, nil
	}
	list, _, err := s.idleReports(ctx, filter{IDs: store.Texts(ids), Limit: len(ids)}, s.d.Clock(), a)
	if err != nil {
		return nil, err
	}
	for _, r := range list {
		out[r.Session] = r
	}
	return out, nil
}

// idleReports judges one page and leaves out what the actor may not see.
func (s *Service) idleReports(ctx context.Context, f filter, now time.Time, a authz.Actor) (list []Report, n int, err error) {
	rules, _, err := readRules(ctx, s.d.Store.Queries)
	if err != nil {
		return nil, 0, err
	}
	page, err := readCandidates(ctx, s.d.Store.Queries, rules, f)
	if err != nil {
		return nil, 0, err
	}
	measure(ctx, s.d.Usage, page)
	for _, x := range page {
		o := authz.Object{Owner: cluster.UserID(x.Row.UserID), OwnerRole: authz.Role(x.Row.UserRole), Domain: x.Row.DomainName,
			Project: cluster.ProjectID(x.Row.ProjectID)}
		if !authz.Sessions.May(a, authz.See, o) {
			continue
		}
		r := Report{Session: x.ID, Name: x.Row.Name, UserEmail: x.Row.UserEmail, AccessKey: cluster.AccessKey(x.Row.AccessKey),
			Project: cluster.ProjectID(x.Row.ProjectID),
			Group:   x.Row.ResourceGroup, StartedAt: x.StartedAt.UTC(), LastAccess: store.UTC(x.Row.LastAccess), Verdicts: x.Judge(now), At: now}
		if x.Keep != nil && now.Before(x.Keep.Until) {
			r.Keep = x.Keep
		}
		list = append(list, r)
	}
	return list, len(list), nil
}

// maxKeepAlive bounds what administrators grant.
const maxKeepAlive = 366 * 24 * time.Hour

// KeepAlive keeps a session from ending as idle for a time from now; 0 takes that back. Owners may ask for as long as their keypair policy
// allows, and not beyond the session's lifetime; an administrator's grant holds against the lifetime too. It returns until when.
func (s *Service) KeepAlive(ctx context.Context, a authz.Actor, ref string, owner cluster.AccessKey, d time.Duration,
	reason string) (_ time.Time, err error) {
	ctx, end := audit.Begin(ctx, s.d.Store, a, "session.keep-alive", ref)
	defer end(&err)
	audit.ActingFor(ctx, string(owner))
	o, err := s.d.Sessions.Changeable(ctx, a, ref, owner)
	if err != nil {
		return time.Time{}, err
	}
	switch {
	case d < 0 || d > maxKeepAlive:
		return time.Time{}, fault.Invalidf("a session cannot be kept alive for %s", d).WithNext("choose up to 366 days, or 0 to take it back")
	case len(reason) > 1000 || store.Text(reason) != reason:
		return time.Time{}, fault.Invalidf("a reason is text of 1000 bytes at most")
	case o.Status.Final():
		return time.Time{}, fault.Conflictf("session %s has ended", o.Name).WithReason("existing-session-not-running")
	}
	admin := authz.Domains.May(a, authz.Change, authz.Object{Domain: o.DomainName})
	if d == 0 {
		if err := s.endKeepAlive(ctx, o, admin); err != nil {
			return time.Time{}, err
		}
		return time.Time{}, nil
	}
	if !admin {
		policy, err := s.d.Tenancy.PolicyOfKey(ctx, cluster.AccessKey(o.AccessKey))
		if err != nil {
			return time.Time{}, err
		}
		if most := time.Duration(policy.MaxKeepAlive) * time.Second; d > most {
			return time.Time{}, fault.Deniedf("policy %s allows owners to keep sessions alive for %s, not for %s", policy.Name, most, d).
				WithNext("ask for less, or ask an administrator")
		}
		if g, err := s.d.Store.GetKeepAlive(ctx, o.ID); err == nil && g.ByAdmin && g.Until.After(s.d.Clock().Add(d)) {
			return g.Until.UTC(), nil // an administrator's longer grant stays
		}
	}
	until := s.d.Clock().Add(d).UTC()
	err = s.d.Store.SetKeepAlive(ctx, dbgen.SetKeepAliveParams{SessionID: o.ID, Until: until, ByAdmin: admin, GrantedBy: a.Email,
		Reason: reason})
	if err != nil {
		return time.Time{}, fmt.Errorf("keep session %s alive: %w", o.Name, err)
	}
	return until, nil
}

func (s *Service) endKeepAlive(ctx context.Context, o dbgen.SessionOwnerRow, admin bool) error {
	g, err := s.d.Store.GetKeepAlive(ctx, o.ID)
	if store.Missing(err) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("read the grant of session %s: %w", o.Name, err)
	}
	if g.ByAdmin && !admin {
		return fault.Deniedf("session %s is kept alive by %s, an administrator", o.Name, g.GrantedBy).
			WithNext("ask them, or destroy the session")
	}
	if _, err := s.d.Store.DropKeepAlive(ctx, o.ID); err != nil {
		return fmt.Errorf("take back the grant of session %s: %w", o.Name, err)
	}
	return nil
}
