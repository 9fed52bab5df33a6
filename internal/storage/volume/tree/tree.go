// Package tree is the fast engine below volumes: it counts, copies and removes whole trees of files.
//
// It knows no folders, scopes or trash. Every directory is reached from a root that the caller opened, every
// name is one component looked up in an open directory, and no symbolic link is ever followed. Called by the
// volumes on mounted file systems.
package tree

import (
	"context"
	"errors"
	"io/fs"
	"os"

	"golang.org/x/sys/unix"

	"berth.dev/berth/internal/fault"
)

// Fault gives an error of the file system its kind; op is a verb phrase and name what it was done to. Errors
// that have a kind already, and nil, come back as they are.
func Fault(op, name string, err error) error {
	var known *fault.Error
	if err == nil || errors.As(err, &known) || errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return err
	}
	at := func(kind fault.Kind, next string) *fault.Error {
		return fault.New(kind, "cannot %s %q", op, name).WithCause(err).WithNext("%s", next)
	}
	is := func(codes ...unix.Errno) bool {
		for _, c := range codes {
			if errors.Is(err, c) {
				return true
			}
		}
		return false
	}
	switch {
	case is(unix.ENOSPC):
		return at(fault.Exhausted, "delete files and empty the trash, or ask for a higher quota: no space is left in the quota or on the disk").
			WithReason("quota-exceeded")
	case is(unix.EDQUOT):
		return at(fault.Exhausted, "delete files and empty the trash, or ask for a higher quota").WithReason("quota-exceeded")
	case is(unix.EFBIG):
		return at(fault.Exhausted, "split the file: the file system cannot hold one of this size")
	case errors.Is(err, fs.ErrNotExist):
		return at(fault.NotFound, "list the directory to see what is there")
	case is(unix.EEXIST, unix.ENOTEMPTY, unix.EBUSY, unix.ETXTBSY):
		return at(fault.Conflict, "choose another name, or remove what is there first")
	case is(unix.ENAMETOOLONG, unix.ENOTDIR, unix.EISDIR, unix.ELOOP, unix.EINVAL, unix.EXDEV):
		return at(fault.Invalid, "check the path")
	case errors.Is(err, fs.ErrPermission):
		return at(fault.Unavailable, "give the files to the user that storage.uid names, or let the proxy run as root")
	case is(unix.EIO, unix.ESTALE, unix.ETIMEDOUT, unix.ENOTCONN, unix.EHOSTDOWN, unix.ENODEV, unix.ENXIO, unix.EROFS):
		return at(fault.Unavailable, "try again later; the file system of the volume has a fault")
	case is(unix.EMFILE, unix.ENFILE, unix.ENOMEM):
		return at(fault.Unavailable, "try again later; the storage proxy is overloaded")
	case errors.Is(err, os.ErrDeadlineExceeded):
		return at(fault.Timeout, "try again later")
	}
	return at(fault.Internal, "see the log of the storage proxy")
}
