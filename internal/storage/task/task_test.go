package task_test

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"berth.dev/berth/internal/chassis"
	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/fault"
	"berth.dev/berth/internal/storage/task"
	"berth.dev/berth/internal/storage/task/s3"
	"berth.dev/berth/internal/storage/volume"
	"berth.dev/berth/internal/storage/volume/memory"
	"berth.dev/berth/internal/testkit/await"
	"berth.dev/berth/internal/testkit/testserver"
	wire "berth.dev/berth/internal/wire/storage"
)

// clock runs a hundred times as fast and can be put forward.
type clock struct{ ahead atomic.Int64 }

func (c *clock) Now() time.Time { return time.Now().Add(time.Duration(c.ahead.Load())) }

func (c *clock) Wait(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d / 100)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// plain runs as fast as the test's own time.
type plain struct{ chassis.Clock }

func (c plain) Wait(ctx context.Context, d time.Duration) error { return chassis.Wait(ctx, c.Clock, d) }

// vols are the volumes of one proxy.
type vols map[string]volume.Volume

func (v vols) Names() []string {
	var out []string
	for name := range v {
		out = append(out, name)
	}
	return out
}

func (v vols) Volume(name string) (volume.Volume, error) {
	if v[name] == nil {
		return nil, fault.NotFoundf("there is no volume %q", name)
	}
	return v[name], nil
}

// proxy is an engine that runs until the test or stop ends it.
type proxy struct {
	*task.Engine
	t     *testing.T
	clock *clock
	stop  func()
}

var ids atomic.Int64

func start(t *testing.T, v vols, change func(*task.Options)) *proxy {
	t.Helper()
	c := &clock{}
	o := task.Options{
		Volumes: v, Clock: c, Log: slog.New(slog.DiscardHandler), NewID: func() string { return fmt.Sprintf("id-%d", ids.Add(1)) },
		SealKey: bytes.Repeat([]byte{7}, 32), Stores: s3.Policy{AllowPrivate: true, AllowHTTP: true}, Workers: 2, ReapRate: 1_000_000,
		UploadExpiry: time.Hour,
	}
	if change != nil {
		change(&o)
	}
	p := &proxy{Engine: task.New(o), t: t, clock: c}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = p.Run(ctx)
	}()
	p.stop = sync.OnceFunc(func() { cancel(); await.Value(t, ended) })
	t.Cleanup(p.stop)
	return p
}

func (p *proxy) ends(id string, want wire.TaskState) wire.Task {
	p.t.Helper()
	var got wire.Task
	require.Eventually(p.t, func() bool {
		var err error
		got, err = p.Get(p.t.Context(), id)
		return err == nil && got.State != wire.TaskRunning
	}, time.Minute, 2*time.Millisecond, "task %s ends: %+v", id, &got)
	require.Equal(p.t, want, got.State, got.Message)
	return got
}

func folder(n int) cluster.FolderRef {
	return cluster.FolderRef{Scope: cluster.QuotaScope{Kind: cluster.UserScope, ID: "11111111-1111-1111-1111-111111111111"},
		Folder: cluster.FolderID(fmt.Sprintf("22222222-2222-2222-2222-%012d", n))}
}

// filled makes a folder with that many files.
func filled(t *testing.T, v volume.Volume, f cluster.FolderRef, files int) {
	t.Helper()
	require.NoError(t, v.CreateFolder(t.Context(), f, 0o755))
	tree, err := v.OpenFolder(t.Context(), f)
	require.NoError(t, err)
	defer tree.Close()
	for i := range files {
		require.NoError(t, tree.WriteFile(t.Context(), fmt.Sprintf("d%d/f%d", i%3, i), strings.NewReader(fmt.Sprintf("text %d", i)), 0o644))
	}
}

func count(t *testing.T, v volume.Volume, f cluster.FolderRef) int64 {
	t.Helper()
	u, err := v.Usage(t.Context(), f)
	require.NoError(t, err)
	require.True(t, u.Complete)
	return u.Files
}

