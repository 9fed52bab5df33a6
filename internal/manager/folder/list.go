package folder

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"

	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/manager/authz"
	"berth.dev/berth/internal/manager/service/minilang"
	"berth.dev/berth/internal/manager/store"
	"berth.dev/berth/internal/manager/store/dbgen"
)

// ListMost is how many folders a list without pages holds.
const ListMost = 10_000

// listPage is how many folders such a list reads at once, by key.
const listPage = 500

// List lists folders by name: the actor's own, those shared with the actor and those of the actor's projects; at most 10,000.
func (s *Service) List(ctx context.Context, a Actor, q ListQuery) ([]Folder, error) {
	if err := authz.Authenticated(a); err != nil {
		return nil, err
	}
	viewer := a
	if q.OwnerEmail != "" && q.OwnerEmail != a.Email {
		var err error
		if viewer, err = s.actorOf(ctx, a, q.OwnerEmail); err != nil {
			return nil, err
		}
		q.All = false
	}
	arg := dbgen.ListFoldersParams{AfterID: zeroUUID, UserID: string(viewer.UserID), Projects: texts(viewer.Projects), MaxRows: listPage}
	switch {
	case q.All && (a.Superadmin() || a.Monitor()):
		arg.Every = true
	case q.All && a.DomainAdmin(a.Domain):
		arg.Every, arg.DomainName = true, a.Domain
	}
	if q.Project != "" {
		p, err := s.project(ctx, a, q.Project)
		if err != nil {
			return nil, err
		}
		arg.ProjectID = &p.ID
		if !a.Member(cluster.ProjectID(p.ID)) && !slices.Contains(arg.Projects, p.ID) {
			arg.Projects = append(arg.Projects, p.ID) // an administrator looks
		}
	}
	out := []Folder{}
	for len(out) < ListMost {
		page, err := s.d.Store.ListFolders(ctx, arg)
		if err != nil {
			return nil, fmt.Errorf("list folders: %w", err)
		}
		ids := make([]string, len(page))
		for i, r := range page {
			ids[i] = r.ID
			arg.AfterName, arg.AfterID = r.Name, r.ID
		}
		found, err := load(ctx, s.d.Store.Queries, viewer, ids)
		if err != nil {
			return nil, err
		}
		for _, id := range ids {
			if f, ok := found[cluster.FolderID(id)]; ok {
				out = append(out, f)
			}
		}
		if len(page) < listPage {
			break
		}
	}
	return out, nil
}

// actorOf is how another user sees folders, for an administrator of that user.
func (s *Service) actorOf(ctx context.Context, a Actor, email string) (Actor, error) {
	u, err := s.userByEmail(ctx, email)
	if err != nil {
		return Actor{}, err
	}
	o := authz.Owned{Noun: userNoun, Name: email, UserID: cluster.UserID(u.ID), Domain: u.DomainName, OwnerRole: authz.Role(u.Role)}
	if err := authz.Read(a, o); err != nil {
		return Actor{}, err
	}
	projects, err := s.d.Store.ListProjectsOf(ctx, u.ID)
	if err != nil {
		return Actor{}, fmt.Errorf("read projects of %s: %w", email, err)
	}
	other := Actor{UserID: o.UserID, Email: u.Email, Domain: u.DomainName, Role: o.OwnerRole, AccessKey: a.AccessKey}
	for _, p := range projects {
		other.Projects = append(other.Projects, cluster.ProjectID(p.ID))
	}
	return other, nil
}

func (s *Service) userByEmail(ctx context.Context, email string) (dbgen.UsersByEmailRow, error) {
	rows, err := s.d.Store.UsersByEmail(ctx, nil, []string{store.Text(email)})
	if err != nil {
		return dbgen.UsersByEmailRow{}, fmt.Errorf("find user %s: %w", email, err)
	}
	if len(rows) == 0 {
		return dbgen.UsersByEmailRow{}, authz.NotFound(userNoun, email)
	}
	return rows[0], nil
}

