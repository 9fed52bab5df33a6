// Package scratch keeps the directories of kernels on the agent's disk: the user's home,
// the runner's private directory, the configuration files and the passwd and group overlays.
//
// What the user writes, the home and the temporary directories, lies on a file system of bounded size of its own where the host can
// have such (package loopdisk); what the agent and the runner write does not, so that a user who fills the one cannot spoil the other.
//
// It decides nothing: package keeper says what to create and when to remove it. Removal renames a directory first and deletes
// it later, so that the end of a kernel never waits for the deletion of a large home.
package scratch

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"berth.dev/berth/internal/agent/host"
	"berth.dev/berth/internal/agent/loopdisk"
	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/diskspace"
	"berth.dev/berth/internal/fault"
	"berth.dev/berth/internal/storage/volume/tree"
	"berth.dev/berth/internal/wire/run"
)

// The parts of a kernel's directory.
const (
	partWork    = "work"    // /home/work, the user's
	partPrivate = "private" // the runner's directory: configuration, socket, result
	partConfig  = "config"  // /home/config, read-only for the user
	partEtc     = "etc"     // passwd and group overlays
	partDisk    = "disk"    // a file system of bounded size with the home and the temporary directories, see package loopdisk
	gone        = ".gone"   // on the disk too: what an earlier generation left there
	waiting     = ".disks"  // disks that were made ahead
	generation  = "generation"
)

// Root is the directory that holds all kernels' directories.
type Root struct {
	dir     string
	minFree int64
	serial  atomic.Int64
	pool    Pool // nil: homes are directories of the agent's disk
	trouble atomic.Pointer[string]
}

// Open makes the directory when it is absent. Preparing a kernel is refused while less
// than minFree bytes are free.
func Open(dir string, minFree int64) (*Root, error) {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return nil, fmt.Errorf("open scratch root: %w", err)
	}
	if err := os.MkdirAll(filepath.Join(dir, gone), 0o711); err != nil {
		return nil, fmt.Errorf("open scratch root: %w", err)
	}
	return &Root{dir: dir, minFree: minFree}, nil
}

// Layout names the parts of one kernel's directory on the host. Disk and Temporary are empty for a kernel without a disk of its own:
// its temporary directories are those of its container.
type Layout struct {
	Dir, Work, Private, Config, Passwd, Group string
	Disk                                      string
	Temporary                                 []Temporary
}

// Layout returns the paths of a kernel, which need not exist.
func (r *Root) Layout(kernel cluster.KernelID) Layout {
	d := filepath.Join(r.dir, string(kernel))
	l := Layout{
		Dir: d, Work: filepath.Join(d, partWork), Private: filepath.Join(d, partPrivate), Config: filepath.Join(d, partConfig),
		Passwd: filepath.Join(d, partEtc, "passwd"), Group: filepath.Join(d, partEtc, "group"),
	}
	if disk := filepath.Join(d, partDisk); loopdisk.Exists(disk) {
		l.place(disk)
	}
	return l
}

// Prepare makes a kernel's directory. The home of an earlier generation is kept, everything else of
// it is put away. Doing it twice is no error. Out of space is Exhausted; the caller
// releases what was made.
func (r *Root) Prepare(kernel cluster.KernelID, c host.Content) (Layout, error) {
	l := r.Layout(kernel)
	err := r.prepare(&l, c)
	if err == nil {
		return l, nil
	}
	switch {
	case !diskspace.Full(err):
	case l.full():
		err = fault.Exhaustedf("the session's own disk is full").WithReason(host.ReasonOwnDisk).
			WithNext("start a new session; ask an administrator for a larger agent.disk.scratch").WithCause(err)
	default:
		err = fault.Exhaustedf("the disk of the agent's scratch directory is full").WithReason("scratch-full").
			WithNext("free space under the agent's state directory or destroy sessions").WithCause(err)
	}
	return l, fmt.Errorf("prepare scratch: %w", err)
}

