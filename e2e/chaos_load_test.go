package e2e_test

import (
	"bufio"
	"encoding/json"
	"fmt"
	"maps"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/stretchr/testify/require"

	"berth.dev/berth/internal/cluster"
)

// workload is what the cluster does for its users while it is broken. Each kind of work has a method that tells what of its promise
// does not hold, "" when it holds; what may need a moment is asked again.
type workload struct {
	*fragile
	began  time.Time
	lines  string // the file that every job appends to
	memory int    // MiB, more than half of what an agent has

	mu   sync.Mutex
	jobs map[string]*job

	uploads int // that were acknowledged
	writer  string
	gateway string
	stream  net.Conn
	heard   *bufio.Reader
	sent    int
	turns   int
	// holder is ended by force during a fault, and heir gets its room at the agent handed.
	holder, heir, handed string
}

// job is a batch session that appends its name to a file in a folder.
type job struct {
	acknowledged bool
	healthy      bool // it was asked for while nothing was broken, so it must succeed
}

// works are the loads, and what is checked of each. A check is made again while the cluster finds its feet, unless it is made once.
var works = []struct {
	name, promise string
	broken        func(*workload) string
	once          bool
}{
	{"kernel", "a Python kernel still has the variable that was set before the first fault", (*workload).kernelBroken, false},
	{"writer", "a process of a session lives on and has every number on disk, in order, once", (*workload).writerBroken, false},
	{"jobs", "every acknowledged batch job has ended, with success where nothing was broken when it came, else with a word; what " +
		"succeeded has its line in the folder once, nothing has it twice, and no container was started twice", (*workload).jobsBroken, false},
	{"uploads", "what an upload acknowledged is there in full, in every later round", (*workload).uploadsBroken, false},
	{"stream", "a TCP stream into a session carries lines in order; one that broke can be opened again", (*workload).streamBroken, false},
	{"handover", "the room of a session that was ended by force during the fault is given on, once it is free, and who gets it runs",
		(*workload).handoverBroken, true},
	{"turnover", "the room of a session that was ended by force while it started is given on, and who gets it runs",
		(*workload).turnoverBroken, true},
}

func newWorkload(f *fragile) *workload {
	f.t.Helper()
	l := &workload{fragile: f, began: time.Now(), jobs: map[string]*job{}}
	at := []string{"--agent", chaosAgents[1]}
	folder := strings.ReplaceAll(strings.TrimSpace(f.must("folder", "create", "lines")), "-", "")
	require.Len(f.t, folder, 32)
	found, err := filepath.Glob(filepath.Join(f.home, "volume", "*", folder[:2], folder[2:4], folder[4:]))
	require.NoError(f.t, err)
	require.Len(f.t, found, 1)
	l.lines = filepath.Join(found[0], "all")
	f.must(append([]string{"session", "create", "python", "--name", "kernel", "-r", "cpu=1", "-r", "mem=512m"}, at...)...)
	f.must("run", "python", "--name", "kernel", "-c", "x = 4711")
	f.must(append([]string{"session", "create", "python", "--name", "writer", "-r", "cpu=1", "-r", "mem=256m"}, at...)...)
	r := f.run(numbers, "session", "exec", "-i", "writer", "--", "sh", "-c", "cat > program && (setsid python3 program & echo $! > pid)")
	require.Zero(f.t, r.code, r.stderr)
	l.writer = strings.TrimSpace(f.must("session", "exec", "writer", "--", "cat", "pid"))
	l.gateway = newConsole(f.t, f.env()).gateway(f.demo("demo"), "echo")
	l.memory = hostMemory(f) * 6 / 10
	return l
}

// hostMemory is the memory of this host in MiB.
func hostMemory(f *fragile) int {
	f.t.Helper()
	text, err := os.ReadFile("/proc/meminfo")
	require.NoError(f.t, err)
	for line := range strings.Lines(string(text)) {
		if rest, ok := strings.CutPrefix(line, "MemTotal:"); ok {
			n, err := strconv.Atoi(strings.Fields(rest)[0])
			require.NoError(f.t, err)
			return n / 1024
		}
	}
	f.t.Fatal("/proc/meminfo has no MemTotal")
	return 0
}

