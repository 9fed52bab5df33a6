package mount

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"berth.dev/berth/internal/agent/host"
	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/fault"
)

// How often, and with which pauses, a folder that is in use is tried again. Between two tries the processes that use it are killed. A
// try does not count while one that was killed before is still there: it ends when the machine gets to it. All tries together take less
// than a second where nothing can be killed.
const (
	withholdTries = 40
	withholdPause = 20 * time.Millisecond
	// withholdLimit bounds all tries together, but for the first withholdLeast: an agent that did not run for a while has tried nothing.
	// Within it, what was killed has to end, on a machine that may be very busy.
	withholdLimit = 12 * time.Second
	withholdLeast = withholdTries / 2
)

// Withhold takes folders out of a container that runs, or makes them read-only there. pid is its first process.
//
// A mount that is only detached stays with whoever has a file of it open, or works in a directory of it: a descriptor of a directory
// leads to all of the folder. So the mount is removed in the way that the kernel refuses as long as anything uses it. Processes of
// containers that use it are killed, and it is tried again. What the kernel then grants is proof that nobody has the folder any more. It
// is the same with read-only: the kernel refuses while a file is open for writing. Where the proof cannot be had, because the first
// process has it or a descriptor is under way in a socket, the error has host.ReasonHeld and the mount stays as it is: the caller ends the
// container. A mount that was detached without proof would look like one that is gone when it is looked for again.
//
// Mounts are found by what they show, not by where they were put: users rename the directories that lead to them. Folders that are not
// mounted, or are read-only already, are no error.
func (m *Mounts) Withhold(ctx context.Context, pid int, list []cluster.Withheld) error {
	if m.o.Plain {
		return cannot(errors.New("the agent does not run as root"))
	}
	within, cancel := context.WithCancel(ctx)
	defer cancel()
	done, end := make(chan error, 1), time.Now().Add(withholdLimit)
	go func() { done <- m.withholdAll(within, pid, list, end) }()
	limit := time.NewTimer(withholdLimit + m.o.Patience) // the file system of a folder may hang
	defer limit.Stop()
	select {
	case err := <-done:
		return err
	case <-limit.C:
		return fault.Unavailablef("the folders of a container could not be taken away in time").WithReason(ReasonHung)
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

func cannot(err error) error {
	return fault.Invalidf("this host cannot change the mounts of running containers").WithReason(host.ReasonCannot).WithCause(err)
}

func (m *Mounts) withholdAll(ctx context.Context, pid int, list []cluster.Withheld, end time.Time) error {
	var errs []error
	for _, w := range list {
		if err := m.withhold(ctx, pid, w, end); err != nil {
			errs = append(errs, fmt.Errorf("take folder %s away: %w", w.Name, err))
		}
	}
	// A folder that is held counts before one that is tried again.
	slices.SortStableFunc(errs, func(a, b error) int {
		held := func(e error) int {
			if fault.ReasonOf(e) == host.ReasonHeld {
				return 0
			}
			return 1
		}
		return held(a) - held(b)
	})
	return errors.Join(errs...)
}

// inside is one mount in a container.
type inside struct {
	id       int    // of the mount, as the kernel numbers it
	path     string // where it is now
	device   string // as maps of memory name it
	readOnly bool
}

func (m *Mounts) withhold(ctx context.Context, pid int, w cluster.Withheld, end time.Time) error {
	scope, err := cluster.ParseQuotaScope(w.Scope)
	if err != nil {
		return err
	}
	dir := cluster.FolderRef{Scope: scope, Folder: w.Folder}.Dir()
	killed := map[int]bool{}
	last := false // the look after it finds what became of it
	for tries, looks := 1, 1; ; tries, looks = tries+1, looks+1 {
		found, err := insideOf("/proc/"+strconv.Itoa(pid)+"/mountinfo", dir)
		if errors.Is(err, os.ErrNotExist) || errors.Is(err, unix.ESRCH) {
			return nil // the container has ended
		}
		if err != nil {
			return fmt.Errorf("read its mounts: %w", err)
		}
		if w.ReadOnly {
			found = slices.DeleteFunc(found, func(i inside) bool { return i.readOnly })
		}
		if len(found) == 0 {
			return nil
		}
		if last && ctx.Err() != nil {
			return context.Cause(ctx) // whoever gave up has not found out whether the folder is held
		}
		if last {
			return fault.Conflictf("programs of the session keep hold of folder %s", w.Name).WithReason(host.ReasonHeld)
		}
		last = tries == withholdTries || ctx.Err() != nil || looks >= withholdLeast && !time.Now().Before(end)
		busy := false
		for _, i := range found {
			err := inNamespace(pid, func() error { return i.change(w.ReadOnly) })
			switch {
			case err == nil, errors.Is(err, unix.EINVAL): // EINVAL: it is no mount any more
			case errors.Is(err, unix.EBUSY):
				busy = true
			case errors.Is(err, errMoved):
			case errors.Is(err, unix.EPERM), errors.Is(err, unix.EACCES), errors.Is(err, unix.ENOSYS):
				return cannot(err)
			case errors.Is(err, os.ErrNotExist), errors.Is(err, unix.ESRCH): // moved, or the container ends
			default:
				return err
			}
		}
		if last {
			continue
		}
		if busy && killHolders(found, w.ReadOnly, tries > withholdTries/2, killed) {
			tries--
		}
		m.o.Pause(ctx, withholdPause)
	}
}

func pause(ctx context.Context, d time.Duration) {
	select {
	case <-time.After(d):
	case <-ctx.Done():
	}
}

// errMoved: somebody renamed a directory on the way while it was walked.
var errMoved = errors.New("the mount is not where it was")

// change removes a mount or makes it read-only. The calling thread is in the namespace of the container. The mount is named by its
// parent directory, which was opened without following a link, and its last name, which nobody can exchange while it is mounted on.
func (i inside) change(readOnly bool) error {
	root, err := unix.Open("/", unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return os.NewSyscallError("open", err)
	}
	defer func() { _ = unix.Close(root) }()
	above, name := path.Split(i.path)
	parent, err := retry(func() (int, error) {
		return unix.Openat2(root, "."+path.Clean(above), &unix.OpenHow{
			Flags:   unix.O_PATH | unix.O_DIRECTORY | unix.O_CLOEXEC,
			Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_MAGICLINKS,
		})
	})
	if errors.Is(err, unix.ELOOP) || errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENOTDIR) || errors.Is(err, unix.EXDEV) {
		return errMoved
	}
	if err != nil {
		return os.NewSyscallError("openat2", err)
	}
	defer func() { _ = unix.Close(parent) }()
	if id, err := mountAt(parent, name, unix.AT_SYMLINK_NOFOLLOW); err != nil || id != i.id {
		return errMoved
	}
	if readOnly {
		return os.NewSyscallError("mount_setattr", unix.MountSetattr(parent, name, unix.AT_SYMLINK_NOFOLLOW,
			&unix.MountAttr{Attr_set: unix.MOUNT_ATTR_RDONLY}))
	}
	if err := unix.Fchdir(parent); err != nil {
		return os.NewSyscallError("fchdir", err)
	}
	if err := unix.Unmount(name, unix.UMOUNT_NOFOLLOW); err != nil {
		return os.NewSyscallError("umount", err)
	}
	_ = cover(parent, name)
	return nil
}

// cover puts an empty read-only file system in the place of a folder that is gone, so that programs that go on to write there hear of
// it, and do not fill the directory below, which ends with the session. It is a help and no protection: without it nobody has the
// folder either.
func cover(parent int, name string) error {
	fs, err := unix.Fsopen("tmpfs", unix.FSOPEN_CLOEXEC)
	if err != nil {
		return err
	}
	defer func() { _ = unix.Close(fs) }()
	if err := unix.FsconfigCreate(fs); err != nil {
		return err
	}
	lid, err := unix.Fsmount(fs, unix.FSMOUNT_CLOEXEC,
		unix.MOUNT_ATTR_RDONLY|unix.MOUNT_ATTR_NOSUID|unix.MOUNT_ATTR_NODEV|unix.MOUNT_ATTR_NOEXEC)
	if err != nil {
		return err
	}
	defer func() { _ = unix.Close(lid) }()
	return unix.MoveMount(lid, "", parent, name, unix.MOVE_MOUNT_F_EMPTY_PATH)
}

// mountAt is the number of the mount that a path is on. The file system is not asked.
func mountAt(at int, name string, flags int) (int, error) {
	var st unix.Statx_t
	err := unix.Statx(at, name, flags|unix.AT_NO_AUTOMOUNT|unix.AT_STATX_DONT_SYNC, unix.STATX_MNT_ID, &st)
	if err == nil && st.Mask&unix.STATX_MNT_ID == 0 {
		err = unix.ENOSYS
	}
	return int(st.Mnt_id), err
}

// insideOf are the mounts of a mountinfo file that show a folder or what is below it. dir is the folder's on its volume; it holds the
// folder's id, so no other path ends in it.
func insideOf(file, dir string) ([]inside, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	var out []inside
	for line := range strings.Lines(string(text)) {
		// number, parent, device, root, mount point, options, ...
		f := strings.Fields(line)
		if len(f) < 6 {
			continue
		}
		shown := strings.TrimSuffix(unescape.Replace(f[3]), "//deleted")
		if !strings.HasSuffix(shown, "/"+dir) && !strings.Contains(shown, "/"+dir+"/") {
			continue
		}
		id, err := strconv.Atoi(f[0])
		if err != nil {
			return nil, err
		}
		var major, minor int
		if _, err := fmt.Sscanf(f[2], "%d:%d", &major, &minor); err != nil {
			return nil, err
		}
		out = append(out, inside{id: id, path: unescape.Replace(f[4]), device: fmt.Sprintf(" %02x:%02x ", major, minor),
			readOnly: slices.Contains(strings.Split(f[5], ","), "ro")})
	}
	return out, nil
}