func (r *Root) prepare(l *Layout, c host.Content) error {
	u, err := diskspace.Of(r.dir)
	if err != nil {
		return err
	}
	if u.Free < r.minFree {
		return fault.Exhaustedf("the disk of the agent's scratch directory has %d MiB free, %d MiB are kept in reserve", u.Free>>20,
			r.minFree>>20).WithReason("scratch-full").WithNext("free space under the agent's state directory or destroy sessions")
	}
	mark := filepath.Join(l.Dir, generation)
	text := strconv.FormatInt(c.Generation, 10)
	have, err := os.ReadFile(mark)
	fresh := err != nil || string(have) != text
	if fresh {
		for _, part := range []string{l.Private, l.Config, filepath.Dir(l.Passwd)} {
			if err := r.putAway(part); err != nil {
				return err
			}
		}
	}
	if err := mkdir(l.Dir, 0o700); err != nil {
		return err
	}
	if err := r.disk(l, fresh); err != nil {
		return err
	}
	for _, d := range []struct {
		path string
		mode fs.FileMode
	}{{l.Work, 0o755}, {l.Private, 0o711}, {l.Config, 0o755}, {filepath.Dir(l.Passwd), 0o755}} {
		if err := mkdir(d.path, d.mode); err != nil {
			return err
		}
	}
	if err := os.WriteFile(mark, []byte(text), 0o600); err != nil {
		return err
	}
	if err := give(l.Work, c.UID, c.GID); err != nil {
		return err
	}
	if err := writeWork(l.Work, c); err != nil {
		return err
	}
	for _, f := range c.Config {
		p := filepath.Join(l.Config, filepath.FromSlash(f.Path))
		if err := os.MkdirAll(filepath.Dir(p), 0o755); err != nil {
			return err
		}
		if err := os.WriteFile(p, f.Data, f.Mode); err != nil {
			return err
		}
	}
	for _, f := range []struct {
		path string
		data []byte
	}{{l.Passwd, c.Passwd}, {l.Group, c.Group}} {
		if err := os.WriteFile(f.path, f.data, 0o644); err != nil {
			return err
		}
	}
	// The runner's binary is mounted over this file; its mount point must exist in a directory
	// that is itself mounted, or the engine would write one into the image's layer.
	if err := os.WriteFile(filepath.Join(l.Private, host.RunnerName), nil, 0o755); err != nil {
		return err
	}
	return run.WriteConfig(filepath.Join(l.Private, host.ConfigName), c.Runner)
}

// Names of files in the private directory, beside host.RunnerName and host.ConfigName.
const (
	socketName = "run.sock"
	resultName = "result.json"
)

// mkdir makes a directory with exactly this mode, whatever the umask.
func mkdir(path string, mode fs.FileMode) error {
	if err := os.Mkdir(path, mode); err != nil {
		if errors.Is(err, fs.ErrExist) {
			return nil
		}
		return err
	}
	return os.Chmod(path, mode)
}

// give gives a home to the user; an agent that is not root keeps it, which works when both are the same. The files of a home whose user
// had another number in an earlier generation follow, before the home itself, which marks that all have. Nothing of the kernel runs that
// could exchange a directory meanwhile.
func give(home string, uid, gid int) error {
	if os.Geteuid() != 0 {
		return nil
	}
	fi, err := os.Lstat(home)
	if err != nil {
		return err
	}
	if before := ownerOf(fi); before != 0 && before != uid {
		err := filepath.WalkDir(home, func(path string, d fs.DirEntry, err error) error {
			if err != nil || path == home {
				return err
			}
			if fi, err := d.Info(); err != nil || ownerOf(fi) != before {
				return err
			}
			return os.Lchown(path, uid, gid)
		})
		if err != nil {
			return fmt.Errorf("give the home to user %d: %w", uid, err)
		}
	}
	return os.Lchown(home, uid, gid)
}

func ownerOf(fi fs.FileInfo) int { return int(fi.Sys().(*syscall.Stat_t).Uid) }

// writeWork writes into the home, which after a restart holds whatever the user put there:
// links that lead out of it are refused by os.Root.
func writeWork(dir string, c host.Content) error {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return err
	}
	defer root.Close()
	own := func(name string) error {
		if os.Geteuid() != 0 {
			return nil
		}
		return root.Lchown(name, c.UID, c.GID)
	}
	for _, p := range c.Points() {
		if err := makePoint(dir, p, c.UID, c.GID); err != nil {
			return err
		}
	}
	for _, f := range c.Work {
		if err := writeFile(root, f, own); err != nil {
			return homesFault(f.Path, err)
		}
	}
	return nil
}

