package posix

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/fault"
	"berth.dev/berth/internal/storage/volume"
	"berth.dev/berth/internal/testkit/await"
)

func scopeNumber(n int) cluster.QuotaScope {
	return cluster.QuotaScope{Kind: cluster.UserScope, ID: fmt.Sprintf("6a3a0c1e-0d35-4f0b-9d4e-%012d", n)}
}

func folderNumber(scope, n int) cluster.FolderRef {
	return cluster.FolderRef{Scope: scopeNumber(scope), Folder: cluster.FolderID(fmt.Sprintf("7b3a0c1e-0d35-4f0b-9d4e-%012d", n))}
}

func fresh(t *testing.T, uid int) (*vol, string) {
	t.Helper()
	path := t.TempDir()
	v, err := open(Options{Name: "volume1", Path: path, UID: uid, GID: uid})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, v.Close()) })
	return v.(*vol), path
}

// A folder that is deleted while it is being made from another one ends the copy; it did so never.
func TestCloneThatIsDeletedMeanwhileEnds(t *testing.T) {
	v, path := fresh(t, -1)
	src, dst := folderNumber(1, 1), folderNumber(1, 2)
	require.NoError(t, v.CreateFolder(t.Context(), src, 0o755))
	require.NoError(t, os.WriteFile(filepath.Join(path, src.Dir(), "a"), []byte("a"), 0o644))
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	err := v.CloneFolder(ctx, src, dst, func(p volume.Progress) {
		if p.Total > 0 && p.Current == p.Total {
			require.NoError(t, v.TrashFolder(t.Context(), dst))
		}
	})
	require.True(t, fault.Is(err, fault.Conflict), "%v", err)
	require.NoError(t, ctx.Err())
	_, err = v.OpenFolder(t.Context(), dst)
	require.True(t, fault.Is(err, fault.NotFound), "%v", err)
	require.NoError(t, v.CloneFolder(ctx, src, dst, nil), "and it can be made again")
}

// Directories that another system made have no trash; deleting them must not look like success and do nothing.
func TestFolderOfAScopeWithoutTrashIsDeleted(t *testing.T) {
	v, path := fresh(t, -1)
	f := folderNumber(1, 1)
	require.NoError(t, os.MkdirAll(filepath.Join(path, f.Dir()), 0o755))
	require.NoError(t, v.TrashFolder(t.Context(), f))
	_, err := v.OpenFolder(t.Context(), f)
	require.True(t, fault.Is(err, fault.NotFound), "%v", err)
}

// A scope with much trash does not hold up the others, whose trash counts against their quotas.
func TestReapGivesEveryScopeItsTurn(t *testing.T) {
	v, path := fresh(t, -1)
	trash := func(scope int) string { return filepath.Join(path, scopeNumber(scope).Dir(), trashDir) }
	for scope := 1; scope <= 2; scope++ {
		require.NoError(t, v.SetScope(t.Context(), scopeNumber(scope), volume.NoLimit))
		for i := range 100 {
			require.NoError(t, os.WriteFile(filepath.Join(trash(scope), fmt.Sprint(i)), nil, 0o644))
		}
	}
	for range 3 {
		n, err := v.Reap(t.Context(), 30)
		require.NoError(t, err)
		require.Equal(t, 30, n)
	}
	for scope := 1; scope <= 2; scope++ {
		left, err := os.ReadDir(trash(scope))
		require.NoError(t, err)
		require.Less(t, len(left), 100)
	}
}

// A proxy that is killed between making a folder and giving it away leaves it to the next one that is asked.
func TestFolderThatNobodyOwnsIsGivenAway(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root gives files away")
	}
	v, path := fresh(t, 9001)
	f := folderNumber(1, 1)
	require.NoError(t, v.CreateFolder(t.Context(), f, 0o755))
	dir := filepath.Join(path, f.Dir())
	require.NoError(t, os.Chown(dir, 0, 0))
	require.NoError(t, os.Chmod(dir, 0o700))
	require.NoError(t, v.CreateFolder(t.Context(), f, 0o755))
	fi, err := os.Stat(dir)
	require.NoError(t, err)
	require.EqualValues(t, 9001, fi.Sys().(*syscall.Stat_t).Uid)
	require.Equal(t, os.FileMode(0o700), fi.Mode().Perm(), "roots are closed to other users of the host")
	require.NoError(t, os.Chown(dir, 4711, 4711))
	require.NoError(t, v.CreateFolder(t.Context(), f, 0o755), "and what somebody else owns stays his")
	fi, err = os.Stat(dir)
	require.NoError(t, err)
	require.EqualValues(t, 4711, fi.Sys().(*syscall.Stat_t).Uid)
}

