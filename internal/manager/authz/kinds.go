package authz

import "berth.dev/berth/internal/cluster"

// Who somebody is to an object, in the words of refusals and of docs/authorisation.md.
var (
	superadmin = named{role(RoleSuperadmin), "a superadmin"}
	monitor    = named{role(RoleMonitor), "a monitor"}
	anyAdmin   = named{role(RoleAdmin), "an administrator of a domain"}
	owner      = named{match{Owner, itsUser}, "its owner"}
	member     = named{match{Project, itsProjects}, "a member of its project"}
	given      = named{flag(Given), "whom it is shared with"}
	ofDomain   = named{match{Domain, itsDomain}, "every user of the domain"}
	// inOffice administers the domain of an object that belongs to no user.
	inOffice = named{allOf{role(RoleAdmin), match{Domain, itsDomain}}, "an administrator of its domain"}
	// above administers the domain of the object's owner. Nobody but superadmins touches what belongs to superadmins.
	above = named{allOf{role(RoleAdmin), match{Domain, itsDomain}, not{is{OwnerRole, []string{string(RoleSuperadmin)}}}},
		"an administrator of its domain (not over superadmins)"}
	// leads administers the project of an object that belongs to no user; overMembers that of a session's owner. Nobody touches what
	// belongs to somebody who may do more.
	leads       = named{match{Project, itsLeads}, "an administrator of its project"}
	overMembers = named{allOf{match{Project, itsLeads}, not{is{OwnerRole, []string{string(RoleSuperadmin), string(RoleAdmin)}}}},
		"an administrator of its project (not over superadmins and administrators of the domain)"}
	// assigned is for objects that domains, projects and keypairs are given.
	assigned = named{anyOf{match{ToDomains, itsDomain}, match{ToProjects, itsProjects}, match{ToKeys, itsKey}},
		"whose domain, project or keypair it is assigned to"}
	usable    = named{allOf{flag(Active), assigned}, "whose domain, project or keypair it is assigned to while it is active"}
	everybody = constant(true)
)

// Sessions, with their kernels, events, logs and idle reports.
var Sessions = Kind{"session", map[Verb]condition{
	See:    anyOf{owner, above, overMembers, superadmin, monitor},
	Change: anyOf{owner, above, overMembers, superadmin},
}}

// Circuits are published ways to apps of sessions.
var Circuits = Kind{"circuit", map[Verb]condition{
	See:    anyOf{owner, above, overMembers, superadmin, monitor, given},
	Visit:  anyOf{owner, above, overMembers, superadmin, given, named{flag(Public), "every user where it is public"}},
	Change: anyOf{owner, above, overMembers, superadmin},
}}

// What decides about the files of a folder.
var (
	none        = is{Granted, []string{""}}
	ofProject   = not{is{Project, []string{""}}}
	mayChange   = not{is{Permission, []string{string(cluster.ReadOnly)}}}
	ofModels    = is{ProjectType, []string{"model-store"}}
	modelAuthor = named{allOf{member, ofModels, match{Creator, itsUser}},
		"who made it in a model store that they are still a member of"}
	// A permission that is left of a former member of a project gives nothing.
	shared  = named{allOf{not{ofProject}, flag(Given)}, "whom it is shared with"}
	manager = named{anyOf{above, superadmin}, "an administrator of its domain (not over superadmins), a superadmin"}
)

// withPermission holds for whoever has one of the permissions as a member or by a share: what was given to the actor counts
// before what the project's folder allows all members.
func withPermission(allowed ...string) condition {
	return anyOf{
		allOf{member, none, is{Permission, allowed}},
		allOf{member, is{Granted, allowed}},
		allOf{not{ofProject}, not{owner}, is{Granted, allowed}},
	}
}

// changesFiles is who may change files with one of the permissions. Owners always may: a read-only folder is read-only for sessions
// and for others. Administrators may unless the folder is read-only; a folder that was given to an administrator is used with the
// permission that was given.
func changesFiles(allowed ...string) condition {
	return anyOf{
		owner,
		modelAuthor,
		withPermission(allowed...),
		allOf{manager, ofProject},
		allOf{manager, not{owner}, none, mayChange},
	}
}

