// Package confine gives the processes of a session's user control groups of their own, below the container's and apart from the
// runner. A fork bomb or a program that takes all memory then meets limits that leave room for the runner, and thousands of processes
// that want to run get one half of the container's processor time together. The runner goes on to answer: the session can be looked
// at and ended.
//
// It is the agent, outside, that makes the groups, because a container cannot write to its own. The runner gets open files of them,
// to which it writes the number of each process that it starts. Both versions of control groups work; where none can be made, a
// warning says why, and the container's limits hold for all its processes together, the runner included.
//
// Package host/local is its only caller. It decides nothing about kernels.
package confine

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"

	"berth.dev/berth/internal/agent/runtime/hoststats"
	"berth.dev/berth/internal/fault"
)

// The names of the groups below the container's. In version 2 a group with processes of its own cannot limit groups below it, so the
// runner moves to one, too.
const (
	userGroup   = hoststats.UserGroup
	runnerGroup = "berth-runner"
)

// What is kept for the runner of what the container may use.
const (
	reservedPids   = 256
	reservedMemory = 64 << 20
	defaultPids    = 4096
)

// Files are open files of a container's groups; the caller closes them.
type Files struct {
	// Procs take the number of a process, which then belongs to the user's group.
	Procs []*os.File
	// OOM tells how many processes of the user's were killed for want of memory; nil where that is unknown.
	OOM *os.File
}

// Close closes all files.
func (f Files) Close() {
	for _, p := range append(f.Procs, f.OOM) {
		if p != nil {
			_ = p.Close()
		}
	}
}

// Maker makes groups. Its methods may be called concurrently.
type Maker struct {
	root  string
	where *hoststats.Reader
	log   *slog.Logger

	mu        sync.Mutex
	warning   string
	terminals string // another one, about them
}

// New returns a maker for the host whose file system begins at root ("/" outside tests).
func New(root string, log *slog.Logger) *Maker {
	return &Maker{root: root, where: hoststats.New(root), log: log}
}

// Warnings say why sessions are not confined on this host.
func (m *Maker) Warnings() []string {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.DeleteFunc([]string{m.warning, m.terminals}, func(w string) bool { return w == "" })
}

