// Package authz decides who may do what. It is pure: an Actor and the facts of an object
// go in, nil or a fault comes out. It has no store, no clock and no transport; service
// calls it in the first line of every use case. What is not allowed here is denied.
package authz

import (
	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/fault"
)

// Role is a user's role in the cluster.
type Role string

// The roles of the wire.
const (
	RoleSuperadmin Role = "superadmin"
	RoleAdmin      Role = "admin" // of the user's own domain
	RoleUser       Role = "user"
	RoleMonitor    Role = "monitor" // reads everything, changes nothing
)

// Actor is an authenticated caller: one user through one keypair.
type Actor struct {
	UserID       cluster.UserID
	Email        string
	Username     string
	FullName     string
	Role         Role
	Domain       string
	AccessKey    cluster.AccessKey
	KeypairAdmin bool
	// RateLimit is the keypair's number of requests in 15 minutes; 0 means unlimited.
	RateLimit int
	// Projects are the ids of the projects that the user is a member of.
	Projects []cluster.ProjectID
	// AllowedRegistries are the registries whose images the user's domain may run, besides those that are local to the agents.
	AllowedRegistries []string
	// AllowedClientIP are the addresses that the user may come from.
	AllowedClientIP Networks
	// ClientIP is the caller's address, for records and allow-lists; may be empty.
	ClientIP string
}

// Known reports whether the actor was authenticated at all.
func (a Actor) Known() bool { return a.UserID != "" && a.AccessKey != "" }

// Superadmin reports whether the actor may do everything.
func (a Actor) Superadmin() bool { return a.Known() && a.Role == RoleSuperadmin }

// Monitor reports whether the actor may read everything.
func (a Actor) Monitor() bool { return a.Known() && a.Role == RoleMonitor }

// DomainAdmin reports whether the actor administrates the named domain.
func (a Actor) DomainAdmin(domain string) bool {
	return a.Superadmin() || a.Known() && a.Role == RoleAdmin && a.Domain == domain && domain != ""
}

// Member reports whether the actor belongs to the project.
func (a Actor) Member(project cluster.ProjectID) bool {
	for _, p := range a.Projects {
		if p == project {
			return true
		}
	}
	return false
}

// Owned describes an object that belongs to a keypair: a session or the keypair itself.
type Owned struct {
	// Noun is the wire's word for the object: "session", "keypair".
	Noun      string
	Name      string
	UserID    cluster.UserID
	AccessKey cluster.AccessKey
	Domain    string
	// OwnerRole is the owner's role: domain administrators never act for superadmins.
	OwnerRole Role
}

// Authenticated denies everybody who is not known.
func Authenticated(a Actor) error {
	if a.Known() {
		return nil
	}
	return fault.Deniedf("this needs an authenticated user").WithReason("generic-forbidden")
}

// NeedSuperadmin denies everybody but superadmins.
func NeedSuperadmin(a Actor, what string) error {
	if a.Superadmin() {
		return nil
	}
	return denied(a, what, "a superadmin")
}

// NeedReadAll denies everybody but superadmins and monitors.
func NeedReadAll(a Actor, what string) error {
	if a.Superadmin() || a.Monitor() {
		return nil
	}
	return denied(a, what, "a superadmin or a monitor")
}

// NeedAdmin denies everybody who administrates nothing.
func NeedAdmin(a Actor, what string) error {
	if a.Superadmin() || a.Known() && a.Role == RoleAdmin {
		return nil
	}
	return denied(a, what, "an administrator")
}

// NeedDomainAdmin denies everybody but administrators of the domain.
func NeedDomainAdmin(a Actor, domain, what string) error {
	if a.DomainAdmin(domain) {
		return nil
	}
	return denied(a, what, "an administrator of domain "+domain)
}

// Read decides whether the actor may see the object. A refusal is NotFound: strangers
// learn nothing about what exists.
func Read(a Actor, o Owned) error {
	if owns(a, o) || a.Superadmin() || a.Monitor() || actsFor(a, o) {
		return nil
	}
	return NotFound(o.Noun, o.Name)
}

// Write decides whether the actor may change the object. Who may not even see it gets NotFound.
func Write(a Actor, o Owned) error {
	if owns(a, o) || a.Superadmin() || actsFor(a, o) {
		return nil
	}
	if err := Read(a, o); err != nil {
		return err
	}
	return denied(a, "change this "+o.Noun, "its owner or an administrator")
}

// ActFor decides whether the actor may name another keypair as the owner of a request.
func ActFor(a Actor, owner Owned) error {
	if owns(a, owner) || a.Superadmin() || actsFor(a, owner) {
		return nil
	}
	return denied(a, "act for access key "+string(owner.AccessKey), "an administrator of its owner's domain")
}

// NotFound is the one way in which objects are missing.
func NotFound(noun, name string) error {
	e := fault.NotFoundf("No such %s.", noun)
	if name != "" {
		e = fault.NotFoundf("No such %s: %s", noun, name)
	}
	return e.WithReason("object-not-found").WithData(map[string]string{"object": noun})
}

func owns(a Actor, o Owned) bool {
	return a.Known() && (o.AccessKey != "" && a.AccessKey == o.AccessKey || o.UserID != "" && a.UserID == o.UserID)
}

func actsFor(a Actor, o Owned) bool {
	return a.DomainAdmin(o.Domain) && o.OwnerRole != RoleSuperadmin
}

func denied(a Actor, what, who string) error {
	if !a.Known() {
		return Authenticated(a)
	}
	return fault.Deniedf("%s may not %s: this needs %s", a.Email, what, who).WithReason("generic-forbidden").
		WithNext("ask an administrator of your cluster")
}
