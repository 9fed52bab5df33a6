// Package conformance holds the tests that every host.Host must pass. Its containers are those of the fake engine, which
// read their configuration through the mounts that a Host returns and serve a runner; no real ones are started.
package conformance

import (
	"context"
	"os"
	"path"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"berth.dev/berth/internal/agent/host"
	"berth.dev/berth/internal/agent/runtime"
	"berth.dev/berth/internal/agent/runtime/fake"
	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/fault"
	"berth.dev/berth/internal/wire/run"
)

const (
	patience = 30 * time.Second
	image    = "berth-test/box:1"
	token    = "0123456789abcdef0123456789abcdef"
)

// Fixture is what the suite needs around one host.
type Fixture struct {
	// Open returns a Host over the same place, as the next start of an agent does. It reaches runners through the runtime.
	Open func(t *testing.T, rt *fake.Runtime) host.Host
	// Folder is there and may be mounted, Missing is not.
	Folder, Missing cluster.FolderMount
}

// Run runs the suite; open is called once for every test.
func Run(t *testing.T, open func(t *testing.T) Fixture) {
	for _, c := range []struct {
		name string
		run  func(w *world)
	}{
		{"a container finds its files", finds},
		{"preparing twice is no error", twice},
		{"a restart keeps the home and nothing else", restarts},
		{"what the user has is replaced only on demand", replaces},
		{"mount points are directories", points},
		{"the runner answers to its token alone", greets},
		{"the result of a batch job is read", result},
		{"a result that is no result is an error", badResult},
		{"a kernel that is not prepared has nothing", absent},
		{"folders come in order with their permissions", attaches},
		{"a missing folder is not found and leaves nothing", missing},
		{"what is here is listed, until it is released", lists},
		{"release takes the folders too", releases},
		{"reaping at the same time loses no release", reaps},
		{"the next agent finds everything", reopens},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			fix := open(t)
			engine := fake.NewEngine(fake.Options{})
			t.Cleanup(engine.Close)
			engine.AddImage(runtime.Image{References: []string{image}}, nil)
			rt := engine.Runtime("scope", "i-test")
			ctx, cancel := context.WithTimeout(t.Context(), patience)
			t.Cleanup(cancel)
			c.run(&world{T: t, ctx: ctx, fix: fix, rt: rt, h: fix.Open(t, rt)})
		})
	}
}

// world is one test with its host and its engine.
type world struct {
	*testing.T
	ctx context.Context
	fix Fixture
	rt  *fake.Runtime
	h   host.Host
}

// kernel returns a new id; everything of it is released at the end.
func (w *world) kernel() cluster.KernelID {
	id := cluster.KernelID(uuid.NewString())
	w.Cleanup(func() {
		require.NoError(w, w.h.Release(id))
		require.NoError(w, w.h.Reap(context.WithoutCancel(w.ctx)))
	})
	return id
}

func content(id cluster.KernelID, generation int64) host.Content {
	return host.Content{
		UID: os.Getuid(), GID: os.Getgid(), Generation: generation,
		Work:   []host.File{{Path: "hello/world", Mode: 0o640, Data: []byte("work")}},
		Config: []host.File{{Path: "environ.txt", Mode: 0o644, Data: []byte("A=b\n")}},
		Passwd: []byte("work:x:1:1::/home/work:/bin/sh\n"), Group: []byte("work:x:1:\n"),
		Runner: run.Config{
			Version: run.Version, Token: token, KernelID: string(id), Dir: host.PrivateDir, SessionType: "interactive",
			User: run.User{UID: 9001, GID: 9001, Name: host.UserName, Home: host.Home, Shell: "/bin/sh"}, WorkDir: host.Home,
		},
	}
}

func (w *world) prepare(id cluster.KernelID, c host.Content) []runtime.Mount {
	w.Helper()
	mounts, err := w.h.Prepare(id, c)
	require.NoError(w, err)
	return mounts
}

// through is where a path of the container lies on this machine.
func (w *world) through(mounts []runtime.Mount, inside string) string {
	w.Helper()
	best, out := "", ""
	for _, m := range mounts {
		rel, ok := strings.CutPrefix(inside, m.Target)
		if ok && (rel == "" || rel[0] == '/') && len(m.Target) > len(best) {
			best, out = m.Target, filepath.Join(m.Source, filepath.FromSlash(rel))
		}
	}
	require.NotEmpty(w, out, "no mount shows %s", inside)
	return out
}

