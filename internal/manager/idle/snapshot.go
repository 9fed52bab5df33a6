package idle

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"slices"
	"time"

	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/fault"
	"berth.dev/berth/internal/manager/idle/rule"
	"berth.dev/berth/internal/manager/store/dbgen"
)

// Usage reads what was measured of kernels over a window that ends now. What is not known is absent; losing all of it ends nothing.
type Usage interface {
	Usage(ctx context.Context, kernels []cluster.KernelID, window time.Duration) map[cluster.KernelID][]rule.Sample
}

// Spec is a checker's own part as stored: seconds and percentages.
type Spec struct {
	MaxLifetime          int64              `json:"max_lifetime_seconds,omitempty"`
	MaxNetworkInactivity int64              `json:"max_network_inactivity_seconds,omitempty"`
	Window               int64              `json:"time_window_seconds,omitempty"`
	Operator             rule.Operator      `json:"thresholds_check_operator,omitempty"`
	Thresholds           map[string]float64 `json:"resource_thresholds,omitempty"`
}

const (
	// defaultInactivity is the limit where a keypair policy leaves it undefined.
	defaultInactivity = 10 * time.Minute
	// defaultWarning is how early the limits of policies warn, if they are long enough: a fifth of the limit at most.
	defaultWarning = 5 * time.Minute
	// MaxWindow bounds the window of a check of utilisation; MinWindow keeps single measurements from deciding.
	MaxWindow = 24 * time.Hour
	MinWindow = 5 * time.Minute
	// maxSeconds keeps durations within their type.
	maxSeconds = int64(math.MaxInt64 / int64(time.Second))
)

// PolicyChecker is the name of the checker that a keypair policy's own limit amounts to.
func PolicyChecker(t rule.Type) string { return "policy:" + string(t) }

// Validate reports what is wrong with a specification.
func (s Spec) Validate(t rule.Type, warn time.Duration) error {
	bad := func(next, format string, args ...any) error {
		return fault.Invalidf(format, args...).WithReason("invalid-api-params").WithNext("%s", next)
	}
	limit := func(field string, seconds int64) error {
		if seconds < 60 || seconds > maxSeconds {
			return bad("choose 60 seconds or more", "%s is %d", field, seconds)
		}
		if warn >= time.Duration(seconds)*time.Second {
			return bad("warn later or allow more", "a warning %s before a limit of %d seconds would come before the session starts", warn, seconds)
		}
		return nil
	}
	switch t {
	case rule.Lifetime:
		return limit("max_lifetime_seconds", s.MaxLifetime)
	case rule.Network:
		return limit("max_network_inactivity_seconds", s.MaxNetworkInactivity)
	case rule.Utilization:
	default:
		return bad("use session_lifetime, network_timeout or utilization", "%q is not a type of idle check", t)
	}
	if w := s.Window; w < int64(MinWindow/time.Second) || w > int64(MaxWindow/time.Second) {
		return bad(fmt.Sprintf("choose between %d and %d", MinWindow/time.Second, MaxWindow/time.Second), "time_window_seconds is %d", w)
	}
	if s.Operator != rule.And && s.Operator != rule.Or {
		return bad("use and (every resource must be idle) or or (one is enough)", "thresholds_check_operator is %q", s.Operator)
	}
	if len(s.Thresholds) == 0 || len(s.Thresholds) > 20 {
		return bad("name cpu_util, mem or an accelerator's, such as cuda_util", "resource_thresholds names %d resources", len(s.Thresholds))
	}
	for name, v := range s.Thresholds {
		if !rule.Measurable(name) {
			return bad("use cpu_util, mem, or an accelerator's such as cuda_util and cuda_mem", "%q is not measured", name)
		}
		if !(v > 0 && v <= 100) {
			return bad("choose a percentage above 0 up to 100", "the threshold of %s is %g", name, v)
		}
	}
	return nil
}

// rules are the checkers and where they apply, as of one moment.
type rules struct {
	everywhere                 []rule.Checker
	byDomain, byProject, byGrp map[string][]rule.Checker
}

