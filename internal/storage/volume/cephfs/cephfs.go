// Package cephfs is a volume on a mounted CephFS: posix, with quotas by an extended attribute and sizes that the
// metadata servers keep for every directory.
//
// CephFS enforces a quota by its clients, seconds late, and updates sizes as late. So the proxy's own writes are
// counted against the limit as well, and a session may exceed it by what it writes in that time.
package cephfs

import (
	"context"
	"errors"
	"os"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/fault"
	"berth.dev/berth/internal/storage/volume"
	"berth.dev/berth/internal/storage/volume/posix"
)

// The attributes of a directory; values are decimal text.
const (
	attrMaxBytes = "ceph.quota.max_bytes" // 0 or absent is no limit
	attrBytes    = "ceph.dir.rbytes"      // sizes of all files below
	attrFiles    = "ceph.dir.rfiles"      // everything below that is no directory
)

// Attributes reads and writes extended attributes of open directories; Get gives ENODATA where there is none.
type Attributes interface {
	Get(dir *os.File, name string) (string, error)
	Set(dir *os.File, name, value string) error
}

// Open opens a volume at o.Path, which lies on a mounted CephFS. o's quotas and capabilities are set here.
// It is Invalid when the directory has no sizes, which means that another file system is mounted there.
func Open(o posix.Options) (volume.Volume, error) { return open(o, kernel{}) }

func open(o posix.Options, attributes Attributes) (volume.Volume, error) {
	if o.Now == nil {
		o.Now = time.Now
	}
	f := &filesystem{attributes: attributes, now: o.Now}
	if err := f.probe(o.Name, o.Path); err != nil {
		return nil, err
	}
	o.Backend = "cephfs"
	o.Quota, o.LateQuota = f, true
	o.FolderUsage = f.folderUsage
	o.Capabilities = append(o.Capabilities, volume.CanQuota, volume.CanFastSize)
	return posix.Open(o)
}

// filesystem implements posix.Quota.
type filesystem struct {
	attributes Attributes
	now        func() time.Time
}

var _ posix.Quota = (*filesystem)(nil)

func (f *filesystem) probe(name, path string) error {
	dir, err := os.Open(path)
	if err == nil {
		defer dir.Close()
		_, err = f.number(dir, attrBytes)
	}
	if err != nil {
		return fault.Invalidf("volume %q cannot be opened at %q: it gives no %s", name, path, attrBytes).
			WithNext("mount CephFS there, or set the backend of the volume to posix").WithCause(err)
	}
	return nil
}

func (f *filesystem) number(dir *os.File, name string) (int64, error) {
	text, err := f.attributes.Get(dir, name)
	if err != nil {
		return 0, err
	}
	n, err := strconv.ParseInt(strings.TrimRight(text, "\x00\n "), 10, 64)
	if err != nil || n < 0 {
		return 0, fault.Unavailablef("the file system gives %q as %s", text, name).WithCause(err).
			WithNext("ask the administrator to look at this volume")
	}
	return n, nil
}

// Limit implements posix.Quota. CephFS knows no limit of 0 bytes; the least one stands for it.
func (f *filesystem) Limit(_ context.Context, scope cluster.QuotaScope, dir *os.File, limit int64) error {
	switch {
	case limit < 0:
		limit = 0
	case limit == 0:
		limit = 1
	}
	err := f.attributes.Set(dir, attrMaxBytes, strconv.FormatInt(limit, 10))
	if errors.Is(err, unix.EPERM) || errors.Is(err, unix.EACCES) {
		return fault.Unavailablef("cannot set the quota of %s: the file system refuses it", scope).
			WithNext("ask the administrator to give the client of this mount the p flag in its MDS capabilities").WithCause(err)
	}
	return err
}

// Read implements posix.Quota.
func (f *filesystem) Read(_ context.Context, _ cluster.QuotaScope, dir *os.File) (volume.ScopeUsage, error) {
	limit, err := f.number(dir, attrMaxBytes)
	switch {
	case errors.Is(err, unix.ENODATA):
		limit = volume.NoLimit
	case err != nil:
		return volume.ScopeUsage{}, err
	case limit == 0:
		limit = volume.NoLimit
	case limit == 1:
		limit = 0
	}
	used, err := f.number(dir, attrBytes)
	if err != nil {
		return volume.ScopeUsage{}, err
	}
	return volume.ScopeUsage{LimitBytes: limit, UsedBytes: used, Complete: true}, nil
}

// Release implements posix.Quota: the attribute goes with its directory, and what is moved to the trash is
// removed without a limit.
func (f *filesystem) Release(ctx context.Context, scope cluster.QuotaScope, dir *os.File) error {
	return f.Limit(ctx, scope, dir, volume.NoLimit)
}

// folderUsage answers without a walk, as of a few seconds ago.
func (f *filesystem) folderUsage(_ context.Context, dir *os.File) (volume.Usage, bool, error) {
	files, err := f.number(dir, attrFiles)
	if err != nil {
		return volume.Usage{}, false, ignoreNoData(err)
	}
	bytes, err := f.number(dir, attrBytes)
	if err != nil {
		return volume.Usage{}, false, ignoreNoData(err)
	}
	return volume.Usage{Files: files, Bytes: bytes, Complete: true, At: f.now()}, true, nil
}

// ignoreNoData lets a walk answer where the mount hides the attributes.
func ignoreNoData(err error) error {
	if errors.Is(err, unix.ENODATA) || errors.Is(err, unix.EOPNOTSUPP) {
		return nil
	}
	return err
}

// kernel implements Attributes.
type kernel struct{}

func (kernel) Get(dir *os.File, name string) (value string, err error) {
	buffer := make([]byte, 64)
	err = control(dir, func(fd int) error {
		n, err := unix.Fgetxattr(fd, name, buffer)
		if err == nil {
			value = string(buffer[:n])
		}
		return err
	})
	return value, err
}

func (kernel) Set(dir *os.File, name, value string) error {
	return control(dir, func(fd int) error { return unix.Fsetxattr(fd, name, []byte(value), 0) })
}

func control(dir *os.File, do func(fd int) error) error {
	conn, err := dir.SyscallConn()
	if err != nil {
		return err
	}
	var failed error
	err = conn.Control(func(fd uintptr) {
		for {
			if failed = do(int(fd)); failed != unix.EINTR {
				return
			}
		}
	})
	if err != nil {
		return err
	}
	return failed
}
