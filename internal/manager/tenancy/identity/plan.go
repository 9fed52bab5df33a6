package identity

import (
	"fmt"
	"slices"
	"strings"
	"unicode"

	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/fault"
	"berth.dev/berth/internal/manager/authz"
)

// Snapshot is what Decide has to know of the cluster. It concerns one person.
type Snapshot struct {
	// Known is the account that the identity is linked to; nil when it is new.
	Known *Account
	// ByAddress are the accounts with the person's address, capitals aside.
	ByAddress []Account
	// UsernameTaken: another account has the person's user name.
	UsernameTaken bool
	// DomainActive says of the domain that the rules give whether it is there and active.
	DomainActive bool
	// Projects are those of that domain that rules name for the person; what is missing is not there.
	Projects []Project
	// OtherSuperadmins is how many active ones there are besides the account.
	OtherSuperadmins int
}

// Project is one that rules name.
type Project struct {
	ID   cluster.ProjectID
	Name string
}

// Account is a user.
type Account struct {
	ID         cluster.UserID
	Email      string
	FullName   string
	Domain     string
	Role       authz.Role
	Status     string
	StatusInfo string
	Service    bool
	// Elsewhere: the account has another identity of the same provider.
	Elsewhere bool
	// GivenRole is what this provider gave and RoleBefore what it replaced; empty for none. OthersGave: another provider gave the role.
	GivenRole, RoleBefore authz.Role
	OthersGave            bool
	Members               []Membership
}

// Membership is of a project. Ours: this provider gave it; Others: another one did.
type Membership struct {
	Project      cluster.ProjectID
	Admin        bool
	Ours, Others bool
}

// Action is what becomes of a person.
type Action string

// The actions.
const (
	Create     Action = "create"
	Update     Action = "update" // or leave as it is
	Link       Action = "link"   // to an account that is there, and update
	Deactivate Action = "deactivate"
	Refuse     Action = "refuse"
)

// Reason says why somebody is refused; for logs and callers.
type Reason string

// The reasons.
const (
	ReasonBadSubject   Reason = "bad-subject"
	ReasonBadAddress   Reason = "bad-address"
	ReasonUnverified   Reason = "email-unverified"
	ReasonOtherAddress Reason = "email-domain"
	ReasonUnknown      Reason = "unknown"
	ReasonTaken        Reason = "email-taken"
	ReasonAmbiguous    Reason = "email-ambiguous"
	ReasonSuperadmin   Reason = "superadmin"
	ReasonInactive     Reason = "inactive"
	ReasonNoGroup      Reason = "no-group"
	ReasonDomain       Reason = "domain"
	ReasonDomainMoved  Reason = "domain-moved"
)

// Plan is what is to be done. Of an Update in which nothing changes, Changes is false.
type Plan struct {
	Action Action
	// Reason, Words and Next tell why somebody is refused, and what to do.
	Reason      Reason
	Words, Next string
	// Email, Username, FullName and Domain are of a new account.
	Email, Username, FullName, Domain string
	User                              cluster.UserID // of an account that is there
	// Role, Status, StatusInfo, NewName: nil leaves.
	Role, NewName      *string
	Status, StatusInfo *string
	// GivenRole is what the provider gave after it, RoleBefore what it replaced; set when GiftChanges.
	GiftChanges           bool
	GivenRole, RoleBefore authz.Role
	// Join and Leave are memberships. Give and Take is what is remembered as the provider's.
	Join, Leave, Give, Take []cluster.ProjectID
	// Warnings are for the operator: what rules name that is not there, and what was left on purpose.
	Warnings []string
}

// Changes reports whether the plan changes anything.
func (p *Plan) Changes() bool {
	switch p.Action {
	case Create, Link, Deactivate:
		return true
	case Refuse:
		return false
	}
	return p.Role != nil || p.NewName != nil || p.Status != nil || p.GiftChanges ||
		len(p.Join)+len(p.Leave)+len(p.Give)+len(p.Take) > 0
}

// ShutOut is the status_info of accounts that a provider deactivated. Only those does it let in again.
func ShutOut(provider string) string { return "deactivated by the identity provider " + provider }

func refuse(why Reason, next, words string, args ...any) Plan {
	return Plan{Action: Refuse, Reason: why, Words: fmt.Sprintf(words, args...), Next: next}
}