func (w *world) text(mounts []runtime.Mount, inside string) string {
	w.Helper()
	b, err := os.ReadFile(w.through(mounts, inside))
	require.NoError(w, err)
	return string(b)
}

// start runs a container of the prepared kernel.
func (w *world) start(id cluster.KernelID, mounts []runtime.Mount) {
	w.Helper()
	_, err := w.rt.Ensure(w.ctx, runtime.Spec{
		Identity: runtime.Identity{Cluster: "scope", Agent: "i-test", Kernel: id, Generation: 1, Schema: 1},
		Image:    image, Entry: host.Entry(), Mounts: mounts,
	})
	require.NoError(w, err)
}

func finds(w *world) {
	id := w.kernel()
	mounts := w.prepare(id, content(id, 1))
	require.Equal(w, "work", w.text(mounts, path.Join(host.Home, "hello/world")))
	st, err := os.Stat(w.through(mounts, path.Join(host.Home, "hello/world")))
	require.NoError(w, err)
	require.Equal(w, os.FileMode(0o640), st.Mode())
	require.Equal(w, "A=b\n", w.text(mounts, host.ConfigDir+"/environ.txt"))
	require.Equal(w, "work:x:1:1::/home/work:/bin/sh\n", w.text(mounts, "/etc/passwd"))
	require.Equal(w, "work:x:1:\n", w.text(mounts, "/etc/group"))
	require.NoError(w, w.h.AddConfig(id, host.File{Path: "late.txt", Mode: 0o644, Data: []byte("late")}))
	require.Equal(w, "late", w.text(mounts, host.ConfigDir+"/late.txt"))
	conf, err := w.h.Runner(id)
	require.NoError(w, err)
	require.Equal(w, token, conf.Token)
	for _, m := range mounts {
		mayWrite := m.Target == host.PrivateDir || m.Target == host.Home
		require.Equal(w, !mayWrite, m.ReadOnly, m.Target)
	}
}

func twice(w *world) {
	id := w.kernel()
	first := w.prepare(id, content(id, 1))
	require.Equal(w, first, w.prepare(id, content(id, 1)))
}

func restarts(w *world) {
	id := w.kernel()
	mounts := w.prepare(id, content(id, 1))
	note, left := w.through(mounts, host.Home+"/note"), w.through(mounts, host.PrivateDir+"/result.json")
	require.NoError(w, os.WriteFile(note, []byte("kept"), 0o644))
	require.NoError(w, os.WriteFile(left, []byte(`{"exit_code":3}`), 0o644))
	mounts = w.prepare(id, content(id, 2))
	require.Equal(w, "kept", w.text(mounts, host.Home+"/note"))
	res, err := w.h.Result(id)
	require.NoError(w, err)
	require.Nil(w, res, "the result of an earlier generation")
}

func replaces(w *world) {
	id := w.kernel()
	mounts := w.prepare(id, content(id, 1))
	require.NoError(w, os.WriteFile(w.through(mounts, host.Home+"/hello/world"), []byte("mine"), 0o644))
	w.prepare(id, content(id, 1))
	require.Equal(w, "mine", w.text(mounts, host.Home+"/hello/world"))
	c := content(id, 1)
	c.Work[0].Replace = true
	w.prepare(id, c)
	require.Equal(w, "work", w.text(mounts, host.Home+"/hello/world"))
}