// Folders are virtual folders.
var Folders = Kind{"virtual folder", map[Verb]condition{
	See:   anyOf{owner, member, shared, manager, monitor},
	Reach: anyOf{owner, member, shared},
	Create: anyOf{named{not{ofProject}, "every user for themselves"}, named{allOf{member, ofModels}, "members of a model store"},
		named{allOf{ofProject, inOffice}, "an administrator of the project's domain"}, superadmin},
	Change:    anyOf{owner, modelAuthor, manager},
	ReadFiles: anyOf{owner, member, shared, manager},
	WriteFiles: named{changesFiles(string(cluster.ReadWrite), string(cluster.ReadWriteDelete)),
		"its owner, members and whom it is shared with by their permission (rw, wd), " + manager.words},
	DeleteFiles: named{changesFiles(string(cluster.ReadWriteDelete)),
		"its owner, members and whom it is shared with by their permission (wd), " + manager.words},
	Purge:      manager,
	Administer: superadmin,
}}

// FolderHosts are the volumes of storage proxies.
var FolderHosts = Kind{"folder host", map[Verb]condition{
	See:        anyOf{superadmin, monitor},
	Administer: superadmin,
}}

// QuotaScopes are what the folders of one user or one project hold on a host.
var QuotaScopes = Kind{"quota scope", map[Verb]condition{
	See:        anyOf{owner, member, above, superadmin, monitor},
	Administer: superadmin,
}}

// Images are what sessions run. They are for everybody, for the members of a project, or for the user who made them of a session.
// An image that names no registry is local to the agents; the others need a domain that allows their registry. Sessions of
// superadmins, too, run what their domain allows.
var Images = Kind{"image reference", map[Verb]condition{
	See: anyOf{owner, named{allOf{open, fromAllowed}, open.words + " (" + fromAllowed.words + ")"}, above, superadmin, monitor},
	Use: named{allOf{anyOf{open, owner, superadmin}, fromAllowed},
		open.words + ", its owner, a superadmin (" + fromAllowed.words + ")"},
	Change:     anyOf{owner, above, superadmin},
	Administer: superadmin,
}}

var (
	open        = named{anyOf{flag(Public), member}, "every user where it is global, a member of its project"}
	fromAllowed = named{anyOf{is{Registry, []string{LocalRegistry}}, match{Registry, itsRegistries}},
		"where it is local to the agents or their domain allows its registry"}
)

// LocalRegistry stands for images without a registry in their reference.
const LocalRegistry = "local"

// Users are persons.
var Users = Kind{"user", map[Verb]condition{
	See:    anyOf{owner, above, superadmin, monitor},
	Change: anyOf{owner, superadmin},
	// Act is to do something as that user.
	Act: named{allOf{role(RoleSuperadmin), not{is{OwnerRole, []string{string(RoleSuperadmin)}}}}, "a superadmin (not as superadmins)"},
	// Administer is to make one, and to set status, role and memberships; Purge to forget one with all that they own.
	Administer: anyOf{above, superadmin},
	Purge:      superadmin,
}}

// Keypairs are access keys of users, with their dotfiles, bootstrap scripts and SSH keypairs.
var Keypairs = Kind{"keypair", map[Verb]condition{
	See:    anyOf{owner, above, superadmin, monitor},
	Change: anyOf{owner, above, superadmin},
	Act:    anyOf{owner, above, superadmin},
	// Administer is to make one, and to set what limits it.
	Administer: anyOf{above, superadmin},
	// Who else is told the secret could sign as its owner for good.
	Reveal: named{match{ToKeys, itsKey}, "who signs with it"},
}}

// Tokens are the API tokens of users. Administrators make those of service accounts: a token of a person proves that person.
var Tokens = Kind{"API token", map[Verb]condition{
	See: anyOf{owner, above, superadmin, monitor},
	Create: anyOf{owner, named{allOf{flag(Service), above}, "an administrator of the domain for its service accounts"},
		named{allOf{flag(Service), superadmin}, "a superadmin for service accounts"}},
	Change: anyOf{owner, above, superadmin}, // take it back
}}

// Projects are groups of users of one domain.
var Projects = Kind{"project", map[Verb]condition{
	See: anyOf{member, leads, inOffice, superadmin, monitor},
	Use: member,
	// Admit is to add and remove members.
	Admit: anyOf{leads, inOffice, superadmin},
	// Divide is to set quotas of sub-projects and of users in it.
	Divide:     anyOf{leads, inOffice, superadmin},
	SeeMembers: anyOf{leads, inOffice, superadmin, monitor},
	Create:     anyOf{inOffice, superadmin},
	Change:     anyOf{inOffice, superadmin},
	Purge:      anyOf{inOffice, superadmin},
	Administer: superadmin,
}}

