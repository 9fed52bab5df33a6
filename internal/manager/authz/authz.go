// Package authz decides who may do what, by one rule for each kind of object. It is pure: an Actor and the facts of an object go in,
// nil or a fault comes out; or the rule is written as SQL for lists. It has no store, no clock and no transport. Every use case of a
// noun begins with it. What no rule allows is denied.
package authz

import (
	"berth.dev/berth/internal/clientaddr"
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
	// Leads are those of them that the user administers.
	Leads []cluster.ProjectID
	// AllowedRegistries are the registries whose images the user's domain may run, besides those that are local to the agents.
	AllowedRegistries []string
	// AllowedClientIP are the addresses that the user may come from.
	AllowedClientIP clientaddr.Networks
	// ClientIP is the caller's address, for records and allow-lists; may be empty.
	ClientIP string
	// Scope narrows what the actor may do; nil when the actor came without an API token.
	Scope *Scope
	// ByLogin says that the actor came by a login, which ends: what is good for longer is not told.
	ByLogin bool
	// By is the superadmin who acts as this actor; nil when nobody does.
	By *Actor
}

// Known reports whether the actor was authenticated at all.
func (a Actor) Known() bool { return a.UserID != "" && a.AccessKey != "" }

// Superadmin reports whether the actor may do everything.
func (a Actor) Superadmin() bool { return a.Known() && a.Role == RoleSuperadmin }

// Monitor reports whether the actor may read everything.
func (a Actor) Monitor() bool { return a.Known() && a.Role == RoleMonitor }

// Authenticated denies everybody who is not known.
func Authenticated(a Actor) error {
	if a.Known() {
		return nil
	}
	return fault.Deniedf("this needs an authenticated user")
}

// NotFound is the one way in which objects are missing.
func NotFound(noun, name string) error {
	words := "No such " + noun
	if name == "" {
		words += "."
	} else {
		words += ": " + name
	}
	return fault.NotFoundf("%s", words).WithData(map[string]string{"object": noun})
}
