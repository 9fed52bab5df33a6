package mount

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// killHolders kills the processes of containers that use some mounts: they have a file of one open, work in it, run a program of it or
// have it in their memory. With writers only those count that can change a file. The first process of a container is left: it is the
// platform's own.
//
// All processes of the host are looked at, because a descriptor can be sent from one container to another. Whatever is in no process
// namespace below this one's is no container's and is left alone. Maps of memory are looked at where they name the device of a mount,
// or all of them if thorough: some file systems have a device for each of their parts.
//
// killed are those that were killed before, and become more. It reports whether one of them is still there.
func killHolders(of []inside, writers, thorough bool, killed map[int]bool) (dying bool) {
	h := holding{ids: make(map[int]bool, len(of)), writers: writers}
	for _, i := range of {
		h.ids[i.id] = true
		h.devices = append(h.devices, i.device)
	}
	if thorough {
		h.devices = nil
	}
	own, err := os.Readlink("/proc/self/ns/pid")
	if err != nil {
		return false
	}
	processes, err := numbersIn("/proc")
	if err != nil {
		return false
	}
	for _, pid := range processes {
		if ns, err := os.Readlink("/proc/" + strconv.Itoa(pid) + "/ns/pid"); err != nil || ns == own {
			continue
		}
		// The number may become another process's while it is looked at; what this descriptor names does not change.
		fd, err := unix.PidfdOpen(pid, 0)
		if err != nil {
			continue
		}
		if h.by(pid) && ofContainer(pid) {
			_ = unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0)
			dying = dying || killed[pid]
			killed[pid] = true
		}
		_ = unix.Close(fd)
	}
	return dying
}

// ofContainer reports whether a process is in a process namespace below this one's, and not its first.
func ofContainer(pid int) bool {
	text, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/status")
	if err != nil {
		return false
	}
	for line := range strings.Lines(string(text)) {
		if rest, ok := strings.CutPrefix(line, "NSpid:"); ok {
			numbers := strings.Fields(rest)
			return len(numbers) > 1 && numbers[len(numbers)-1] != "1"
		}
	}
	return false
}

// holding is what is looked for in processes.
type holding struct {
	ids     map[int]bool // of mounts
	writers bool
	devices []string // nil: any
}

// by looks at every thread of a process: each may have files and a working directory of its own.
func (h holding) by(pid int) bool {
	ids, writers := h.ids, h.writers
	base := "/proc/" + strconv.Itoa(pid)
	threads, err := numbersIn(base + "/task")
	if err != nil {
		return false
	}
	for _, tid := range threads {
		task := base + "/task/" + strconv.Itoa(tid)
		if !writers && (on(task+"/cwd", ids) || on(task+"/root", ids) || on(task+"/exe", ids)) {
			return true
		}
		files, err := numbersIn(task + "/fdinfo")
		if err != nil {
			continue
		}
		for _, fd := range files {
			if id, writes, err := fileOf(task + "/fdinfo/" + strconv.Itoa(fd)); err == nil && ids[id] && (writes || !writers) {
				return true
			}
		}
	}
	if h.devices != nil {
		text, err := os.ReadFile(base + "/maps")
		maps := string(text)
		if err != nil || !slices.ContainsFunc(h.devices, func(d string) bool { return strings.Contains(maps, d) }) {
			return false
		}
	}
	mapped, err := os.ReadDir(base + "/map_files")
	if err != nil {
		return false
	}
	for _, m := range mapped {
		if on(filepath.Join(base, "map_files", m.Name()), ids) {
			return true
		}
	}
	return false
}

// on reports whether what a link of /proc leads to is on one of the mounts. The file system of the mount is not asked.
func on(link string, ids map[int]bool) bool {
	id, err := mountAt(unix.AT_FDCWD, link, 0)
	return err == nil && ids[id]
}

// fileOf reads the mount of an open file, and whether it is open for writing.
func fileOf(info string) (mount int, writes bool, err error) {
	text, err := os.ReadFile(info)
	if err != nil {
		return 0, false, err
	}
	mount = -1
	for line := range strings.Lines(string(text)) {
		name, value, _ := strings.Cut(line, ":")
		value = strings.TrimSpace(value)
		switch name {
		case "flags":
			flags, err := strconv.ParseUint(value, 8, 64)
			if err != nil {
				return 0, false, err
			}
			writes = flags&unix.O_ACCMODE != unix.O_RDONLY
		case "mnt_id":
			if mount, err = strconv.Atoi(value); err != nil {
				return 0, false, err
			}
		}
	}
	if mount < 0 {
		return 0, false, errors.New("it names no mount")
	}
	return mount, writes, nil
}

// numbersIn are the numbers among the names of a directory.
func numbersIn(dir string) ([]int, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	var out []int
	for _, e := range entries {
		if n, err := strconv.Atoi(e.Name()); err == nil {
			out = append(out, n)
		}
	}
	return out, nil
}