func (m *Maker) warn(err error) {
	text := ""
	if err != nil {
		text = fmt.Sprintf("a session's processes share their limits with its runner, which a fork bomb in it can stop: %v", err)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.keep(&m.warning, text)
}

// keep takes a warning, and tells of it when it is new; the caller holds mu.
func (m *Maker) keep(place *string, text string) {
	if text != "" && text != *place {
		m.log.Warn(text)
	}
	*place = text
}

// Make makes the groups of a container of which pid is the first process, or finds them, and bounds its terminals. Without the right
// or the means to make groups the files are empty and Warnings says why. A process that is not of this host has none either.
func (m *Maker) Make(container string, pid int) Files {
	text := terminalsWarning(m.boundTerminals(pid))
	m.mu.Lock()
	m.keep(&m.terminals, text)
	m.mu.Unlock()
	f, err := m.make(container, pid)
	if err != nil {
		f.Close()
		f = Files{}
	}
	if !fault.Is(err, fault.NotFound) { // otherwise it has ended, or the engine is on another host
		m.warn(err)
	}
	return f
}

func (m *Maker) make(container string, pid int) (Files, error) {
	dirs, err := m.where.Dirs(container, pid)
	if err != nil {
		return Files{}, fmt.Errorf("find the control groups of a container: %w", err)
	}
	if dirs.Pids == "" && dirs.Memory == "" {
		return m.makeV2(m.path(dirs.V2), pid, dirs.V2 != "")
	}
	var f Files
	if dirs.Pids != "" {
		group := filepath.Join(m.path(dirs.Pids), userGroup)
		err = errors.Join(mkdir(group), limit(m.path(dirs.Pids), group, "pids.max", pidsOf))
		if err == nil {
			err = f.open(group)
		}
	}
	// The kernel divides time between a group and the processes beside it, which is the runner alone, by equal weights.
	if err == nil && dirs.CPU != "" {
		group := filepath.Join(m.path(dirs.CPU), userGroup)
		if err = mkdir(group); err == nil {
			err = f.open(group)
		}
	}
	if err == nil && dirs.Memory != "" {
		group := filepath.Join(m.path(dirs.Memory), userGroup)
		err = errors.Join(mkdir(group), limit(m.path(dirs.Memory), group, "memory.limit_in_bytes", memoryOf))
		if err == nil { // a kernel that does not count swap has no such file
			err = ignoreMissing(limit(m.path(dirs.Memory), group, "memory.memsw.limit_in_bytes", memoryOf))
		}
		if err == nil {
			err = f.open(group)
		}
		if err == nil {
			f.OOM, err = os.Open(filepath.Join(group, "memory.oom_control"))
		}
	}
	return f, err
}

func (m *Maker) makeV2(dir string, pid int, found bool) (Files, error) {
	if !found {
		return Files{}, errors.New("the control groups of a container limit neither processes nor memory")
	}
	available, err := os.ReadFile(filepath.Join(dir, "cgroup.controllers"))
	if err != nil {
		return Files{}, err
	}
	has := func(c string) bool { return strings.Contains(" "+strings.TrimSpace(string(available))+" ", " "+c+" ") }
	var enable []string
	for _, c := range []string{"pids", "memory"} {
		if has(c) {
			enable = append(enable, "+"+c)
		}
	}
	if len(enable) == 0 {
		return Files{}, errors.New("the control groups of a container limit neither processes nor memory")
	}
	group, runner := filepath.Join(dir, userGroup), filepath.Join(dir, runnerGroup)
	if err := errors.Join(mkdir(group), mkdir(runner)); err != nil {
		return Files{}, err
	}
	// All processes that there are by now belong to the runner: it starts none for the user before it has the files.
	if err := write(runner, "cgroup.procs", strconv.Itoa(pid)); err != nil {
		return Files{}, err
	}
	limits := strings.Join(enable, " ")
	err = errors.ErrUnsupported
	if has("cpu") { // the two groups then get equal shares of time; a kernel with real-time processes refuses
		err = write(dir, "cgroup.subtree_control", limits+" +cpu")
	}
	if err != nil {
		err = write(dir, "cgroup.subtree_control", limits)
	}
	if err != nil {
		return Files{}, err
	}
	if has("pids") {
		err = limit(dir, group, "pids.max", pidsOf)
	}
	if err == nil && has("memory") {
		err = limit(dir, group, "memory.max", memoryOf)
	}
	var f Files
	if err == nil {
		err = f.open(group)
	}
	if err == nil && has("memory") {
		f.OOM, err = os.Open(filepath.Join(group, "memory.events"))
	}
	return f, err
}

func (m *Maker) path(rel string) string { return filepath.Join(m.root, rel) }

func (f *Files) open(group string) error {
	procs, err := os.OpenFile(filepath.Join(group, "cgroup.procs"), os.O_WRONLY, 0)
	if err == nil {
		f.Procs = append(f.Procs, procs)
	}
	return err
}

func mkdir(dir string) error {
	if err := os.Mkdir(dir, 0o755); err != nil && !errors.Is(err, os.ErrExist) {
		return err
	}
	return nil
}

func ignoreMissing(err error) error {
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	return err
}

// limit sets a limit of a group to what of makes of the container's.
func limit(container, group, file string, of func(all int64) (own int64, limited bool)) error {
	text, err := os.ReadFile(filepath.Join(container, file))
	if err != nil {
		return err
	}
	all, err := strconv.ParseInt(strings.TrimSpace(string(text)), 10, 64)
	if err != nil { // "max"
		all = -1
	}
	own, limited := of(all)
	if !limited {
		return nil
	}
	return write(group, file, strconv.FormatInt(own, 10))
}

// pidsOf is the limit of processes and threads for a container's; below zero is none.
func pidsOf(all int64) (int64, bool) {
	if all < 0 {
		all = defaultPids
	}
	return max(1, all-min(reservedPids, all/4)), true
}

// noMemoryLimit is less than what version 1 of control groups shows where there is no limit.
const noMemoryLimit = 1 << 60

// memoryOf is the limit of memory for a container's. A small container keeps an eighth for the runner.
func memoryOf(all int64) (int64, bool) {
	if all < 0 || all >= noMemoryLimit {
		return 0, false
	}
	return all - min(reservedMemory, all/8), true
}

func write(dir, file, text string) error {
	f, err := os.OpenFile(filepath.Join(dir, file), os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	_, err = f.WriteString(text)
	return errors.Join(err, f.Close())
}
