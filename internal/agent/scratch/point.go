package scratch

import (
	"errors"
	"fmt"
	"os"
	"strings"

	"golang.org/x/sys/unix"

	"berth.dev/berth/internal/agent/host"
	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/fault"
)

// makePoint makes the directories of a mount point below a home that its user has filled. Engines follow symbolic links when they
// mount: one that leads out of the home would let the user choose where in the container a folder is mounted, over the runner for
// example. So every step is a directory, and no link is followed, whatever it leads to.
func makePoint(dir, point string, uid, gid int) error {
	at, err := unix.Open(dir, unix.O_PATH|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("open the home: %w", os.NewSyscallError("open", err))
	}
	defer func() { _ = unix.Close(at) }()
	done := ""
	for step := range strings.SplitSeq(point, "/") {
		done += "/" + step
		err := unix.Mkdirat(at, step, 0o755)
		made := err == nil
		if err != nil && !errors.Is(err, unix.EEXIST) {
			return fmt.Errorf("make the mount point %s: %w", host.Home+done, os.NewSyscallError("mkdirat", err))
		}
		next, err := unix.Openat2(at, step, &unix.OpenHow{
			Flags:   unix.O_PATH | unix.O_DIRECTORY | unix.O_NOFOLLOW | unix.O_CLOEXEC,
			Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_MAGICLINKS | unix.RESOLVE_NO_XDEV,
		})
		switch {
		case errors.Is(err, unix.ELOOP), errors.Is(err, unix.ENOTDIR), errors.Is(err, unix.EXDEV):
			return fault.Invalidf("a folder is to be mounted at %s, and %s is a symbolic link or a file in the session's home",
				host.Home+"/"+point, host.Home+done).WithReason(cluster.ReasonTarget).
				WithNext("start a new session; a mount point and all that leads to it must be directories")
		case err != nil:
			return fmt.Errorf("make the mount point %s: %w", host.Home+done, os.NewSyscallError("openat2", err))
		}
		_ = unix.Close(at)
		at = next
		if made && os.Geteuid() == 0 {
			// The descriptor names the directory itself: what lies at its path by now does not matter.
			if err := unix.Fchownat(at, "", uid, gid, unix.AT_EMPTY_PATH|unix.AT_SYMLINK_NOFOLLOW); err != nil {
				return fmt.Errorf("give away the mount point %s: %w", host.Home+done, os.NewSyscallError("fchownat", err))
			}
		}
	}
	return nil
}