func TestCloneAndItsRepetition(t *testing.T) {
	t.Parallel()
	v := memory.New(memory.Options{Name: "v"})
	filled(t, v, folder(1), 10)
	p := start(t, vols{"v": v}, nil)
	spec := task.Spec{Kind: task.Clone, Volume: "v", Source: folder(1), Folder: folder(2)}
	id, err := p.Start(t.Context(), "my-task", spec)
	require.NoError(t, err)
	require.Equal(t, "my-task", id)
	done := p.ends(id, wire.TaskDone)
	require.Equal(t, "clone", done.Kind)
	require.Equal(t, done.Total, done.Current)
	require.Equal(t, int64(10), count(t, v, folder(2)))

	_, err = p.Start(t.Context(), "my-task", spec)
	require.NoError(t, err)
	spec.Folder = folder(3)
	_, err = p.Start(t.Context(), "my-task", spec)
	require.True(t, fault.Is(err, fault.Conflict), err)
	_, err = p.Start(t.Context(), "../x", spec)
	require.True(t, fault.Is(err, fault.Invalid), err)
	_, err = p.Get(t.Context(), "unknown")
	require.True(t, fault.Is(err, fault.NotFound), err)

	p.clock.ahead.Store(int64(25 * time.Hour))
	require.Eventually(t, func() bool {
		_, err := p.Get(t.Context(), "my-task")
		return fault.Is(err, fault.NotFound)
	}, 30*time.Second, 5*time.Millisecond, "results are kept for a day")
}

// TestAnotherProxyGoesOn kills a proxy in the middle of a clone; a second one on the same volume finishes it.
func TestAnotherProxyGoesOn(t *testing.T) {
	t.Parallel()
	reached, crashed := make(chan struct{}), make(chan struct{})
	var copies atomic.Int64
	v := memory.New(memory.Options{Name: "v", Before: func(_ context.Context, op, _ string) error {
		if op == "copy" && copies.Add(1) == 8 {
			close(reached)
			<-crashed
			return fault.New(fault.Internal, "killed")
		}
		return nil
	}})
	other := v.Replica()
	filled(t, v, folder(1), 20)
	p := start(t, vols{"v": v}, nil)
	id, err := p.Start(t.Context(), "", task.Spec{Kind: task.Clone, Volume: "v", Source: folder(1), Folder: folder(2)})
	require.NoError(t, err)
	await.Value(t, reached)
	survivor := start(t, vols{"v": other}, nil)
	got, err := survivor.Get(t.Context(), id)
	require.NoError(t, err)
	require.Equal(t, wire.TaskRunning, got.State)
	v.Crash(true)
	close(crashed)
	survivor.ends(id, wire.TaskDone)
	require.Equal(t, int64(20), count(t, other, folder(2)))
}

// TestWorkOfADeadProxyGoesOnWithinSeconds: whenever a proxy dies, another one that is idle goes on within five seconds, and the same one
// does when it is started again.
func TestWorkOfADeadProxyGoesOnWithinSeconds(t *testing.T) {
	t.Parallel()
	for name, restarted := range map[string]bool{"another one": false, "started again": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				bubble := func(o *task.Options) { o.Clock = plain{chassis.RealClock()} }
				reached, crashed := make(chan struct{}), make(chan struct{})
				var copies atomic.Int64
				v := memory.New(memory.Options{Name: "v", Before: func(_ context.Context, op, _ string) error {
					if op == "copy" && copies.Add(1) == 8 {
						close(reached)
						<-crashed
						return fault.New(fault.Internal, "killed")
					}
					return nil
				}})
				other := v.Replica()
				filled(t, v, folder(1), 20)
				p := start(t, vols{"v": v}, bubble)
				id, err := p.Start(t.Context(), "", task.Spec{Kind: task.Clone, Volume: "v", Source: folder(1), Folder: folder(2)})
				require.NoError(t, err)
				<-reached
				var heir *proxy // not before: it would take up the work itself
				if !restarted {
					heir = start(t, vols{"v": other}, bubble)
				}
				<-time.After(time.Minute + 100*time.Millisecond)
				died := time.Now()
				v.Crash(true)
				close(crashed)
				if restarted {
					heir = start(t, vols{"v": other}, bubble)
				}
				for {
					got, err := heir.Get(t.Context(), id)
					if err == nil && got.State == wire.TaskDone {
						break
					}
					require.Less(t, time.Since(died), time.Minute, "%+v %v", got, err)
					<-time.After(10 * time.Millisecond)
				}
				require.Less(t, time.Since(died), 5*time.Second)
				require.Equal(t, int64(20), count(t, other, folder(2)))
			})
		})
	}
}

