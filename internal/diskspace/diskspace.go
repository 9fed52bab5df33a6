// Package diskspace tells how full a file system is, compares that with marks, and keeps a reserve on a file system that can be
// given back at once when it is nearly full.
package diskspace

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// Usage is how full a file system is. Free is what a user without privileges may still write.
type Usage struct {
	Total, Free        int64 // bytes
	Inodes, FreeInodes int64 // zero where the file system counts none
}

// Of asks the file system that a path lies on. It may hang where that file system does.
func Of(path string) (Usage, error) {
	var st unix.Statfs_t
	for {
		err := unix.Statfs(path, &st)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			return Usage{}, fmt.Errorf("ask how full %s is: %w", path, os.NewSyscallError("statfs", err))
		}
		break
	}
	unit := st.Frsize
	if unit <= 0 {
		unit = st.Bsize
	}
	return Usage{Total: int64(st.Blocks) * unit, Free: int64(st.Bavail) * unit, Inodes: int64(st.Files), FreeInodes: int64(st.Ffree)}, nil
}

// Used is what is not free, or not free for users without privileges.
func (u Usage) Used() int64 { return u.Total - u.Free }

// Mark is an amount of free space: a share of the file system or a number of bytes, whichever is less. A zero value of one of the
// two leaves the other alone.
type Mark struct {
	Percent int
	Bytes   int64
}

// Of is the mark in bytes on a file system of this size.
func (m Mark) Of(total int64) int64 {
	share := total / 100 * int64(m.Percent)
	switch {
	case m.Percent <= 0:
		return m.Bytes
	case m.Bytes <= 0:
		return share
	}
	return min(share, m.Bytes)
}

// minInodes is the share of files, in percent, below which a file system counts as full although it has bytes.
const minInodes = 1

// Below reports whether less than a mark is free: bytes, or nearly no files.
func (u Usage) Below(m Mark) bool {
	return u.Free < m.Of(u.Total) || u.OutOfInodes()
}

// OutOfInodes reports whether nearly no more files can be made.
func (u Usage) OutOfInodes() bool { return u.Inodes > 0 && u.FreeInodes < u.Inodes/100*minInodes }

// Full reports whether an error says that a disk or a quota is used up.
func Full(err error) bool { return errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT) }

// Text is a number of bytes for people.
func Text(n int64) string {
	switch {
	case n >= 10<<30:
		return fmt.Sprintf("%d GiB", n>>30)
	case n >= 1<<30:
		return fmt.Sprintf("%.1f GiB", float64(n)/(1<<30))
	}
	return fmt.Sprintf("%d MiB", n>>20)
}
