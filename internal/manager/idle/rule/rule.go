// Package rule decides which sessions are idle: sessions with what is known of their use, checkers and an instant go in,
// verdicts with evidence come out. It is pure. The loop of package idle acts on verdicts, its reports show them.
//
// What is not known is never idle: a session without measurements, with too few of them or with old ones goes on. No session
// ends before it was warned as early as its checker says, except by checkers that warn of nothing.
package rule

import (
	"slices"
	"time"

	"berth.dev/berth/internal/cluster"
)

// Type is what a checker looks at; the names are the wire's.
type Type string

// The types.
const (
	Lifetime    Type = "session_lifetime"
	Network     Type = "network_timeout"
	Utilization Type = "utilization"
)

// Reason is why a session ends that a checker of this type finds idle.
func (t Type) Reason() cluster.Reason {
	switch t {
	case Lifetime:
		return cluster.ReasonIdleLifetime
	case Utilization:
		return cluster.ReasonIdleUtilization
	}
	return cluster.ReasonIdleTimeout
}

// Checker is one rule.
type Checker struct {
	Name string
	Type Type
	// Source says for people where the rule comes from: "keypair policy default", "project research".
	Source string
	// Targets are the session types looked at; empty means interactive and batch.
	Targets []cluster.SessionType
	// Grace begins with the session, NewUserGrace with the user.
	Grace, NewUserGrace time.Duration
	// Warn is how long before the end the session is told.
	Warn time.Duration
	// DryRun only reports: nothing is told and nothing ends.
	DryRun bool
	// Limit is the longest lifetime or inactivity; not used by Utilization.
	Limit time.Duration
	// Use is set for Utilization.
	Use Use
}

// Grant keeps a session alive although it is idle.
type Grant struct {
	Until time.Time
	By    string
	// Admin grants hold against the lifetime too.
	Admin bool
}

// Session is what is decided about.
type Session struct {
	ID         cluster.SessionID
	Type       cluster.SessionType
	StartedAt  time.Time // zero while it never ran
	LastAccess time.Time // zero when there was none since its start
	UserSince  time.Time
	Keep       *Grant
	Kernels    []Kernel
	// Warned is when each checker warned.
	Warned map[string]time.Time
}

// Phase is how a session stands with a checker.
type Phase string

// The phases.
const (
	Excluded Phase = "excluded" // the checker does not apply
	Grace    Phase = "grace"    // not looked at yet
	Unknown  Phase = "unknown"  // too little is known, so it goes on
	Active   Phase = "active"
	Idle     Phase = "idle"    // ends at the deadline unless it is used
	Expired  Phase = "expired" // ends now
)

// Verdict is what one checker says about a session.
type Verdict struct {
	Checker Checker
	Phase   Phase
	// Why is a sentence for people.
	Why string
	// Deadline is when the session ends if nothing changes; zero when there is no such instant.
	Deadline time.Time
	// Next is the earliest instant at which time alone changes the phase; zero when it cannot.
	Next time.Time
	// Tell asks for a warning: the session has become idle and was not told.
	Tell bool
	// Since is what a lifetime or inactivity is counted from.
	Since time.Time
	// Figures are the measured uses; Utilization only.
	Figures []Figure
}

// Remaining is the time until the deadline, not below zero; ok is false when there is no deadline.
func (v Verdict) Remaining(now time.Time) (left time.Duration, ok bool) {
	if v.Deadline.IsZero() {
		return 0, false
	}
	return max(v.Deadline.Sub(now), 0), true
}

// Judge returns what each checker says, the earliest deadline first and those without one last.
func Judge(s Session, checkers []Checker, now time.Time) []Verdict {
	out := make([]Verdict, len(checkers))
	for i, c := range checkers {
		out[i] = judge(s, c, now)
	}
	slices.SortStableFunc(out, func(a, b Verdict) int {
		switch {
		case a.Deadline.IsZero() && b.Deadline.IsZero():
			return 0
		case a.Deadline.IsZero():
			return 1
		case b.Deadline.IsZero():
			return -1
		}
		return a.Deadline.Compare(b.Deadline)
	})
	return out
}

// Ends returns the verdict by which the session ends now: of those that do not only report, the earliest. ok is false when it goes on.
func Ends(verdicts []Verdict) (v Verdict, ok bool) {
	for _, v := range verdicts {
		if v.Phase == Expired && !v.Checker.DryRun {
			return v, true
		}
	}
	return Verdict{}, false
}

// Next is the earliest instant at which a verdict may change without anybody doing anything; zero when there is none.
func Next(verdicts []Verdict) (next time.Time) {
	for _, v := range verdicts {
		if !v.Next.IsZero() && (next.IsZero() || v.Next.Before(next)) {
			next = v.Next
		}
	}
	return next
}

var defaultTargets = []cluster.SessionType{cluster.Interactive, cluster.Batch}