// Decide says what becomes of a person. It is pure.
func Decide(p *Person, s *Snapshot, r *Rules) Plan {
	if p.Subject == "" || len(p.Subject) > maxText || strings.ContainsFunc(p.Subject, func(c rune) bool { return c < 32 || c == 127 }) ||
		len(p.Groups) > maxGroups {
		return refuse(ReasonBadSubject, "ask the operator of the provider", "the provider %s says nothing usable about who this is", p.Provider)
	}
	if !p.Active {
		return deactivate(p, s)
	}
	g := r.give(p.Groups)
	switch {
	case r.RequireGroup && !g.member:
		return refuse(ReasonNoGroup, "ask the operator of the provider to add you to a group", "%s is in no group that is let in here", name(p))
	case g.domain != "" && !s.DomainActive:
		return refuse(ReasonDomain, "ask an administrator", "the domain %s of %s is not active here", g.domain, name(p))
	case s.Known != nil:
		return update(p, s, r, s.Known, g, Plan{Action: Update, User: s.Known.ID})
	}
	return newcomer(p, s, r, g)
}

// name is how a person is called in words to themselves and operators.
func name(p *Person) string {
	if p.Email != "" {
		return fmt.Sprintf("%.64q of %s", p.Email, p.Provider)
	}
	return fmt.Sprintf("%.64q of %s", p.Subject, p.Provider)
}

// newcomer decides about somebody who is not linked to an account.
func newcomer(p *Person, s *Snapshot, r *Rules, g given) Plan {
	email := address(p.Email)
	switch {
	case email == "":
		return refuse(ReasonBadAddress, "ask the operator of the provider for a plain e-mail address of 64 characters at most",
			"the provider %s tells no usable e-mail address", p.Provider)
	case !p.EmailVerified:
		// Whether there is such an account is not said: anybody may write any address there.
		return refuse(ReasonUnverified, "verify the address there, then log in again", "%s has not verified the address %s", p.Provider, email)
	case !r.speaksFor(email):
		return refuse(ReasonOtherAddress, "log in where your address belongs", "%s does not speak for the address %s", p.Provider, email)
	case len(s.ByAddress) > 1:
		return refuse(ReasonAmbiguous, "ask an administrator", "more than one account has the address %s, but for capitals", email)
	case len(s.ByAddress) == 1:
		return link(p, s, r, g, &s.ByAddress[0])
	case !r.Create || g.domain == "":
		return refuse(ReasonUnknown, "ask an administrator for an account", "there is no account for %s", name(p))
	}
	plan := Plan{Action: Create, Email: email, FullName: clip(p.FullName), Domain: g.domain}
	if n := p.Username; n != "" && !s.UsernameTaken && len(n) <= 64 && !strings.ContainsFunc(n, unprintable) {
		plan.Username = n
	}
	return update(p, s, r, &Account{Email: email, FullName: plan.FullName, Domain: g.domain, Role: authz.RoleUser, Status: active}, g, plan)
}

const (
	active   = "active"
	inactive = "inactive"
)

func unprintable(c rune) bool { return unicode.IsSpace(c) || !unicode.IsPrint(c) }

// link decides about an account that has the verified address of somebody who is new.
func link(p *Person, s *Snapshot, r *Rules, g given, a *Account) Plan {
	switch {
	case !r.LinkVerifiedEmail:
		return refuse(ReasonTaken, "log in with its password; the operator may set link_verified_email",
			"there is an account %s already, and accounts are not linked to %s", a.Email, p.Provider)
	case a.Role == authz.RoleSuperadmin || a.Service:
		return refuse(ReasonSuperadmin, "log in with its password", "the account %s is not linked to a provider by its address", a.Email)
	case a.Elsewhere:
		// The provider gave the address to somebody else, or has two of that name.
		return refuse(ReasonTaken, "ask an administrator", "the account %s belongs to another person of %s", a.Email, p.Provider)
	}
	return update(p, s, r, a, g, Plan{Action: Link, User: a.ID})
}

