package task

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"berth.dev/berth/internal/fault"
	"berth.dev/berth/internal/storage/task/s3"
	"berth.dev/berth/internal/storage/volume/posix"
	wire "berth.dev/berth/internal/wire/storage"
)

// stopped is a clock that shows one time.
type stopped struct{ now time.Time }

func (c *stopped) Now() time.Time { return c.now }

func (c *stopped) Wait(context.Context, time.Duration) error { return errors.New("this clock stands") }

const (
	ours   = "user:11111111-1111-1111-1111-111111111111/22222222-2222-2222-2222-222222222222"
	theirs = "user:33333333-3333-3333-3333-333333333333/44444444-4444-4444-4444-444444444444"
)

// A store that does not answer ends a transfer, at once where it never did and later where it once did; as long as it
// brings the transfer further nothing ends it.
func TestConcludeGivesSilentStoresUp(t *testing.T) {
	clock := &stopped{time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC)}
	l := &lane{e: &Engine{o: Options{Clock: clock}}}
	away := fault.Unavailablef("the object store does not answer").WithReason(s3.ReasonAway)
	since := func(d time.Duration) time.Time { return clock.now.Add(-d) }
	for name, c := range map[string]struct {
		doc   document
		err   error
		want  wire.TaskState
		begun int
	}{
		"never answered":               {document{Kind: Import, Begun: 5, Silent: since(4 * time.Minute)}, away, wire.TaskFailed, 5},
		"never answered, asked twice":  {document{Kind: Import, Begun: 2, Silent: since(time.Hour)}, away, wire.TaskRunning, 2},
		"never answered, for a moment": {document{Kind: Export, Begun: 9, Silent: since(time.Minute)}, away, wire.TaskRunning, 9},
		"answered before":              {document{Kind: Import, Begun: 5, Best: 7, Silent: since(10 * time.Minute)}, away, wire.TaskRunning, 5},
		"answered long before":         {document{Kind: Import, Begun: 5, Best: 7, Silent: since(16 * time.Minute)}, away, wire.TaskFailed, 5},
		"got further by bytes":         {document{Kind: Import, Begun: 39, Best: 7}, away, wire.TaskRunning, 1},
		"got further by objects": {document{Kind: Import, Begun: 39, Seen: 7, Silent: since(time.Hour),
			Resume: s3.Resume{Count: s3.Count{Objects: 8}}},
			away, wire.TaskRunning, 1},
		"the volume is away": {document{Kind: Import, Begun: 5, Silent: since(time.Hour)}, fault.Unavailablef("no volume"), wire.TaskRunning, 5},
		"a clone":            {document{Kind: Clone, Begun: 5}, fault.Unavailablef("no volume"), wire.TaskRunning, 5},
		"a clone at its end": {document{Kind: Clone, Begun: maxBegun}, fault.Unavailablef("no volume"), wire.TaskFailed, maxBegun},
	} {
		got := l.conclude(c.doc, fmt.Errorf("import: %w", c.err))
		require.Equal(t, c.want, state(got), name)
		require.Equal(t, c.begun, got.Begun, name)
		if c.want == wire.TaskRunning {
			require.True(t, got.NotFor.After(clock.now), name)
		} else if c.doc.Kind == Import {
			require.Contains(t, got.Message, "given up", name)
		}
	}
}

// What depends on strangers' servers never takes all workers of a volume, nor does one scope.
func TestTurnLeavesWorkersToOthers(t *testing.T) {
	l := &lane{e: &Engine{o: Options{Workers: 4}}, active: map[string]*job{}}
	run := func(id string, kind Kind, folder string) {
		l.active[id] = &job{kind: kind, scope: document{Folder: folder}.scope()}
	}
	want := func(kind Kind, folder string, wait, busy bool) {
		t.Helper()
		_, b, w := l.turn(document{ID: "new", Kind: kind, Folder: folder})
		require.Equal(t, [2]bool{wait, busy}, [2]bool{w, b})
	}
	want(Import, ours, false, false)
	run("1", Import, ours)
	run("2", Export, theirs)
	want(Import, ours, true, false)
	want(Clone, ours, false, false)
	run("3", Clone, ours)
	want(Clone, ours, false, false)
	delete(l.active, "2")
	run("4", Clone, ours)
	want(Clone, ours, true, false)
	want(Clone, theirs, false, false)
	run("5", Clone, theirs)
	want(Clone, theirs, false, true)
	mine, _, _ := l.turn(document{ID: "5", Kind: Clone, Folder: theirs})
	require.True(t, mine)
}

// Names that become long as JSON must not make a document that no journal takes: its task would never end.
func TestDocumentAlwaysFitsTheJournal(t *testing.T) {
	v, err := posix.Open(posix.Options{Name: "v", Path: t.TempDir(), UID: os.Geteuid(), GID: os.Getegid(), Log: slog.New(slog.DiscardHandler)})
	require.NoError(t, err)
	defer v.Close()
	d := document{Format: 1, ID: "t", Kind: Import, Folder: ours, State: wire.TaskRunning,
		Resume: s3.Resume{After: "a", Done: map[string]string{}}}
	for i := range 256 {
		d.Resume.Done[fmt.Sprintf("%04d", i)+strings.Repeat("<", 1000)] = "etag"
	}
	require.NoError(t, write(v.Tasks(), d))
	got, err := read(v.Tasks(), "t")
	require.NoError(t, err)
	require.Equal(t, "a", got.Resume.After)
}

// state is running where conclude left it as it was.
func state(d document) wire.TaskState {
	if d.State == "" {
		return wire.TaskRunning
	}
	return d.State
}