// writeFile writes one file with the directories above it. One that is there stays, unless it is to be replaced.
func writeFile(root *os.Root, f host.File, own func(name string) error) error {
	name := filepath.FromSlash(f.Path)
	if _, err := root.Lstat(name); err == nil && !f.Replace {
		return nil
	}
	parents := strings.Split(filepath.Dir(name), string(filepath.Separator))
	for i := range parents {
		d := filepath.Join(parents[:i+1]...)
		if d == "." {
			continue
		}
		mode := fs.FileMode(0o755)
		if parents[0] == ".ssh" {
			mode = 0o700
		}
		err := root.Mkdir(d, mode)
		if errors.Is(err, fs.ErrExist) {
			continue
		}
		if err == nil {
			err = own(d)
		}
		if err != nil {
			return err
		}
	}
	// What is there may be a pipe, which would hold the writer for ever, or a link: it goes, and the file is made anew.
	if err := root.Remove(name); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	w, err := root.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, f.Mode)
	if err != nil {
		return err
	}
	if _, err = w.Write(f.Data); err == nil {
		err = w.Chmod(f.Mode)
	}
	if cerr := w.Close(); err == nil {
		err = cerr
	}
	if err != nil {
		return err
	}
	return own(name)
}

// hostsErrors are those that a home's disk or the host has, whatever lies in the home.
var hostsErrors = []error{syscall.ENOSPC, syscall.EDQUOT, syscall.EROFS, syscall.EIO, syscall.ENFILE, syscall.EMFILE, syscall.ENOMEM}

// homesFault says that a file cannot be written for what the session's user, or the owner of dotfiles, has put where it belongs: a
// directory, a link that leads out of the home, a file in place of a directory. It would be the same on every host.
func homesFault(path string, err error) error {
	if slices.ContainsFunc(hostsErrors, func(e error) bool { return errors.Is(err, e) }) {
		return fmt.Errorf("write %s into the home: %w", path, err)
	}
	return fault.Invalidf("the file %.200s cannot be written into the session's home", path).WithReason(host.ReasonHome).WithCause(err).
		WithNext("look for two dotfiles of which one lies inside the other, and for links and directories in the home where a dotfile belongs")
}

// AddConfig adds a file to an existing kernel's /home/config.
func (r *Root) AddConfig(kernel cluster.KernelID, f host.File) error {
	return os.WriteFile(filepath.Join(r.Layout(kernel).Config, filepath.FromSlash(f.Path)), f.Data, f.Mode)
}

// Release moves a kernel's directory out of sight; Reap deletes it. An absent one is no error. Nothing is written, but the name of a
// directory.
func (r *Root) Release(kernel cluster.KernelID) error {
	l := r.Layout(kernel)
	if l.Disk != "" {
		if err := loopdisk.Detach(l.Disk); err != nil {
			return fmt.Errorf("release scratch: %w", err)
		}
	}
	if err := r.putAway(l.Dir); err != nil {
		return fmt.Errorf("release scratch: %w", err)
	}
	return nil
}

func (r *Root) putAway(path string) error {
	for {
		to := filepath.Join(r.dir, gone, fmt.Sprintf("%s-%d-%d", filepath.Base(path), os.Getpid(), r.serial.Add(1)))
		if _, err := os.Lstat(to); err == nil {
			continue // left by an earlier process of the same number
		}
		err := os.Rename(path, to)
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		return err
	}
}