func points(w *world) {
	id := w.kernel()
	c := content(id, 1)
	model := runtime.Mount{Source: w.TempDir(), Target: "/mnt/model", ReadOnly: true}
	c.Folders = []runtime.Mount{
		{Source: w.TempDir(), Target: host.Home + "/data"}, {Source: w.TempDir(), Target: host.Home + "/x/deep/er"}, model}
	first := w.prepare(id, c)
	require.Contains(w, first, model)
	require.True(w, strings.HasPrefix(first[len(first)-1].Target, host.PrivateDir), "the runner's mount is the last")
	plain := w.prepare(id, content(id, 1))
	work := w.through(plain, host.Home)
	require.DirExists(w, filepath.Join(work, "x", "deep", "er"))

	// Code in the container puts links and files where folders are to be mounted at the next start.
	require.NoError(w, os.RemoveAll(filepath.Join(work, "x")))
	for name, put := range map[string]func(string) error{
		"link to the root": func(p string) error { return os.Symlink("/", p) },
		"link inside":      func(p string) error { return os.Symlink("data", p) },
		"magic link":       func(p string) error { return os.Symlink("/proc/self/root", p) },
		"file":             func(p string) error { return os.WriteFile(p, nil, 0o644) },
	} {
		for _, at := range []string{"x", "x/deep", "x/deep/er"} {
			require.NoError(w, os.MkdirAll(filepath.Join(work, path.Dir(at)), 0o755))
			require.NoError(w, put(filepath.Join(work, at)))
			_, err := w.h.Prepare(id, c)
			require.Equal(w, fault.Invalid, fault.KindOf(err), "%s at %s: %v", name, at, err)
			require.Equal(w, cluster.ReasonTarget, fault.ReasonOf(err), "%s at %s", name, at)
			require.NoError(w, os.RemoveAll(filepath.Join(work, "x")))
		}
	}
	require.Len(w, w.prepare(id, c), len(first))
}

func greets(w *world) {
	id := w.kernel()
	mounts := w.prepare(id, content(id, 1))
	_, err := w.h.Hello(w.ctx, id, 1, token)
	require.Error(w, err, "nobody serves there yet")
	w.start(id, mounts)
	hello, err := w.h.Hello(w.ctx, id, 1, token)
	require.NoError(w, err)
	require.Equal(w, string(id), hello.KernelID)
	_, err = w.h.Hello(w.ctx, id, 1, "wrong")
	require.Equal(w, fault.Unauthenticated, fault.KindOf(err), "%v", err)
	w.h.Forget(id, 1)
	w.h.Forget(id, 1)
	_, err = w.h.Hello(w.ctx, id, 1, token)
	require.NoError(w, err, "what was forgotten is connected again")
}

func result(w *world) {
	id := w.kernel()
	c := content(id, 1)
	c.Runner.SessionType, c.Runner.Batch = "batch", &run.BatchCommand{Command: "exit 3"}
	mounts := w.prepare(id, c)
	res, err := w.h.Result(id)
	require.NoError(w, err)
	require.Nil(w, res)
	traces, err := w.h.Traces(id, 1)
	require.NoError(w, err)
	require.Equal(w, host.Traces{}, traces)
	require.NoError(w, os.WriteFile(w.through(mounts, host.PrivateDir+"/result.json"), nil, 0o644))
	res, err = w.h.Result(id)
	require.NoError(w, err)
	require.Nil(w, res, "a name without content is no result")
	w.start(id, mounts)
	require.Eventually(w, func() bool {
		res, err = w.h.Result(id)
		return err == nil && res != nil
	}, patience, 2*time.Millisecond)
	require.Equal(w, 3, res.ExitCode)
	require.Eventually(w, func() bool {
		traces, err = w.h.Traces(id, 1)
		return err == nil && traces == host.Traces{Started: true, Ended: true}
	}, patience, 2*time.Millisecond)
	traces, err = w.h.Traces(id, 2)
	require.NoError(w, err)
	require.Equal(w, host.Traces{Absent: true}, traces, "those of another generation")
}

func badResult(w *world) {
	id := w.kernel()
	mounts := w.prepare(id, content(id, 1))
	require.NoError(w, os.WriteFile(w.through(mounts, host.PrivateDir+"/result.json"), []byte("no"), 0o644))
	_, err := w.h.Result(id)
	require.Error(w, err)
}

func absent(w *world) {
	id := w.kernel()
	res, err := w.h.Result(id)
	require.NoError(w, err)
	require.Nil(w, res)
	traces, err := w.h.Traces(id, 1)
	require.NoError(w, err)
	require.Equal(w, host.Traces{Absent: true}, traces)
	_, err = w.h.Runner(id)
	require.Error(w, err)
	require.Error(w, w.h.AddConfig(id, host.File{Path: "x", Mode: 0o644}))
	require.NoError(w, w.h.Detach(id))
	require.NoError(w, w.h.Release(id))
}