func TestOrderlyStopLeavesTheTaskToTheNext(t *testing.T) {
	t.Parallel()
	reached := make(chan struct{})
	var first atomic.Bool
	v := memory.New(memory.Options{Name: "v", Before: func(ctx context.Context, op, _ string) error {
		if op == "copy" && first.CompareAndSwap(false, true) {
			close(reached)
			<-ctx.Done()
			return ctx.Err()
		}
		return nil
	}})
	filled(t, v, folder(1), 5)
	p := start(t, vols{"v": v}, nil)
	id, err := p.Start(t.Context(), "", task.Spec{Kind: task.Clone, Volume: "v", Source: folder(1), Folder: folder(2)})
	require.NoError(t, err)
	await.Value(t, reached)
	p.stop()
	start(t, vols{"v": v}, nil).ends(id, wire.TaskDone)
}

func TestCancelFromAnotherProxy(t *testing.T) {
	t.Parallel()
	reached := make(chan struct{})
	var once sync.Once
	v := memory.New(memory.Options{Name: "v", Before: func(ctx context.Context, op, _ string) error {
		if op == "copy" {
			once.Do(func() { close(reached) })
			<-ctx.Done()
			return ctx.Err()
		}
		return nil
	}})
	filled(t, v, folder(1), 5)
	p, other := start(t, vols{"v": v}, nil), start(t, vols{"v": v.Replica()}, nil)
	id, err := p.Start(t.Context(), "", task.Spec{Kind: task.Clone, Volume: "v", Source: folder(1), Folder: folder(2)})
	require.NoError(t, err)
	await.Value(t, reached)
	for _, e := range []*proxy{other, p} { // whichever of the two works on it
		_, err = e.Cancel(t.Context(), id)
		require.NoError(t, err)
		break
	}
	p.ends(id, wire.TaskCancelled)
	_, err = v.OpenFolder(t.Context(), folder(2))
	require.True(t, fault.Is(err, fault.NotFound), "nothing is left of the clone: %v", err)
	again, err := p.Cancel(t.Context(), id)
	require.NoError(t, err)
	require.Equal(t, wire.TaskCancelled, again.State)
}

func TestDeleteFiles(t *testing.T) {
	t.Parallel()
	v := memory.New(memory.Options{Name: "v"})
	filled(t, v, folder(1), 9)
	p := start(t, vols{"v": v}, nil)
	id, err := p.Start(t.Context(), "", task.Spec{Kind: task.DeleteFiles, Volume: "v", Folder: folder(1),
		Paths: []string{"d0", "gone", "d1/f1"}, Recursive: true})
	require.NoError(t, err)
	done := p.ends(id, wire.TaskDone)
	require.Equal(t, int64(3), done.Current)
	require.Equal(t, int64(5), count(t, v, folder(1)))

	id, err = p.Start(t.Context(), "", task.Spec{Kind: task.DeleteFiles, Volume: "v", Folder: folder(1), Paths: []string{"d2", "d1/f4"}})
	require.NoError(t, err)
	require.Contains(t, p.ends(id, wire.TaskFailed).Message, "d2")
	require.Equal(t, int64(4), count(t, v, folder(1)))
}

func TestDeletedFolderIsGoneAtOnceAndReapedLater(t *testing.T) {
	t.Parallel()
	v := memory.New(memory.Options{Name: "v"})
	filled(t, v, folder(1), 50)
	p := start(t, vols{"v": v}, func(o *task.Options) { o.ReapRate = 100 })
	id, err := p.Start(t.Context(), "del", task.Spec{Kind: task.DeleteFolder, Volume: "v", Folder: folder(1)})
	require.NoError(t, err)
	_, err = v.OpenFolder(t.Context(), folder(1))
	require.True(t, fault.Is(err, fault.NotFound), err)
	got, err := p.Get(t.Context(), id)
	require.NoError(t, err)
	require.Equal(t, wire.TaskDone, got.State)
	_, err = p.Start(t.Context(), "del", task.Spec{Kind: task.DeleteFolder, Volume: "v", Folder: folder(1)})
	require.NoError(t, err, "again changes nothing")
	require.Eventually(t, func() bool {
		u, err := v.Scope(t.Context(), folder(1).Scope)
		return err == nil && u.UsedBytes == 0
	}, 30*time.Second, 5*time.Millisecond, "the reaper empties the trash")
	require.Eventually(t, func() bool { return p.Figures("v").Reaped >= 50 }, 30*time.Second, 5*time.Millisecond)
}

