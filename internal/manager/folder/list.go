package folder

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"

	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/fault"
	"berth.dev/berth/internal/manager/authz"
	"berth.dev/berth/internal/manager/store"
	"berth.dev/berth/internal/manager/store/facts"
	"berth.dev/berth/internal/manager/store/list"
)

// ListMost is how many folders a list without pages holds.
const ListMost = 10_000

// listPage is how many folders such a list reads at once, by key.
const listPage = 500

// List lists folders by name: the actor's own, those shared with the actor and those of the actor's projects; at most 10,000.
// With OwnerEmail it lists those of another user, as far as the actor may see them.
func (s *Service) List(ctx context.Context, a authz.Actor, q ListQuery) ([]Folder, error) {
	if err := authz.Authenticated(a); err != nil {
		return nil, err
	}
	viewer := a
	if q.OwnerEmail != "" && q.OwnerEmail != a.Email {
		var err error
		if viewer, err = s.d.Tenancy.ActorOfUser(ctx, a, q.OwnerEmail); err != nil {
			return nil, err
		}
		q.All = false
	}
	verb := authz.Reach
	if q.All {
		verb = authz.See
	}
	project := ""
	if q.Project != "" {
		p, err := s.d.Tenancy.VisibleProject(ctx, a, q.Project, a.Domain)
		if err != nil {
			return nil, err
		}
		project = p.ID
	}
	out := []Folder{}
	after := folderKey{}
	for len(out) < ListMost {
		page, err := s.listPage(ctx, a, viewer, verb, project, q.WithoutTrash, after)
		if err != nil {
			return nil, err
		}
		ids := make([]string, len(page))
		for i, k := range page {
			ids[i], after = k.id, k
		}
		found, err := load(ctx, s.d.Store.Queries, viewer, ids)
		if err != nil {
			return nil, err
		}
		out = append(out, list.InOrder(ids, found)...)
		if len(page) < listPage {
			break
		}
	}
	return out, nil
}

type folderKey struct{ name, id string }

// listPage returns the next folders of a list by name. With a project, the list holds that project's folders and those that belong to no
// project. An administrator sees a project's folders without being a member of it.
func (s *Service) listPage(ctx context.Context, a, viewer authz.Actor, v authz.Verb, project string, withoutTrash bool,
	after folderKey) ([]folderKey, error) {
	var b list.Builder
	sql := "SELECT f.name, f.id::text FROM " + facts.Folders.From + " WHERE f.status <> 'delete-complete'"
	if withoutTrash {
		sql += " AND f.status NOT LIKE 'delete-%'"
	}
	if after.id != "" {
		sql += " AND (f.name, f.id) > (" + b.Arg(after.name) + ", " + b.Arg(after.id) + "::uuid)"
	}
	may := facts.Folders.Where(viewer, v, b.Arg)
	if viewer.UserID != a.UserID { // what was shared with somebody need not be for the eyes of everybody who looks at them
		may = "(" + may + " AND " + facts.Folders.Where(a, authz.See, b.Arg) + ")"
	}
	if project == "" {
		sql += " AND " + may
	} else {
		id := b.Arg(project) + "::uuid"
		sql += " AND (f.project_id IS NULL AND " + may + " OR f.project_id = " + id + " AND " + facts.Folders.Where(a, authz.See, b.Arg) + ")"
	}
	rows, err := s.d.Store.DB().Query(ctx, sql+fmt.Sprintf(" ORDER BY f.name, f.id LIMIT %d", listPage), b.Args...)
	if err != nil {
		return nil, fmt.Errorf("list folders: %w", err)
	}
	out, err := pgx.CollectRows(rows, func(r pgx.CollectableRow) (k folderKey, err error) { return k, r.Scan(&k.name, &k.id) })
	if err != nil {
		return nil, fmt.Errorf("list folders: %w", err)
	}
	return out, nil
}