// A scope whose uploads cannot be read does not keep those of others.
func TestUploadsOfOtherScopesExpire(t *testing.T) {
	v, path := fresh(t, -1)
	for scope := range 8 {
		f := folderNumber(scope, 1)
		require.NoError(t, v.CreateFolder(t.Context(), f, 0o755))
		if scope == 3 {
			s, err := v.Stage(t.Context(), f, "u", true)
			require.NoError(t, err)
			require.NoError(t, s.Close())
			continue
		}
		dir := filepath.Join(path, scopeNumber(scope).Dir(), uploadsDir)
		require.NoError(t, os.Remove(dir))
		require.NoError(t, os.WriteFile(dir, nil, 0o600))
	}
	n, err := v.ExpireStaged(t.Context(), time.Now().Add(time.Hour))
	require.Error(t, err)
	require.Equal(t, 1, n)
}

// What a writer that was killed left of a document goes with old uploads.
func TestHalfDocumentsGo(t *testing.T) {
	v, path := fresh(t, -1)
	require.NoError(t, v.SetScope(t.Context(), scopeNumber(1), 7))
	for _, dir := range []string{private, clonesDir} {
		name := filepath.Join(path, scopeNumber(1).Dir(), dir, ".scope.json.0123")
		require.NoError(t, os.WriteFile(name, nil, 0o600))
		_, err := v.ExpireStaged(t.Context(), time.Now().Add(-time.Hour))
		require.NoError(t, err)
		require.FileExists(t, name, "it may be being written")
		_, err = v.ExpireStaged(t.Context(), time.Now().Add(time.Hour))
		require.NoError(t, err)
		require.NoFileExists(t, name)
	}
	u, err := v.Scope(t.Context(), scopeNumber(1))
	require.NoError(t, err)
	require.EqualValues(t, 7, u.LimitBytes)
}

// Whatever time somebody gives a file, the listing of its directory can be written.
func TestTimesCanBeSaid(t *testing.T) {
	for _, sec := range []int64{-1 << 63, -1 << 40, 0, 1 << 40, 1<<63 - 1} {
		at := timeOf(unix.StatxTimestamp{Sec: sec, Nsec: 999_999_999})
		for _, zone := range []*time.Location{time.UTC, time.FixedZone("east", 14*3600), time.FixedZone("west", -12*3600)} {
			_, err := json.Marshal(at.In(zone))
			require.NoError(t, err, sec)
		}
	}
}

// Counting a scope may take very long. Nobody waits for that where there is no limit, and elsewhere for a while; what
// an earlier process counted holds until then.
func TestCountThatTakesLong(t *testing.T) {
	v, path := fresh(t, -1)
	v.firstWait = 10 * time.Millisecond
	counting := make(chan struct{})
	v.count = func(context.Context, cluster.QuotaScope) (volume.Usage, error) {
		<-counting
		return volume.Usage{Bytes: 400, Complete: true}, nil
	}
	defer close(counting)
	free, limited, known := folderNumber(1, 1), folderNumber(2, 1), folderNumber(3, 1)
	for _, f := range []cluster.FolderRef{free, limited, known} {
		require.NoError(t, v.CreateFolder(t.Context(), f, 0o755))
	}
	require.NoError(t, v.Charge(t.Context(), free.Scope, 1000))
	v.mu.Lock()
	m := v.meters[free.Scope.Dir()]
	v.mu.Unlock()
	require.Nil(t, m.scan, "nothing is counted without need")

	require.NoError(t, v.SetScope(t.Context(), limited.Scope, 500))
	require.NoError(t, v.Charge(t.Context(), limited.Scope, 500))
	require.True(t, fault.Is(v.Charge(t.Context(), limited.Scope, 501), fault.Exhausted))
	u, err := v.Scope(t.Context(), limited.Scope)
	require.NoError(t, err)
	require.False(t, u.Complete)

	require.NoError(t, v.SetScope(t.Context(), known.Scope, 500))
	require.NoError(t, os.WriteFile(filepath.Join(path, known.Scope.Dir(), private, usageFileName), []byte(`{"bytes":400}`), 0o600))
	require.NoError(t, v.Charge(t.Context(), known.Scope, 100))
	require.True(t, fault.Is(v.Charge(t.Context(), known.Scope, 101), fault.Exhausted))
	s, err := v.Stage(t.Context(), known, "u", true)
	require.NoError(t, err)
	defer s.Close()
	n, err := s.Append(t.Context(), 0, strings.NewReader(strings.Repeat("x", 300)), 300)
	require.True(t, fault.Is(err, fault.Exhausted), "%v", err)
	require.EqualValues(t, 100, n)
}