func TestTaskIsTriedAgainWhileTheVolumeIsAway(t *testing.T) {
	t.Parallel()
	var away atomic.Bool
	v := memory.New(memory.Options{Name: "v", Before: func(_ context.Context, op, _ string) error {
		if op == "clone" && away.Load() {
			return fault.Unavailablef("the file server is away")
		}
		return nil
	}})
	filled(t, v, folder(1), 3)
	away.Store(true)
	p := start(t, vols{"v": v}, nil)
	id, err := p.Start(t.Context(), "", task.Spec{Kind: task.Clone, Volume: "v", Source: folder(1), Folder: folder(2)})
	require.NoError(t, err)
	require.Eventually(t, func() bool {
		got, err := p.Get(t.Context(), id)
		return err == nil && strings.Contains(got.Message, "trying again")
	}, 30*time.Second, 2*time.Millisecond)
	away.Store(false)
	p.clock.ahead.Store(int64(time.Hour))
	p.ends(id, wire.TaskDone)
}

func TestHungVolumeLeavesTheOthersAlone(t *testing.T) {
	t.Parallel()
	well, hung := memory.New(memory.Options{Name: "well"}), memory.New(memory.Options{Name: "hung"})
	filled(t, well, folder(1), 3)
	resume := hung.Hang()
	defer resume()
	p := start(t, vols{"well": well, "hung": hung}, nil)
	id, err := p.Start(t.Context(), "", task.Spec{Kind: task.Clone, Volume: "well", Source: folder(1), Folder: folder(2)})
	require.NoError(t, err)
	p.ends(id, wire.TaskDone)
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	_, err = p.Get(ctx, "unknown")
	require.True(t, fault.Is(err, fault.Unavailable), "it may be on the volume that hangs: %v", err)
	resume()
	p.stop()
}

func TestKeysOfObjectStoresAreSealed(t *testing.T) {
	t.Parallel()
	backend := testserver.StartS3(t)
	backend.CreateBucket("bucket")
	backend.Put("bucket", "in/x", []byte("hello"))
	handler := backend.Handler()
	v := memory.New(memory.Options{Name: "v"})
	filled(t, v, folder(1), 0)
	const secret = "hush-hush-secret"
	var looked atomic.Int64
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		ids, err := v.Tasks().List()
		if err == nil {
			for _, id := range ids {
				text, err := v.Tasks().Get(id)
				if err == nil && (bytes.Contains(text, []byte(secret)) || bytes.Contains(text, []byte("access-me"))) {
					t.Errorf("document %s holds the keys", id)
				}
				looked.Add(1)
			}
		}
		handler.ServeHTTP(w, r)
	}))
	defer server.Close()
	p := start(t, vols{"v": v}, nil)
	store := wire.ObjectStore{Endpoint: server.URL, Bucket: "bucket", Region: "us-east-1", AccessKey: "access-me", SecretKey: secret}
	id, err := p.Start(t.Context(), "imp", task.Spec{Kind: task.Import, Volume: "v", Folder: folder(1), Path: ".", Prefix: "in/",
		Store: store})
	require.NoError(t, err)
	done := p.ends(id, wire.TaskDone)
	require.Contains(t, done.Message, "1 objects, 5 bytes")
	require.Positive(t, looked.Load())
	store.SecretKey = "another"
	_, err = p.Start(t.Context(), "imp", task.Spec{Kind: task.Import, Volume: "v", Folder: folder(1), Path: ".", Prefix: "in/", Store: store})
	require.True(t, fault.Is(err, fault.Conflict), err)

	strict := start(t, vols{"v": v.Replica()}, func(o *task.Options) { o.Stores = s3.Policy{} })
	_, err = strict.Start(t.Context(), "", task.Spec{Kind: task.Import, Volume: "v", Folder: folder(1), Path: ".", Store: store})
	require.True(t, fault.Is(err, fault.Denied), err)
}

