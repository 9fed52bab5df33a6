package mount

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"berth.dev/berth/internal/agent/runtime"
	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/fault"
)

// homeName is the mount point of a kernel's home, beside those of its folders, which are numbers.
const homeName = "home"

// Home attaches the folders of a kernel that belong into its home to a clone of the home's mount. It returns what the engine is to
// bind as the home, and the folders that are left for the engine to mount.
//
// The user of a session owns the home and can put symbolic links into it. An engine follows them when it mounts, inside the
// container, so it is not asked to: each folder is attached to a directory that was opened without following any link, and the engine
// binds the finished tree in one step. Where the agent can make no mounts that the engine sees, the home's directory and all folders
// are returned as they are. The mount points were checked by then and nothing of the kernel runs that could change them.
func (m *Mounts) Home(kernel cluster.KernelID, home string, folders []runtime.Mount) (string, []runtime.Mount, error) {
	dir, err := m.dirOf(kernel)
	if err != nil {
		return "", nil, err
	}
	var inner, outer []runtime.Mount
	for _, f := range folders {
		switch {
		case !strings.HasPrefix(f.Target, cluster.SessionHome+"/"):
			outer = append(outer, f)
		case !strings.HasPrefix(f.Source, dir+"/"):
			return home, folders, nil // bound as it is: its mount cannot be cloned
		default:
			inner = append(inner, f)
		}
	}
	if len(inner) == 0 || m.o.Plain {
		return home, folders, nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), m.o.Patience)
	defer cancel()
	if _, same, err := m.engine(ctx); err != nil || !same {
		return home, folders, nil
	}
	at := filepath.Join(dir, homeName)
	if err := m.detach(at); err != nil { // of an earlier attempt
		return "", nil, err
	}
	if err := os.MkdirAll(at, 0o711); err != nil {
		return "", nil, fmt.Errorf("make the mount point of the home: %w", err)
	}
	tree, err := m.attachHome(home, at)
	if err != nil {
		return "", nil, err
	}
	defer func() { _ = unix.Close(tree) }()
	for _, f := range inner {
		if err := graft(tree, f); err != nil {
			return "", nil, err
		}
	}
	return at, outer, nil
}

// attachHome attaches a clone of the home's mount and returns its descriptor.
func (m *Mounts) attachHome(home, at string) (int, error) {
	tree, err := unix.OpenTree(unix.AT_FDCWD, home, unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC|unix.AT_RECURSIVE|unix.AT_SYMLINK_NOFOLLOW)
	if err != nil {
		return -1, fmt.Errorf("clone the mount of the home: %w", os.NewSyscallError("open_tree", err))
	}
	err = os.NewSyscallError("mount_setattr", unix.MountSetattr(tree, "", unix.AT_EMPTY_PATH|unix.AT_RECURSIVE,
		&unix.MountAttr{Propagation: unix.MS_PRIVATE}))
	if err == nil {
		err = os.NewSyscallError("move_mount", unix.MoveMount(tree, "", unix.AT_FDCWD, at, unix.MOVE_MOUNT_F_EMPTY_PATH))
	}
	if err != nil {
		_ = unix.Close(tree)
		return -1, fmt.Errorf("attach the mount of the home: %w", err)
	}
	return tree, nil
}

// graft attaches a clone of a folder's mount to its place in a home.
func graft(tree int, f runtime.Mount) error {
	point, err := retry(func() (int, error) {
		return unix.Openat2(tree, strings.TrimPrefix(f.Target, cluster.SessionHome+"/"), &unix.OpenHow{
			Flags:   unix.O_PATH | unix.O_DIRECTORY | unix.O_NOFOLLOW | unix.O_CLOEXEC,
			Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_MAGICLINKS | unix.RESOLVE_NO_XDEV,
		})
	})
	if errors.Is(err, unix.ELOOP) || errors.Is(err, unix.ENOTDIR) || errors.Is(err, unix.EXDEV) {
		return fault.Invalidf("%s is, or lies behind, a symbolic link, a file or another folder in the session's home", f.Target).
			WithReason(cluster.ReasonTarget).WithCause(os.NewSyscallError("openat2", err)).
			WithNext("start a new session; a mount point and all that leads to it must be directories")
	}
	if err != nil {
		return fmt.Errorf("open the mount point %s: %w", f.Target, os.NewSyscallError("openat2", err))
	}
	defer func() { _ = unix.Close(point) }()
	folder, err := unix.OpenTree(unix.AT_FDCWD, f.Source, unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC|unix.AT_SYMLINK_NOFOLLOW)
	if err != nil {
		return fmt.Errorf("clone the mount of %s: %w", f.Target, os.NewSyscallError("open_tree", err))
	}
	defer func() { _ = unix.Close(folder) }()
	if err := unix.MoveMount(folder, "", point, "", unix.MOVE_MOUNT_F_EMPTY_PATH|unix.MOVE_MOUNT_T_EMPTY_PATH); err != nil {
		return fmt.Errorf("attach %s to the home: %w", f.Target, os.NewSyscallError("move_mount", err))
	}
	return nil
}
