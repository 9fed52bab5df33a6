package docker

import (
	"bufio"
	"bytes"
	"fmt"
	"io/fs"
	"net"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/moby/moby/api/types/container"
	"golang.org/x/sys/unix"

	"berth.dev/berth/internal/agent/runtime"
)

// unlimited is how ulimits write "no limit".
const unlimited = -1

// limits knows which resource limits the engine can give to containers. An engine without
// CAP_SYS_RESOURCE (itself in a container, or in a restricted virtual machine) can only pass on
// its own hard limits; asking for more makes every start fail.
type limits struct {
	socket string

	mu     sync.Mutex
	probed bool
	// hard holds the engine's hard limits by ulimit name; nil when it may exceed them.
	hard    map[string]int64
	lowered map[string]runtime.Ulimit // what was asked and given less
}

// procNames maps the rows of /proc/PID/limits to ulimit names.
var procNames = map[string]string{
	"Max cpu time": "cpu", "Max file size": "fsize", "Max data size": "data", "Max stack size": "stack",
	"Max core file size": "core", "Max resident set": "rss", "Max processes": "nproc", "Max open files": "nofile",
	"Max locked memory": "memlock", "Max file locks": "locks", "Max pending signals": "sigpending",
	"Max msgqueue size": "msgqueue", "Max nice priority": "nice", "Max realtime priority": "rtprio",
}

// clamp returns what of want the engine can give, as the engine takes it.
func (l *limits) clamp(want []runtime.Ulimit) []*container.Ulimit {
	if len(want) == 0 {
		return nil
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.probe()
	out := make([]*container.Ulimit, 0, len(want))
	for _, u := range want {
		got := lower(u, l.hard)
		if got != u {
			if l.lowered == nil {
				l.lowered = map[string]runtime.Ulimit{}
			}
			l.lowered[u.Name] = u
		}
		out = append(out, &container.Ulimit{Name: got.Name, Soft: got.Soft, Hard: got.Hard})
	}
	return out
}

// lower bounds u by the hard limit of its name; names that hard does not hold are free.
func lower(u runtime.Ulimit, hard map[string]int64) runtime.Ulimit {
	h, ok := hard[u.Name]
	if !ok || h == unlimited {
		return u
	}
	if u.Hard == unlimited || u.Hard > h {
		u.Hard = h
	}
	if u.Soft == unlimited || u.Soft > u.Hard {
		u.Soft = u.Hard
	}
	return u
}

// probe looks at the engine's process once; a failed look is tried again the next time.
func (l *limits) probe() {
	if l.probed {
		return
	}
	pid, err := peer(l.socket)
	if err != nil {
		return
	}
	l.probed = true
	l.hard = engineLimits(os.DirFS("/proc"), pid)
}

// engineLimits returns the hard limits that bind the engine of that pid; nil means none are known.
func engineLimits(proc fs.FS, pid int) map[string]int64 {
	dir := strconv.Itoa(pid)
	status, err := fs.ReadFile(proc, dir+"/status")
	if err != nil {
		return nil
	}
	hard := map[string]int64{}
	if !hasCapability(status, unix.CAP_SYS_RESOURCE) {
		text, err := fs.ReadFile(proc, dir+"/limits")
		if err != nil {
			return nil
		}
		hard = parseLimits(text)
	}
	// Nobody may open more files than the kernel's own bound.
	if b, err := fs.ReadFile(proc, "sys/fs/nr_open"); err == nil {
		if n, err := strconv.ParseInt(strings.TrimSpace(string(b)), 10, 64); err == nil {
			if h, ok := hard["nofile"]; !ok || h == unlimited || h > n {
				hard["nofile"] = n
			}
		}
	}
	return hard
}

func hasCapability(status []byte, bit int) bool {
	for line := range strings.Lines(string(status)) {
		if v, ok := strings.CutPrefix(line, "CapEff:"); ok {
			mask, err := strconv.ParseUint(strings.TrimSpace(v), 16, 64)
			return err == nil && mask&(1<<uint(bit)) != 0
		}
	}
	return false
}

// parseLimits reads the hard column of /proc/PID/limits.
func parseLimits(text []byte) map[string]int64 {
	out := map[string]int64{}
	s := bufio.NewScanner(bytes.NewReader(text))
	for s.Scan() {
		for row, name := range procNames {
			rest, ok := strings.CutPrefix(s.Text(), row+" ")
			if !ok {
				continue
			}
			f := strings.Fields(rest)
			if len(f) < 2 {
				continue
			}
			if f[1] == "unlimited" {
				out[name] = unlimited
			} else if n, err := strconv.ParseInt(f[1], 10, 64); err == nil {
				out[name] = n
			}
		}
	}
	return out
}

// peer returns the pid of the process that listens on a unix socket.
func peer(socket string) (int, error) {
	conn, err := net.DialTimeout("unix", socket, time.Second)
	if err != nil {
		return 0, err
	}
	defer conn.Close()
	raw, err := conn.(*net.UnixConn).SyscallConn()
	if err != nil {
		return 0, err
	}
	var cred *unix.Ucred
	var credErr error
	if err := raw.Control(func(fd uintptr) {
		cred, credErr = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
	}); err != nil {
		return 0, err
	}
	if credErr != nil {
		return 0, credErr
	}
	return int(cred.Pid), nil
}

// warnings names the limits that sessions asked for and did not get.
func (l *limits) warnings() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.probe()
	var out []string
	for name, u := range l.lowered {
		out = append(out, fmt.Sprintf("ulimit %s is lowered from %s to %s: the engine itself has no more", name, amount(u.Hard),
			amount(l.hard[name])))
	}
	slices.Sort(out)
	return out
}

func amount(n int64) string {
	if n == unlimited {
		return "unlimited"
	}
	return strconv.FormatInt(n, 10)
}

// readNUMA returns the node of every core; nil when the kernel does not tell.
func readNUMA(node fs.FS) map[int]int {
	dirs, err := fs.Glob(node, "node[0-9]*")
	if err != nil || len(dirs) == 0 {
		return nil
	}
	out := map[int]int{}
	for _, d := range dirs {
		n, err := strconv.Atoi(strings.TrimPrefix(d, "node"))
		if err != nil {
			continue
		}
		b, err := fs.ReadFile(node, d+"/cpulist")
		if err != nil {
			continue
		}
		for _, c := range parseCPUList(strings.TrimSpace(string(b))) {
			out[c] = n
		}
	}
	return out
}

// parseCPUList reads "0-2,5"; unreadable parts are left out.
func parseCPUList(s string) []int {
	var out []int
	for part := range strings.SplitSeq(s, ",") {
		from, to, isRange := strings.Cut(part, "-")
		if !isRange {
			to = from
		}
		a, err1 := strconv.Atoi(from)
		b, err2 := strconv.Atoi(to)
		if err1 != nil || err2 != nil || b-a > 1<<16 {
			continue
		}
		for c := a; c <= b; c++ {
			out = append(out, c)
		}
	}
	return out
}

// cpusets renders the cores for the engine, and the memory node when all cores belong to one.
func cpusets(cores []int, numa map[int]int) (cpus, mems string) {
	sorted := slices.Sorted(slices.Values(cores))
	texts := make([]string, len(sorted))
	node, single := -1, len(sorted) > 0
	for i, c := range sorted {
		texts[i] = strconv.Itoa(c)
		n, ok := numa[c]
		single = single && ok && (i == 0 || n == node)
		node = n
	}
	if single {
		mems = strconv.Itoa(node)
	}
	return strings.Join(texts, ","), mems
}