// folders are the fixture's folder at three places.
func (w *world) folders() []cluster.FolderMount {
	at := func(target string, perm cluster.MountPermission) cluster.FolderMount {
		f := w.fix.Folder
		f.Target, f.Perm = target, perm
		return f
	}
	return []cluster.FolderMount{
		at("/home/work/b", cluster.ReadWrite), at("/home/work/a", cluster.ReadOnly), at("/models", cluster.ReadWriteDelete),
	}
}

func (w *world) attach(id cluster.KernelID) []runtime.Mount {
	w.Helper()
	mounts, err := w.h.Attach(w.ctx, id, host.Owner{UID: 9001, GID: 9001}, w.folders())
	require.NoError(w, err)
	return mounts
}

func attaches(w *world) {
	id := w.kernel()
	got := w.attach(id)
	require.Len(w, got, 3)
	for i, f := range w.folders() {
		require.Equal(w, f.Target, got[i].Target)
		require.Equal(w, i == 1, got[i].ReadOnly)
		require.True(w, filepath.IsAbs(got[i].Source))
	}
	require.Equal(w, got, w.attach(id), "again, as after a crash")
	require.NoError(w, w.h.Detach(id))
	require.NoError(w, w.h.Detach(id))
	none, err := w.h.Attach(w.ctx, id, host.Owner{UID: 9001, GID: 9001}, nil)
	require.NoError(w, err)
	require.Empty(w, none)
}

func missing(w *world) {
	id, gone := w.kernel(), w.fix.Missing
	gone.Target = "/home/work/gone"
	_, err := w.h.Attach(w.ctx, id, host.Owner{UID: 9001, GID: 9001}, append(w.folders(), gone))
	require.True(w, fault.Is(err, fault.NotFound), "%v", err)
	require.NoError(w, w.h.Release(id))
	list, err := w.h.List()
	require.NoError(w, err)
	require.NotContains(w, list, id)
}

func lists(w *world) {
	files, folders, both := w.kernel(), w.kernel(), w.kernel()
	w.prepare(files, content(files, 1))
	w.attach(folders)
	w.prepare(both, content(both, 1))
	w.attach(both)
	list, err := w.h.List()
	require.NoError(w, err)
	require.IsIncreasing(w, list)
	require.Subset(w, []cluster.KernelID{files, folders, both}, list)
	require.Subset(w, list, []cluster.KernelID{files, both}) // folders that are bound as they are leave nothing behind
	for _, id := range []cluster.KernelID{files, folders, both} {
		require.NoError(w, w.h.Release(id))
	}
	list, err = w.h.List()
	require.NoError(w, err)
	require.Empty(w, list)
}

func releases(w *world) {
	id := w.kernel()
	mounts := w.prepare(id, content(id, 1))
	w.attach(id)
	require.NoError(w, w.h.Release(id))
	require.NoFileExists(w, w.through(mounts, host.Home+"/hello/world"))
	require.NoError(w, w.h.Release(id))
	require.NoError(w, w.h.Reap(w.ctx))
	require.NoError(w, w.h.Reap(w.ctx))
	w.prepare(id, content(id, 1))
}

func reaps(w *world) {
	var group sync.WaitGroup
	stop := make(chan struct{})
	group.Go(func() {
		for {
			select {
			case <-stop:
				return
			default:
				_ = w.h.Reap(w.ctx) // what one look misses the next one deletes
			}
		}
	})
	ids := make([]cluster.KernelID, 20)
	for i := range ids {
		ids[i] = w.kernel()
		w.prepare(ids[i], content(ids[i], 1))
		require.NoError(w, w.h.Release(ids[i]))
	}
	close(stop)
	group.Wait()
	list, err := w.h.List()
	require.NoError(w, err)
	require.Empty(w, list)
}

func reopens(w *world) {
	id := w.kernel()
	mounts := w.prepare(id, content(id, 1))
	w.attach(id)
	w.start(id, mounts)
	next := w.fix.Open(w.T, w.rt)
	list, err := next.List()
	require.NoError(w, err)
	require.Contains(w, list, id)
	conf, err := next.Runner(id)
	require.NoError(w, err)
	_, err = next.Hello(w.ctx, id, 1, conf.Token)
	require.NoError(w, err)
	require.NoError(w, next.Release(id))
	list, err = w.h.List()
	require.NoError(w, err)
	require.NotContains(w, list, id)
}
