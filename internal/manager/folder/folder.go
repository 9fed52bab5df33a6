// Package folder holds the use cases of folders: their names and owners, who may do what with them, shares and invitations, quotas,
// and what sessions mount. Plans (names, permissions, mounts) are pure functions; Service acts on them.
//
// It holds no bytes: files are on the volumes of storage proxies, and clients exchange them with the proxies directly. A use case
// writes in one transaction what should be true, and calls a proxy only after it. What a proxy must do besides (copies, removals,
// limits) is done by Loop on the leader. Its requests carry ids, so that repeating one changes nothing.
//
// Every exported method of Service takes the actor and decides about it in its first lines. httpapi, graphapi and session call it.
package folder

import (
	"time"

	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/manager/store/list"
	"berth.dev/berth/internal/wire/storage"
)

// What proxies say, passed on as it is.
type (
	// Entry is one directory entry.
	Entry = storage.Entry
	// Results say of every path what became of it.
	Results = storage.ResultsReply
	// Usage is what a folder holds; Complete is false for a lower bound.
	Usage = storage.UsageReply
	// ObjectStore is how an S3-compatible endpoint is reached.
	ObjectStore = storage.ObjectStore
)

const (
	noun           = "virtual folder"
	invitationNoun = "invitation"
	hostNoun       = "folder host"
	projectNoun    = "project"
	userNoun       = "user"
)

// Ownership is whether a folder belongs to a user or to a project; the wire says group for the latter.
type Ownership string

// The kinds of ownership.
const (
	OfUser    Ownership = "user"
	OfProject Ownership = "group"
)

// UsageMode is what a folder is for.
type UsageMode string

// The usage modes.
const (
	UsageGeneral UsageMode = "general"
	UsageModel   UsageMode = "model"
	UsageData    UsageMode = "data"
)

// Valid reports whether m is one of the three.
func (m UsageMode) Valid() bool { return m == UsageGeneral || m == UsageModel || m == UsageData }

// Folder is a folder as its actor sees it.
type Folder struct {
	ID              cluster.FolderID
	Name            string
	Host            string // proxy:volume
	Scope           cluster.QuotaScope
	Status          cluster.FolderStatus
	StatusInfo      string // why it is in error, for people
	StatusChangedAt time.Time
	Usage           UsageMode
	// Permission is the folder's own: of its project's members, and whether its owner may write.
	Permission  cluster.MountPermission
	Ownership   Ownership
	Domain      string
	UserID      cluster.UserID    // of user folders
	UserEmail   string            // of user folders
	ProjectID   cluster.ProjectID // of project folders
	ProjectName string            // of project folders
	CreatorID   cluster.UserID
	Creator     string // email
	Cloneable   bool
	// UnmanagedPath is "" for folders that a proxy manages.
	UnmanagedPath string
	CreatedAt     time.Time
	LastUsed      *time.Time
	// Files and Bytes are nil until they were counted; Complete is false for a lower bound.
	Files    *int64
	Bytes    *int64
	Complete bool
	SizedAt  *time.Time

	// IsOwner reports whether the actor may change the folder as its owner does.
	IsOwner bool
	// Purgeable reports whether the actor may purge it.
	Purgeable bool
	// Granted reports whether the folder is another user's that was shared with the actor.
	Granted bool
	// Effective is what the actor may do with the files; "" is nothing.
	Effective cluster.MountPermission
	// Rights are the actor's, in the wire's words: read_attribute, update_attribute, delete_vfolder, read_content,
	// write_content, delete_content, mount_ro, mount_rw, mount_wd, clone, assign_permission_to_others.
	Rights []string
}

// HostPermission is what policies allow on a host.
type HostPermission string

// The permissions on hosts.
const (
	PermitCreate   HostPermission = "create-vfolder"
	PermitModify   HostPermission = "modify-vfolder"
	PermitDelete   HostPermission = "delete-vfolder"
	PermitMount    HostPermission = "mount-in-session"
	PermitUpload   HostPermission = "upload-file"
	PermitDownload HostPermission = "download-file"
	PermitInvite   HostPermission = "invite-others"
	PermitShare    HostPermission = "set-user-specific-permission"
)

// AllPermissions are all permissions on hosts, in the wire's order.
func AllPermissions() []HostPermission {
	return []HostPermission{PermitCreate, PermitModify, PermitDelete, PermitMount, PermitUpload, PermitDownload, PermitInvite, PermitShare}
}

// CreateInput is a request for a folder. Zero values mean the default.
type CreateInput struct {
	Name string
	// Host is proxy:volume; "" is the default host.
	Host       string
	Usage      UsageMode
	Permission cluster.MountPermission
	// Project is an id or a name within the actor's domain; "" makes a user folder.
	Project string
	// UnmanagedPath is an absolute path on the storage that no proxy manages (superadmins).
	UnmanagedPath string
	Cloneable     bool
}

// ListQuery narrows List.
type ListQuery struct {
	// All lists every folder that the actor administrates.
	All bool
	// Project is an id or a name: user folders and those of this project only.
	Project string
	// OwnerEmail lists as this user sees it (administrators).
	OwnerEmail string
	// WithoutTrash leaves out folders in the trash bin.
	WithoutTrash bool
}

