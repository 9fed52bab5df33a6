// Package mps runs the control daemons of NVIDIA's Multi-Process Service for kernels that share cards: one for every set of cards that some
// kernel has shares of, with limits that hold for all programs of it. What it makes is in one directory, written before it is made, so
// that the next process finds it.
package mps

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"berth.dev/berth/internal/agent/device/cuda"
	"berth.dev/berth/internal/agent/runtime"
	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/fault"
)

// Bounds of what a daemon may take.
const (
	startLimit = 10 * time.Second
	// drainLimit bounds the end of all programs of one kernel; keeper.drainTime is longer.
	drainLimit = 8 * time.Second
	// retry is the time between two questions to a daemon that is starting.
	retry = 20 * time.Millisecond
)

// Options say what a Manager works with.
type Options struct {
	Control Control
	// Dir holds a directory for every daemon. It should not outlive a restart of the host.
	Dir string
	// Owner says which kernel a process of this host belongs to.
	Owner func(pid int) (cluster.KernelID, bool)
	Log   *slog.Logger
	// AskLimit bounds one question to a daemon; 0 means three seconds.
	AskLimit time.Duration
}

// Manager runs the daemons of one agent. All methods may be called at the same time.
type Manager struct {
	o Options

	mu     sync.Mutex
	groups map[string]*group // by name
}

var _ cuda.Shares = (*Manager)(nil)

// group is the kernels that share one set of cards, and their daemon.
type group struct {
	name   string
	daemon Daemon
	// turn is held by whoever speaks with the daemon.
	turn chan struct{}

	// Guarded by Manager.mu.
	kernels map[cluster.KernelID]map[string]cuda.Limit
	problem string
	// silent says that the daemon neither answers nor can be started.
	silent bool
}

// New finds what an earlier process left.
func New(o Options) (*Manager, error) {
	m := &Manager{o: o, groups: map[string]*group{}}
	files, err := filepath.Glob(filepath.Join(o.Dir, "*", "kernels", "*.json"))
	if err != nil {
		return nil, err
	}
	for _, file := range files {
		b, err := os.ReadFile(file)
		var limits map[string]cuda.Limit
		if err == nil {
			err = json.Unmarshal(b, &limits)
		}
		kernel := cluster.KernelID(strings.TrimSuffix(filepath.Base(file), ".json"))
		if err != nil || len(limits) == 0 || runtime.CheckKernel(kernel) != nil {
			o.Log.Warn("what is recorded of a kernel's shares cannot be read and is removed", "file", file, "err", err)
			_ = os.Remove(file)
			continue
		}
		m.group(limits).kernels[kernel] = limits
	}
	return m, nil
}

// Ready reports why shares cannot be held on this host.
func (m *Manager) Ready() error { return m.o.Control.Ready() }

// nameOf names a set of cards.
func nameOf(cards []string) string {
	if len(cards) == 1 {
		return cards[0]
	}
	sum := sha256.Sum256([]byte(strings.Join(cards, "\n")))
	return "set-" + hex.EncodeToString(sum[:8])
}

// Dir is where the sockets of a set of cards are.
func (m *Manager) Dir(cards []string) string {
	return filepath.Join(m.o.Dir, nameOf(slices.Sorted(slices.Values(cards))), "pipe")
}

// group returns that of a set of cards; the caller holds mu or is New.
func (m *Manager) group(limits map[string]cuda.Limit) *group {
	cards := slices.Sorted(maps.Keys(limits))
	name := nameOf(cards)
	g := m.groups[name]
	if g == nil {
		dir := filepath.Join(m.o.Dir, name)
		g = &group{name: name, turn: make(chan struct{}, 1), kernels: map[cluster.KernelID]map[string]cuda.Limit{},
			daemon: Daemon{Cards: cards, Pipe: filepath.Join(dir, "pipe"), Log: filepath.Join(dir, "log")}}
		m.groups[name] = g
	}
	return g
}