var folderFields = minilang.Fields{
	"id": minilang.ID("f.id::text"), "row_id": minilang.ID("f.id::text"), "name": minilang.Text("f.name"), "host": minilang.Text("f.host"),
	"status": minilang.Enum("f.status", texts([]cluster.FolderStatus{cluster.FolderReady, cluster.FolderPerforming, cluster.FolderCloning, cluster.FolderMounted,
		cluster.FolderError, cluster.FolderDeletePending, cluster.FolderDeleteOngoing, cluster.FolderDeleteComplete, cluster.FolderDeleteError}), nil),
	"usage_mode": minilang.Enum("f.usage_mode", texts([]UsageMode{UsageGeneral, UsageModel, UsageData}), nil),
	"permission": minilang.Enum("f.permission", []string{"ro", "rw", "wd"},
		map[string]string{"READ_ONLY": "ro", "READ_WRITE": "rw", "RW_DELETE": "wd", "OWNER_PERM": "wd"}),
	"ownership_type": minilang.Enum("CASE WHEN f.user_id IS NULL THEN 'group' ELSE 'user' END", texts([]Ownership{OfUser, OfProject}), nil),
	"user":           minilang.ID("f.user_id::text"), "user_email": minilang.Text("u.email"), "group": minilang.ID("f.project_id::text"), "group_name": minilang.Text("p.name"),
	"domain_name": minilang.Text("f.domain_name"), "creator": minilang.Text("c.email"), "quota_scope_id": minilang.Text("f.quota_scope"), "cloneable": minilang.Bool("f.cloneable"),
	"unmanaged_path": minilang.Text("f.unmanaged_path"), "created_at": minilang.Time("f.created_at"), "last_used": minilang.Time("f.last_used"),
	"num_files": minilang.Number("coalesce(f.num_files, 0)"), "cur_size": minilang.Number("coalesce(f.cur_size, 0)"),
	"max_size": minilang.Number("0"), "max_files": minilang.Number("0"),
}

const searchFrom = `folders f LEFT JOIN users u ON u.id = f.user_id LEFT JOIN projects p ON p.id = f.project_id
LEFT JOIN users c ON c.id = f.creator_id LEFT JOIN folder_permissions g ON g.folder_id = f.id AND g.user_id = `

// Search selects a page of what the actor may see.
func (s *Service) Search(ctx context.Context, a Actor, q SearchQuery) (Page[Folder], error) {
	none := Page[Folder]{Items: []Folder{}}
	if err := authz.Authenticated(a); err != nil {
		return none, err
	}
	if q.Limit == 0 {
		q.Limit = 20
	}
	if q.Limit < 1 || q.Limit > 100 || q.Offset < 0 || q.Offset > 10_000_000 {
		return none, invalid("a page has 1 to 100 items, not %d from %d", q.Limit, q.Offset)
	}
	var b minilang.Builder
	from := searchFrom + b.Arg(string(a.UserID)) + "::uuid"
	where, err := searchWhere(&b, a, q)
	if err != nil {
		return none, err
	}
	order, err := minilang.Order(folderFields, q.Order, "f.created_at DESC", "f.id")
	if err != nil {
		return none, err
	}
	return s.searchPage(ctx, a, from, where, order, q, b.Args)
}

// searchWhere says in SQL what accessOf says in Go: the former finds, the latter decides again about what was found.
func searchWhere(b *minilang.Builder, a Actor, q SearchQuery) (string, error) {
	me, mine := b.Arg(string(a.UserID))+"::uuid", b.Arg(texts(a.Projects))+"::uuid[]"
	reach := "(f.user_id = " + me + " OR f.project_id = ANY(" + mine + ") OR f.user_id IS NOT NULL AND g.permission IS NOT NULL)"
	manages := "false"
	switch {
	case a.Superadmin():
		manages = "true"
	case a.Role == authz.RoleAdmin:
		manages = "(f.domain_name = " + b.Arg(a.Domain) + " AND coalesce(u.role, '') <> 'superadmin')"
	}
	sees := manages
	if a.Monitor() {
		sees = "true"
	}
	// Folders of which only the row remains are left out, as everywhere.
	where := []string{"f.status <> 'delete-complete'", "(" + reach + " OR " + sees + ")"}
	filter, err := minilang.Filter(b, folderFields, q.Filter)
	if err != nil {
		return "", err
	}
	where = append(where, filter)
	switch q.Of {
	case "":
	case OwnFolders:
		where = append(where, "f.user_id = "+me)
	case GrantedFolders:
		where = append(where, "f.user_id <> "+me+" AND g.permission IS NOT NULL")
	case ProjectFolders:
		where = append(where, "f.project_id IS NOT NULL")
	default:
		return "", invalid("%.40q is no kind of folders", string(q.Of))
	}
	if q.Scope != "" {
		in, err := scopeSQL(b, q.Scope, me)
		if err != nil {
			return "", err
		}
		where = append(where, in)
	}
	with, err := rightSQL(q.Right, "(f.user_id = "+me+")", "(f.project_id = ANY("+mine+"))", manages, me)
	if err != nil {
		return "", err
	}
	return strings.Join(append(where, with), " AND "), nil
}

