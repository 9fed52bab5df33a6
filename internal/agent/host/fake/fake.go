// Package fake is a host.Host for tests of the keeper: plain files below one directory, folders that are only remembered,
// and runners that somebody else serves. What it holds outlives the keeper that uses it, as on a real machine. It can be
// full, and folders can be unreachable.
package fake

import (
	"context"
	"encoding/json"
	"maps"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"sync"

	"berth.dev/berth/internal/agent/host"
	"berth.dev/berth/internal/agent/runtime"
	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/fault"
	"berth.dev/berth/internal/wire/run"
)

// Host keeps each kernel in a directory of its name, with the parts work, private, config and etc.
type Host struct {
	dir  string
	dial func(ctx context.Context, kernel cluster.KernelID) (net.Conn, error)

	mu       sync.Mutex
	full     bool
	refused  error // of Attach
	unmapped bool  // files of folders keep their owner
	distrust error // of Verify
	attached map[cluster.KernelID][]runtime.Mount
	owners   []host.Owner // of every Attach
	gone     int
	unable   error // of Withhold
	withheld map[cluster.KernelID][]cluster.Withheld
	keys     map[cluster.KernelID][]string
	peers    map[cluster.KernelID][]run.PeersRequest
	notices  []string
}

var _ host.Host = (*Host)(nil)

// New returns a host that keeps files below dir and reaches runners by dial.
func New(dir string, dial func(ctx context.Context, kernel cluster.KernelID) (net.Conn, error)) *Host {
	return &Host{dir: dir, dial: dial, attached: map[cluster.KernelID][]runtime.Mount{},
		withheld: map[cluster.KernelID][]cluster.Withheld{}, keys: map[cluster.KernelID][]string{},
		peers: map[cluster.KernelID][]run.PeersRequest{}}
}

// Path is where a part of a kernel's files is.
func (h *Host) Path(kernel cluster.KernelID, elem ...string) string {
	return filepath.Join(append([]string{h.dir, string(kernel)}, elem...)...)
}

// Fill makes every Prepare fail for want of space.
func (h *Host) Fill() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.full = true
}

// Refuse makes every Attach fail half-way; nil ends that.
func (h *Host) Refuse(err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.refused = err
}

// KeepOwners makes files of folders keep their owner, as on a file system that cannot map them.
func (h *Host) KeepOwners() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.unmapped = true
}

// Attached counts the kernels that have folders attached.
func (h *Host) Attached() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return len(h.attached)
}

// Owners are the owners of every Attach that succeeded, in order.
func (h *Host) Owners() []host.Owner {
	h.mu.Lock()
	defer h.mu.Unlock()
	return slices.Clone(h.owners)
}

// Attach remembers folders; see host.Host.
func (h *Host) Attach(_ context.Context, kernel cluster.KernelID, o host.Owner, folders []cluster.FolderMount) ([]runtime.Mount, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.attached, kernel)
	if len(folders) == 0 {
		return nil, nil
	}
	h.attached[kernel] = nil // half of it
	if h.refused != nil {
		return nil, h.refused
	}
	if o.Own && h.unmapped {
		return nil, fault.Invalidf("the files of volume %s keep their owner", folders[0].Host).WithReason(host.ReasonShared)
	}
	var out []runtime.Mount
	for _, f := range folders {
		if f.Host == "" {
			return nil, fault.NotFoundf("folder %s is on no volume", f.Name)
		}
		out = append(out, runtime.Mount{Source: filepath.Join("/mounts", string(kernel), f.Name), Target: f.Target, ReadOnly: !f.Perm.CanWrite()})
	}
	h.attached[kernel], h.owners = out, append(h.owners, o)
	return slices.Clone(out), nil
}

// Detach forgets attached folders; see host.Host.
func (h *Host) Detach(kernel cluster.KernelID) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.attached, kernel)
	return nil
}