func (g *group) take(ctx context.Context) error {
	select {
	case g.turn <- struct{}{}:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (g *group) give() { <-g.turn }

func (m *Manager) file(g *group, kernel cluster.KernelID) string {
	return filepath.Join(m.o.Dir, g.name, "kernels", string(kernel)+".json")
}

// Prepare records the kernel's limits, starts the daemon of its cards unless it runs, and has it hold the limits of all its kernels.
func (m *Manager) Prepare(ctx context.Context, kernel cluster.KernelID, limits map[string]cuda.Limit) error {
	if err := runtime.CheckKernel(kernel); err != nil {
		return err
	}
	if err := m.leaveOthers(ctx, kernel, limits); err != nil {
		return err
	}
	m.mu.Lock()
	g := m.group(limits)
	g.kernels[kernel] = maps.Clone(limits) // from here on nobody ends the daemon
	problem := g.problem
	m.mu.Unlock()
	if problem != "" {
		return fault.Unavailablef("the cards %s cannot be shared now: %s", strings.Join(g.daemon.Cards, ", "), problem)
	}
	if err := g.take(ctx); err != nil {
		return err
	}
	defer g.give()
	if err := m.record(g, kernel, limits); err != nil {
		return err
	}
	if err := m.start(ctx, g); err != nil {
		return err
	}
	return m.limit(ctx, g)
}

// leaveOthers releases the kernel from cards that it had in an earlier generation.
func (m *Manager) leaveOthers(ctx context.Context, kernel cluster.KernelID, limits map[string]cuda.Limit) error {
	m.mu.Lock()
	old := m.of(kernel)
	stays := old == nil || old == m.group(limits)
	m.mu.Unlock()
	if stays {
		return nil
	}
	return m.Release(ctx, kernel)
}

// of returns the group of a kernel, nil when it has none; the caller holds mu.
func (m *Manager) of(kernel cluster.KernelID) *group {
	for _, g := range m.groups {
		if _, here := g.kernels[kernel]; here {
			return g
		}
	}
	return nil
}

// record writes the kernel's limits. A process that finds half a file removes it.
func (m *Manager) record(g *group, kernel cluster.KernelID, limits map[string]cuda.Limit) error {
	for dir, mode := range map[string]os.FileMode{g.daemon.Pipe: 0o755, g.daemon.Log: 0o700, filepath.Dir(m.file(g, kernel)): 0o700} {
		err := os.MkdirAll(filepath.Dir(dir), 0o755)
		if err == nil {
			err = os.MkdirAll(dir, mode)
		}
		if err != nil {
			return fmt.Errorf("record the shares of kernel %s: %w", kernel, err)
		}
	}
	if err := os.Chmod(g.daemon.Pipe, 0o755); err != nil { // users of containers connect to the socket in it
		return fmt.Errorf("record the shares of kernel %s: %w", kernel, err)
	}
	b, err := json.Marshal(limits)
	if err == nil {
		tmp := m.file(g, kernel) + ".new"
		if err = os.WriteFile(tmp, b, 0o600); err == nil {
			err = os.Rename(tmp, m.file(g, kernel))
		}
	}
	if err != nil {
		return fmt.Errorf("record the shares of kernel %s: %w", kernel, err)
	}
	return nil
}

// start starts the daemon unless it answers, and waits until it does. The caller has the turn.
func (m *Manager) start(ctx context.Context, g *group) error {
	if _, err := m.ask(ctx, g, "get_server_list"); err == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, startLimit)
	defer cancel()
	if err := m.o.Control.Start(ctx, g.daemon); err != nil {
		return err
	}
	for {
		_, err := m.ask(ctx, g, "get_server_list")
		if err == nil {
			m.o.Log.Info("MPS serves shares of cards", "cards", g.daemon.Cards)
			return nil
		}
		t := time.NewTimer(retry)
		select {
		case <-ctx.Done():
			t.Stop()
			return err
		case <-t.C:
		}
	}
}

func (m *Manager) ask(ctx context.Context, g *group, command string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, cmp.Or(m.o.AskLimit, 3*time.Second))
	defer cancel()
	return m.o.Control.Ask(ctx, g.daemon, command)
}

// order sends a command that changes something. The program reports failures in words and as success: all but numbers are words.
func (m *Manager) order(ctx context.Context, g *group, format string, args ...any) error {
	command := fmt.Sprintf(format, args...)
	answer, err := m.ask(ctx, g, command)
	if err != nil {
		return err
	}
	for line := range strings.Lines(answer) {
		if line = strings.TrimSpace(line); line != "" {
			if _, err := strconv.ParseFloat(line, 64); err != nil {
				return fault.New(fault.Internal, "MPS refused %q: %.200s", command, line)
			}
		}
	}
	return nil
}

