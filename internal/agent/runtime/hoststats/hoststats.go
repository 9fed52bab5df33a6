// Package hoststats reads what one container used, straight from this host's cgroups (version 1 or 2)
// and /proc. It asks no engine and holds no history; rates are the reader's business.
// Container runtimes call it.
package hoststats

import (
	"bufio"
	"bytes"
	"io/fs"
	"os"
	"path"
	"strconv"
	"strings"
	"sync"
	"time"

	"berth.dev/berth/internal/agent/runtime"
	"berth.dev/berth/internal/fault"
)

// maxKnown bounds the remembered paths; beyond it they are found again.
const maxKnown = 4096

// Reader reads counters. It remembers where the cgroups of each container are.
type Reader struct {
	root fs.FS
	now  func() time.Time

	mu     sync.Mutex
	mounts []cgroupMount
	known  map[string]groups // by container id
}

// New returns a reader of the host whose file system begins at root ("/" outside tests).
func New(root string) *Reader {
	return &Reader{root: os.DirFS(root), now: time.Now, known: map[string]groups{}}
}

// cgroupMount is one mounted hierarchy.
type cgroupMount struct {
	point       string   // where, without leading slash
	root        string   // what of the hierarchy is mounted there
	controllers []string // empty for version 2
	v2          bool
}

// groups says where a container's files are; empty where a controller is not mounted.
type groups struct {
	v2                              string
	cpu, cpuacct, memory, pids, blk string
}

// Read returns the counters of the container of that id whose PID 1 is pid. A process
// that is not (or no longer) in that container is NotFound: pids are reused.
func (r *Reader) Read(id string, pid int) (runtime.Stats, error) {
	g, err := r.find(id, pid)
	if err != nil {
		return runtime.Stats{}, err
	}
	s := runtime.Stats{At: r.now()}
	if g.v2 != "" {
		r.readV2(g.v2, &s)
	}
	r.readV1(g, &s)
	if s.MemoryBytes == nil && s.CPUUsedNs == nil && s.Pids == nil {
		r.forget(id)
		return runtime.Stats{}, fault.NotFoundf("the control groups of container %s are gone", short(id))
	}
	s.NetRxBytes, s.NetTxBytes = r.network(pid)
	return s, nil
}

func (r *Reader) forget(id string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.known, id)
}

// find returns the container's groups, looking them up once.
func (r *Reader) find(id string, pid int) (groups, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if g, ok := r.known[id]; ok {
		return g, nil
	}
	gone := func() (groups, error) {
		return groups{}, fault.NotFoundf("process %d is not in container %s", pid, short(id))
	}
	text, err := fs.ReadFile(r.root, "proc/"+strconv.Itoa(pid)+"/cgroup")
	if err != nil || id == "" || !bytes.Contains(text, []byte(id)) {
		return gone()
	}
	if r.mounts == nil {
		info, err := fs.ReadFile(r.root, "proc/self/mountinfo")
		if err != nil {
			return groups{}, fault.Unavailablef("read the list of mounts").WithCause(err)
		}
		r.mounts = parseMounts(string(info))
	}
	var g groups
	for line := range strings.Lines(string(text)) {
		// hierarchy-id:controller,controller:/path
		f := strings.SplitN(strings.TrimSuffix(line, "\n"), ":", 3)
		if len(f) != 3 || !strings.Contains(f[2], id) {
			continue
		}
		for _, m := range r.mounts {
			dir, ok := m.resolve(upTo(f[2], id))
			if !ok {
				continue
			}
			if f[1] == "" && m.v2 {
				g.v2 = dir
			}
			for c := range strings.SplitSeq(f[1], ",") {
				if m.v2 || !m.has(c) {
					continue
				}
				switch c {
				case "cpuacct":
					g.cpuacct = dir
				case "cpu":
					g.cpu = dir
				case "memory":
					g.memory = dir
				case "pids":
					g.pids = dir
				case "blkio":
					g.blk = dir
				}
			}
		}
	}
	if g == (groups{}) {
		return gone()
	}
	if len(r.known) >= maxKnown {
		clear(r.known)
	}
	r.known[id] = g
	return g, nil
}