// Prepare writes a kernel's files; see host.Host.
func (h *Host) Prepare(kernel cluster.KernelID, c host.Content) ([]runtime.Mount, error) {
	h.mu.Lock()
	full := h.full
	h.mu.Unlock()
	if full {
		return nil, fault.Exhaustedf("the disk of the agent's scratch directory is full").WithReason("scratch-full").WithNext("free space")
	}
	generation := strconv.FormatInt(c.Generation, 10)
	if have, err := os.ReadFile(h.Path(kernel, "generation")); err != nil || string(have) != generation {
		for _, part := range []string{"private", "config", "etc"} {
			if err := os.RemoveAll(h.Path(kernel, part)); err != nil {
				return nil, err
			}
		}
	}
	files := []host.File{
		{Path: "generation", Data: []byte(generation), Mode: 0o600}, {Path: "private/runner", Mode: 0o755},
		{Path: "etc/passwd", Data: c.Passwd, Mode: 0o644}, {Path: "etc/group", Data: c.Group, Mode: 0o644},
	}
	for _, f := range c.Config {
		f.Path = "config/" + f.Path
		files = append(files, f)
	}
	for _, f := range c.Work {
		f.Path = "work/" + f.Path
		if _, err := os.Lstat(h.Path(kernel, f.Path)); err != nil || f.Replace {
			files = append(files, f)
		}
	}
	for _, p := range c.Points() {
		for _, step := range runtime.Steps(p) {
			if st, err := os.Lstat(h.Path(kernel, "work", step)); err == nil && !st.IsDir() {
				return nil, fault.Invalidf("%s is no directory", step).WithReason(cluster.ReasonTarget)
			}
		}
	}
	for _, part := range append([]string{"work", "config"}, inWork(c.Points())...) {
		if err := os.MkdirAll(h.Path(kernel, part), 0o755); err != nil {
			return nil, err
		}
	}
	for _, f := range files {
		if err := write(h.Path(kernel, f.Path), f); err != nil {
			return nil, err
		}
	}
	if err := run.WriteConfig(h.Path(kernel, "private", host.ConfigName), c.Runner); err != nil {
		return nil, err
	}
	mounts := append([]runtime.Mount{
		{Source: h.Path(kernel, "work"), Target: host.Home},
		{Source: h.Path(kernel, "config"), Target: host.ConfigDir, ReadOnly: true},
		{Source: h.Path(kernel, "etc", "passwd"), Target: "/etc/passwd", ReadOnly: true},
		{Source: h.Path(kernel, "etc", "group"), Target: "/etc/group", ReadOnly: true},
	}, c.Folders...)
	return append(mounts, runtime.Mount{Source: h.Path(kernel, "private"), Target: host.PrivateDir}), nil
}

func inWork(points []string) []string {
	var out []string
	for _, p := range points {
		out = append(out, filepath.Join("work", p))
	}
	return out
}

func write(path string, f host.File) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	return os.WriteFile(path, f.Data, f.Mode)
}

// AddConfig writes one more file; see host.Host.
func (h *Host) AddConfig(kernel cluster.KernelID, f host.File) error {
	if _, err := os.Stat(h.Path(kernel, "config")); err != nil {
		return err
	}
	return write(h.Path(kernel, "config", f.Path), f)
}

// Runner reads the runner's configuration back; see host.Host.
func (h *Host) Runner(kernel cluster.KernelID) (out run.Config, _ error) {
	return out, read(h.Path(kernel, "private", host.ConfigName), &out)
}

// Result reads the result of a batch job; see host.Host.
func (h *Host) Result(kernel cluster.KernelID) (*run.BatchResult, error) {
	var out run.BatchResult
	if st, err := os.Stat(h.Path(kernel, "private", "result.json")); os.IsNotExist(err) || err == nil && st.Size() == 0 {
		return nil, nil
	}
	if err := read(h.Path(kernel, "private", "result.json"), &out); err != nil {
		return nil, err
	}
	return &out, nil
}

// Traces reads a runner's markers; see host.Host.
func (h *Host) Traces(kernel cluster.KernelID, generation int64) (out host.Traces, err error) {
	have, err := os.ReadFile(h.Path(kernel, "generation"))
	if os.IsNotExist(err) || err == nil && string(have) != strconv.FormatInt(generation, 10) {
		return host.Traces{Absent: true}, nil
	}
	if err != nil {
		return host.Traces{}, err
	}
	_, started := os.Lstat(h.Path(kernel, "private", run.StartedName))
	_, ended := os.Lstat(h.Path(kernel, "private", run.EndedName))
	return host.Traces{Started: started == nil, Ended: ended == nil}, nil
}

func read(path string, into any) error {
	b, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	return json.Unmarshal(b, into)
}