// readRules reads the enabled checkers. One that cannot be read is left out and its name returned: it must not stop the others.
func readRules(ctx context.Context, q *dbgen.Queries) (r rules, broken []string, err error) {
	rows, err := q.ListIdleCheckers(ctx)
	if err != nil {
		return r, nil, fmt.Errorf("read idle checkers: %w", err)
	}
	r = rules{byDomain: map[string][]rule.Checker{}, byProject: map[string][]rule.Checker{}, byGrp: map[string][]rule.Checker{}}
	if len(rows) == 0 {
		return r, nil, nil
	}
	known := map[string]rule.Checker{}
	for _, row := range rows {
		if !row.Enabled {
			continue
		}
		c, err := checkerOf(row)
		if err != nil {
			broken = append(broken, row.Name)
			continue
		}
		known[row.Name] = c
	}
	bindings, err := q.ListIdleBindings(ctx)
	if err != nil {
		return r, nil, fmt.Errorf("read bindings of idle checkers: %w", err)
	}
	for _, b := range bindings {
		c, ok := known[b.Checker]
		if !ok {
			continue
		}
		switch {
		case b.DomainName != nil:
			c.Source = "domain " + *b.DomainName
			r.byDomain[*b.DomainName] = append(r.byDomain[*b.DomainName], c)
		case b.ProjectID != nil:
			c.Source = "project " + *b.ProjectName
			r.byProject[*b.ProjectID] = append(r.byProject[*b.ProjectID], c)
		case b.ResourceGroup != nil:
			c.Source = "resource group " + *b.ResourceGroup
			r.byGrp[*b.ResourceGroup] = append(r.byGrp[*b.ResourceGroup], c)
		default:
			c.Source = "the whole cluster"
			r.everywhere = append(r.everywhere, c)
		}
	}
	return r, broken, nil
}

func checkerOf(row dbgen.IdleChecker) (rule.Checker, error) {
	var spec Spec
	if err := json.Unmarshal(row.Spec, &spec); err != nil {
		return rule.Checker{}, fmt.Errorf("read idle checker %s: %w", row.Name, err)
	}
	t, warn := rule.Type(row.Type), seconds(row.WarnBefore)
	if err := spec.Validate(t, warn); err != nil {
		return rule.Checker{}, fmt.Errorf("read idle checker %s: %w", row.Name, err)
	}
	c := rule.Checker{Name: row.Name, Type: t, Grace: seconds(row.InitialGracePeriod), NewUserGrace: seconds(row.NewUserGrace), Warn: warn,
		DryRun: row.DryRun}
	for _, target := range row.TargetSessionTypes {
		c.Targets = append(c.Targets, cluster.SessionType(target))
	}
	switch t {
	case rule.Lifetime:
		c.Limit = seconds(spec.MaxLifetime)
	case rule.Network:
		c.Limit = seconds(spec.MaxNetworkInactivity)
	case rule.Utilization:
		c.Use = rule.Use{Window: seconds(spec.Window), Operator: spec.Operator, Thresholds: spec.Thresholds}
	}
	return c, nil
}

func seconds(n int64) time.Duration { return time.Duration(min(n, maxSeconds)) * time.Second }

// Window is the longest window that a checker looks at; 0 when none looks at measurements.
func (r rules) Window() (window time.Duration) {
	lists := [][]rule.Checker{r.everywhere}
	for _, by := range []map[string][]rule.Checker{r.byDomain, r.byProject, r.byGrp} {
		lists = append(lists, slices.Collect(maps.Values(by))...)
	}
	for _, c := range slices.Concat(lists...) {
		window = max(window, c.Use.Window)
	}
	return window
}

// of gathers what applies to a session: each checker once, wherever it is bound, and the limits of the keypair policy.
func (r rules) of(row dbgen.IdleSessionsRow) []rule.Checker {
	var out []rule.Checker
	for _, list := range [][]rule.Checker{r.byProject[row.ProjectID], r.byGrp[row.ResourceGroup], r.byDomain[row.DomainName], r.everywhere} {
		for _, c := range list {
			if !slices.ContainsFunc(out, func(o rule.Checker) bool { return o.Name == c.Name }) {
				out = append(out, c)
			}
		}
	}
	policy := func(t rule.Type, limit time.Duration) {
		if limit > 0 {
			out = append(out, rule.Checker{Name: PolicyChecker(t), Type: t, Source: "keypair policy " + row.Policy, Limit: limit,
				Targets: []cluster.SessionType{cluster.Interactive, cluster.Batch, cluster.System}, Warn: min(defaultWarning, limit/5)})
		}
	}
	policy(rule.Lifetime, seconds(int64(row.MaxSessionLifetime)))
	inactivity := seconds(row.IdleTimeout)
	if row.IdleTimeout < 0 {
		inactivity = defaultInactivity
	}
	policy(rule.Network, inactivity)
	return out
}

// candidate is a running session with everything that is decided about it.
type candidate struct {
	rule.Session
	Row      dbgen.IdleSessionsRow
	Checkers []rule.Checker
	// Main is the main kernel and its agent; Reachable says that it runs.
	Main      cluster.KernelID
	Agent     cluster.AgentID
	Reachable bool
	left      []rule.Type
}