// numbers writes one number after the other, each safe on disk before the next. Its file has no name of a module: an interpreter that
// starts in the same directory would import it.
const numbers = `
import os, time
n = 0
with open("numbers", "a") as f:
    while True:
        n += 1
        f.write(f"{n}\n"); f.flush(); os.fsync(f.fileno())
        time.sleep(0.05)
`

// Jobs that are under way when a fault begins: how long they take, and how many come for each agent as it begins.
const (
	jobTime  = 20 // seconds
	jobBurst = 4
)

// submit asks for a batch job of some seconds, on the n-th agent or, after the last of them, on any. Its answer may not come.
func (l *workload) submit(n, seconds int, healthy bool) (name string) {
	l.mu.Lock()
	name = fmt.Sprintf("job-%04d", len(l.jobs))
	j := &job{}
	l.jobs[name] = j
	l.mu.Unlock()
	args := []string{"session", "create", "python", "--detach", "--no-reuse", "--name", name, "-v", "lines", "-r", "cpu=1", "-r", "mem=128m",
		"--batch", fmt.Sprintf("echo %s >> /home/work/lines/all; sleep %d", name, seconds)}
	if n %= len(chaosAgents) + 1; n < len(chaosAgents) {
		args = append(args, "--agent", chaosAgents[n])
	}
	r, ended := l.attempt(10*time.Second, args...)
	l.mu.Lock()
	defer l.mu.Unlock()
	j.acknowledged = ended && r.code == 0
	j.healthy = healthy && j.acknowledged
	return name
}

// underway gives every agent a job that runs when it returns.
func (l *workload) underway() {
	var names []string
	for n := range chaosAgents {
		names = append(names, l.submit(n, jobTime, false))
	}
	l.become("RUNNING", names...)
}

// become waits a bounded time until sessions have a status. What does not get there is the checks' business.
func (l *workload) become(status string, names ...string) (ok bool) {
	for deadline := time.Now().Add(patience); time.Now().Before(deadline); <-time.After(200 * time.Millisecond) {
		ok = true
		for _, name := range names {
			ok = ok && l.look(name).Status == status
		}
		if ok {
			return true
		}
	}
	return false
}

// look is what is known of a session; nothing while nobody answers.
func (l *workload) look(name string) (s sessionRow) {
	r, _ := l.attempt(30*time.Second, "session", "info", name, "--json")
	_ = json.Unmarshal([]byte(r.stdout), &s)
	return s
}

// burst asks for jobs on every agent at one time: some of them have not started, some are starting and some run when the fault begins.
func (l *workload) burst() (wait func()) {
	var group sync.WaitGroup
	for n := range jobBurst * len(chaosAgents) {
		group.Go(func() { l.submit(n%len(chaosAgents), jobTime, false) })
	}
	return group.Wait
}

// room creates a session that needs more than half of an agent.
func (l *workload) room(name, agent string) result {
	r, _ := l.attempt(30*time.Second, "session", "create", "python", "--detach", "--name", name, "--agent", agent, "-r", "cpu=1",
		"-r", fmt.Sprintf("mem=%dm", l.memory))
	return r
}

// handing gives an agent a session that takes most of it, and returns what is done while the agent is broken for a while: the session is
// ended by force, and another one waits for its room. An end that nobody acknowledged may not have come to pass, so it is asked for again
// before the other one comes: that one and all behind it would wait for a session that nobody ended.
func (l *workload) handing(agent string, lasts time.Duration) (during func()) {
	l.turns++
	l.holder, l.heir = fmt.Sprintf("turn-%d", l.turns), fmt.Sprintf("turn-%d-heir", l.turns)
	l.handed = agent
	l.room(l.holder, agent)
	l.become("RUNNING", l.holder)
	return func() {
		for end := time.Now().Add(lasts + patience); !l.force(l.holder) && time.Now().Before(end); <-time.After(200 * time.Millisecond) {
		}
		l.room(l.heir, agent)
	}
}

// force ends a session by force, and reports whether it has been acknowledged that there is none.
func (l *workload) force(name string) bool {
	r, _ := l.attempt(30*time.Second, "session", "rm", "--force", "--yes", name)
	return r.code == 0 || r.code == 3 // of no such session
}