// Domains are the tenants of a cluster.
var Domains = Kind{"domain", map[Verb]condition{
	See:    anyOf{ofDomain, superadmin, monitor},
	Change: anyOf{inOffice, superadmin},
	// Administer is to make one, to set what it may have, and to deactivate it.
	Administer: superadmin,
	Purge:      superadmin,
}}

// Policies limit what keypairs, users and projects may have.
var Policies = Kind{"resource policy", map[Verb]condition{
	See:        anyOf{named{flag(Given), "whom it limits"}, anyAdmin, superadmin, monitor},
	Administer: superadmin,
}}

// ResourceGroups are sets of agents with one scheduling policy.
var ResourceGroups = Kind{"resource group", map[Verb]condition{
	See:        anyOf{usable, superadmin, monitor},
	Use:        usable,
	Administer: superadmin,
}}

// Agents are the machines that run kernels.
var Agents = Kind{"agent", map[Verb]condition{
	See:        anyOf{superadmin, monitor},
	Administer: superadmin,
}}

// AgentSummaries tell whoever may use a resource group which agents it has, and how much room.
var AgentSummaries = Kind{"agent summary", map[Verb]condition{
	See: anyOf{usable, superadmin, monitor},
}}

// Presets are named amounts of resources.
var Presets = Kind{"resource preset", map[Verb]condition{
	See: anyOf{
		named{flag(Public), "every user where it is for all resource groups"},
		named{allOf{flag(Active), assigned}, "whoever may use its resource group"},
		superadmin,
		monitor,
	},
	Administer: superadmin,
}}

// IdleCheckers are the rules that end sessions which nobody uses.
var IdleCheckers = Kind{"idle checker", map[Verb]condition{
	See:        anyOf{superadmin, monitor},
	Administer: superadmin,
}}

// Templates are what sessions are started from. Their projects' members see and use them.
var Templates = Kind{"task template", map[Verb]condition{
	See:    anyOf{owner, member, above, superadmin, monitor},
	Use:    anyOf{owner, member, above, superadmin},
	Change: anyOf{owner, above, superadmin},
}}

// Tasks are background work that users started.
var Tasks = Kind{"background task", map[Verb]condition{
	See:    anyOf{owner, superadmin, monitor},
	Change: anyOf{owner, superadmin},
}}

// Invitations offer a folder to somebody who does not see it yet.
var Invitations = Kind{"invitation", map[Verb]condition{
	See: anyOf{named{match{Owner, itsUser}, "who is invited"}, named{match{Creator, itsUser}, "who invites"}, superadmin, monitor},
}}

// AuditEntries tell what was done or denied. They belong to whoever did it.
var AuditEntries = Kind{"audit entry", map[Verb]condition{
	See: anyOf{above, superadmin, monitor},
}}

// ErrorLogs are errors that a user's client met and reported.
var ErrorLogs = Kind{"error log", map[Verb]condition{
	See:    anyOf{owner, above, superadmin, monitor},
	Change: anyOf{owner, above, superadmin}, // mark as read, and clear
}}

// UsageIntervals tell who held what, from when to when.
var UsageIntervals = Kind{"usage report", map[Verb]condition{
	See: anyOf{owner, inOffice, superadmin, monitor},
}}

// UsagePrices are what an hour of a slot costs.
var UsagePrices = Kind{"usage price", map[Verb]condition{
	See:        everybody,
	Administer: superadmin,
}}

// Announcements are what all users are told, with the settings of the whole cluster that everybody may know.
var Announcements = Kind{"announcement", map[Verb]condition{
	See:        everybody,
	Administer: superadmin,
}}

// Cluster is the state of the whole: what the scheduler sees, and what a doctor finds.
var Cluster = Kind{"cluster", map[Verb]condition{
	See:        anyOf{superadmin, monitor},
	Administer: superadmin,
}}

// Kinds are all of them.
func Kinds() []Kind {
	return []Kind{
		Sessions,
		Circuits,
		Folders,
		FolderHosts,
		QuotaScopes,
		Images,
		Users,
		Keypairs,
		Tokens,
		Projects,
		Domains,
		Policies,
		ResourceGroups,
		Agents,
		AgentSummaries,
		Presets,
		IdleCheckers,
		Templates,
		Tasks,
		Invitations,
		AuditEntries,
		ErrorLogs,
		UsageIntervals,
		UsagePrices,
		Announcements,
		Cluster,
	}
}
