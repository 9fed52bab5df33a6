package graphapi

import (
	"context"
	"encoding/base64"
	"strconv"
	"strings"

	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/fault"
	"berth.dev/berth/internal/manager/folder"
	"berth.dev/berth/internal/manager/graphapi/model"
	"berth.dev/berth/internal/manager/store/list"
)

// globalID is how relay clients name an object: base64("<type>:<id>").
func globalID(kind, id string) string {
	return base64.StdEncoding.EncodeToString([]byte(kind + ":" + id))
}

// fromGlobalID splits a global id; kind is "" for a text that is none, which is returned as the id.
func fromGlobalID(text string) (kind, id string) {
	if _, bare := cluster.CanonicalUUID(text); bare { // 32 digits can be read as base64, too
		return "", text
	}
	if raw, err := base64.StdEncoding.DecodeString(text); err == nil {
		if kind, id, ok := strings.Cut(string(raw), ":"); ok {
			return kind, id
		}
	}
	return "", text
}

// The types of folders in global ids.
const (
	nodeOfFolder   = "VirtualFolderNode"
	newNodeFolder  = "VFolder"
	nodeOfUser     = "UserV2"
	nodeOfProject  = "ProjectV2"
	nodeOfScope    = "QuotaScope"
	folderPageSize = 100
)

func toFolder(f folder.Folder) *model.VirtualFolder {
	return &model.VirtualFolder{
		ID: new(string(f.ID)), Host: &f.Host, QuotaScopeID: new(f.Scope.String()), Name: &f.Name,
		User: optional(f.UserID), UserEmail: optional(f.UserEmail), Group: optional(f.ProjectID), GroupName: optional(f.ProjectName),
		Creator: optional(f.Creator), DomainName: optional(f.Domain), UnmanagedPath: optional(f.UnmanagedPath),
		UsageMode: new(string(f.Usage)), Permission: new(string(f.Permission)), OwnershipType: new(string(f.Ownership)),
		MaxFiles: new(0), CreatedAt: &f.CreatedAt, LastUsed: f.LastUsed, NumFiles: whole(f.Files), CurSize: f.Bytes,
		Cloneable: &f.Cloneable, Status: new(string(f.Status)),
	}
}

func whole(n *int64) *int {
	if n == nil {
		return nil
	}
	return new(int(*n))
}

func toFolderNode(f folder.Folder) *model.VirtualFolderNode {
	return &model.VirtualFolderNode{
		ID: globalID(nodeOfFolder, string(f.ID)), RowID: new(string(f.ID)), Host: &f.Host, QuotaScopeID: new(f.Scope.String()), Name: &f.Name,
		User: optional(f.UserID), UserEmail: optional(f.UserEmail), Group: optional(f.ProjectID), GroupName: optional(f.ProjectName),
		Creator: optional(f.Creator), UnmanagedPath: optional(f.UnmanagedPath), UsageMode: new(string(f.Usage)),
		Permission: new(string(f.Permission)), OwnershipType: new(string(f.Ownership)), MaxFiles: new(0), CreatedAt: &f.CreatedAt,
		LastUsed: f.LastUsed, NumFiles: whole(f.Files), CurSize: f.Bytes, Cloneable: &f.Cloneable, Status: new(string(f.Status)),
		Permissions: texts(f.Rights),
	}
}

// upper turns a word of the wire into the name of an enum's value: delete-pending is DELETE_PENDING.
func upper[S ~string](s S) string { return strings.ToUpper(strings.ReplaceAll(string(s), "-", "_")) }

var mountPermissions = map[cluster.MountPermission]model.VFolderMountPermission{
	cluster.ReadOnly: model.VFolderMountPermissionReadOnly, cluster.ReadWrite: model.VFolderMountPermissionReadWrite,
	cluster.ReadWriteDelete: model.VFolderMountPermissionRwDelete,
}

func toNewFolder(f folder.Folder) *model.VFolder {
	m := &model.VFolder{
		ID: globalID(newNodeFolder, string(f.ID)), Status: model.VFolderOperationStatus(upper(f.Status)), Host: f.Host,
		UnmanagedPath: optional(f.UnmanagedPath),
		Metadata: &model.VFolderMetadataInfo{
			Name: f.Name, UsageMode: model.VFolderUsageMode(upper(f.Usage)), QuotaScopeID: f.Scope.String(), CreatedAt: f.CreatedAt,
			LastUsed: f.LastUsed, Cloneable: f.Cloneable,
		},
		AccessControl: &model.VFolderAccessControlInfo{
			Permission: mountPermissions[f.Permission], OwnershipType: model.VFolderOwnershipType(upper(f.Ownership)),
		},
		Ownership: &model.VFolderOwnershipInfo{
			UserID: optional(f.UserID), ProjectID: optional(f.ProjectID), CreatorID: optional(f.CreatorID),
			CreatorEmail: optional(f.Creator),
		},
	}
	if f.UserID != "" {
		m.Ownership.User = &model.UserV2{ID: globalID(nodeOfUser, string(f.UserID)), BasicInfo: &model.UserV2BasicInfo{Email: f.UserEmail}}
	}
	if f.ProjectID != "" {
		m.Ownership.Project = &model.ProjectV2{
			ID: globalID(nodeOfProject, string(f.ProjectID)), BasicInfo: &model.ProjectBasicInfo{Name: f.ProjectName},
		}
	}
	return m
}

