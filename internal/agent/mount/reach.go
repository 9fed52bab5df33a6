package mount

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/fault"
)

// reach finds a folder's directory on its volume.
type reach struct {
	volume *volume
	folder cluster.FolderMount
	clone  bool
}

// place is a directory that was found and checked.
type place struct {
	tree    int    // a detached clone of its mount, -1 when there is none
	path    string // as the kernel names the directory
	refused error  // why there is no clone although one was wanted
}

func (p place) close() {
	if p.tree >= 0 {
		_ = unix.Close(p.tree)
	}
}

// open finds the directory and never leaves the volume. The folder's own path must hold no symbolic links; the path inside
// the folder may hold links that stay inside the folder. It hangs when the file system does.
func (r reach) open() (place, error) {
	none := place{tree: -1}
	ref, err := r.folder.Ref()
	if err != nil {
		return none, err
	}
	sub := path.Clean("./" + r.folder.Subpath)
	if path.IsAbs(r.folder.Subpath) || sub == ".." || strings.HasPrefix(sub, "../") || strings.ContainsRune(sub, 0) {
		return none, fault.Invalidf("%q leads out of the folder", r.folder.Subpath).WithReason(ReasonPath).
			WithNext("name a directory in the folder")
	}
	root, err := retry(func() (int, error) { return unix.Open(r.volume.path, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0) })
	if err != nil {
		return none, fault.NotFoundf("volume %s is not at %s on this node", r.folder.Host, r.volume.path).WithReason(ReasonVolume).
			WithCause(syscallError("open", err)).WithNext("mount it there, or set its path as agent.volumes in the agent's configuration")
	}
	defer unix.Close(root)
	dir, err := beneath(root, ref.Dir(), unix.RESOLVE_NO_SYMLINKS)
	if err != nil {
		return none, r.explain(err, ref.String(), "the folder's directory")
	}
	defer func() { _ = unix.Close(dir) }()
	if sub != "." {
		inner, err := beneath(dir, sub, 0)
		if errors.Is(err, unix.ENOENT) { // the same wherever the session goes
			return none, fault.Invalidf("folder %s has no directory %s", r.folder.Name, sub).WithReason(ReasonFolder).
				WithCause(syscallError("openat2", err)).WithNext("make it first: berth folder mkdir %s:%s", r.folder.Name, sub)
		}
		if err != nil {
			return none, r.explain(err, sub, "the directory "+sub+" of the folder")
		}
		_ = unix.Close(dir)
		dir = inner
	}
	out := place{tree: -1}
	if out.path, err = os.Readlink("/proc/self/fd/" + strconv.Itoa(dir)); err != nil {
		return none, fmt.Errorf("name the folder's directory: %w", err)
	}
	var st, again unix.Stat_t
	if err := unix.Fstat(dir, &st); err != nil {
		return none, fmt.Errorf("look at the folder's directory: %w", syscallError("fstat", err))
	}
	if r.clone {
		tree, err := unix.OpenTree(dir, "", unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC|unix.AT_EMPTY_PATH)
		if err == nil {
			out.tree = tree
			return out, nil
		}
		out.refused = syscallError("open_tree", err)
	}
	if err := unix.Lstat(out.path, &again); err != nil || again.Dev != st.Dev || again.Ino != st.Ino {
		return none, fault.Unavailablef("the folder's directory moved while it was looked at").WithReason(ReasonFolder).WithNext("try again")
	}
	return out, nil
}

func beneath(at int, name string, resolve uint64) (int, error) {
	return retry(func() (int, error) {
		return unix.Openat2(at, name, &unix.OpenHow{
			Flags:   unix.O_PATH | unix.O_DIRECTORY | unix.O_CLOEXEC,
			Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_MAGICLINKS | resolve,
		})
	})
}

func (r reach) explain(err error, name, what string) error {
	cause := syscallError("openat2", err)
	switch {
	case errors.Is(err, unix.ENOENT):
		return fault.NotFoundf("%s is not on volume %s", what, r.folder.Host).WithReason(ReasonFolder).WithCause(cause).
			WithNext("look whether %s still exists, and start the session again", name)
	case errors.Is(err, unix.ELOOP), errors.Is(err, unix.EXDEV):
		return fault.Invalidf("%s leads through a link out of the folder", what).WithReason(ReasonPath).WithCause(cause).
			WithNext("name a directory that lies in the folder")
	case errors.Is(err, unix.ENAMETOOLONG):
		return fault.Invalidf("%.200s cannot be: a name in it is too long", what).WithReason(ReasonPath).WithCause(cause).
			WithNext("name a directory in the folder")
	case errors.Is(err, unix.ENOTDIR):
		return fault.Invalidf("%s is not a directory", what).WithReason(ReasonPath).WithCause(cause).WithNext("name a directory in the folder")
	}
	return fmt.Errorf("reach %s: %w", what, cause)
}

// unseen says why the engine would not find a mount of the agent's; "" when it does.
func (m *Mounts) unseen(ctx context.Context, path string) string {
	proc, same, err := m.engine(ctx)
	if err != nil {
		return err.Error()
	}
	if same {
		return ""
	}
	there, err := mountedIn(filepath.Join(proc, "mountinfo"), path)
	if err != nil {
		return err.Error()
	}
	if !there {
		return "it has another mount namespace and the mounts do not propagate to it"
	}
	return ""
}

// engine finds the engine's process and tells whether it shares this agent's mount namespace.
func (m *Mounts) engine(ctx context.Context) (proc string, same bool, err error) {
	if m.o.Engine == nil {
		return "", true, nil
	}
	pid, err := m.o.Engine(ctx)
	if err != nil {
		return "", false, err
	}
	if pid <= 0 {
		return "", false, errors.New("its process is unknown")
	}
	proc = filepath.Join("/proc", strconv.Itoa(pid))
	ours, err := os.Readlink("/proc/thread-self/ns/mnt") // the first thread, which /proc/self shows, may be in a container: see entrant
	if err != nil {
		return "", false, err
	}
	theirs, err := os.Readlink(filepath.Join(proc, "ns", "mnt"))
	return proc, err == nil && ours == theirs, err
}

// mountedIn reports whether a mountinfo file names a mount point.
func mountedIn(info, point string) (bool, error) {
	points, err := pointsOf(info)
	if err != nil {
		return false, err
	}
	for _, p := range points {
		if p == point {
			return true, nil
		}
	}
	return false, nil
}

// Attached returns the mount points below a directory in this process's mount namespace.
func Attached(dir string) ([]string, error) {
	points, err := pointsOf("/proc/thread-self/mountinfo")
	if err != nil {
		return nil, fmt.Errorf("list mounts: %w", err)
	}
	if real, err := filepath.EvalSymlinks(dir); err == nil {
		dir = real
	}
	var out []string
	for _, p := range points {
		if strings.HasPrefix(p, dir+"/") {
			out = append(out, p)
		}
	}
	return out, nil
}

func pointsOf(info string) ([]string, error) {
	f, err := os.Open(info)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	var out []string
	lines := bufio.NewScanner(f)
	for lines.Scan() {
		if fields := strings.Fields(lines.Text()); len(fields) > 4 {
			out = append(out, unescape.Replace(fields[4]))
		}
	}
	return out, lines.Err()
}

// unescape undoes the four escapes of mountinfo.
var unescape = strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`)