var folderFields = list.Fields{
	"id": list.ID("f.id"), "row_id": list.ID("f.id"), "host": list.Text("f.host"),
	"name": list.Text("f.name").Trigrams("name_trigrams(f.name) @> %s"),
	"status": list.Enum("f.status", store.Texts([]cluster.FolderStatus{cluster.FolderReady, cluster.FolderPerforming, cluster.FolderCloning,
		cluster.FolderMounted,
		cluster.FolderError, cluster.FolderDeletePending, cluster.FolderDeleteOngoing, cluster.FolderDeleteComplete,
		cluster.FolderDeleteError}), nil),
	"usage_mode": list.Enum("f.usage_mode", store.Texts([]UsageMode{UsageGeneral, UsageModel, UsageData}), nil),
	"permission": list.Enum("f.permission", []string{"ro", "rw", "wd"},
		map[string]string{"READ_ONLY": "ro", "READ_WRITE": "rw", "RW_DELETE": "wd", "OWNER_PERM": "wd"}),
	"ownership_type": list.Enum("CASE WHEN f.user_id IS NULL THEN 'group' ELSE 'user' END", store.Texts([]Ownership{OfUser, OfProject}), nil),
	"user":           list.ID("f.user_id"), "user_email": list.Text("u.email"), "group": list.ID("f.project_id"),
	"group_name":  list.Text("p.name"),
	"domain_name": list.Text("f.domain_name"), "creator": list.Text("c.email"), "quota_scope_id": list.Text("f.quota_scope"),
	"cloneable":      list.Bool("f.cloneable"),
	"unmanaged_path": list.Text("f.unmanaged_path"), "created_at": list.Time("f.created_at"), "last_used": list.Time("f.last_used"),
	"num_files": list.Number("coalesce(f.num_files, 0)"), "cur_size": list.Number("coalesce(f.cur_size, 0)"),
	"max_size": list.Number("(SELECT 0)"), "max_files": list.Number("(SELECT 0)"), // no folder has one; a bare 0 would name a column
}

const searchFrom = `folders f LEFT JOIN users u ON u.id = f.user_id LEFT JOIN projects p ON p.id = f.project_id
LEFT JOIN users c ON c.id = f.creator_id LEFT JOIN folder_permissions g ON g.folder_id = f.id AND g.user_id = `

// Search selects a page of what the actor may see.
func (s *Service) Search(ctx context.Context, a authz.Actor, q SearchQuery) (list.Page[Folder], error) {
	out := list.Page[Folder]{Items: []Folder{}}
	if err := authz.Authenticated(a); err != nil {
		return out, err
	}
	l := &list.Spec{Key: "f.id::text", Fields: folderFields, Order: "f.created_at DESC"}
	me := l.Arg(string(a.UserID)) + "::uuid"
	l.From = searchFrom + me
	if err := searchWhere(l, me, a, q); err != nil {
		return out, err
	}
	l.Counts = func() []string { return searchCounts(l, me, a, q) }
	ids, total, err := l.Keys(ctx, s.d.Store.DB(), q.Query)
	if err != nil {
		return out, fmt.Errorf("search folders: %w", err)
	}
	found, err := load(ctx, s.d.Store.Queries, a, ids)
	if err != nil {
		return out, err
	}
	out.Items, out.Total = list.InOrder(ids, found), total
	return out, nil
}

// keptCounts are where the number of folders is kept, as far as the domain and the owner's role say who sees them. Whose a folder is is not
// known there.
const keptCounts = `SELECT coalesce(sum(f.n), 0)::bigint FROM (SELECT c.domain_name, c.status, c.owner_role, c.n, NULL::uuid AS id,
	NULL::uuid AS user_id, NULL::uuid AS creator_id, NULL::text AS permission,
	CASE WHEN c.kind = 'project' THEN '00000000-0000-0000-0000-000000000000'::uuid END AS project_id
	FROM list_counts c WHERE c.list = 'folders') f CROSS JOIN LATERAL (SELECT f.owner_role AS role) u
CROSS JOIN LATERAL (SELECT NULL::text AS type) p CROSS JOIN LATERAL (SELECT NULL::text AS permission) g WHERE true`