func TestUnreadableDocumentIsAFinding(t *testing.T) {
	t.Parallel()
	v := memory.New(memory.Options{Name: "v"})
	filled(t, v, folder(1), 1)
	require.NoError(t, v.Tasks().Put("task-broken", []byte("{")))
	p := start(t, vols{"v": v}, nil)
	id, err := p.Start(t.Context(), "", task.Spec{Kind: task.Clone, Volume: "v", Source: folder(1), Folder: folder(2)})
	require.NoError(t, err)
	p.ends(id, wire.TaskDone)
	require.Eventually(t, func() bool { return len(p.Findings()) == 1 }, 30*time.Second, 5*time.Millisecond)
	require.Equal(t, "broken", p.Findings()[0].Object)
}

// A wrong address is told after minutes, not after hours.
func TestStoreThatNeverAnswersIsGivenUp(t *testing.T) {
	t.Parallel()
	server := httptest.NewServer(http.NotFoundHandler())
	defer server.Close()
	v := memory.New(memory.Options{Name: "v"})
	filled(t, v, folder(1), 0)
	p := start(t, vols{"v": v}, nil)
	store := wire.ObjectStore{Endpoint: strings.Replace(server.URL, "http:", "https:", 1), Bucket: "bucket", Region: "us-east-1"}
	id, err := p.Start(t.Context(), "", task.Spec{Kind: task.Import, Volume: "v", Folder: folder(1), Path: ".", Prefix: "in/", Store: store})
	require.NoError(t, err)
	go func() {
		for t.Context().Err() == nil {
			p.clock.ahead.Add(int64(time.Second))
			_ = p.clock.Wait(t.Context(), time.Second)
		}
	}()
	require.Contains(t, p.ends(id, wire.TaskFailed).Message, "given up")
}

// Stores that keep their callers waiting hold no one up who needs none.
func TestTarpitsLeaveWorkersToOthers(t *testing.T) {
	t.Parallel()
	asked, release := make(chan struct{}, 100), make(chan struct{})
	server := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		asked <- struct{}{}
		select {
		case <-release:
		case <-r.Context().Done():
		}
	}))
	defer server.Close()
	defer close(release)
	v := memory.New(memory.Options{Name: "v"})
	filled(t, v, folder(1), 3)
	p := start(t, vols{"v": v}, nil)
	store := wire.ObjectStore{Endpoint: server.URL, Bucket: "bucket", Region: "us-east-1"}
	for range 3 {
		_, err := p.Start(t.Context(), "", task.Spec{Kind: task.Import, Volume: "v", Folder: folder(1), Path: ".", Prefix: "in/", Store: store})
		require.NoError(t, err)
	}
	await.Value(t, asked)
	other := folder(2)
	other.Scope.ID = "33333333-3333-3333-3333-333333333333"
	id, err := p.Start(t.Context(), "", task.Spec{Kind: task.Clone, Volume: "v", Source: folder(1), Folder: other})
	require.NoError(t, err)
	p.ends(id, wire.TaskDone)
}

// reopened is a volume that is opened anew while tasks run on it.
type reopened struct{ now atomic.Pointer[memory.Volume] }

func (r *reopened) Names() []string { return []string{"v"} }

func (r *reopened) Volume(string) (volume.Volume, error) { return r.now.Load(), nil }

// A volume that failed is opened anew and the old handle closed. What ran on that one must still come to an end.
func TestTaskSurvivesAVolumeThatIsOpenedAnew(t *testing.T) {
	t.Parallel()
	reached, closed := make(chan struct{}), make(chan struct{})
	var first atomic.Bool
	old := memory.New(memory.Options{Name: "v", Before: func(_ context.Context, op, _ string) error {
		if op == "copy" && first.CompareAndSwap(false, true) {
			close(reached)
			<-closed
			return fault.Unavailablef("the file server was replaced")
		}
		return nil
	}})
	filled(t, old, folder(1), 5)
	v := &reopened{}
	v.now.Store(old)
	p := start(t, nil, func(o *task.Options) { o.Volumes = v })
	id, err := p.Start(t.Context(), "", task.Spec{Kind: task.Clone, Volume: "v", Source: folder(1), Folder: folder(2)})
	require.NoError(t, err)
	await.Value(t, reached)
	v.now.Store(old.Replica())
	require.NoError(t, old.Close())
	close(closed)
	require.Eventually(t, func() bool {
		p.clock.ahead.Add(int64(time.Second))
		got, err := p.Get(t.Context(), id)
		return err == nil && got.State == wire.TaskDone
	}, time.Minute, 5*time.Millisecond)
}

