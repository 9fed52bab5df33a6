// Package volume is the contract between the storage proxy and a file system that holds folders.
//
// Implementations: posix (any mounted file system), xfs (posix with project quotas), cephfs (posix with
// quotas by extended attribute) and memory (a fake). All pass the suite in volume/conformance; a vendor's
// driver plugs in behind the same suite.
//
// Layout below a volume's root, fixed by the wire:
//
//	<scope uuid hex>/<aa>/<bb>/<28 hex>/   a folder's files
//	<scope uuid hex>/.berth/trash/         what was deleted and is not yet reaped
//	<scope uuid hex>/.berth/uploads/       files that are not complete yet
//	.berth/tasks/                          journals of background tasks
//
// Trash and uploads lie inside the scope, because a rename must stay within one project quota, and outside
// of folders, because folders are mounted into sessions. Everything is reached from the root directory that
// was opened once; no path and no symbolic link leads out of the folder it was asked in.
//
// All methods are safe for concurrent use, in one process and between several proxies on the same volume.
// Errors: NotFound, Conflict, Invalid (names, kinds of files), Exhausted (quota, disk full), Unavailable
// (the file system does not answer), each with words for people.
package volume

import (
	"context"
	"io"
	"io/fs"
	"time"

	"berth.dev/berth/internal/cluster"
)

// Capability is a word of the wire for what a backend does well.
type Capability string

// The capabilities.
const (
	CanFolder     Capability = "vfolder"
	CanQuota      Capability = "quota" // limits are enforced by the file system itself
	CanMetric     Capability = "metric"
	CanFastFSSize Capability = "fast-fs-size"
	CanFastScan   Capability = "fast-scan"
	CanFastSize   Capability = "fast-size" // the size of a folder costs nothing
)

// Info describes a volume; it never changes while the volume is open.
type Info struct {
	Name         string // without the proxy
	Backend      string // posix, xfs, cephfs, memory
	Path         string // absolute, as agents on hosts with the same mount see it
	Capabilities []Capability
	// OwnerUID and OwnerGID own the files that the proxy creates.
	OwnerUID, OwnerGID int
}

// Space is what the whole file system has, in bytes.
type Space struct{ CapacityBytes, UsedBytes, FreeBytes int64 }

// NoLimit stands for no limit of bytes.
const NoLimit int64 = -1

// ScopeUsage is what a quota scope holds.
type ScopeUsage struct {
	LimitBytes int64 // NoLimit when there is none
	// UsedBytes counts files, trash and unfinished uploads. Complete is false when it is a lower bound.
	UsedBytes int64
	Complete  bool
}

// Usage is what a folder holds. Complete is false when the walk was cut short: both are lower bounds then.
type Usage struct {
	Files    int64 // regular files and symbolic links
	Bytes    int64 // apparent sizes
	Complete bool
	At       time.Time
}

// Progress is how far a long operation is; Total is 0 while unknown.
type Progress struct {
	Current, Total int64
	Message        string
}

// Volume is one file system with folders.
type Volume interface {
	Info() Info
	// Space asks the file system; its answer within ctx shows that the volume is alive.
	Space(ctx context.Context) (Space, error)

	// SetScope makes the scope where it is missing and sets its limit.
	SetScope(ctx context.Context, s cluster.QuotaScope, limitBytes int64) error
	// Scope is NotFound where nobody made it.
	Scope(ctx context.Context, s cluster.QuotaScope) (ScopeUsage, error)
	// DeleteScope removes an empty scope; Conflict while it holds folders.
	DeleteScope(ctx context.Context, s cluster.QuotaScope) error
	// Charge is Exhausted when bytes more would exceed the scope's limit, or the disk. Where the file system
	// enforces limits itself it may always agree. It promises nothing: the limit is checked again while writing.
	Charge(ctx context.Context, s cluster.QuotaScope, bytes int64) error

	// CreateFolder makes the folder, and its scope where missing; making it again changes nothing. A volume whose files belong to a user of
	// the platform takes all rights on the folder's root from others, also from roots that exist when they are opened.
	CreateFolder(ctx context.Context, f cluster.FolderRef, mode fs.FileMode) error
	// OpenFolder is NotFound for folders that are not there. The caller closes the tree.
	OpenFolder(ctx context.Context, f cluster.FolderRef) (Tree, error)
	// TrashFolder moves the folder into its scope's trash by one rename; a missing folder is already deleted.
	TrashFolder(ctx context.Context, f cluster.FolderRef) error
	// CloneFolder copies src to dst, which it makes. Called again after a crash it goes on: files that are
	// complete are not copied twice. dst shows no file before it is complete.
	CloneFolder(ctx context.Context, src, dst cluster.FolderRef, tell func(Progress)) error
	// Usage counts until ctx ends and then answers with a lower bound.
	Usage(ctx context.Context, f cluster.FolderRef) (Usage, error)

	// Reap removes up to limit entries from the trashes of all scopes and reports how many; 0 means that
	// nothing is left, or with an error nothing that could be removed.
	Reap(ctx context.Context, limit int) (removed int, err error)

	// Stage opens the unfinished upload id of a folder, making it where create says so; else it is NotFound.
	// id is 1 to 64 letters, digits, '-' and '_'.
	Stage(ctx context.Context, f cluster.FolderRef, id string, create bool) (Staged, error)
	// ExpireStaged removes unfinished uploads that nobody has open and that were last written before the time.
	ExpireStaged(ctx context.Context, before time.Time) (removed int, err error)

	// Tasks is a small directory for journals of background tasks.
	Tasks() Journal

	Close() error
}