// update compares an account with what the rules give.
func update(p *Person, s *Snapshot, r *Rules, a *Account, g given, plan Plan) Plan {
	switch {
	case a.Status != active && (a.Status != inactive || a.StatusInfo != ShutOut(p.Provider)):
		return refuse(ReasonInactive, "ask an administrator", "the account %s is not active", a.Email)
	case a.Status != active && plan.Action == Link:
		return refuse(ReasonInactive, "ask an administrator", "the account %s is not active", a.Email)
	case g.domain != "" && g.domain != a.Domain:
		return refuse(ReasonDomainMoved, "ask an administrator: accounts do not move, so a new one is needed",
			"the account %s belongs to domain %s, and %s says domain %s", a.Email, a.Domain, p.Provider, g.domain)
	}
	if a.Status != active {
		plan.Status, plan.StatusInfo = new(active), new("let in again by the identity provider "+p.Provider)
	}
	if n := clip(p.FullName); n != "" && n != a.FullName {
		plan.NewName = &n
	}
	planRole(p, s, a, g.role, &plan)
	planProjects(s, a, g, &plan)
	return plan
}

// planRole gives and takes a role. What was set by hand is never lowered.
func planRole(p *Person, s *Snapshot, a *Account, wanted authz.Role, plan *Plan) {
	base, mine := a.Role, a.GivenRole
	if mine != "" && mine == a.Role {
		base = a.RoleBefore
	} else if mine != "" { // somebody changed it by hand: that is what there is now
		mine = ""
	}
	role, gives := base, authz.Role("")
	switch {
	case rank(wanted) <= rank(base):
	case a.OthersGave:
		plan.Warnings = append(plan.Warnings, fmt.Sprintf("%s has a role of another provider, so %s gives none", a.Email, p.Provider))
	default:
		role, gives = wanted, wanted
	}
	if a.Role == authz.RoleSuperadmin && role != a.Role && s.OtherSuperadmins == 0 {
		plan.Warnings = append(plan.Warnings, fmt.Sprintf("%s is the last active superadmin and stays one", a.Email))
		return
	}
	if role != a.Role {
		plan.Role = new(string(role))
	}
	if gives != a.GivenRole {
		plan.GiftChanges, plan.GivenRole = true, gives
		if gives != "" {
			plan.RoleBefore = base
		}
	}
}

// planProjects gives and takes memberships. Those that another provider gave, that were there by hand, or whose holder administers the
// project, stay.
func planProjects(s *Snapshot, a *Account, g given, plan *Plan) {
	var wanted []cluster.ProjectID
	for _, n := range g.projects {
		i := slices.IndexFunc(s.Projects, func(p Project) bool { return p.Name == n })
		if i < 0 {
			plan.Warnings = append(plan.Warnings, fmt.Sprintf("there is no project %s in domain %s", n, g.domain))
			continue
		}
		wanted = append(wanted, s.Projects[i].ID)
	}
	slices.Sort(wanted)
	for _, id := range slices.Compact(wanted) {
		i := slices.IndexFunc(a.Members, func(m Membership) bool { return m.Project == id })
		switch {
		case i < 0:
			plan.Join, plan.Give = append(plan.Join, id), append(plan.Give, id)
		case !a.Members[i].Ours && a.Members[i].Others:
			plan.Give = append(plan.Give, id)
		}
	}
	for _, m := range a.Members {
		if !m.Ours || slices.Contains(wanted, m.Project) {
			continue
		}
		plan.Take = append(plan.Take, m.Project)
		if !m.Others && !m.Admin {
			plan.Leave = append(plan.Leave, m.Project)
		}
	}
}

// deactivate decides about somebody whom the provider has shut out.
func deactivate(p *Person, s *Snapshot) Plan {
	a := s.Known
	switch {
	case a == nil:
		return refuse(ReasonUnknown, "", "there is no account for %s", name(p))
	case a.Role == authz.RoleSuperadmin && a.GivenRole != a.Role:
		return refuse(ReasonSuperadmin, "deactivate the account by hand", "%s is a superadmin by hand, and providers shut none out", a.Email)
	case a.Role == authz.RoleSuperadmin && a.Status == active && s.OtherSuperadmins == 0:
		return refuse(ReasonSuperadmin, "make another user a superadmin first", "%s is the last active superadmin", a.Email)
	case a.Status != active:
		return Plan{Action: Update, User: a.ID}
	}
	return Plan{Action: Deactivate, User: a.ID, Status: new(inactive), StatusInfo: new(ShutOut(p.Provider))}
}

// clip is a name as accounts hold it.
func clip(text string) string {
	text = strings.Map(func(c rune) rune {
		if !unicode.IsPrint(c) {
			return -1
		}
		return c
	}, strings.TrimSpace(text))
	return strings.ToValidUTF8(fault.Cut(text, maxText), "")
}