// scopeSQL says what lies in a scope. That of a project holds, besides the project's folders, those which the actor uses in every
// project: own and shared ones.
func scopeSQL(b *minilang.Builder, scope, me string) (string, error) {
	kind, id, _ := strings.Cut(scope, ":")
	if kind == "domain" && id != "" {
		return "f.domain_name = " + b.Arg(id), nil
	}
	uuid, ok := cluster.CanonicalUUID(id)
	switch {
	case ok && kind == "project":
		return "(f.project_id = " + b.Arg(uuid) + "::uuid OR f.user_id = " + me + " OR f.user_id IS NOT NULL AND g.permission IS NOT NULL)", nil
	case ok && kind == "user":
		arg := b.Arg(uuid) + "::uuid"
		return "(f.user_id = " + arg + " OR EXISTS (SELECT 1 FROM folder_permissions x WHERE x.folder_id = f.id AND x.user_id = " + arg + "))", nil
	}
	return "", invalid("%.80q is no scope of folders", scope).WithNext("write user:<uuid>, project:<uuid> or domain:<name>")
}

// rightSQL says in SQL who has one of the wire's rights.
func rightSQL(right, own, member, manages, me string) (string, error) {
	creator := "(" + member + " AND p.type = 'model-store' AND f.creator_id = " + me + ")"
	owner := "(" + own + " OR " + creator + " OR " + manages + ")"
	// The permission for files, in the order of accessOf.
	files := "CASE WHEN " + own + " THEN CASE f.permission WHEN 'ro' THEN 'ro' ELSE 'wd' END" +
		" WHEN " + creator + " THEN 'wd'" +
		" WHEN f.project_id IS NOT NULL AND " + manages + " THEN 'wd'" +
		" WHEN " + member + " THEN coalesce(g.permission, f.permission)" +
		" WHEN f.user_id IS NOT NULL AND g.permission IS NOT NULL THEN g.permission" +
		" WHEN " + manages + " THEN CASE f.permission WHEN 'ro' THEN 'ro' ELSE 'wd' END END"
	switch right {
	case "", "read_attribute":
		return "true", nil
	case "update_attribute", "delete_vfolder", "assign_permission_to_others", "clone":
		return owner, nil
	case "read_content", "mount_ro":
		return "(" + files + ") IS NOT NULL", nil
	case "write_content", "mount_rw":
		return "(" + files + ") IN ('rw','wd')", nil
	case "delete_content", "mount_wd":
		return "(" + files + ") = 'wd'", nil
	}
	return "", invalid("%.80q is no right on folders", right)
}

func (s *Service) searchPage(ctx context.Context, a Actor, from, where, order string, q SearchQuery, args []any) (Page[Folder], error) {
	out := Page[Folder]{Items: []Folder{}}
	sql := "SELECT f.id::text, count(*) OVER () FROM " + from + " WHERE " + where + " ORDER BY " + order + fmt.Sprintf(" LIMIT %d OFFSET %d", q.Limit, q.Offset)
	rows, err := s.d.Store.Pool().Query(ctx, sql, args...)
	if err != nil {
		return out, fmt.Errorf("search folders: %w", err)
	}
	var id string
	var ids []string
	if _, err := pgx.ForEachRow(rows, []any{&id, &out.Total}, func() error { ids = append(ids, id); return nil }); err != nil {
		return out, fmt.Errorf("search folders: %w", err)
	}
	if len(ids) == 0 {
		if q.Offset > 0 { // past the end the window function says nothing
			if err := s.d.Store.Pool().QueryRow(ctx, "SELECT count(*) FROM "+from+" WHERE "+where, args...).Scan(&out.Total); err != nil {
				return out, fmt.Errorf("count folders: %w", err)
			}
		}
		return out, nil
	}
	found, err := load(ctx, s.d.Store.Queries, a, ids)
	if err != nil {
		return out, err
	}
	for _, id := range ids {
		if f, ok := found[cluster.FolderID(id)]; ok {
			out.Items = append(out.Items, f)
		}
	}
	return out, nil
}