// UserGroup is the name of the group below a container's in which the processes of the session's user are, where there is one.
const UserGroup = "berth-user"

// Dirs are the directories of a container's groups, relative to the reader's root; empty where there is none.
type Dirs struct{ V2, CPU, Memory, Pids string }

// Dirs finds the groups of the container of that id whose PID 1 is pid.
func (r *Reader) Dirs(id string, pid int) (Dirs, error) {
	g, err := r.find(id, pid)
	return Dirs{V2: g.v2, CPU: g.cpu, Memory: g.memory, Pids: g.pids}, err
}

// upTo cuts a path of a hierarchy behind the directory that is named after a container: its processes can be in groups below.
func upTo(p, id string) string {
	if end := strings.Index(p[strings.Index(p, id):], "/"); end >= 0 {
		return p[:strings.Index(p, id)+end]
	}
	return p
}

func short(id string) string { return id[:min(12, len(id))] }

func (m cgroupMount) has(controller string) bool {
	for _, c := range m.controllers {
		if c == controller {
			return true
		}
	}
	return false
}

// resolve turns a path of the hierarchy into one below the reader's root.
func (m cgroupMount) resolve(p string) (string, bool) {
	rel, ok := strings.CutPrefix(p, strings.TrimSuffix(m.root, "/"))
	if !ok {
		return "", false
	}
	return path.Join(m.point, rel), true
}

// parseMounts reads the cgroup lines of mountinfo:
// id parent major:minor root point options [optional...] - fstype source superoptions
func parseMounts(text string) []cgroupMount {
	var out []cgroupMount
	for line := range strings.Lines(text) {
		left, right, ok := strings.Cut(line, " - ")
		l, rt := strings.Fields(left), strings.Fields(right)
		if !ok || len(l) < 5 || len(rt) < 3 {
			continue
		}
		m := cgroupMount{root: l[3], point: strings.TrimPrefix(l[4], "/")}
		switch rt[0] {
		case "cgroup2":
			m.v2 = true
		case "cgroup":
			m.controllers = strings.Split(rt[2], ",")
		default:
			continue
		}
		out = append(out, m)
	}
	return out
}

func (r *Reader) readV2(dir string, s *runtime.Stats) {
	if us := r.field(dir+"/cpu.stat", "usage_usec"); us != nil {
		ns := *us * 1000
		s.CPUUsedNs = &ns
	}
	s.CPUWaitNs = r.waited(dir + "/cpu.pressure")
	s.MemoryBytes = less(r.number(dir+"/memory.current"), r.field(dir+"/memory.stat", "inactive_file"))
	s.MemoryPeak = r.number(dir + "/memory.peak")
	s.Pids = r.number(dir + "/pids.current")
	s.OOMKills = r.field(dir+"/memory.events", "oom_kill")
	if text, err := fs.ReadFile(r.root, dir+"/io.stat"); err == nil {
		var read, write int64
		for _, f := range strings.Fields(string(text)) {
			k, v, _ := strings.Cut(f, "=")
			n, err := strconv.ParseInt(v, 10, 64)
			switch {
			case err != nil:
			case k == "rbytes":
				read += n
			case k == "wbytes":
				write += n
			}
		}
		s.IOReadBytes, s.IOWriteByte = &read, &write
	}
}

func (r *Reader) readV1(g groups, s *runtime.Stats) {
	if g.cpuacct != "" {
		s.CPUUsedNs = r.number(g.cpuacct + "/cpuacct.usage")
	}
	if g.memory != "" {
		s.MemoryBytes = less(r.number(g.memory+"/memory.usage_in_bytes"), r.field(g.memory+"/memory.stat", "total_inactive_file"))
		s.MemoryPeak = r.number(g.memory + "/memory.max_usage_in_bytes")
		s.OOMKills = r.field(g.memory+"/memory.oom_control", "oom_kill")
		// Version 1 counts each group alone.
		if user := r.field(g.memory+"/"+UserGroup+"/memory.oom_control", "oom_kill"); user != nil && s.OOMKills != nil {
			*s.OOMKills += *user
		}
	}
	if g.pids != "" {
		s.Pids = r.number(g.pids + "/pids.current")
	}
	if g.blk != "" {
		for _, file := range []string{"/blkio.throttle.io_service_bytes_recursive", "/blkio.throttle.io_service_bytes"} {
			text, err := fs.ReadFile(r.root, g.blk+file)
			if err != nil {
				continue
			}
			read, write := sumBlkio(text)
			s.IOReadBytes, s.IOWriteByte = &read, &write
			break
		}
	}
}