// However many scopes are written to at once, few are counted at once.
func TestFewCountsAtOnce(t *testing.T) {
	v, _ := fresh(t, -1)
	v.firstWait = time.Millisecond
	var running, most atomic.Int64
	counting, full := make(chan struct{}), make(chan struct{}, 100)
	v.count = func(context.Context, cluster.QuotaScope) (volume.Usage, error) {
		most.Store(max(most.Load(), running.Add(1)))
		full <- struct{}{}
		<-counting
		running.Add(-1)
		return volume.Usage{Complete: true}, nil
	}
	for n := range 20 {
		require.NoError(t, v.SetScope(t.Context(), scopeNumber(n), 500))
		require.NoError(t, v.Charge(t.Context(), scopeNumber(n), 1))
	}
	for range countsAtOnce {
		await.Value(t, full)
	}
	close(counting)
	v.works.Wait()
	require.LessOrEqual(t, most.Load(), int64(countsAtOnce))
	for n := range 20 {
		u, err := v.Scope(t.Context(), scopeNumber(n))
		require.NoError(t, err)
		require.True(t, u.Complete)
	}
}

// A count that fails is not begun again by everybody who writes.
func TestCountThatFailsIsNotRepeatedAtOnce(t *testing.T) {
	v, _ := fresh(t, -1)
	now := time.Now()
	v.opt.Now = func() time.Time { return now }
	var counts atomic.Int64
	v.count = func(context.Context, cluster.QuotaScope) (volume.Usage, error) {
		counts.Add(1)
		return volume.Usage{}, unix.EIO
	}
	require.NoError(t, v.SetScope(t.Context(), scopeNumber(1), 500))
	for range 10 {
		require.NoError(t, v.Charge(t.Context(), scopeNumber(1), 1))
		v.works.Wait()
	}
	require.EqualValues(t, 1, counts.Load())
	now = now.Add(2 * countEvery)
	require.NoError(t, v.Charge(t.Context(), scopeNumber(1), 1))
	v.works.Wait()
	require.EqualValues(t, 2, counts.Load())
}

// A long count is there for the next process.
func TestLongCountsAreKept(t *testing.T) {
	v, path := fresh(t, -1)
	f := folderNumber(1, 1)
	require.NoError(t, v.CreateFolder(t.Context(), f, 0o755))
	require.NoError(t, v.SetScope(t.Context(), f.Scope, 500))
	now := time.Now()
	v.opt.Now = func() time.Time { return now }
	v.count = func(context.Context, cluster.QuotaScope) (volume.Usage, error) {
		now = now.Add(time.Minute)
		return volume.Usage{Bytes: 400, Complete: true}, nil
	}
	_, err := v.Scope(t.Context(), f.Scope)
	require.NoError(t, err)
	v.works.Wait()
	text, err := os.ReadFile(filepath.Join(path, f.Scope.Dir(), private, usageFileName))
	require.NoError(t, err)
	require.Contains(t, string(text), `"bytes":400`)
}

// Sizes that no disk has do not turn what is known round.
func TestDeltaDoesNotTurnRound(t *testing.T) {
	m := &meter{limit: 100, known: true}
	for range 20 {
		m.add(-1 << 62)
	}
	require.Zero(t, m.used())
	for range 40 {
		m.add(1 << 62)
	}
	require.Positive(t, m.used())
	_, ok := m.fits(1)
	require.False(t, ok)
}

// Trash that cannot be removed is told, and does not keep the rest.
func TestTrashThatStaysIsTold(t *testing.T) {
	v, path := fresh(t, -1)
	for scope := 1; scope <= 2; scope++ {
		require.NoError(t, v.SetScope(t.Context(), scopeNumber(scope), volume.NoLimit))
	}
	bad := filepath.Join(path, scopeNumber(1).Dir(), trashDir)
	require.NoError(t, os.Remove(bad))
	require.NoError(t, os.WriteFile(bad, nil, 0o600)) // no directory to read
	require.NoError(t, os.WriteFile(filepath.Join(path, scopeNumber(2).Dir(), trashDir, "a"), nil, 0o600))
	n, err := v.Reap(t.Context(), 10)
	require.NoError(t, err)
	require.Equal(t, 1, n)
	n, err = v.Reap(t.Context(), 10)
	require.Error(t, err)
	require.Zero(t, n)
}
