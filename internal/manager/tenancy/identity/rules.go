// Package identity decides what somebody from an identity provider (OIDC, LDAP, SCIM) may become here: an account of their own, one that
// there is, or nothing; and which projects and role the provider's groups give. Rules come from the configuration. Decide is pure;
// Service.Apply carries a plan out in one transaction.
//
// The package talks to no provider: callers bring a Person whom they have verified.
package identity

import (
	"regexp"
	"slices"
	"strings"

	"berth.dev/berth/internal/fault"
	"berth.dev/berth/internal/manager/authz"
	"berth.dev/berth/internal/manager/tenancy"
)

// Person is somebody as a provider tells of them.
type Person struct {
	// Provider is the configured name. Subject is what the provider never gives to anybody else.
	Provider, Subject string
	Email             string
	// EmailVerified: the provider vouches that the address is the person's.
	EmailVerified bool
	// Username and FullName may be empty.
	Username, FullName string
	// Active is false for whom the provider has shut out.
	Active bool
	Groups []string
}

const (
	maxGroups      = 10_000 // of one person
	maxText        = 255
	maxRules       = 1000
	maxRuleProject = 100
)

// Rules say what people of one provider become. The zero value lets in only those who are linked already.
type Rules struct {
	// Domain and Projects (names within it) are those of everybody. A group may name another domain.
	Domain   string
	Projects []string
	// Create makes accounts for people who have none. Their address has to be verified.
	Create bool
	// LinkVerifiedEmail links people to an account with the same address that is there already, if the provider verified the address.
	// Accounts of superadmins and service accounts are never linked so.
	LinkVerifiedEmail bool
	// EmailDomains are the ends of addresses (example.org) that the provider speaks for; none means all.
	EmailDomains []string
	// RequireGroup lets in only those who are in one of Groups.
	RequireGroup bool
	Groups       []GroupRule
}

// GroupRule is what a group of the provider gives to its members.
type GroupRule struct {
	Group string
	// Domain is that of the members; of several groups the first one in the order of the rules decides. Empty: none of its own.
	Domain string
	// Projects are names of projects; those of another domain than the person's are left out.
	Projects []string
	// Role is admin (of the domain), monitor or superadmin; empty gives none. The strongest of the person's groups counts.
	Role authz.Role
}

var providerNames = regexp.MustCompile(`^[a-z0-9]([a-z0-9-]{0,30}[a-z0-9])?$`)

// CheckName reports whether a text can be the name of a provider.
func CheckName(name string) error {
	if !providerNames.MatchString(name) {
		return fault.Invalidf("%.80q cannot be the name of an identity provider", name).
			WithNext("use 1 to 32 lower-case letters, digits and hyphens")
	}
	return nil
}

// Validate reports the first rule that cannot be meant; key is where they stand in the configuration.
func (r Rules) Validate(key string) error {
	if r.Domain == "" && (r.Create || len(r.Projects) > 0) {
		return fault.Invalidf("%s.domain is empty", key).WithNext("name the domain of the provider's people")
	}
	if len(r.Groups) > maxRules || len(r.Projects) > maxRuleProject {
		return fault.Invalidf("%s has more than %d groups or %d projects", key, maxRules, maxRuleProject)
	}
	if r.RequireGroup && len(r.Groups) == 0 {
		return fault.Invalidf("%s.require_group lets nobody in without %s.groups", key, key)
	}
	for _, d := range r.EmailDomains {
		if d == "" || strings.ContainsAny(d, "@* ") {
			return fault.Invalidf("%s.email_domains has %q", key, d).WithNext("write what follows the @, for example example.org")
		}
	}
	for i, g := range r.Groups {
		switch {
		case g.Group == "" || len(g.Group) > maxText:
			return fault.Invalidf("%s.groups[%d].group is empty or too long", key, i)
		case g.Domain == "" && len(g.Projects) == 0 && g.Role == "" && !r.RequireGroup:
			return fault.Invalidf("%s.groups[%d] (%s) gives nothing", key, i, g.Group).WithNext("name a domain, projects or a role")
		case g.Role != "" && !slices.Contains([]authz.Role{authz.RoleAdmin, authz.RoleMonitor, authz.RoleSuperadmin}, g.Role):
			return fault.Invalidf("%s.groups[%d].role is %q", key, i, g.Role).WithNext("choose admin, monitor or superadmin, or leave it out")
		case len(g.Projects) > maxRuleProject:
			return fault.Invalidf("%s.groups[%d] has more than %d projects", key, i, maxRuleProject)
		case r.Domain == "" && g.Domain == "" && len(g.Projects) > 0:
			return fault.Invalidf("%s.groups[%d] names projects of no domain", key, i).WithNext("set %s.domain, or a domain of the group", key)
		}
	}
	return nil
}

// given is what rules give to a person.
type given struct {
	domain   string
	projects []string
	role     authz.Role
	member   bool // of a group that rules name
}

// give reads the rules for a person.
func (r *Rules) give(groups []string) given {
	g := given{domain: r.Domain, role: authz.RoleUser}
	matching := slices.Collect(func(yield func(GroupRule) bool) {
		for _, rule := range r.Groups {
			if slices.Contains(groups, rule.Group) && !yield(rule) {
				return
			}
		}
	})
	g.member = len(matching) > 0
	if i := slices.IndexFunc(matching, func(m GroupRule) bool { return m.Domain != "" }); i >= 0 {
		g.domain = matching[i].Domain
	}
	if g.domain == r.Domain {
		g.projects = append(g.projects, r.Projects...)
	}
	for _, m := range matching {
		of := m.Domain
		if of == "" {
			of = r.Domain
		}
		if of == g.domain {
			g.projects = append(g.projects, m.Projects...)
			// What administers one domain administers no other one. The rest is of the whole cluster.
			if m.Role == authz.RoleAdmin && rank(m.Role) > rank(g.role) {
				g.role = m.Role
			}
		}
		if m.Role != authz.RoleAdmin && rank(m.Role) > rank(g.role) {
			g.role = m.Role
		}
	}
	slices.Sort(g.projects)
	g.projects = slices.Compact(g.projects)
	return g
}

// rank orders roles by what they may do.
func rank(r authz.Role) int {
	return slices.Index([]authz.Role{authz.RoleUser, authz.RoleMonitor, authz.RoleAdmin, authz.RoleSuperadmin}, r)
}

// speaksFor reports whether the provider may say whose an address is.
func (r *Rules) speaksFor(address string) bool {
	_, host, _ := strings.Cut(address, "@")
	return len(r.EmailDomains) == 0 || slices.ContainsFunc(r.EmailDomains, func(d string) bool { return strings.EqualFold(d, host) })
}

// address is an address as accounts have it: in small letters, and plain ASCII, because other letters have more than one small form. It is
// empty when it cannot be used.
func address(email string) string {
	if strings.ContainsFunc(email, func(c rune) bool { return c > 126 || c < 33 }) || !tenancy.GoodEmail(email) {
		return ""
	}
	return strings.ToLower(email)
}
