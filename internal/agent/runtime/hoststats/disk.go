package hoststats

import (
	"bytes"
	"context"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"berth.dev/berth/internal/agent/runtime"
	"berth.dev/berth/internal/fault"
)

// Bounds of one measurement of a container's layer.
const (
	// maxProcesses is how many processes of a container are looked at, maxOpen how many open files of one.
	maxProcesses = 512
	maxOpen      = 1024
	// maxGroups is how many control groups below the container's own are looked into.
	maxGroups = 64
)

// Layer measures what a container wrote into its own file system: the files of its layer, and those that it deleted and holds open.
// At most files entries are counted; a layer with more is not Complete.
func (r *Reader) Layer(ctx context.Context, id string, pid, files int) (runtime.LayerUse, error) {
	out := runtime.LayerUse{}
	dir, err := r.LayerDir(pid)
	if err != nil {
		return out, err
	}
	out.Dir = dir
	out.Bytes, out.Complete = Measure(ctx, dir, files)
	pids := r.processes(id, pid)
	out.Bytes += deletedButOpen(pid, pids)
	out.Written = r.written(pids)
	return out, ctx.Err()
}

// LayerDir is the directory of the host that holds what a container writes. It is found in the mount of the container's root, which
// is an overlay with every engine of today.
func (r *Reader) LayerDir(pid int) (string, error) {
	text, err := fs.ReadFile(r.root, "proc/"+strconv.Itoa(pid)+"/mountinfo")
	if err != nil {
		return "", fault.NotFoundf("process %d has ended", pid).WithCause(err)
	}
	for line := range strings.Lines(string(text)) {
		left, right, ok := strings.Cut(line, " - ")
		l, rt := strings.Fields(left), strings.Fields(right)
		if !ok || len(l) < 5 || len(rt) < 3 || l[4] != "/" || rt[0] != "overlay" {
			continue
		}
		for o := range strings.SplitSeq(rt[2], ",") {
			if dir, ok := strings.CutPrefix(o, "upperdir="); ok && path.IsAbs(dir) {
				return dir, nil
			}
		}
	}
	return "", fault.Unavailablef("the root of process %d is no overlay", pid)
}

// Measure adds up the disk space of the files below a directory, of one file system and without following links. complete is false
// when there are more than the given number of files, or ctx ended first.
func Measure(ctx context.Context, dir string, files int) (total int64, complete bool) {
	var root unix.Stat_t
	if unix.Lstat(dir, &root) != nil {
		return 0, true
	}
	seen := map[uint64]bool{} // of files with several names
	pending := []string{dir}
	for len(pending) > 0 {
		if ctx.Err() != nil {
			return total, false
		}
		d := pending[len(pending)-1]
		pending = pending[:len(pending)-1]
		f, err := os.OpenFile(d, os.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW, 0)
		if err != nil {
			continue // deleted since, or replaced by something else
		}
		for {
			names, err := f.Readdirnames(256)
			for _, name := range names {
				if files--; files < 0 || ctx.Err() != nil {
					_ = f.Close()
					return total, false
				}
				var st unix.Stat_t
				if unix.Fstatat(int(f.Fd()), name, &st, unix.AT_SYMLINK_NOFOLLOW) != nil || st.Dev != root.Dev {
					continue
				}
				if st.Nlink > 1 && st.Mode&unix.S_IFMT != unix.S_IFDIR {
					if seen[st.Ino] {
						continue
					}
					seen[st.Ino] = true
				}
				total += st.Blocks * 512
				if st.Mode&unix.S_IFMT == unix.S_IFDIR {
					pending = append(pending, filepath.Join(d, name))
				}
			}
			if err != nil || len(names) == 0 {
				break
			}
		}
		_ = f.Close()
	}
	return total, true
}

// processes are those in a container's control group and the groups below it.
func (r *Reader) processes(id string, pid int) []int {
	g, err := r.find(id, pid)
	if err != nil {
		return []int{pid}
	}
	top := g.v2
	for _, dir := range []string{g.pids, g.memory, g.cpuacct} {
		if top == "" {
			top = dir
		}
	}
	out, pending := []int{}, []string{top}
	for looked := 0; len(pending) > 0 && looked < maxGroups; looked++ {
		dir := pending[0]
		pending = pending[1:]
		text, err := fs.ReadFile(r.root, path.Join(dir, "cgroup.procs"))
		if err != nil {
			continue
		}
		for field := range bytes.FieldsSeq(text) {
			if n, err := strconv.Atoi(string(field)); err == nil && len(out) < maxProcesses {
				out = append(out, n)
			}
		}
		entries, _ := fs.ReadDir(r.root, dir) // a group that is gone has no processes
		for _, e := range entries {
			if e.IsDir() {
				pending = append(pending, path.Join(dir, e.Name()))
			}
		}
	}
	return out
}

// written is how much processes wrote to file systems since they began, with what their ended children wrote; -1 when no process
// tells.
func (r *Reader) written(pids []int) int64 {
	total := int64(-1)
	for _, pid := range pids {
		text, err := fs.ReadFile(r.root, "proc/"+strconv.Itoa(pid)+"/io")
		if err != nil {
			continue
		}
		for line := range strings.Lines(string(text)) {
			name, value, _ := strings.Cut(strings.TrimSpace(line), ": ")
			n, err := strconv.ParseInt(value, 10, 64)
			if err != nil || name != "write_bytes" && name != "cancelled_write_bytes" {
				continue
			}
			if name == "cancelled_write_bytes" {
				n = -n
			}
			total = max(total, 0) + n
		}
	}
	return total
}

// deletedButOpen adds up files of a container's layer that have no name any more.
func deletedButOpen(pid int, pids []int) (total int64) {
	var root unix.Stat_t
	if unix.Stat("/proc/"+strconv.Itoa(pid)+"/root", &root) != nil {
		return 0
	}
	seen := map[uint64]bool{}
	for _, p := range pids {
		dir := "/proc/" + strconv.Itoa(p) + "/fd"
		f, err := os.Open(dir)
		if err != nil {
			continue
		}
		names, _ := f.Readdirnames(maxOpen) // a process that ends has none
		_ = f.Close()
		for _, name := range names {
			var st unix.Stat_t
			if unix.Stat(dir+"/"+name, &st) != nil || st.Nlink != 0 || st.Dev != root.Dev || seen[st.Ino] ||
				st.Mode&unix.S_IFMT != unix.S_IFREG {
				continue
			}
			seen[st.Ino] = true
			total += st.Blocks * 512
		}
	}
	return total
}