// handoverBroken: the session that waited for the room runs, and was not placed where it had no room yet.
func (l *workload) handoverBroken() string {
	if l.look(l.heir).ID == "" { // nobody answered while the fault lasted: it is asked for now
		l.force(l.holder)
		if r := l.room(l.heir, l.handed); r.code != 0 {
			return "no session can be created: " + r.stderr
		}
	}
	if s := l.look(l.holder); s.Status == "RUNNING" {
		l.force(l.holder)
	}
	defer l.force(l.heir)
	if !l.become("RUNNING", l.heir) {
		s := l.look(l.heir)
		return fmt.Sprintf("session %s, whose room was given free during the fault, is %s %s", l.heir, s.Status, s.Info)
	}
	r, _ := l.attempt(30*time.Second, "session", "events", l.heir, "--json")
	if strings.Contains(r.stdout, string(cluster.ReasonBusy)) {
		return fmt.Sprintf("session %s was placed where another one still held the room", l.heir)
	}
	return ""
}

// submitting asks for a job every few seconds until stop is called.
func (l *workload) submitting() (stop func()) {
	quit := make(chan struct{})
	var group sync.WaitGroup
	group.Go(func() {
		pause := time.NewTicker(3 * time.Second)
		defer pause.Stop()
		for n := 0; n < 60; n++ { // a bound: a long fault gets no more jobs after three minutes
			l.submit(n, n%4, false)
			select {
			case <-pause.C:
			case <-quit:
				return
			}
		}
	})
	return func() { close(quit); group.Wait() }
}

func (l *workload) kernelBroken() string {
	r, _ := l.attempt(30*time.Second, "run", "python", "--name", "kernel", "-c", "print(x)")
	if r.code != 0 || strings.TrimSpace(r.stdout) != "4711" {
		return fmt.Sprintf("the kernel answered %q %q", r.stdout, r.stderr)
	}
	return ""
}

func (l *workload) writerBroken() string {
	r, _ := l.attempt(30*time.Second, "session", "exec", "writer", "--", "sh", "-c", "kill -0 "+l.writer+" && cat numbers")
	if r.code != 0 {
		return "the writer is gone: " + r.stderr
	}
	for i, line := range strings.Fields(r.stdout) {
		if line != strconv.Itoa(i+1) {
			return fmt.Sprintf("line %d of the writer is %q", i+1, line)
		}
	}
	return ""
}