// EntryKind is the kind of a directory entry, in the wire's words.
type EntryKind string

// The kinds. Other stands for devices, sockets and pipes, which are listed and can be deleted, never read.
const (
	KindFile      EntryKind = "FILE"
	KindDirectory EntryKind = "DIRECTORY"
	KindSymlink   EntryKind = "SYMLINK"
	KindOther     EntryKind = "OTHER"
)

// Entry is one directory entry; links are not followed.
type Entry struct {
	Name     string
	Kind     EntryKind
	Mode     fs.FileMode // permission bits
	Size     int64
	Modified time.Time
	Created  time.Time // the change time where the file system knows no birth time
	Target   string    // of a symbolic link
}

// File is an open regular file for reading. When it is an *os.File, the kernel can send it without copying.
type File interface {
	io.ReadSeeker
	io.ReaderAt
	io.Closer
	Stat() (fs.FileInfo, error)
}

// Tree is the files of one folder. Paths are relative and clean (see CleanPath); "." is the folder itself.
// Symbolic links are followed only while they stay inside the folder.
type Tree interface {
	// Stat does not follow a last symbolic link.
	Stat(path string) (Entry, error)
	// Open opens a regular file, Invalid for anything else.
	Open(path string) (File, error)
	// List returns entries of a directory in an order that the cursor continues; after is "" at first and next
	// is "" at the end. Entries that exist during the whole listing come exactly once.
	List(ctx context.Context, path, after string, limit int) (page []Entry, next string, err error)
	// Walk calls visit for everything below path, a directory before what it holds. fs.SkipDir skips a directory.
	Walk(ctx context.Context, path string, visit func(path string, e Entry) error) error
	// Mkdir makes a directory, with its parents where asked; existOK accepts one that is there.
	Mkdir(path string, parents, existOK bool) error
	// Rename moves from to to; Conflict where to exists. Parents of to are made.
	Rename(from, to string) error
	// Remove deletes a file, or a directory with everything in it when recursive: it is moved to the trash by one
	// rename, so it returns at once. Conflict for a directory that is not empty otherwise.
	Remove(path string, recursive bool) error
	// WriteFile makes or replaces a file by a rename; an empty r makes an empty file.
	WriteFile(ctx context.Context, path string, r io.Reader, mode fs.FileMode) error
	Close() error
}

// Staged is an unfinished upload: a file outside of its folder that one writer at a time extends.
type Staged interface {
	// Lock waits until no other writer, in any proxy on this volume, holds the upload; Conflict when ctx ends
	// first, NotFound when the upload was completed or discarded before it was our turn. The lock belongs to the file and ends with
	// its holder, however it dies.
	Lock(ctx context.Context) (unlock func(), err error)
	// Size is how much is durable, Meta what was stored with SetMeta at creation.
	Size() (int64, error)
	Meta() ([]byte, error)
	SetMeta(meta []byte) error
	// WriteAt-like writing at the end: Append copies from r, at most n bytes, after cutting the file to offset.
	// Written is what reached the file, also when err is set; it is durable only after Sync.
	Append(ctx context.Context, offset int64, r io.Reader, n int64) (written int64, err error)
	Sync() error // fdatasync
	Open() (File, error)
	// Commit renames the file to path inside its folder, replacing a regular file there; parents are made.
	Commit(path string) error
	Discard() error
	Close() error
}

// Journal keeps small documents that survive crashes and are claimed by one process at a time.
type Journal interface {
	// Put writes a document durably by rename. id is like that of Stage.
	Put(id string, doc []byte) error
	Get(id string) ([]byte, error)
	Delete(id string) error
	List() ([]string, error)
	// Claim takes id for this process; ok is false while another, living, holds it.
	Claim(id string) (release func(), ok bool, err error)
}