func judge(s Session, c Checker, now time.Time) Verdict {
	v := Verdict{Checker: c, Phase: Excluded}
	targets := c.Targets
	if len(targets) == 0 {
		targets = defaultTargets
	}
	switch {
	case s.StartedAt.IsZero():
		v.Why = "it does not run"
		return v
	case s.Type == cluster.Inference, c.Type == Network && s.Type != cluster.Interactive, !slices.Contains(targets, s.Type):
		// A batch job works without anybody looking; whether somebody uses an inference or system session cannot be seen here.
		v.Why = string(s.Type) + " sessions are not looked at"
		return v
	case s.Keep != nil && now.Before(s.Keep.Until) && (s.Keep.Admin || c.Type != Lifetime):
		v.Why, v.Next = "kept alive by "+s.Keep.By, s.Keep.Until
		return v
	}
	grace := s.StartedAt.Add(c.Grace)
	if end := s.UserSince.Add(c.NewUserGrace); c.NewUserGrace > 0 && end.After(grace) {
		grace = end
	}
	if now.Before(grace) {
		v.Phase, v.Why, v.Next = Grace, "not looked at in the beginning", grace
		return v
	}
	switch c.Type {
	case Lifetime:
		return v.after(s, now, s.StartedAt, grace)
	case Network:
		return v.after(s, now, lastUse(s), grace)
	case Utilization:
		return v.underUse(s, now)
	}
	v.Why = "this version does not know checks of type " + string(c.Type)
	return v
}

// lastUse is the last access; the end of a grant counts as one, so that nobody is cut off the moment it ends.
func lastUse(s Session) time.Time {
	last := s.StartedAt
	if s.LastAccess.After(last) {
		last = s.LastAccess
	}
	if s.Keep != nil && s.Keep.Until.After(last) {
		last = s.Keep.Until
	}
	return last
}

// after judges what has a limit since an instant.
func (v Verdict) after(s Session, now, since, grace time.Time) Verdict {
	if v.Checker.Limit <= 0 {
		v.Why = "there is no limit"
		return v
	}
	deadline := since.Add(v.Checker.Limit)
	if grace.After(deadline) {
		deadline = grace
	}
	v.Since = since
	what := "it ran for "
	if v.Checker.Type == Network {
		what = "nobody used it for "
	}
	warned := s.Warned[v.Checker.Name]
	if warned.Before(since) {
		warned = time.Time{} // it was used after that warning
	}
	v = v.until(now, deadline, warned)
	v.Why = what + short(now.Sub(since)) + ", the limit is " + short(v.Checker.Limit)
	return v
}

// until sets the phase by the deadline that the rule gives and when the session was warned: a late warning moves the end.
func (v Verdict) until(now, deadline, warned time.Time) Verdict {
	c := v.Checker
	switch {
	case now.Before(deadline.Add(-c.Warn)):
		v.Phase, v.Deadline, v.Next = Active, deadline, deadline.Add(-c.Warn)
		return v
	case c.Warn > 0 && warned.IsZero():
		warned, v.Tell = now, true
	}
	if end := warned.Add(c.Warn); c.Warn > 0 && end.After(deadline) {
		deadline = end
	}
	v.Deadline = deadline
	if now.Before(deadline) {
		v.Phase, v.Next = Idle, deadline
		return v
	}
	v.Phase = Expired
	return v
}

// short prints a duration to the second without parts that are zero.
func short(d time.Duration) string {
	text := d.Truncate(time.Second).String()
	for _, zero := range []string{"m0s", "h0m"} {
		if n := len(text) - len(zero) + 1; n > 0 && text[n-1:] == zero {
			text = text[:n]
		}
	}
	return text
}

// Evidence is who decided what and why, as it is kept with the session.
type Evidence struct {
	Checker string         `json:"checker"`
	Type    Type           `json:"type"`
	Source  string         `json:"source"`
	Reason  cluster.Reason `json:"reason"`
	Why     string         `json:"why"`
	By      string         `json:"by"` // the manager that decided
	At      time.Time      `json:"at"`
	// WarnedAt is absent when the checker warns of nothing; Deadline is the end that was announced.
	WarnedAt *time.Time `json:"warned_at,omitempty"`
	Deadline time.Time  `json:"deadline"`
	// Since is what is counted from: the start, the last use, or the beginning of the window.
	Since     time.Time `json:"since"`
	Limit     float64   `json:"limit_seconds,omitempty"`
	Window    float64   `json:"window_seconds,omitempty"`
	Operator  Operator  `json:"thresholds_check_operator,omitempty"`
	Resources []Figure  `json:"resources,omitempty"`
}

// Evidence is what is kept of a verdict on a session.
func (v Verdict) Evidence(s Session, by string, now time.Time) Evidence {
	e := Evidence{Checker: v.Checker.Name, Type: v.Checker.Type, Source: v.Checker.Source, Reason: v.Checker.Type.Reason(), Why: v.Why, By: by,
		At: now.UTC(), Deadline: v.Deadline.UTC(), Since: v.Since.UTC(), Limit: v.Checker.Limit.Seconds(), Window: v.Checker.Use.Window.Seconds(),
		Operator: v.Checker.Use.Operator, Resources: v.Figures}
	if at, ok := s.Warned[v.Checker.Name]; ok {
		at = at.UTC()
		e.WarnedAt = &at
	}
	return e
}

// Words tell people about a verdict in one sentence.
func (v Verdict) Words() string {
	return "idle check " + v.Checker.Name + " (" + v.Checker.Source + "): " + v.Why
}
