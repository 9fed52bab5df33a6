// Package posix is a volume on any mounted file system: local disks, NFS, SMB, Gluster and what else Linux mounts.
//
// Limits of bytes are kept by accounting, unless a derived driver brings quotas of the file system itself.
package posix

import (
	"context"
	"log/slog"
	"os"
	"time"

	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/storage/volume"
)

// Quota is a file system's own quota on the directory of a scope. The derived drivers bring it; without it
// posix counts by itself.
type Quota interface {
	// Limit makes limitBytes hold for all that is below the scope's directory from now on, NoLimit lifts it.
	// It is called for a directory that is empty and for one that is not, again and again.
	Limit(ctx context.Context, scope cluster.QuotaScope, dir *os.File, limitBytes int64) error
	// Read is what holds and what is used now.
	Read(ctx context.Context, scope cluster.QuotaScope, dir *os.File) (volume.ScopeUsage, error)
	// Release forgets the scope, whose directory is about to go.
	Release(ctx context.Context, scope cluster.QuotaScope, dir *os.File) error
}

// Options opens a volume. Name, Path, UID and GID come from the configuration, the rest from derived drivers and tests.
type Options struct {
	Name string
	Path string // absolute; must exist
	// UID and GID own what the proxy makes when it runs as root; negative means whoever runs the proxy.
	UID, GID int

	Backend      string // "posix" when empty
	Capabilities []volume.Capability
	Quota        Quota
	// LateQuota says that the file system enforces Quota too late to rely on while writing: what this proxy
	// writes is counted besides.
	LateQuota bool
	// FolderUsage answers what a folder holds without a walk; ok is false where it cannot. May be nil.
	FolderUsage func(ctx context.Context, dir *os.File) (u volume.Usage, ok bool, err error)

	// Reserve is how many bytes of the file system files in folders leave free; at most a twentieth of it. 0 leaves none.
	Reserve int64

	Now func() time.Time // time.Now when nil
	// Sync makes the names in a directory durable: (*os.File).Sync when nil. Tests see by it what a crash of the host would leave.
	Sync func(dir *os.File) error
	Log  *slog.Logger // discards when nil
}

// counts tells whether limits are kept by accounting.
func (o Options) counts() bool { return o.Quota == nil || o.LateQuota }

// Open opens the volume at o.Path. It is Invalid when the path is no directory that this process can write.
func Open(o Options) (volume.Volume, error) { return open(o) }
