package cluster

import (
	"path"
	"strings"

	"berth.dev/berth/internal/fault"
)

// FolderID is a folder's UUID, canonical.
type FolderID string

// Hex is the id without dashes, as the wire and the layout on disk write it.
func (id FolderID) Hex() string { return strings.ReplaceAll(string(id), "-", "") }

// ScopeKind says whose bytes a quota scope counts.
type ScopeKind string

// The kinds of quota scopes.
const (
	UserScope    ScopeKind = "user"
	ProjectScope ScopeKind = "project"
)

// QuotaScope is what a limit of bytes holds for: all folders of one user or project on one volume.
type QuotaScope struct {
	Kind ScopeKind
	ID   string // canonical UUID
}

func (s QuotaScope) String() string { return string(s.Kind) + ":" + s.ID }

// Dir is the scope's directory below its volume's root.
func (s QuotaScope) Dir() string { return strings.ReplaceAll(s.ID, "-", "") }

// ParseQuotaScope reads "user:<uuid>" or "project:<uuid>", dashed or not.
func ParseQuotaScope(text string) (QuotaScope, error) {
	kind, id, _ := strings.Cut(text, ":")
	canonical, ok := CanonicalUUID(id)
	if !ok || ScopeKind(kind) != UserScope && ScopeKind(kind) != ProjectScope {
		return QuotaScope{}, fault.Invalidf("%q is no quota scope", text).
			WithNext("write user:<uuid> or project:<uuid>")
	}
	return QuotaScope{Kind: ScopeKind(kind), ID: canonical}, nil
}

// FolderRef finds a folder on a volume. The wire writes it "<scope kind>:<scope uuid>/<folder uuid>".
type FolderRef struct {
	Scope  QuotaScope
	Folder FolderID
}

func (r FolderRef) String() string { return r.Scope.String() + "/" + string(r.Folder) }

// Dir is the folder's directory below its volume's root: <scope>/<aa>/<bb>/<28 more digits>.
func (r FolderRef) Dir() string {
	h := r.Folder.Hex()
	return path.Join(r.Scope.Dir(), h[:2], h[2:4], h[4:])
}

// ParseFolderRef reads the wire's vfid.
func ParseFolderRef(text string) (FolderRef, error) {
	scope, folder, _ := strings.Cut(text, "/")
	id, ok := CanonicalUUID(folder)
	s, err := ParseQuotaScope(scope)
	if err != nil || !ok {
		return FolderRef{}, fault.Invalidf("%q is no folder of a volume", text).
			WithNext("write user:<uuid>/<folder uuid> or project:<uuid>/<folder uuid>")
	}
	return FolderRef{Scope: s, Folder: FolderID(id)}, nil
}

// VolumeHost names a volume behind a storage proxy, "proxy:volume"; the wire calls it a vfolder host.
type VolumeHost struct{ Proxy, Volume string }

func (h VolumeHost) String() string { return h.Proxy + ":" + h.Volume }

// ParseVolumeHost reads "proxy:volume".
func ParseVolumeHost(text string) (VolumeHost, error) {
	proxy, volume, ok := strings.Cut(text, ":")
	if !ok || proxy == "" || volume == "" || strings.ContainsAny(text, "/\x00 \t\n") {
		return VolumeHost{}, fault.Invalidf("%q is no folder host", text).
			WithNext("write proxy:volume, as `berth folder hosts` lists them")
	}
	return VolumeHost{Proxy: proxy, Volume: volume}, nil
}

// MountPermission is what a user may do with the files of a folder: the wire's ro, rw and wd.
type MountPermission string

// The permissions; each includes the ones before. ReadWriteDelete also lets its holder delete files
// through the API, which inside a session cannot be told from writing.
const (
	ReadOnly        MountPermission = "ro"
	ReadWrite       MountPermission = "rw"
	ReadWriteDelete MountPermission = "wd"
)

// Valid reports whether p is one of the three.
func (p MountPermission) Valid() bool { return p == ReadOnly || p == ReadWrite || p == ReadWriteDelete }

// CanWrite reports whether p allows changing files.
func (p MountPermission) CanWrite() bool { return p == ReadWrite || p == ReadWriteDelete }

// FolderMount is one folder, or a directory of it, inside the containers of a session.
type FolderMount struct {
	Folder FolderID        `json:"folder"`
	Name   string          `json:"name"` // of the folder when the session was created
	Host   string          `json:"host"` // proxy:volume
	Scope  string          `json:"scope"`
	Usage  string          `json:"usage_mode"`
	Perm   MountPermission `json:"permission"` // effective
	// Subpath is a clean relative path inside the folder, "." for all of it.
	Subpath string `json:"subpath"`
	// Target is a clean absolute path inside the container.
	Target string `json:"target"`
	// VolumePath is the volume's root as its proxy announced it; an agent may know it under another path.
	VolumePath string `json:"volume_path"`
	// OwnerUID and OwnerGID own the files on the volume; the agent shows them as the session's user.
	OwnerUID int `json:"owner_uid"`
	OwnerGID int `json:"owner_gid"`
}

// Ref finds the mount's folder on its volume.
func (m FolderMount) Ref() (FolderRef, error) {
	s, err := ParseQuotaScope(m.Scope)
	return FolderRef{Scope: s, Folder: m.Folder}, err
}