// Judge is rule.Judge for the session.
func (s *candidate) Judge(now time.Time) []rule.Verdict {
	return rule.Judge(s.Session, s.Checkers, now)
}

// filter selects running sessions.
type filter struct {
	// After is the last id of the page before; "" begins.
	After string
	// IDs narrows; empty means all.
	IDs []string
	// Limit is the largest number of sessions.
	Limit int
}

const firstID = "00000000-0000-0000-0000-000000000000"

// readCandidates reads one page of running sessions in the order of their ids, without measurements.
func readCandidates(ctx context.Context, q *dbgen.Queries, rules rules, f filter) ([]*candidate, error) {
	rows, err := q.IdleSessions(ctx, cmp.Or(f.After, firstID), append([]string{}, f.IDs...), int32(f.Limit))
	if err != nil {
		return nil, fmt.Errorf("read running sessions: %w", err)
	}
	if len(rows) == 0 {
		return nil, nil
	}
	ids := make([]string, len(rows))
	out := make([]*candidate, len(rows))
	byID := make(map[string]*candidate, len(rows))
	for i, r := range rows {
		s := &candidate{Row: r, Checkers: rules.of(r), Session: rule.Session{ID: cluster.SessionID(r.ID), Type: r.Type, UserSince: r.UserSince}}
		if r.StartedAt != nil {
			s.StartedAt = *r.StartedAt
		}
		if r.LastAccess != nil {
			s.LastAccess = *r.LastAccess
		}
		if r.KeepUntil != nil {
			s.Keep = &rule.Grant{Until: *r.KeepUntil, By: r.KeptBy, Admin: r.KeepByAdmin}
		}
		ids[i], out[i], byID[r.ID] = r.ID, s, s
	}
	kernels, err := q.IdleKernels(ctx, ids)
	if err != nil {
		return nil, fmt.Errorf("read running kernels: %w", err)
	}
	for _, k := range kernels {
		s := byID[k.SessionID]
		if k.LocalRank == 0 && k.AgentID != nil {
			s.Main, s.Agent, s.Reachable = cluster.KernelID(k.ID), cluster.AgentID(*k.AgentID), k.Status == cluster.Running
		}
		s.Kernels = append(s.Kernels, rule.Kernel{ID: cluster.KernelID(k.ID), Allocated: k.RequestedSlots})
	}
	warnings, err := q.IdleWarnings(ctx, ids)
	if err != nil {
		return nil, fmt.Errorf("read idle warnings: %w", err)
	}
	for _, w := range warnings {
		s := byID[w.SessionID]
		if s.Warned == nil {
			s.Warned = map[string]time.Time{}
		}
		s.Warned[w.Checker] = w.WarnedAt
	}
	return out, nil
}

// measure adds the measurements that the sessions' checkers look at. u may be nil: nothing is known then.
func measure(ctx context.Context, u Usage, sessions []*candidate) {
	if u == nil {
		return
	}
	var ids []cluster.KernelID
	window := time.Duration(0)
	for _, s := range sessions {
		for _, c := range s.Checkers {
			if c.Type == rule.Utilization {
				window = max(window, c.Use.Window)
			}
		}
		if s.measured() {
			for _, k := range s.Kernels {
				ids = append(ids, k.ID)
			}
		}
	}
	if len(ids) == 0 {
		return
	}
	known := u.Usage(ctx, ids, window)
	for _, s := range sessions {
		for i := range s.Kernels {
			s.Kernels[i].Samples = known[s.Kernels[i].ID]
		}
	}
}

func (s *candidate) measured() bool {
	return slices.ContainsFunc(s.Checkers, func(c rule.Checker) bool { return c.Type == rule.Utilization })
}

// Without leaves the checkers of a type out of this look.
func (s *candidate) Without(t rule.Type) {
	s.Checkers = slices.DeleteFunc(s.Checkers, func(c rule.Checker) bool { return c.Type == t })
	s.left = append(s.left, t)
}

// Whole reports whether nothing was left out.
func (s *candidate) Whole() bool { return len(s.left) == 0 }

// As takes over the measurements of an earlier look at the session and leaves out the same.
func (s *candidate) As(earlier *candidate) {
	for i := range s.Kernels {
		for _, k := range earlier.Kernels {
			if k.ID == s.Kernels[i].ID {
				s.Kernels[i].Samples = k.Samples
			}
		}
	}
	for _, t := range earlier.left {
		s.Without(t)
	}
}
