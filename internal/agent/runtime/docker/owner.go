package docker

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"path/filepath"
	"strconv"

	"github.com/moby/moby/client"
	"golang.org/x/sys/unix"

	"berth.dev/berth/internal/agent/runtime"
	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/fault"
)

// The files of a container's layer have numbers of the host, and so has the image that is made of them. A session that has a user number
// of its own must not leave it there: the next one has another. So these files are given to the number that sessions share while the
// image is made. It is done through the container's root, never in the layer's directory, which the kernel does not allow.

// maxSessionFiles bounds the entries of a layer that are looked at.
const maxSessionFiles = 1_000_000

var _ runtime.FileOwners = (*Runtime)(nil)

// TakeBack undoes what a commit did that was cut short; see runtime.FileOwners.
func (r *Runtime) TakeBack(ctx context.Context, o runtime.Observed, u runtime.LayerUser) error {
	if o.Pid <= 0 || !r.local() {
		return nil
	}
	done, err := r.committing(o.Identity.Kernel)
	if err != nil {
		return nil // a commit that is under way does it at its end
	}
	defer done()
	_, err = r.giveFiles(ctx, o.Pid, u.Image, u.Session)
	return err
}

// committing keeps two from changing the owners of one container's files.
func (r *Runtime) committing(kernel cluster.KernelID) (done func(), err error) {
	if _, busy := r.commits.LoadOrStore(kernel, struct{}{}); busy {
		return nil, fault.Conflictf("an image is being made of kernel %s", kernel).WithReason("commit-under-way").
			WithNext("wait until that is done")
	}
	return func() { r.commits.Delete(kernel) }, nil
}

// commitFor is a commit of a session with a user number of its own. commit is called with the labels that say whether the image has files
// of the user of sessions.
func (r *Runtime) commitFor(
	ctx context.Context, kernel cluster.KernelID, pid int, u runtime.LayerUser,
	commit func(labels map[string]string) (client.ContainerCommitResult, error),
) (client.ContainerCommitResult, error) {
	done, err := r.committing(kernel)
	if err != nil {
		return client.ContainerCommitResult{}, err
	}
	defer done()
	if pid <= 0 || !r.local() {
		return commit(map[string]string{cluster.LabelSessionFiles: cluster.SessionFiles})
	}
	given, err := r.giveFiles(ctx, pid, u.Session, u.Image)
	if err == nil && given == 0 {
		res, err := commit(map[string]string{cluster.LabelSessionFiles: cluster.NoSessionFiles})
		if err != nil {
			return res, err
		}
		// The session runs on until the engine pauses it.
		if given, err = r.giveFiles(ctx, pid, u.Session, u.Image); err == nil && given == 0 {
			return res, nil
		}
	}
	defer func() {
		back, cancel := context.WithTimeout(context.WithoutCancel(ctx), removeCall)
		defer cancel()
		if _, err := r.giveFiles(back, pid, u.Image, u.Session); err != nil {
			r.log.Warn("a session does not own all files any more that it wrote into its container", "kernel", kernel, "err", err)
		}
	}()
	if err != nil {
		return client.ContainerCommitResult{}, fmt.Errorf("give the files of kernel %s to the user of sessions: %w", kernel, err)
	}
	return commit(map[string]string{cluster.LabelSessionFiles: cluster.SessionFiles})
}

// giveFiles gives the files of a container's layer that belong to one user to another one, and counts them.
func (r *Runtime) giveFiles(ctx context.Context, pid, from, to int) (given int, err error) {
	dir, err := r.stats.LayerDir(pid)
	if err != nil {
		return 0, err
	}
	layer, err := unix.Open(dir, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return 0, os.NewSyscallError("open", err)
	}
	defer func() { _ = unix.Close(layer) }()
	root, err := unix.Open(filepath.Join("/proc", strconv.Itoa(pid), "root"), unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return 0, os.NewSyscallError("open", err)
	}
	defer func() { _ = unix.Close(root) }()
	left := maxSessionFiles
	for pending := []string{"."}; len(pending) > 0; {
		if err := ctx.Err(); err != nil {
			return given, err
		}
		at := pending[len(pending)-1]
		pending = pending[:len(pending)-1]
		entries, err := readLayer(layer, at, &left)
		if err != nil {
			return given, err
		}
		for _, e := range entries {
			name := path.Join(at, e.name)
			if e.dir {
				pending = append(pending, name)
			}
			if e.uid != from {
				continue
			}
			changed, err := giveFile(root, name, from, to)
			if err != nil {
				return given, err
			}
			if changed {
				given++
			}
		}
	}
	return given, nil
}

// layerEntry is one entry of a directory of a layer.
type layerEntry struct {
	name string
	dir  bool
	uid  int
}

// beneath resolves paths of a hostile tree: within it, without links and without other mounts.
const beneath = unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_MAGICLINKS | unix.RESOLVE_NO_XDEV

// readLayer lists a directory of a layer. What was deleted or exchanged meanwhile is empty.
func readLayer(layer int, at string, left *int) (out []layerEntry, err error) {
	fd, err := unix.Openat2(layer, at, &unix.OpenHow{Flags: unix.O_RDONLY | unix.O_DIRECTORY | unix.O_CLOEXEC, Resolve: beneath})
	if err != nil {
		return nil, gone("openat2", err)
	}
	f := os.NewFile(uintptr(fd), at)
	defer func() { _ = f.Close() }()
	for {
		names, err := f.Readdirnames(256)
		for _, name := range names {
			if *left--; *left < 0 {
				return out, fault.Exhaustedf("the session wrote more than %d files into its container", maxSessionFiles).
					WithNext("delete files outside of mounted folders that the image does not need")
			}
			var st unix.Stat_t
			if unix.Fstatat(fd, name, &st, unix.AT_SYMLINK_NOFOLLOW) == nil {
				out = append(out, layerEntry{name, st.Mode&unix.S_IFMT == unix.S_IFDIR, int(st.Uid)})
			}
		}
		if errors.Is(err, io.EOF) {
			return out, nil
		}
		if err != nil {
			return out, err
		}
	}
}

// giveFile changes the owner of one file of a container, if it is from. A change of the owner takes set-user-ID bits away, which are put
// back.
func giveFile(root int, name string, from, to int) (changed bool, err error) {
	fd, err := unix.Openat2(root, name, &unix.OpenHow{Flags: unix.O_PATH | unix.O_NOFOLLOW | unix.O_CLOEXEC, Resolve: beneath})
	if err != nil {
		return false, gone("openat2", err)
	}
	defer func() { _ = unix.Close(fd) }()
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil || int(st.Uid) != from {
		return false, os.NewSyscallError("fstat", err)
	}
	if err := unix.Fchownat(fd, "", to, -1, unix.AT_EMPTY_PATH); err != nil {
		return false, os.NewSyscallError("fchownat", err)
	}
	if special := st.Mode & (unix.S_ISUID | unix.S_ISGID); special != 0 && st.Mode&unix.S_IFMT == unix.S_IFREG {
		return true, os.NewSyscallError("chmod", unix.Chmod("/proc/self/fd/"+strconv.Itoa(fd), st.Mode&0o7777))
	}
	return true, nil
}

// gone makes no error of what is not there any more, or is behind a link or a mount by now.
func gone(call string, err error) error {
	for _, e := range []error{unix.ENOENT, unix.ENOTDIR, unix.ELOOP, unix.EXDEV, unix.EAGAIN} {
		if errors.Is(err, e) {
			return nil
		}
	}
	return os.NewSyscallError(call, err)
}