// On a disk without room for a claim, the trash is what makes room.
func TestFullDiskIsEmptied(t *testing.T) {
	t.Parallel()
	v := memory.New(memory.Options{Name: "v", Before: func(_ context.Context, op, what string) error {
		if op == "claim" && strings.HasSuffix(what, "reaper") {
			return fault.Exhaustedf("no space is left")
		}
		return nil
	}})
	filled(t, v, folder(1), 20)
	require.NoError(t, v.TrashFolder(t.Context(), folder(1)))
	p := start(t, vols{"v": v}, nil)
	require.Eventually(t, func() bool { return p.Figures("v").Reaped >= 20 }, 30*time.Second, 5*time.Millisecond)
}

// On a full disk a folder can be deleted, although there is no room to write that down.
func TestFolderIsDeletedFromAFullDisk(t *testing.T) {
	t.Parallel()
	v := memory.New(memory.Options{Name: "v", Before: func(_ context.Context, op, what string) error {
		if op == "write" && strings.HasSuffix(what, "task-del") {
			return fault.Exhaustedf("no space is left")
		}
		return nil
	}})
	filled(t, v, folder(1), 2)
	p := start(t, vols{"v": v}, nil)
	_, err := p.Start(t.Context(), "del", task.Spec{Kind: task.DeleteFolder, Volume: "v", Folder: folder(1)})
	require.NoError(t, err)
	_, err = v.OpenFolder(t.Context(), folder(1))
	require.True(t, fault.Is(err, fault.NotFound), err)
}

// On a full disk files can be deleted, although there is no room to note that it begins.
func TestFilesAreDeletedFromAFullDisk(t *testing.T) {
	t.Parallel()
	var writes atomic.Int64
	v := memory.New(memory.Options{Name: "v", Before: func(_ context.Context, op, what string) error {
		if op == "write" && strings.HasSuffix(what, "task-del") && writes.Add(1) == 2 {
			return fault.Exhaustedf("no space is left")
		}
		return nil
	}})
	filled(t, v, folder(1), 9)
	p := start(t, vols{"v": v}, nil)
	id, err := p.Start(t.Context(), "del", task.Spec{Kind: task.DeleteFiles, Volume: "v", Folder: folder(1), Paths: []string{"d0"},
		Recursive: true})
	require.NoError(t, err)
	p.ends(id, wire.TaskDone)
	require.Equal(t, int64(6), count(t, v, folder(1)))
}

// One owner's tasks do not keep others from beginning theirs.
func TestNoScopeTakesAllPlacesOfTasks(t *testing.T) {
	t.Parallel()
	v := memory.New(memory.Options{Name: "v"})
	filled(t, v, folder(1), 1)
	e := task.New(task.Options{Volumes: vols{"v": v}, Clock: &clock{}, NewID: func() string { return fmt.Sprintf("id-%d", ids.Add(1)) },
		SealKey: bytes.Repeat([]byte{7}, 32), Workers: 1})
	clone := func(scope string) error {
		dst := folder(int(ids.Add(1)))
		dst.Scope.ID = scope
		_, err := e.Start(t.Context(), "", task.Spec{Kind: task.Clone, Volume: "v", Source: folder(1), Folder: dst})
		return err
	}
	err := error(nil)
	for n := 0; err == nil; n++ {
		require.Less(t, n, 1000)
		err = clone("11111111-1111-1111-1111-111111111111")
	}
	require.True(t, fault.Is(err, fault.Exhausted), err)
	require.NoError(t, clone("33333333-3333-3333-3333-333333333333"))
}