func (l *workload) jobsBroken() string {
	r, _ := l.attempt(30*time.Second, "session", "list", "--all", "--json")
	var rows []sessionRow
	if err := json.Unmarshal([]byte(r.stdout), &rows); err != nil {
		return fmt.Sprintf("sessions cannot be listed: %v %s", err, r.stderr)
	}
	sessions := map[string]sessionRow{}
	for _, s := range rows {
		sessions[s.Name] = s
	}
	text, err := os.ReadFile(l.lines)
	if err != nil {
		return err.Error()
	}
	written := map[string]int{}
	for _, line := range strings.Fields(string(text)) {
		written[line]++
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, name := range slices.Sorted(maps.Keys(l.jobs)) {
		j := l.jobs[name]
		s, there := sessions[name]
		succeeded := s.Status == "TERMINATED" && s.Result == "SUCCESS"
		switch {
		case written[name] > 1:
			return fmt.Sprintf("job %s ran %d times", name, written[name])
		case !there && j.acknowledged:
			return "job " + name + " is gone"
		case !there:
		case s.Status != "TERMINATED" && s.Status != "ERROR" && s.Status != "CANCELLED":
			return fmt.Sprintf("job %s is %s %s", name, s.Status, s.Info)
		case succeeded && written[name] != 1:
			return fmt.Sprintf("job %s succeeded and wrote nothing", name)
		case !succeeded && j.healthy:
			return fmt.Sprintf("job %s came when nothing was broken and is %s %s %s", name, s.Status, s.Result, s.Info)
		case !succeeded && s.Info == "":
			return fmt.Sprintf("job %s is %s %s without a word", name, s.Status, s.Result)
		}
	}
	return l.startedTwice(sessions)
}

// startedTwice looks at what the engine itself tells of the containers of jobs.
func (l *workload) startedTwice(sessions map[string]sessionRow) string {
	jobs := map[string]string{}
	for name := range l.jobs {
		jobs[sessions[name].ID] = name
	}
	starts := map[string]int{}
	for _, id := range chaosAgents {
		out, err := docker("events", "--since", strconv.FormatInt(l.began.Unix(), 10), "--until", strconv.FormatInt(time.Now().Unix(), 10),
			"--filter", "event=start", "--filter", "label=berth.agent="+id, "--format", `{{index .Actor.Attributes "berth.session"}}`)
		if err != nil {
			return err.Error()
		}
		for _, session := range strings.Fields(out) {
			starts[session]++
		}
	}
	for session, n := range starts {
		if name := jobs[session]; n > 1 && name != "" {
			return fmt.Sprintf("%d containers of job %s were started", n, name)
		}
	}
	return ""
}

func (l *workload) uploadsBroken() string {
	for i := range l.uploads { // what was acknowledged in earlier rounds, too
		r, _ := l.attempt(30*time.Second, "session", "exec", "writer", "--", "sh", "-c", fmt.Sprintf("wc -l < upload-%d", i))
		if r.code != 0 || strings.TrimSpace(r.stdout) != "20000" {
			return fmt.Sprintf("upload %d has %q lines: %s", i, r.stdout, r.stderr)
		}
	}
	file := filepath.Join(l.home, fmt.Sprintf("upload-%d", l.uploads))
	if err := os.WriteFile(file, []byte(strings.Repeat("a line of it\n", 20_000)), 0o644); err != nil {
		return err.Error()
	}
	if r, _ := l.attempt(30*time.Second, "session", "upload", "writer", file); r.code != 0 {
		return "the upload failed: " + r.stderr
	}
	l.uploads++
	return ""
}

// streamBroken: the stream goes on, or it broke and can be opened again.
func (l *workload) streamBroken() string {
	if l.stream == nil {
		conn, err := net.DialTimeout("tcp", l.gateway, 10*time.Second)
		if err != nil {
			return "no stream can be opened: " + err.Error()
		}
		l.stream, l.heard = conn, bufio.NewReader(conn)
	}
	l.sent++
	_ = l.stream.SetDeadline(time.Now().Add(5 * time.Second))
	_, err := fmt.Fprintf(l.stream, "line %d\n", l.sent)
	got := ""
	if err == nil {
		got, err = l.heard.ReadString('\n')
	}
	if err != nil {
		_ = l.stream.Close()
		l.stream = nil
		return "the stream broke: " + err.Error()
	}
	if want := fmt.Sprintf("line %d\n", l.sent); got != want {
		return fmt.Sprintf("the stream said %q after %q", got, want)
	}
	return ""
}

// turnoverBroken: sessions follow each other, each of which needs more than half of the same agent, and each is ended by force when the
// next one waits for its room.
func (l *workload) turnoverBroken() string {
	create := func() (name, why string) {
		l.turns++
		name = fmt.Sprintf("turn-%d", l.turns)
		if r := l.room(name, chaosAgents[0]); r.code != 0 {
			return name, "no session can be created: " + r.stderr
		}
		return name, ""
	}
	last := ""
	for range 3 {
		name, why := create()
		if why != "" {
			return why
		}
		if last != "" {
			l.force(last)
		}
		last = name
	}
	defer l.force(last)
	for deadline := time.Now().Add(time.Minute); ; {
		r, _ := l.attempt(30*time.Second, "session", "info", last, "--json")
		var s sessionRow
		if err := json.Unmarshal([]byte(r.stdout), &s); err != nil {
			return fmt.Sprintf("session %s cannot be shown: %v %s", last, err, r.stderr)
		}
		switch {
		case s.Status == "RUNNING":
			return ""
		case s.Status == "ERROR" || s.Status == "TERMINATED" || s.Status == "CANCELLED" || time.Now().After(deadline):
			return fmt.Sprintf("session %s, whose room was given free, is %s %s", last, s.Status, s.Info)
		}
		<-time.After(200 * time.Millisecond)
	}
}