// Reap deletes what was moved out of sight, until ctx ends. It returns what stayed.
func (r *Root) Reap(ctx context.Context) error {
	entries, err := os.ReadDir(filepath.Join(r.dir, gone))
	if err != nil {
		return fmt.Errorf("reap scratch: %w", err)
	}
	var errs []error
	for _, e := range entries {
		if ctx.Err() != nil {
			break
		}
		if err := removeTree(ctx, filepath.Join(r.dir, gone), e.Name()); err != nil {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// removeTree deletes what users may have filled: it holds few files open and uses little memory, however deep the tree is.
func removeTree(ctx context.Context, dir, name string) error {
	parent, err := os.OpenRoot(dir)
	if err != nil {
		return err
	}
	defer parent.Close()
	_, _, err = tree.Remove(ctx, parent, name, math.MaxInt)
	return err
}

// Gone counts what waits to be deleted.
func (r *Root) Gone() int {
	entries, _ := os.ReadDir(filepath.Join(r.dir, gone)) // an unreadable directory shows at the next reap
	return len(entries)
}

// List names the kernels that have a directory. Other entries are returned as strangers.
func (r *Root) List() (kernels []cluster.KernelID, strangers []string, err error) {
	entries, err := os.ReadDir(r.dir)
	if err != nil {
		return nil, nil, fmt.Errorf("list scratch: %w", err)
	}
	for _, e := range entries {
		if e.Name() == gone || e.Name() == waiting {
			continue
		}
		if id, ok := cluster.CanonicalUUID(e.Name()); ok && id == e.Name() && e.IsDir() {
			kernels = append(kernels, cluster.KernelID(id))
			continue
		}
		strangers = append(strangers, e.Name())
	}
	return kernels, strangers, nil
}

// maxResult bounds the result file, which the container could grow.
const maxResult = 64 << 10

// Result reads what the runner recorded about a batch job; nil when there is nothing (yet).
func (r *Root) Result(kernel cluster.KernelID) (*run.BatchResult, error) {
	root, err := os.OpenRoot(r.Layout(kernel).Private)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read batch result: %w", err)
	}
	defer root.Close()
	st, err := root.Lstat(resultName)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read batch result: %w", err)
	}
	if st.Mode().IsRegular() && st.Size() == 0 {
		return nil, nil // the runner took the name before it started the command
	}
	if !st.Mode().IsRegular() || st.Size() > maxResult {
		return nil, fault.Invalidf("the batch result is not a small file")
	}
	b, err := root.ReadFile(resultName)
	if err != nil {
		return nil, fmt.Errorf("read batch result: %w", err)
	}
	var res run.BatchResult
	if err := json.Unmarshal(b, &res); err != nil {
		return nil, fmt.Errorf("read batch result: %w", err)
	}
	return &res, nil
}

// Traces reads the markers that the runner of one generation left.
func (r *Root) Traces(kernel cluster.KernelID, g int64) (host.Traces, error) {
	l := r.Layout(kernel)
	have, err := os.ReadFile(filepath.Join(l.Dir, generation))
	if errors.Is(err, fs.ErrNotExist) || err == nil && string(have) != strconv.FormatInt(g, 10) {
		return host.Traces{Absent: true}, nil
	}
	if err != nil {
		return host.Traces{}, fmt.Errorf("read the runner's markers: %w", err)
	}
	there := func(name string) (bool, error) {
		_, err := os.Lstat(filepath.Join(l.Private, name))
		if errors.Is(err, fs.ErrNotExist) {
			return false, nil
		}
		return err == nil, err
	}
	var out host.Traces
	if out.Started, err = there(run.StartedName); err == nil {
		out.Ended, err = there(run.EndedName)
	}
	if err != nil {
		return host.Traces{}, fmt.Errorf("read the runner's markers: %w", err)
	}
	return out, nil
}

// DialRunner connects to the socket in a kernel's private directory. The container could
// have put a link there that leads to a socket of the host: the file is opened without following
// links and connected through its descriptor, which also makes the path short enough.
func (r *Root) DialRunner(ctx context.Context, kernel cluster.KernelID) (net.Conn, error) {
	fd, err := unix.Openat2(unix.AT_FDCWD, filepath.Join(r.Layout(kernel).Private, socketName), &unix.OpenHow{
		Flags: unix.O_PATH | unix.O_NOFOLLOW | unix.O_CLOEXEC,
	})
	if err != nil {
		return nil, &net.OpError{Op: "dial", Net: "unix", Err: os.NewSyscallError("openat2", err)}
	}
	defer unix.Close(fd)
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return nil, &net.OpError{Op: "dial", Net: "unix", Err: os.NewSyscallError("fstat", err)}
	}
	if st.Mode&unix.S_IFMT != unix.S_IFSOCK {
		return nil, &net.OpError{Op: "dial", Net: "unix", Err: errors.New("run.sock is not a socket")}
	}
	d := net.Dialer{Timeout: 5 * time.Second}
	return d.DialContext(ctx, "unix", "/proc/self/fd/"+strconv.Itoa(fd))
}

// Runner reads the runner's configuration of a kernel that the ledger does not know.
func (r *Root) Runner(kernel cluster.KernelID) (run.Config, error) {
	root, err := os.OpenRoot(r.Layout(kernel).Private)
	if err != nil {
		return run.Config{}, fmt.Errorf("read runner configuration: %w", err)
	}
	defer root.Close()
	b, err := root.ReadFile(host.ConfigName)
	if err != nil {
		return run.Config{}, fmt.Errorf("read runner configuration: %w", err)
	}
	var c run.Config
	if err := json.Unmarshal(b, &c); err != nil {
		return run.Config{}, fmt.Errorf("read runner configuration: %w", err)
	}
	return c, nil
}