// also adds a comparison of a field with a text to a filter.
func also(filter, field, text string) string {
	one := field + ` == "` + strings.NewReplacer(`\`, `\\`, `"`, `\"`).Replace(text) + `"`
	if strings.TrimSpace(filter) == "" {
		return one
	}
	return "(" + filter + ") & " + one
}

// withoutTrashKey marks the context of requests whose clients know no trash bin.
type withoutTrashKey struct{}

// folderList is a page of folders of some kind.
func (q queries) folderList(
	ctx context.Context, of folder.Kind, limit, offset int, filter, order, domain, project, accessKey *string,
) (*model.VirtualFolderList, error) {
	a := q.who(ctx)
	if key := value(accessKey); key != "" && cluster.AccessKey(key) != a.AccessKey {
		return nil, fault.Invalidf("folders are listed for their users, not for access keys").
			WithNext(`filter by user or user_email instead, as in user_email == "a@b.c"`)
	}
	s := folder.SearchQuery{Query: page(filter, order, limit, offset), Of: of}
	if domain := value(domain); domain != "" {
		s.Filter = also(s.Filter, "domain_name", domain)
	}
	if project := value(project); project != "" {
		id, err := uuid("group_id", project)
		if err != nil {
			return nil, err
		}
		s.Filter = also(s.Filter, "group", id)
	}
	s.WithoutTrash = ctx.Value(withoutTrashKey{}) != nil
	p, err := q.folders.Search(ctx, a, s)
	if err != nil {
		return nil, err
	}
	return &model.VirtualFolderList{Items: convert(p.Items, toFolder), TotalCount: &p.Total}, nil
}

func (q queries) VfolderList(
	ctx context.Context, limit, offset int, filter, order, domain, project, accessKey *string,
) (*model.VirtualFolderList, error) {
	return q.folderList(ctx, "", limit, offset, filter, order, domain, project, accessKey)
}

func (q queries) VfolderOwnList(
	ctx context.Context, limit, offset int, filter, order, domain, accessKey *string,
) (*model.VirtualFolderList, error) {
	return q.folderList(ctx, folder.OwnFolders, limit, offset, filter, order, domain, nil, accessKey)
}

func (q queries) VfolderInvitedList(
	ctx context.Context, limit, offset int, filter, order, domain, accessKey *string,
) (*model.VirtualFolderList, error) {
	return q.folderList(ctx, folder.GrantedFolders, limit, offset, filter, order, domain, nil, accessKey)
}

func (q queries) VfolderProjectList(
	ctx context.Context, limit, offset int, filter, order, domain, accessKey *string,
) (*model.VirtualFolderList, error) {
	return q.folderList(ctx, folder.ProjectFolders, limit, offset, filter, order, domain, nil, accessKey)
}

// load finds folders of one request in one statement; nil where there is none that the caller may see.
func (q queries) load(ctx context.Context, id string) (*folder.Folder, error) {
	id, err := uuid("folder id", id)
	if err != nil {
		return nil, err
	}
	return loadersOf(ctx).folders.Load(ctx, cluster.FolderID(id))()
}

func (q queries) Vfolder(ctx context.Context, id *string) (*model.VirtualFolder, error) {
	_, raw := fromGlobalID(value(id))
	f, err := q.load(ctx, raw)
	if f == nil || err != nil {
		return nil, err
	}
	return toFolder(*f), nil
}

func (q queries) VfolderNode(ctx context.Context, id string, _, right *string) (*model.VirtualFolderNode, error) {
	_, raw := fromGlobalID(id)
	f, err := q.load(ctx, raw)
	if f == nil || err != nil {
		return nil, err
	}
	m := toFolderNode(*f)
	for _, have := range m.Permissions {
		if value(right) == "" || *have == *right {
			return m, nil
		}
	}
	return nil, nil
}

func (q queries) VfolderV2(ctx context.Context, id string) (*model.VFolder, error) {
	_, raw := fromGlobalID(id)
	f, err := q.load(ctx, raw)
	if f == nil || err != nil {
		return nil, err
	}
	return toNewFolder(*f), nil
}

// Node loads an object by its global id; null for types that are not served so.
func (q queries) Node(ctx context.Context, id string) (model.Node, error) {
	kind, raw := fromGlobalID(id)
	switch kind {
	case nodeOfFolder:
		if f, err := q.VfolderNode(ctx, raw, nil, nil); f != nil {
			return f, err
		}
	case newNodeFolder:
		if f, err := q.VfolderV2(ctx, raw); f != nil {
			return f, err
		}
	case nodeOfSession:
		if s, err := q.ComputeSessionNode(ctx, raw, nil, nil, nil); s != nil {
			return s, err
		}
	case nodeOfAgent:
		if a, err := q.agentNode(ctx, raw); a != nil {
			return a, err
		}
	case nodeOfGroup:
		if g, err := q.GroupNode(ctx, raw); g != nil {
			return g, err
		}
	case nodeOfPerson:
		if u, err := q.UserNode(ctx, raw); u != nil {
			return u, err
		}
	case nodeOfImage:
		if im, err := q.ImageNode(ctx, raw); im != nil {
			return im, err
		}
	}
	return nil, nil
}

// cursor is the place of an item in a list, for clients that page by cursors.
func cursor(n int) string { return globalID("place", strconv.Itoa(n)) }

func (q queries) VfolderNodes(
	ctx context.Context, scope, project, right, filter, order *string, offset *int, before, after *string, first, last *int,
) (*model.VirtualFolderConnection, error) {
	s := folder.SearchQuery{Query: page(filter, order, folderPageSize, value(offset)), Scope: value(scope), Right: value(right)}
	if s.Scope == "" && value(project) != "" {
		s.Scope = "project:" + *project
	}
	counting, err := turnPage(&s.Query, offset, before, after, first, last)
	if err != nil {
		return nil, err
	}
	p, err := q.folders.Search(ctx, q.who(ctx), s)
	if err != nil {
		return nil, err
	}
	out := &model.VirtualFolderConnection{PageInfo: &model.PageInfo{}, Edges: []*model.VirtualFolderEdge{}, Count: &p.Total}
	if counting {
		return out, nil
	}
	for i, f := range p.Items {
		out.Edges = append(out.Edges, &model.VirtualFolderEdge{Node: toFolderNode(f), Cursor: cursor(s.Offset + i)})
	}
	out.PageInfo = pageInfo(s.Offset, len(out.Edges), p.Total)
	return out, nil
}

// turnPage reads the arguments of a list of nodes into its query. counting says that only the number of items is asked for.
func turnPage(q *list.Query, offset *int, before, after *string, first, last *int) (counting bool, err error) {
	bad := func(format string, args ...any) error {
		return fault.Invalidf(format, args...).WithNext("page with first and offset, or with first and after")
	}
	if before != nil || last != nil {
		return false, bad("this list is not paged backwards")
	}
	if after != nil {
		kind, place := fromGlobalID(*after)
		n, err := strconv.Atoi(place)
		if kind != "place" || err != nil || n < 0 || offset != nil {
			return false, bad("the cursor %.40q is not of this list", *after)
		}
		q.Offset = n + 1
	}
	switch {
	case first != nil && *first == 0:
		q.Limit, q.Offset = 1, 0
		return true, nil
	case first != nil && *first < 0:
		return false, bad("first is %d", *first)
	case first != nil:
		q.Limit = min(*first, q.Limit)
	}
	return false, nil
}

// pageInfo describes a page of n items from the place offset on in a list of total items.
func pageInfo(offset, n, total int) *model.PageInfo {
	if n == 0 {
		return &model.PageInfo{}
	}
	return &model.PageInfo{StartCursor: new(cursor(offset)), EndCursor: new(cursor(offset + n - 1)), HasNextPage: offset+n < total,
		HasPreviousPage: offset > 0}
}

func (m mutations) createFolder(ctx context.Context, in folder.CreateInput) (*model.CreateVFolderV2Payload, error) {
	f, err := m.folders.Create(ctx, m.who(ctx), in)
	if err != nil {
		return nil, err
	}
	return &model.CreateVFolderV2Payload{Vfolder: toNewFolder(f)}, nil
}

// wirePermission reads ro, rw or wd and the names of the enum's values.
func wirePermission(text string) (cluster.MountPermission, error) {
	for wire, name := range mountPermissions {
		if strings.EqualFold(text, string(wire)) || strings.EqualFold(text, string(name)) {
			return wire, nil
		}
	}
	return "", fault.Invalidf("%.40q is no permission of a folder", text).WithNext("use ro, rw or wd")
}

func (m mutations) CreateVfolderV2(ctx context.Context, in model.CreateVFolderV2Input) (*model.CreateVFolderV2Payload, error) {
	perm, err := wirePermission(in.Permission)
	if err != nil {
		return nil, err
	}
	return m.createFolder(
		ctx,
		folder.CreateInput{Name: in.Name, Host: value(in.Host), Usage: folder.UsageMode(strings.ToLower(in.UsageMode)),
			Permission: perm, Project: value(in.ProjectID), Cloneable: in.Cloneable},
	)
}

func (m mutations) CreateVFolderInProject(
	ctx context.Context, project string, in model.CreateVFolderInScopeInput,
) (*model.CreateVFolderV2Payload, error) {
	id, err := uuid("projectId", project)
	if err != nil {
		return nil, err
	}
	perm, err := wirePermission(string(in.Permission))
	if err != nil {
		return nil, err
	}
	return m.createFolder(
		ctx,
		folder.CreateInput{Name: in.Name, Host: value(in.Host), Usage: folder.UsageMode(strings.ToLower(string(in.UsageMode))),
			Permission: perm, Project: id, Cloneable: in.Cloneable},
	)
}
