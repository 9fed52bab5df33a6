package directory

import (
	"fmt"
	"slices"

	"berth.dev/berth/internal/fault"
	"berth.dev/berth/internal/manager/authz"
	"berth.dev/berth/internal/manager/ldap"
	"berth.dev/berth/internal/manager/tenancy/identity"
)

// Limits say how many users one sync may take access from without an administrator's word: a directory that answers nonsense, or from
// which somebody deleted everybody by mistake, would close the cluster.
type Limits struct {
	// MostRemoved is a number of users, MostRemovedPercent a share of the active users of the directory. The smaller one counts, but a
	// single user may always be removed.
	MostRemoved, MostRemovedPercent int
}

// DefaultLimits returns the documented defaults.
func DefaultLimits() Limits { return Limits{MostRemoved: 50, MostRemovedPercent: 20} }

// allows says how many of so many active users may lose access.
func (l Limits) allows(active int) int {
	return max(1, min(l.MostRemoved, active*l.MostRemovedPercent/100))
}

// step is what becomes of one person.
type step struct {
	person identity.Person
	plan   identity.Plan
	// known: there is an account that is active now. admin: its holder is no plain user.
	active bool
	role   authz.Role
}

// removes reports whether the person is shut out, narrows whether they keep less than they had.
func (s *step) removes() bool { return s.plan.Action == identity.Deactivate }

func (s *step) narrows() bool {
	return !s.removes() && (len(s.plan.Leave) > 0 || s.plan.Role != nil && weaker(authz.Role(*s.plan.Role), s.role))
}

// weaker reports whether a role may do less than another one.
func weaker(a, than authz.Role) bool {
	order := []authz.Role{authz.RoleUser, authz.RoleMonitor, authz.RoleAdmin, authz.RoleSuperadmin}
	return slices.Index(order, a) < slices.Index(order, than)
}

// counts are what a sync does.
type counts struct{ people, created, changed, removed, narrowed, refused int }

// count adds up steps.
func count(people int, steps []step) counts {
	c := counts{people: people}
	for i := range steps {
		s := &steps[i]
		switch s.plan.Action {
		case identity.Create, identity.Link:
			c.created++
		case identity.Deactivate:
			c.removed++
		case identity.Refuse:
			c.refused++
		default:
			if s.plan.Changes() {
				c.changed++
			}
		}
		if s.narrows() {
			c.narrowed++
		}
	}
	return c
}

// check refuses a sync that takes access from too many. active is how many users of the directory are active now, allowance how many
// an administrator allowed.
func (l Limits) check(c counts, active, allowance int) error {
	taken := c.removed + c.narrowed
	most := max(l.allows(active), allowance)
	emptied := c.people == 0 && active > 0 && allowance < taken
	if taken <= most && !emptied {
		return nil
	}
	words := fmt.Sprintf("the sync would deactivate %d of %d users and take projects or roles from %d; without an administrator's "+
		"word it may "+
		"do so with %d", c.removed, active, c.narrowed, l.allows(active))
	if emptied {
		words = fmt.Sprintf("the directory has nobody, and %d users here are active", active)
	}
	return fault.Conflictf("%s", words).WithNext("look at what would happen (berth directory sync --dry-run); if it is meant, "+
		"run berth directory sync --allow-removals %d", taken)
}

// difference words a step; "" for a person of whom nothing changes.
func (s *step) difference() string {
	who := s.person.Email
	if who == "" {
		who = s.person.Subject
	}
	who = fault.Clip(who, 100)
	switch s.plan.Action {
	case identity.Create:
		return "+ " + who + " gets an account in domain " + s.plan.Domain
	case identity.Link:
		return "~ " + who + " has an account, and logs in at the directory from now on"
	case identity.Deactivate:
		return "- " + who + " is deactivated"
	case identity.Refuse:
		return "! " + who + ": " + fault.Clip(s.plan.Words, 200)
	}
	if !s.plan.Changes() {
		return ""
	}
	out := "~ " + who + ":"
	if s.plan.Status != nil {
		out += " becomes " + *s.plan.Status + ";"
	}
	if s.plan.Role != nil {
		out += " becomes " + *s.plan.Role + ";"
	}
	if s.plan.NewName != nil {
		out += " is called " + fault.Clip(*s.plan.NewName, 100) + ";"
	}
	if n := len(s.plan.Join); n > 0 {
		out += fmt.Sprintf(" joins %d projects;", n)
	}
	if n := len(s.plan.Leave); n > 0 {
		out += fmt.Sprintf(" leaves %d projects;", n)
	}
	return out[:len(out)-1]
}

// maxDiff bounds how much of a difference is kept.
const maxDiff = 2000

// differences words all steps: who loses access first, then who is refused, then the rest.
func differences(steps []step, skipped []ldap.Skipped) []string {
	order := map[byte]int{'-': 0, '!': 1, '~': 2, '+': 3}
	var out []string
	for i := range steps {
		if d := steps[i].difference(); d != "" {
			out = append(out, d)
		}
	}
	for _, s := range skipped {
		out = append(out, "! "+fault.Clip(s.Words, 300))
	}
	slices.SortStableFunc(out, func(a, b string) int { return order[a[0]] - order[b[0]] })
	if more := len(out) - maxDiff; more > 0 {
		out = append(out[:maxDiff], fmt.Sprintf("and %d more", more))
	}
	return out
}
