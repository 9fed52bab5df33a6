package authz

import (
	"maps"
	"slices"

	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/fault"
)

// Scope narrows what an actor may do who proved themselves with an API token: they may do what their rule allows and the scope, too.
// Nobody who comes with a token is told secrets of keypairs, however wide its scope is.
type Scope struct {
	// Token is the id of the token.
	Token string
	// ReadOnly leaves what changes nothing.
	ReadOnly bool
	// Areas are those that the token is for; none means all.
	Areas []Area
	// Projects are those that the token is for; none means all. With projects, objects that belong to none are only read and used to
	// make sessions; files, sessions and apps of other projects, and those that belong to no project, are out of reach.
	Projects []cluster.ProjectID
	// Provider is the identity provider that the token speaks for by SCIM. Such a token is for nothing else.
	Provider string
}

// Area is a part of what can be done, for tokens.
type Area string

// The areas.
const (
	AreaSessions Area = "session" // sessions and their apps
	AreaFolders  Area = "folder"
	AreaImages   Area = "image"
	AreaTenancy  Area = "tenancy" // users, keypairs, projects, domains, policies
	AreaCluster  Area = "cluster" // agents, resource groups, settings, the audit log
	areaAny      Area = ""        // what every token may
)

// Areas are all of them.
func Areas() []Area { return []Area{AreaSessions, AreaFolders, AreaImages, AreaTenancy, AreaCluster} }

// scoping is what scopes have to know of a kind.
type scoping struct {
	area Area
	// inProject: objects belong to projects, and a scope with projects leaves those of these projects.
	inProject bool
	// background is what may be seen and used with a token of any area, because sessions are made of it.
	background bool
	// own is what every token may see and name of its own user.
	own bool
}

// scopings hold a line for each kind. A kind without a line is out of reach for every token that names areas or projects.
var scopings = map[string]scoping{
	Sessions.Noun:       {area: AreaSessions, inProject: true},
	Circuits.Noun:       {area: AreaSessions, inProject: true},
	Templates.Noun:      {area: AreaSessions, inProject: true},
	Folders.Noun:        {area: AreaFolders, inProject: true},
	FolderHosts.Noun:    {area: AreaFolders},
	QuotaScopes.Noun:    {area: AreaFolders, inProject: true},
	Images.Noun:         {area: AreaImages, background: true},
	Invitations.Noun:    {area: AreaFolders},
	Users.Noun:          {area: AreaTenancy, own: true},
	Keypairs.Noun:       {area: AreaTenancy, own: true},
	Tokens.Noun:         {area: AreaTenancy},
	Projects.Noun:       {area: AreaTenancy, inProject: true, background: true},
	Domains.Noun:        {area: AreaTenancy, background: true},
	Policies.Noun:       {area: AreaTenancy, background: true},
	ResourceGroups.Noun: {area: AreaCluster, background: true},
	Presets.Noun:        {area: AreaCluster, background: true},
	Announcements.Noun:  {area: AreaCluster, background: true},
	Agents.Noun:         {area: AreaCluster},
	AgentSummaries.Noun: {area: AreaCluster},
	IdleCheckers.Noun:   {area: AreaCluster},
	AuditEntries.Noun:   {area: AreaCluster},
	ErrorLogs.Noun:      {area: AreaCluster},
	Cluster.Noun:        {area: AreaCluster},
	UsageIntervals.Noun: {area: AreaCluster},
	UsagePrices.Noun:    {area: AreaCluster},
	Tasks.Noun:          {area: areaAny},
}

// Scoped reports whether scopes know the kind; a test asks for each.
func Scoped(k Kind) bool { return slices.Contains(slices.Collect(maps.Keys(scopings)), k.Noun) }

// leaves is what the scope of an actor leaves of a kind for a verb; true without a scope.
func (k Kind) leaves(a Actor, v Verb) condition {
	s := a.Scope
	if s == nil {
		return constant(true)
	}
	if s.Provider != "" {
		return constant(false)
	}
	is, known := scopings[k.Noun]
	unlimited := len(s.Areas) == 0 && len(s.Projects) == 0
	switch {
	case v == Reveal, s.ReadOnly && !v.reads(), !known && !unlimited:
		return constant(false)
	case unlimited:
		return constant(true)
	}
	var parts allOf
	if len(s.Areas) > 0 && is.area != areaAny && !slices.Contains(s.Areas, is.area) {
		switch {
		case is.background && (v == See || v == Use):
		case is.own && (v == See || v == Act):
			parts = append(parts, match{Owner, itsUser})
		default:
			return constant(false)
		}
	}
	if len(s.Projects) > 0 {
		switch {
		case is.inProject:
			parts = append(parts, match{Project, itsScope})
		case v.reads() || v == Use:
		case is.own && v == Act:
			parts = append(parts, match{Owner, itsUser})
		default:
			return constant(false)
		}
	}
	if len(parts) == 0 {
		return constant(true)
	}
	return parts
}

// Within is the actor as the scope leaves them: their memberships are those that the scope names.
func (a Actor) Within(s *Scope) Actor {
	a.Scope = s
	if s != nil && len(s.Projects) > 0 {
		a.Projects = slices.DeleteFunc(slices.Clone(a.Projects), func(p cluster.ProjectID) bool { return !slices.Contains(s.Projects, p) })
	}
	return a
}

// InPerson refuses what nobody may do with a token, however wide its scope is, nor as somebody else: to make or change what proves who
// somebody is.
func InPerson(a Actor, what string) error {
	if err := Authenticated(a); err != nil {
		return err
	}
	if a.By != nil {
		return fault.Deniedf("nobody may %s in the stead of another user", what)
	}
	if a.Scope != nil {
		return fault.Deniedf("nobody may %s with an API token", what).WithNext("sign the request with a keypair, or log in")
	}
	return nil
}

// Provisions is the identity provider that the actor's token speaks for by SCIM.
func Provisions(a Actor) (provider string, err error) {
	if err := Authenticated(a); err != nil {
		return "", err
	}
	if a.Scope == nil || a.Scope.Provider == "" {
		return "", fault.Deniedf("SCIM takes only API tokens that are bound to an identity provider").
			WithNext("make one: berth token create NAME --for SERVICE_ACCOUNT --scim PROVIDER")
	}
	return a.Scope.Provider, nil
}

// Changing refuses to change what no kind of object stands for with a token that only reads or is for other areas.
func Changing(a Actor, area Area) error {
	if err := Authenticated(a); err != nil {
		return err
	}
	s := a.Scope
	switch {
	case s == nil:
	case s.Provider != "":
		return fault.Deniedf("this API token is for SCIM alone")
	case s.ReadOnly:
		return fault.Deniedf("this API token only reads").WithNext("use a token with a wider scope, or sign the request with a keypair")
	case len(s.Areas) > 0 && !slices.Contains(s.Areas, area):
		return fault.Deniedf("this API token is not for the area %q", area).
			WithNext("use a token with a wider scope, or sign the request with a keypair")
	}
	return nil
}
