// Package facts says where the tables hold what the rules of package authz look at: for each kind of object the tables, the
// key and one SQL expression a fact. Lists are restricted with Where, so that what a list shows and what is decided about
// one object come from the same rule.
package facts

import "berth.dev/berth/internal/manager/authz"

// Source is where the objects of a kind are.
type Source struct {
	Kind authz.Kind
	// From names the tables that the columns need with their aliases; a query may join more.
	From string
	// Key is the expression of an object's key, as text.
	Key string
	// Columns hold the facts.
	Columns authz.Columns
}

// Where is the condition that a row of the source is an object with which the actor may do it; arg adds a parameter to the
// query and returns its placeholder.
func (s Source) Where(a authz.Actor, v authz.Verb, arg func(any) string) string {
	return s.Kind.Where(a, v, s.Columns, arg)
}

// ownedBySession are the facts of a session and all that belongs to it, in a query with sessions s and their users u.
var ownedBySession = authz.Columns{authz.Owner: "s.user_id", authz.OwnerRole: "u.role", authz.Domain: "s.domain_name",
	authz.Project: "s.project_id"}

// The sources, by the nouns of package authz.
var (
	Sessions = Source{authz.Sessions, "sessions s JOIN users u ON u.id = s.user_id", "s.id::text", ownedBySession}
	// Kernels are seen by whoever sees their session.
	Kernels = Source{
		authz.Sessions,
		"kernels k JOIN sessions s ON s.id = k.session_id JOIN users u ON u.id = s.user_id",
		"k.id::text",
		ownedBySession,
	}
	// Events are seen by whoever sees their session.
	Events = Source{
		authz.Sessions,
		"session_events e JOIN sessions s ON s.id = e.session_id JOIN users u ON u.id = s.user_id",
		"e.seq::text",
		ownedBySession,
	}

	Circuits = Source{
		authz.Circuits,
		"circuits c JOIN sessions s ON s.id = c.session_id JOIN users u ON u.id = c.user_id",
		"c.id::text",
		authz.Columns{
			authz.Owner: "c.user_id", authz.OwnerRole: "u.role", authz.Domain: "s.domain_name", authz.Project: "s.project_id",
			authz.Public: "c.public",
			authz.Given: `EXISTS (SELECT 1 FROM circuit_shares h WHERE h.circuit_id = c.id AND (h.user_id = {user} OR h.project_id =
ANY({projects})))`},
	}

	Folders = Source{
		authz.Folders,
		"folders f LEFT JOIN users u ON u.id = f.user_id LEFT JOIN projects p ON p.id = f.project_id",
		"f.id::text",
		authz.Columns{
			authz.Owner: "f.user_id", authz.OwnerRole: "u.role", authz.Domain: "f.domain_name", authz.Project: "f.project_id",
			authz.ProjectType: "p.type",
			authz.Creator:     "f.creator_id", authz.Permission: "f.permission",
			authz.Granted: `(SELECT g.permission FROM folder_permissions g WHERE g.folder_id = f.id AND g.user_id = {user})`,
			// Read once, however many folders there are.
			authz.Given: `f.id = ANY(ARRAY(SELECT g.folder_id FROM folder_permissions g WHERE g.user_id = {user}))`},
	}

	QuotaScopes = Source{authz.QuotaScopes, `folder_scopes q LEFT JOIN users u ON q.quota_scope = 'user:' || u.id::text
LEFT JOIN projects p ON q.quota_scope = 'project:' || p.id::text`, "q.host || '/' || q.quota_scope", authz.Columns{
		authz.Owner: "u.id", authz.OwnerRole: "u.role", authz.Domain: "coalesce(u.domain_name, p.domain_name)", authz.Project: "p.id"}}

	Images = Source{
		authz.Images,
		"images i LEFT JOIN users u ON u.id = i.owner_id LEFT JOIN projects p ON p.id = i.project_id",
		"i.id::text",
		authz.Columns{
			authz.Owner: "i.owner_id", authz.OwnerRole: "u.role", authz.Domain: "coalesce(u.domain_name, p.domain_name)",
			authz.Project: "i.project_id", authz.Public: "i.scope = 'global'", authz.Registry: "i.registry"},
	}

	Users = Source{
		authz.Users,
		"users u",
		"u.id::text",
		authz.Columns{authz.Owner: "u.id", authz.OwnerRole: "u.role", authz.Domain: "u.domain_name"},
	}

	Keypairs = Source{authz.Keypairs, "keypairs k JOIN users u ON u.id = k.user_id", "k.access_key", authz.Columns{
		authz.Owner: "k.user_id", authz.OwnerRole: "u.role", authz.Domain: "u.domain_name", authz.ToKeys: "ARRAY[k.access_key]"}}

	Tokens = Source{authz.Tokens, "api_tokens t JOIN users u ON u.id = t.user_id", "t.id::text", authz.Columns{
		authz.Owner: "t.user_id", authz.OwnerRole: "u.role", authz.Domain: "u.domain_name", authz.Service: "u.is_service"}}

	Projects = Source{authz.Projects, "projects p", "p.id::text", authz.Columns{authz.Project: "p.id", authz.Domain: "p.domain_name"}}

	Domains = Source{authz.Domains, "domains d", "d.name", authz.Columns{authz.Domain: "d.name"}}

	KeypairPolicies = Source{authz.Policies, "keypair_resource_policies p", "p.name", authz.Columns{
		authz.Given: `p.name = (SELECT x.resource_policy FROM keypairs x WHERE x.access_key = {key})`}}
	UserPolicies = Source{authz.Policies, "user_resource_policies p", "p.name", authz.Columns{
		authz.Given: `p.name = (SELECT x.resource_policy FROM users x WHERE x.id = {user})`}}
	ProjectPolicies = Source{authz.Policies, "project_resource_policies p", "p.name", authz.Columns{
		authz.Given: `p.name = ANY(ARRAY(SELECT x.resource_policy FROM projects x WHERE x.id = ANY({projects})))`}}

	ResourceGroups = Source{authz.ResourceGroups, "resource_groups g", "g.name", authz.Columns{
		authz.Active:     "g.is_active",
		authz.ToDomains:  `ARRAY(SELECT x.domain_name FROM resource_groups_for_domains x WHERE x.resource_group = g.name)`,
		authz.ToProjects: `ARRAY(SELECT x.project_id FROM resource_groups_for_projects x WHERE x.resource_group = g.name)`,
		authz.ToKeys:     `ARRAY(SELECT x.access_key FROM resource_groups_for_keypairs x WHERE x.resource_group = g.name)`}}

	Presets = Source{authz.Presets, "resource_presets p LEFT JOIN resource_groups g ON g.name = p.resource_group", "p.id::text", authz.Columns{
		authz.Public: "p.resource_group IS NULL", authz.Active: "g.is_active", authz.ToDomains: ResourceGroups.Columns[authz.ToDomains],
		authz.ToProjects: ResourceGroups.Columns[authz.ToProjects], authz.ToKeys: ResourceGroups.Columns[authz.ToKeys]}}

	AgentSummaries = Source{authz.AgentSummaries, "agents a JOIN resource_groups g ON g.name = a.resource_group", "a.id",
		ResourceGroups.Columns}

	Agents       = Source{authz.Agents, "agents a", "a.id", nil}
	IdleCheckers = Source{authz.IdleCheckers, "idle_checkers i", "i.name", nil}
	Templates    = Source{authz.Templates,
		"session_templates t JOIN users u ON u.id = t.user_id JOIN projects p ON p.id = t.project_id", "t.id::text",
		authz.Columns{authz.Owner: "t.user_id", authz.OwnerRole: "u.role", authz.Domain: "p.domain_name", authz.Project: "t.project_id"}}
	Tasks       = Source{authz.Tasks, "background_tasks t", "t.id::text", authz.Columns{authz.Owner: "t.owner"}}
	Invitations = Source{authz.Invitations, "folder_invitations n", "n.id::text", authz.Columns{
		authz.Owner: "n.invitee_id", authz.Creator: "n.inviter_id"}}
	// AuditEntries belong to whoever did it, in the domain and the role of that time.
	AuditEntries = Source{authz.AuditEntries, "audit_log a", "a.id::text", authz.Columns{
		authz.OwnerRole: "a.role", authz.Domain: "a.domain_name"}}
	ErrorLogs = Source{authz.ErrorLogs, "error_logs e JOIN users u ON u.id = e.user_id", "e.id::text", authz.Columns{
		authz.Owner: "e.user_id", authz.OwnerRole: "u.role", authz.Domain: "u.domain_name"}}
	// UsageIntervals belong to the session's owner and to the domain of that time; reports of domains hold what its superadmins used, too.
	UsageIntervals = Source{authz.UsageIntervals, "usage_intervals i", "i.id::text", authz.Columns{
		authz.Owner: "i.user_id", authz.Domain: "i.domain_name"}}
	UsagePrices = Source{authz.UsagePrices, "usage_prices p", "p.id::text", nil}
	Settings    = Source{authz.Announcements, "cluster_settings x", "x.key", nil}
)

// Sources are all of them.
func Sources() map[string]Source {
	return map[string]Source{
		"sessions": Sessions, "kernels": Kernels, "events": Events, "circuits": Circuits, "folders": Folders, "quota scopes": QuotaScopes,
		"images": Images,
		"users":  Users, "keypairs": Keypairs, "API tokens": Tokens, "projects": Projects, "domains": Domains,
		"policies of keypairs": KeypairPolicies,
		"policies of users":    UserPolicies, "policies of projects": ProjectPolicies, "resource groups": ResourceGroups, "agents": Agents,
		"agent summaries": AgentSummaries,
		"presets":         Presets, "idle checkers": IdleCheckers, "templates": Templates, "tasks": Tasks, "invitations": Invitations,
		"audit entries":   AuditEntries,
		"error logs":      ErrorLogs,
		"usage intervals": UsageIntervals, "usage prices": UsagePrices,
		"settings": Settings,
	}
}