// sumBlkio adds up lines "8:0 Read 4096".
func sumBlkio(text []byte) (read, write int64) {
	sc := bufio.NewScanner(bytes.NewReader(text))
	for sc.Scan() {
		f := strings.Fields(sc.Text())
		if len(f) != 3 {
			continue
		}
		n, err := strconv.ParseInt(f[2], 10, 64)
		switch {
		case err != nil:
		case f[1] == "Read":
			read += n
		case f[1] == "Write":
			write += n
		}
	}
	return read, write
}

// network sums the interfaces of the process's network namespace, loopback left out.
func (r *Reader) network(pid int) (rx, tx *int64) {
	text, err := fs.ReadFile(r.root, "proc/"+strconv.Itoa(pid)+"/net/dev")
	if err != nil {
		return nil, nil
	}
	var in, out int64
	seen := false
	for line := range strings.Lines(string(text)) {
		name, rest, ok := strings.Cut(line, ":")
		f := strings.Fields(rest)
		if !ok || len(f) < 16 {
			continue
		}
		seen = true
		if strings.TrimSpace(name) == "lo" {
			continue
		}
		a, err1 := strconv.ParseInt(f[0], 10, 64)
		b, err2 := strconv.ParseInt(f[8], 10, 64)
		if err1 != nil || err2 != nil {
			return nil, nil
		}
		in, out = in+a, out+b
	}
	if !seen {
		return nil, nil
	}
	return &in, &out
}

// less subtracts the part of usage that the kernel can take back at once; without it, the
// usage stands.
func less(usage, cache *int64) *int64 {
	if usage == nil || cache == nil {
		return usage
	}
	n := max(*usage-*cache, 0)
	return &n
}

// number reads a file that holds one number; nil when it is absent or says "max".
func (r *Reader) number(file string) *int64 {
	b, err := fs.ReadFile(r.root, file)
	if err != nil {
		return nil
	}
	n, err := strconv.ParseInt(strings.TrimSpace(string(b)), 10, 64)
	if err != nil {
		return nil
	}
	return &n
}

// waited reads the total of the line "some" of a file of pressure (Documentation/accounting/psi.rst of Linux, in microseconds). It counts
// time in which a limit of processor time kept a process from running, too. Where version 1 limits processor time, groups of version 2
// tell of pressure all the same; a kernel without it has no such file.
func (r *Reader) waited(file string) *int64 {
	b, err := fs.ReadFile(r.root, file)
	if err != nil {
		return nil
	}
	for line := range strings.Lines(string(b)) {
		rest, ok := strings.CutPrefix(line, "some ")
		if !ok {
			continue
		}
		for _, f := range strings.Fields(rest) {
			if total, ok := strings.CutPrefix(f, "total="); ok {
				if us, err := strconv.ParseInt(total, 10, 64); err == nil {
					ns := us * 1000
					return &ns
				}
			}
		}
	}
	return nil
}

// field reads one "name value" line of a file.
func (r *Reader) field(file, name string) *int64 {
	b, err := fs.ReadFile(r.root, file)
	if err != nil {
		return nil
	}
	for line := range strings.Lines(string(b)) {
		k, v, ok := strings.Cut(line, " ")
		if !ok || k != name {
			continue
		}
		n, err := strconv.ParseInt(strings.TrimSpace(v), 10, 64)
		if err != nil {
			return nil
		}
		return &n
	}
	return nil
}
