package ledger_test

import (
	"fmt"
	"path/filepath"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	"go.etcd.io/bbolt"

	"berth.dev/berth/internal/agent/ledger"
	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/fault"
)

func TestRecordsSurvive(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "state", "ledger.db")
	l, err := ledger.Open(path)
	require.NoError(t, err)
	code := 3
	r := &ledger.Record{Kernel: "k1", Session: "s1", Generation: 2, Rows: []ledger.Row{{Kind: ledger.RowScratch, Key: "k1"}}, Running: true,
		Final: &cluster.KernelObservation{Kernel: "k1", Phase: cluster.PhaseEnded, ExitCode: &code, Reason: cluster.ReasonTaskFailed}}
	require.NoError(t, l.Put(r))
	require.NoError(t, l.Put(&ledger.Record{Kernel: "k2"}))
	require.NoError(t, l.Delete("k2"))
	require.NoError(t, l.SetEpoch(7))
	require.True(t, fault.Is(l.SetEpoch(6), fault.Conflict))
	require.NoError(t, l.SetEpoch(7))

	_, err = ledger.Open(path)
	require.True(t, fault.Is(err, fault.Conflict), "a second agent on the same state: %v", err)
	require.NoError(t, l.Close())

	l, err = ledger.OpenReadOnly(path)
	require.NoError(t, err)
	require.Equal(t, []*ledger.Record{r}, l.Records())
	require.EqualValues(t, 7, l.Epoch())
	require.NoError(t, l.Close())
}

func TestConcurrentWritersShareCommits(t *testing.T) {
	t.Parallel()
	l, err := ledger.Open(filepath.Join(t.TempDir(), "ledger.db"))
	require.NoError(t, err)
	defer l.Close()
	var all sync.WaitGroup
	for i := range 64 {
		all.Go(func() {
			id := cluster.KernelID(fmt.Sprint("k", i))
			for g := range 4 {
				if err := l.Put(&ledger.Record{Kernel: id, Generation: int64(g)}); err != nil {
					t.Error(err)
				}
			}
			if i%2 == 0 {
				if err := l.Delete(id); err != nil {
					t.Error(err)
				}
			}
		})
	}
	all.Wait()
	require.Len(t, l.Records(), 32)
}

func TestOneBrokenRecordNeverStopsTheStart(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "ledger.db")
	l, err := ledger.Open(path)
	require.NoError(t, err)
	require.NoError(t, l.Put(&ledger.Record{Kernel: "good"}))
	require.NoError(t, l.Close())
	db, err := bbolt.Open(path, 0o600, nil)
	require.NoError(t, err)
	require.NoError(t, db.Update(func(tx *bbolt.Tx) error { return tx.Bucket([]byte("kernels")).Put([]byte("bad"), []byte("{")) }))
	require.NoError(t, db.Close())
	l, err = ledger.Open(path)
	require.NoError(t, err)
	defer l.Close()
	require.Equal(t, []string{"bad"}, l.Broken())
	require.Len(t, l.Records(), 1)
}