// numbers asks for a list of process ids.
func (m *Manager) numbers(ctx context.Context, g *group, command string) ([]int, error) {
	answer, err := m.ask(ctx, g, command)
	if err != nil {
		return nil, err
	}
	var out []int
	for _, word := range strings.Fields(answer) {
		n, err := strconv.Atoi(word)
		if err != nil {
			return nil, fault.New(fault.Internal, "MPS answered %q with %.200q", command, answer)
		}
		out = append(out, n)
	}
	return out, nil
}

// widest is what the servers of a daemon allow each program: the largest share that one of its kernels has. Programs are held lower by
// their own variables.
func widest(kernels map[cluster.KernelID]map[string]cuda.Limit) (memory map[string]int64, percent int64) {
	memory, percent = map[string]int64{}, 1
	for _, limits := range kernels {
		for card, l := range limits {
			memory[card], percent = max(memory[card], l.MemoryMiB), max(percent, l.Percent())
		}
	}
	return memory, percent
}

// limit sets the limits of the daemon's servers, those that run and those to come. The caller has the turn.
func (m *Manager) limit(ctx context.Context, g *group) error {
	m.mu.Lock()
	memory, percent := widest(g.kernels)
	m.mu.Unlock()
	servers, err := m.numbers(ctx, g, "get_server_list")
	if err != nil {
		return err
	}
	for _, card := range g.daemon.Cards {
		if err := m.order(ctx, g, "set_default_device_pinned_mem_limit %s %dM", card, memory[card]); err != nil {
			return err
		}
		for _, server := range servers {
			if err := m.order(ctx, g, "set_device_pinned_mem_limit %d %s %dM", server, card, memory[card]); err != nil {
				return err
			}
		}
	}
	if err := m.order(ctx, g, "set_default_active_thread_percentage %d", percent); err != nil {
		return err
	}
	for _, server := range servers {
		if err := m.order(ctx, g, "set_active_thread_percentage %d %d", server, percent); err != nil {
			return err
		}
	}
	return nil
}