// searchCounts are where the number of folders of a search is kept: those that the actor administrates, and besides those that the actor
// has, owns or is a member of the project of. nil: they have to be counted.
func searchCounts(l *list.Spec, me string, a authz.Actor, q SearchQuery) []string {
	near := func() string {
		return "SELECT count(*) FROM " + searchFrom + me + ` WHERE f.id IN (SELECT x.id FROM folders x WHERE x.user_id = ` + me +
			` UNION SELECT x.folder_id FROM folder_permissions x WHERE x.user_id = ` + me +
			` UNION SELECT x.id FROM folders x WHERE x.project_id = ANY(` + l.Arg(store.Texts(a.Projects)) + "::uuid[]))"
	}
	domain, inDomain := strings.CutPrefix(q.Scope, "domain:")
	switch {
	case a.Role == authz.RoleUser || q.Of == OwnFolders || q.Of == GrantedFolders:
		return []string{near()}
	case q.Right != "" && !slices.Contains(rightVerbs[0].rights, q.Right) || q.Scope != "" && (!inDomain || domain == ""):
		return nil
	case a.Role == authz.RoleAdmin:
		return []string{keptCounts,
			near() + " AND (f.domain_name = " + l.Arg(a.Domain) + " AND coalesce(u.role, '') <> 'superadmin') IS NOT TRUE"}
	}
	return []string{keptCounts}
}

// searchWhere restricts a search to what the actor may see and to what the query selects. me is the placeholder of the actor's id.
func searchWhere(l *list.Spec, me string, a authz.Actor, q SearchQuery) error {
	// Folders of which only the row remains are left out, as everywhere.
	l.Where("f.status <> 'delete-complete'")
	if q.WithoutTrash {
		l.Where("f.status NOT LIKE 'delete-%'")
	}
	if q.Right == "mount_rw" || q.Right == "mount_wd" { // as mountedReadOnly
		l.Where("NOT (f.permission = 'ro' AND f.user_id IS NOT DISTINCT FROM " + me + ")")
	}
	l.Where(facts.Folders.Where(a, authz.See, l.Arg))
	switch q.Of {
	case "":
	case OwnFolders:
		l.Where("f.user_id = " + me)
	case GrantedFolders:
		l.Where("f.user_id <> " + me + " AND f.id = ANY(ARRAY(SELECT x.folder_id FROM folder_permissions x WHERE x.user_id = " + me + "))")
	case ProjectFolders:
		l.Where("f.project_id IS NOT NULL")
	default:
		return fault.Invalidf("%.40q is no kind of folders", string(q.Of))
	}
	if q.Scope != "" {
		in, err := scopeSQL(l, q.Scope, me)
		if err != nil {
			return err
		}
		l.Where(in)
	}
	if q.Right == "" {
		return nil
	}
	for _, r := range rightVerbs {
		if slices.Contains(r.rights, q.Right) {
			l.Where(facts.Folders.Where(a, r.verb, l.Arg))
			return nil
		}
	}
	return fault.Invalidf("%.80q is no right on folders", q.Right)
}

// scopeSQL is the condition that a folder lies in a scope. The scope of a project holds the project's folders and those that the actor
// uses in every project: the actor's own and those shared with the actor.
func scopeSQL(l *list.Spec, scope, me string) (string, error) {
	kind, id, _ := strings.Cut(scope, ":")
	if kind == "domain" && id != "" {
		return "f.domain_name = " + l.Arg(id), nil
	}
	uuid, ok := cluster.CanonicalUUID(id)
	switch {
	case ok && kind == "project":
		return "(f.project_id = " + l.Arg(uuid) + "::uuid OR f.user_id = " + me +
			" OR f.user_id IS NOT NULL AND f.id = ANY(ARRAY(SELECT x.folder_id FROM folder_permissions x WHERE x.user_id = " + me + ")))", nil
	case ok && kind == "user":
		arg := l.Arg(uuid) + "::uuid"
		return "(f.user_id = " + arg + " OR f.id = ANY(ARRAY(SELECT x.folder_id FROM folder_permissions x WHERE x.user_id = " + arg + ")))", nil
	}
	return "", fault.Invalidf("%.80q is no scope of folders", scope).WithNext("write user:<uuid>, project:<uuid> or domain:<name>")
}