// SearchQuery selects a page of what the actor may see. Filter and Order are the wire's mini-language over id, row_id, name,
// host, status, usage_mode, permission, ownership_type, user, user_email, group, group_name, domain_name, creator,
// quota_scope_id, cloneable, created_at, last_used, num_files, cur_size, max_size, max_files.
type SearchQuery struct {
	list.Query
	// Scope is "", user:<uuid>, project:<uuid> or domain:<name>.
	Scope string
	// Right, one of Folder.Rights, leaves out folders on which the actor does not have it; "" is read_attribute.
	Right string
	// Of leaves only some kind of the folders; "" is all.
	Of Kind
	// WithoutTrash leaves out folders in the trash bin.
	WithoutTrash bool
}

// Kind is how a folder relates to the actor.
type Kind string

// The kinds that SearchQuery.Of tells apart.
const (
	OwnFolders     Kind = "own"     // the actor's user folders
	GrantedFolders Kind = "granted" // of other users and shared with the actor
	ProjectFolders Kind = "project" // of the actor's projects, or of any that the actor administrates
)

// HostInfo is what is known of a host.
type HostInfo struct {
	Backend      string
	Capabilities []string
	// UsedPercent is nil while it is unknown.
	UsedPercent *float64
	SFTPGroups  []string
	// Permissions are the actor's on the host.
	Permissions []HostPermission
	// Problem says why the host cannot be used now; "" when it can.
	Problem string
}

// Hosts are those on which an actor may do something.
type Hosts struct {
	// Default is "" when there is none among the allowed ones.
	Default string
	Allowed []string // sorted
	Info    map[string]HostInfo
}

// Options are changes of a folder; nil leaves a value as it is.
type Options struct {
	Cloneable  *bool
	Permission *cluster.MountPermission
}

// CloneInput is how a copy shall be. A zero host or usage is that of the source, a zero permission rw.
type CloneInput struct {
	Name       string
	Host       string
	Usage      UsageMode
	Permission cluster.MountPermission
	Cloneable  bool
	// Project is an id or a name; "" makes a user folder of the actor.
	Project string
}

// MkdirInput names directories to make, up to 50.
type MkdirInput struct {
	Paths   []string
	Parents bool
	ExistOK bool
}

// Listing is a directory, in order of names. Cut says that there are more entries, after Next.
type Listing struct {
	Items []Entry
	Cut   bool
	Next  string
}

// Ticket lets a client move bytes: URL on the proxy, to which ?token=Token is added.
type Ticket struct {
	Token string
	URL   string
	// Upload names an upload for RequestUpload; "" where there is none.
	Upload string
}

// TransferInput copies between a folder and an object store.
type TransferInput struct {
	Path   string // the file or directory inside the folder
	Store  ObjectStore
	Prefix string // key prefix, or the key of one object
}

// Invitation offers a folder to a user.
type Invitation struct {
	ID         string
	Folder     cluster.FolderID
	FolderName string
	Inviter    string // email
	Invitee    string // email
	Permission cluster.MountPermission
	State      string // pending, canceled, accepted, rejected
	CreatedAt  time.Time
	ModifiedAt time.Time
}

// Sharing is a permission that one user has on a folder.
type Sharing struct {
	Folder     cluster.FolderID
	FolderName string
	Status     cluster.FolderStatus
	Owner      string // email of the owner, or the project's name
	Ownership  Ownership
	UserID     cluster.UserID
	UserEmail  string
	Permission cluster.MountPermission
}

// SharingChange gives a user a permission; nil takes it away.
type SharingChange struct {
	User       cluster.UserID
	Permission *cluster.MountPermission
}

// Quota is what a scope holds on a host. A nil limit is none, a nil use is unknown.
type Quota struct {
	Host       string
	Scope      cluster.QuotaScope
	LimitBytes *int64
	UsedBytes  *int64
	// LowerBound says that more may be used than UsedBytes.
	LowerBound bool
	// Own says that an administrator set the limit for this scope; else it is the policy's.
	Own bool
	// Folders is the number of living folders of the scope on the host.
	Folders int
}

// Volume is a volume of a proxy, for administrators.
type Volume struct {
	ID            string // proxy:volume
	Backend       string
	Path          string
	FSPrefix      string
	Capabilities  []string
	CapacityBytes int64 // 0 is unknown
	UsedBytes     int64
	SFTPGroups    []string
	Nodes         int // live nodes of the proxy
	Problem       string
	CheckedAt     time.Time
}

// MountRequest is what a session asks for. Sources are folder names or ids, with /sub/dir for a directory of one.
type MountRequest struct {
	// Mounts are sources by name; MountIDs by id.
	Mounts   []string
	MountIDs []string
	// MountMap and MountIDMap give sources their targets. Sources that only they name are mounted as well.
	MountMap   map[string]string
	MountIDMap map[string]string
	// Options are of sources, by the text that Mounts or MountIDs use.
	Options map[string]MountOption
	// Project is that of the session: folders of other projects are skipped.
	Project cluster.ProjectID
	// SessionType inference needs nothing special; system sessions (SFTP) have no automatic mounts.
	SessionType cluster.SessionType
}

// MountOption is how one source is mounted.
type MountOption struct {
	// Permission is ro, rw, wd or "" for what the owner may.
	Permission cluster.MountPermission
	// Subpath is of the folder; it may instead be part of the source.
	Subpath string
	// Target overrides the maps.
	Target string
}