// clients lists the programs of a daemon by the server that serves them.
func (m *Manager) clients(ctx context.Context, g *group) (map[int][]int, error) {
	servers, err := m.numbers(ctx, g, "get_server_list")
	if err != nil {
		return nil, err
	}
	out := map[int][]int{}
	for _, s := range servers {
		if out[s], err = m.numbers(ctx, g, "get_client_list "+strconv.Itoa(s)); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// Release ends what the kernel's programs do on the cards, takes its limits away, and ends a daemon that serves nobody any more. A
// program that does not let go makes the cards suspect: no more shares of them are given out until all of their programs have ended.
func (m *Manager) Release(ctx context.Context, kernel cluster.KernelID) error {
	m.mu.Lock()
	g := m.of(kernel)
	m.mu.Unlock()
	if g == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, drainLimit)
	defer cancel()
	if err := g.take(ctx); err != nil {
		return fault.Unavailablef("the MPS daemon of %s is busy", strings.Join(g.daemon.Cards, ", ")).WithCause(err)
	}
	defer g.give()
	if err := m.drain(ctx, g, kernel); err != nil {
		m.o.Log.Error("a program on a shared card does not end", "kernel", kernel, "cards", g.daemon.Cards, "err", err)
		m.mu.Lock()
		g.problem = "a program that ended did not let go of it, and others still use it: " + err.Error()
		m.mu.Unlock()
	}
	if err := os.Remove(m.file(g, kernel)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("forget the shares of kernel %s: %w", kernel, err)
	}
	m.mu.Lock()
	delete(g.kernels, kernel)
	left := len(g.kernels)
	m.mu.Unlock()
	if left == 0 {
		m.end(ctx, g)
	} else if err := m.limit(ctx, g); err != nil {
		m.o.Log.Warn("the limits of a shared card stay as they were", "cards", g.daemon.Cards, "err", err)
	}
	return nil
}

// drain ends the work of a kernel's programs. A daemon that is gone has none.
func (m *Manager) drain(ctx context.Context, g *group, kernel cluster.KernelID) error {
	servers, err := m.clients(ctx, g)
	if err != nil {
		if ctx.Err() != nil {
			return err
		}
		m.o.Log.Warn("the programs of a shared card cannot be listed", "cards", g.daemon.Cards, "err", err)
		return nil
	}
	for _, server := range slices.Sorted(maps.Keys(servers)) {
		for _, pid := range servers[server] {
			if owner, ok := m.o.Owner(pid); !ok || owner != kernel {
				continue
			}
			answer, err := m.ask(ctx, g, fmt.Sprintf("terminate_client %d %d", server, pid))
			if err != nil {
				return err
			}
			if last := strings.TrimSpace(answer); last != "0" && !strings.Contains(answer, "Invalid process") {
				return fault.New(fault.Internal, "MPS does not end process %d: %.200s", pid, last)
			}
		}
	}
	return nil
}

// end ends a daemon without kernels, unless programs are left: it is never ended under them. The caller has the turn.
func (m *Manager) end(ctx context.Context, g *group) {
	servers, err := m.clients(ctx, g)
	if err == nil {
		for _, list := range servers {
			if len(list) > 0 {
				return // Keep tries again
			}
		}
		_, err = m.ask(ctx, g, "quit")
	}
	if ctx.Err() != nil {
		return
	}
	// A daemon that does not answer any more has ended by itself.
	m.mu.Lock()
	defer m.mu.Unlock()
	if len(g.kernels) > 0 {
		return
	}
	g.problem = ""
	delete(m.groups, g.name)
	if rerr := os.RemoveAll(filepath.Join(m.o.Dir, g.name)); rerr != nil {
		m.o.Log.Warn("the directory of an MPS daemon cannot be removed", "name", g.name, "err", rerr)
	}
	m.o.Log.Info("MPS serves no more shares of cards", "cards", g.daemon.Cards, "err", err)
}

// Keep starts daemons again that ended although kernels have shares of their cards, and ends those that serve nobody.
func (m *Manager) Keep(ctx context.Context) {
	m.mu.Lock()
	all := slices.Collect(maps.Values(m.groups))
	m.mu.Unlock()
	for _, g := range all {
		select {
		case g.turn <- struct{}{}:
		default:
			continue // somebody speaks with it
		}
		m.mu.Lock()
		n := len(g.kernels)
		m.mu.Unlock()
		shorten(g.daemon.Log)
		if n == 0 {
			m.end(ctx, g)
		} else {
			m.revive(ctx, g)
		}
		g.give()
	}
}

// revive starts a daemon that does not answer. The program itself refuses a second daemon while the first one lives. The caller has the
// turn.
func (m *Manager) revive(ctx context.Context, g *group) {
	_, err := m.ask(ctx, g, "get_server_list")
	if err != nil && ctx.Err() == nil {
		m.o.Log.Error("the MPS daemon of shared cards does not answer and is started; programs on them have failed",
			"cards", g.daemon.Cards, "err", err)
		if err = m.start(ctx, g); err == nil {
			err = m.limit(ctx, g)
		}
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	g.silent = err != nil
}

// maxLog bounds each log of a daemon, which writes a line for every connection of a program.
const maxLog = 4 << 20

// shorten empties logs that have become large. The daemon may write on behind what was cut, which leaves a hole: what counts is the room
// that a file takes.
func shorten(dir string) {
	for _, name := range []string{"control.log", "server.log"} {
		file := filepath.Join(dir, name)
		var st unix.Stat_t
		if unix.Stat(file, &st) == nil && st.Blocks*512 > maxLog {
			_ = os.Truncate(file, 0) // the next look tries again
		}
	}
}

// Prepared are the kernels that have shares.
func (m *Manager) Prepared() []cluster.KernelID {
	m.mu.Lock()
	defer m.mu.Unlock()
	var out []cluster.KernelID
	for _, g := range m.groups {
		out = slices.AppendSeq(out, maps.Keys(g.kernels))
	}
	slices.Sort(out)
	return out
}

// Problem says in words why no more shares of a card can be given out.
func (m *Manager) Problem(card string) string {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, name := range slices.Sorted(maps.Keys(m.groups)) {
		switch g := m.groups[name]; {
		case !slices.Contains(g.daemon.Cards, card):
		case g.problem != "":
			return g.problem
		case g.silent:
			return "the MPS daemon of its shares does not answer"
		}
	}
	return ""
}