// Hello greets a runner; see host.Host.
func (h *Host) Hello(ctx context.Context, kernel cluster.KernelID, _ int64, token string) (run.Hello, error) {
	t := &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return h.dial(ctx, kernel)
	}}
	return run.NewClient(run.Options{Transport: t, BaseURL: "http://runner", Token: token}).Hello(ctx)
}

// Distrust makes every Verify fail.
func (h *Host) Distrust(err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.distrust = err
}

// Verify believes every runner unless it is told not to; see host.Host.
func (h *Host) Verify(runtime.Observed) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.distrust
}

// Confine does nothing, because there are no processes; see host.Host.
func (h *Host) Confine(context.Context, cluster.KernelID, string, runtime.Observed) error { return nil }

// Resist makes every Withhold fail; nil ends that.
func (h *Host) Resist(err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.unable = err
}

// Withhold remembers what a container lost; see host.Host.
func (h *Host) Withhold(_ context.Context, c runtime.Observed, list []cluster.Withheld) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.unable != nil {
		return h.unable
	}
	h.withheld[c.Identity.Kernel] = append(h.withheld[c.Identity.Kernel], list...)
	return nil
}

// Withheld is what a container lost, in order.
func (h *Host) Withheld(kernel cluster.KernelID) []cluster.Withheld {
	h.mu.Lock()
	defer h.mu.Unlock()
	return slices.Clone(h.withheld[kernel])
}

// SetKeys remembers SSH keys; see host.Host.
func (h *Host) SetKeys(_ context.Context, kernel cluster.KernelID, _ string, keys []string) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.unable != nil {
		return h.unable
	}
	h.keys[kernel] = slices.Clone(keys)
	return nil
}

// Keys are the SSH keys that a runner was told last, nil for none.
func (h *Host) Keys(kernel cluster.KernelID) []string {
	h.mu.Lock()
	defer h.mu.Unlock()
	return slices.Clone(h.keys[kernel])
}

// SetPeers remembers what a runner was told of the others of its session; see host.Host.
func (h *Host) SetPeers(_ context.Context, kernel cluster.KernelID, _ string, req run.PeersRequest) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.unable != nil {
		return h.unable
	}
	h.peers[kernel] = append(h.peers[kernel], req)
	return nil
}

// Peers are what a runner was told of the others of its session, in order.
func (h *Host) Peers(kernel cluster.KernelID) []run.PeersRequest {
	h.mu.Lock()
	defer h.mu.Unlock()
	return slices.Clone(h.peers[kernel])
}

// Notice remembers a text; see host.Host.
func (h *Host) Notice(_ context.Context, _ cluster.KernelID, _, text string) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.notices = append(h.notices, text)
	return nil
}

// Notices are the texts that were shown.
func (h *Host) Notices() []string {
	h.mu.Lock()
	defer h.mu.Unlock()
	return slices.Clone(h.notices)
}

// Forget has nothing to drop; see host.Host.
func (h *Host) Forget(cluster.KernelID, int64) {}

// List names the kernels that have files or folders here; see host.Host.
func (h *Host) List() ([]cluster.KernelID, error) {
	entries, err := os.ReadDir(h.dir)
	if err != nil && !os.IsNotExist(err) {
		return nil, err
	}
	h.mu.Lock()
	out := slices.Collect(maps.Keys(h.attached))
	h.mu.Unlock()
	for _, e := range entries {
		out = append(out, cluster.KernelID(e.Name()))
	}
	slices.Sort(out)
	return slices.Compact(out), nil
}

// Release takes everything of a kernel away; see host.Host.
func (h *Host) Release(kernel cluster.KernelID) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.attached, kernel)
	h.gone++
	away := filepath.Join(h.away(), strconv.Itoa(h.gone))
	if err := os.MkdirAll(h.away(), 0o755); err != nil {
		return err
	}
	err := os.Rename(h.Path(kernel), away)
	if os.IsNotExist(err) {
		return nil
	}
	return err
}

// away is where released files wait for Reap.
func (h *Host) away() string {
	return filepath.Join(filepath.Dir(h.dir), ".gone-"+filepath.Base(h.dir))
}

// Reap deletes what was released; see host.Host.
func (h *Host) Reap(context.Context) error {
	h.mu.Lock() // the directory must not go while something is put into it
	defer h.mu.Unlock()
	return os.RemoveAll(h.away())
}
