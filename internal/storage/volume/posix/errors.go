package posix

import (
	"context"
	"errors"
	"fmt"
	"io/fs"

	"golang.org/x/sys/unix"

	"berth.dev/berth/internal/fault"
)

var errNotRegular = errors.New("not a regular file")

// explain gives an error of the file system its kind and words. what names the object, for example
// `"a/b" of folder user:…/…`.
func explain(err error, verb, what string) error {
	var known *fault.Error
	var source sourceError
	is := func(targets ...error) bool {
		for _, t := range targets {
			if errors.Is(err, t) {
				return true
			}
		}
		return false
	}
	switch {
	case err == nil:
		return nil
	case errors.As(err, &known):
		return err
	case errors.As(err, &source) || is(context.Canceled, context.DeadlineExceeded):
		return fmt.Errorf("%s %s: %w", verb, what, err)
	case is(unix.ENOENT):
		return fault.NotFoundf("cannot %s %s: it does not exist", verb, what).WithCause(err)
	case is(unix.EEXIST):
		return fault.Conflictf("cannot %s %s: it exists already", verb, what).WithCause(err)
	case is(unix.ENOTEMPTY):
		return fault.Conflictf("cannot %s %s: the directory is not empty", verb, what).
			WithNext("remove it recursively").WithCause(err)
	case is(unix.EISDIR):
		return fault.Conflictf("cannot %s %s: a directory is there", verb, what).WithCause(err)
	case is(errNotRegular, unix.ENXIO):
		return fault.Invalidf("cannot %s %s: it is no regular file", verb, what).WithCause(err)
	case is(unix.ENOTDIR):
		return fault.Invalidf("cannot %s %s: a part of the path is no directory", verb, what).WithCause(err)
	case is(unix.EXDEV):
		return fault.Invalidf("cannot %s %s: it leads out of the folder", verb, what).
			WithNext("a symbolic link is followed only while it stays inside the folder").WithCause(err)
	case is(unix.ELOOP):
		return fault.Invalidf("cannot %s %s: a symbolic link is in the way", verb, what).WithCause(err)
	case is(unix.ENAMETOOLONG):
		return fault.Invalidf("cannot %s %s: a name is too long", verb, what).WithCause(err)
	case is(unix.EINVAL):
		return fault.Invalidf("cannot %s %s: the file system refuses it", verb, what).WithCause(err)
	case is(unix.EDQUOT):
		return fault.Exhaustedf("cannot %s %s: the quota is used up", verb, what).WithReason("quota-exceeded").
			WithNext("delete files and empty the trash, or ask for a higher quota").WithCause(err)
	case is(unix.ENOSPC, unix.EFBIG):
		return fault.Exhaustedf("cannot %s %s: no space is left in the quota or on the disk", verb, what).WithReason("quota-exceeded").
			WithNext("delete files and empty the trash, or ask for a higher quota").WithCause(err)
	case is(unix.EMLINK):
		return fault.Exhaustedf("cannot %s %s: the directory holds too many directories", verb, what).WithCause(err)
	case is(unix.EROFS):
		return fault.Unavailablef("cannot %s %s: the volume is mounted read-only", verb, what).
			WithNext("ask the administrator to look at the storage of this volume").WithCause(err)
	case is(unix.EACCES, unix.EPERM):
		return fault.Unavailablef("cannot %s %s: the storage proxy may not do that", verb, what).
			WithNext("give the files to the user that storage.uid names, or let the proxy run as root").WithCause(err)
	case is(unix.ESTALE, unix.EIO, unix.ETIMEDOUT, unix.ENOTCONN, unix.EHOSTDOWN, unix.EAGAIN, unix.ENOLCK, unix.EMFILE, unix.ENFILE):
		return fault.Unavailablef("cannot %s %s: the file system does not answer", verb, what).
			WithNext("try again; if it lasts, ask the administrator to look at this volume").WithCause(err)
	case is(fs.ErrClosed):
		return fault.Unavailablef("cannot %s %s: the volume is closed", verb, what).WithCause(err)
	}
	return fault.New(fault.Internal, "cannot %s %s", verb, what).WithCause(err)
}
