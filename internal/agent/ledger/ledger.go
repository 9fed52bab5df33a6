// Package ledger records what the agent is about to do before it does it, so that after
// a crash at any instruction every side effect has an owner and can be undone or resumed.
//
// It is a file (bbolt) with one record per kernel. Container labels remain the truth about
// containers; the ledger adds what labels cannot hold: scratch directories, the runner's
// token, how far a stop got, and tombstones (how a kernel ended) until the manager has
// acknowledged them. Only package keeper writes it; the doctor reads it.
package ledger

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"go.etcd.io/bbolt"
	bolterr "go.etcd.io/bbolt/errors"
	"golang.org/x/sys/unix"

	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/fault"
)

// Row is one side effect that is recorded before it is made.
type Row struct {
	Kind string `json:"kind"`
	Key  string `json:"key"`
}

// The kinds of rows. Their order in a record is the order of acquisition; release is strictly reverse.
const (
	RowScratch   = "scratch"   // key: directory name below the scratch root
	RowMount     = "mount"     // key: name of the mount point below the kernel's directory of mounts
	RowDevices   = "devices"   // key: generation; what drivers make on the host before a container uses their devices
	RowContainer = "container" // key: generation
)

// Record is everything that must survive the agent about one kernel.
type Record struct {
	Kernel     cluster.KernelID  `json:"kernel"`
	Session    cluster.SessionID `json:"session"`
	Generation int64             `json:"generation"`
	Image      string            `json:"image,omitempty"`
	Batch      bool              `json:"batch,omitempty"`
	Allocation string            `json:"allocation,omitempty"`
	// Token proves the agent to the kernel's runner.
	Token string `json:"token,omitempty"`
	Rows  []Row  `json:"rows,omitempty"`
	// UID is the user number that only this kernel has on this host, from its first generation until the record is deleted; 0 for none.
	UID int `json:"uid,omitempty"`
	// Shared says why it has none of its own although the agent gives them out.
	Shared string `json:"shared,omitempty"`
	// Marks: the runner leaves markers (host.Traces). Records of older agents do not say so, and nothing follows from missing markers.
	Marks bool `json:"marks,omitempty"`
	// Running: the runner of this generation has answered once, or has left the marker of a batch command's start. Never taken back.
	Running   bool      `json:"running,omitempty"`
	StartedAt time.Time `json:"started_at,omitzero"`
	// Withheld are the folders that were taken out of the running container ("gone"), or made read-only in it ("ro").
	Withheld map[cluster.FolderID]string `json:"withheld,omitempty"`
	// Keys is the sum of the SSH keys that the runner was told.
	Keys string `json:"keys,omitempty"`
	// Peers is the sum of what the runner was told of its session's other kernels.
	Peers string `json:"peers,omitempty"`
	// HostPorts are leased to it in the network of the host, until its container is gone; the first is that of its SSH server where it has
	// one for the other kernels of its session, who reach that at HostEndpoint.
	HostPorts    []int  `json:"host_ports,omitempty"`
	HostEndpoint string `json:"host_endpoint,omitempty"`
	// Stopping is set before a container is told to end.
	Stopping *Stop `json:"stopping,omitempty"`
	// Final is how it ended, written once, before anything of it is removed. Its log is in a file.
	Final  *cluster.KernelObservation `json:"final,omitempty"`
	EndsAt time.Time                  `json:"ends_at,omitzero"` // when Final was written
	// Fenced: it was reported as ended although its container could not be removed yet.
	Fenced bool `json:"fenced,omitempty"`
}

// Stop says why a container is being ended.
type Stop struct {
	Reason cluster.Reason `json:"reason"`
	// Detail says it in words, where the agent itself decided.
	Detail string `json:"detail,omitempty"`
	// Restart: a newer generation follows, the user's files stay.
	Restart bool `json:"restart,omitempty"`
}

// Clone returns an independent copy.
func (r *Record) Clone() *Record {
	if r == nil {
		return nil
	}
	c := *r
	c.Rows, c.Withheld, c.HostPorts = slices.Clone(r.Rows), maps.Clone(r.Withheld), slices.Clone(r.HostPorts)
	if r.Stopping != nil {
		s := *r.Stopping
		c.Stopping = &s
	}
	if r.Final != nil {
		f := *r.Final
		c.Final = &f
	}
	return &c
}

var (
	bucketKernels = []byte("kernels")
	bucketMeta    = []byte("meta")
	keyEpoch      = []byte("epoch")
)

// Ledger is the open file. All methods may be called concurrently.
type Ledger struct {
	db *bbolt.DB

	mu      sync.Mutex
	records map[cluster.KernelID]*Record
	broken  []string
	epoch   int64
	pending []*write
	leading bool
}

// write waits to be part of a transaction: whoever comes first commits for all that
// gathered meanwhile, so that a burst of kernels pays for one disk flush, not for each.
type write struct {
	apply func(*bbolt.Tx) error
	done  chan error // nil error: committed; errLead: commit yourself
}

var errLead = errors.New("lead")

// Open opens or creates the file. A file in use is a Conflict.
func Open(path string) (*Ledger, error) { return open(path, false) }

// OpenReadOnly opens an existing file for looking only; a missing one is NotFound.
func OpenReadOnly(path string) (*Ledger, error) {
	if _, err := os.Stat(path); errors.Is(err, os.ErrNotExist) {
		return nil, fault.NotFoundf("there is no ledger %s", path)
	}
	return open(path, true)
}

func open(path string, readOnly bool) (*Ledger, error) {
	if !readOnly {
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			return nil, fmt.Errorf("open ledger: %w", err)
		}
	}
	db, err := bbolt.Open(path, 0o600, &bbolt.Options{
		Timeout: time.Second, ReadOnly: readOnly, NoFreelistSync: true, FreelistType: bbolt.FreelistMapType,
	})
	if errors.Is(err, bolterr.ErrTimeout) {
		return nil, fault.Conflictf("the ledger %s is in use by another agent", path).
			WithNext("stop that agent or choose another state directory").WithCause(err)
	}
	if err != nil {
		return nil, fmt.Errorf("open ledger %s: %w", path, err)
	}
	l := &Ledger{db: db, records: map[cluster.KernelID]*Record{}}
	if !readOnly {
		reserve(path)
		err = db.Update(func(tx *bbolt.Tx) error {
			for _, name := range [][]byte{bucketKernels, bucketMeta} {
				if _, err := tx.CreateBucketIfNotExists(name); err != nil {
					return err
				}
			}
			return nil
		})
	}
	if err == nil {
		err = db.View(l.load)
	}
	if err != nil {
		_ = db.Close()
		return nil, fmt.Errorf("read ledger %s: %w", path, err)
	}
	return l, nil
}

// reserved is how much of the disk belongs to the file from the start: thousands of records.
const reserved = 8 << 20

// reserve takes space for the file before it is needed, so that ends can be recorded on a disk that others have filled. A file system
// that cannot do this, or has no space now, leaves the ledger as it was.
func reserve(path string) {
	f, err := os.OpenFile(path, os.O_RDWR, 0o600)
	if err != nil {
		return
	}
	defer f.Close()
	_ = unix.Fallocate(int(f.Fd()), unix.FALLOC_FL_KEEP_SIZE, 0, reserved)
}

// load reads everything; a record that cannot be read is set aside, never a reason not to start.
func (l *Ledger) load(tx *bbolt.Tx) error {
	if b := tx.Bucket(bucketMeta); b != nil {
		if v := b.Get(keyEpoch); len(v) == 8 {
			l.epoch = int64(binary.BigEndian.Uint64(v))
		}
	}
	b := tx.Bucket(bucketKernels)
	if b == nil {
		return nil
	}
	return b.ForEach(func(k, v []byte) error {
		var r Record
		if err := json.Unmarshal(v, &r); err != nil || string(r.Kernel) != string(k) {
			l.broken = append(l.broken, string(k))
			return nil
		}
		l.records[r.Kernel] = &r
		return nil
	})
}

// Close closes the file.
func (l *Ledger) Close() error { return l.db.Close() }

// Broken names the records that could not be read. Their containers are still known by label.
func (l *Ledger) Broken() []string { return l.broken }

// Records returns copies of all records, ordered by kernel.
func (l *Ledger) Records() []*Record {
	l.mu.Lock()
	defer l.mu.Unlock()
	out := make([]*Record, 0, len(l.records))
	for _, id := range slices.Sorted(maps.Keys(l.records)) {
		out = append(out, l.records[id].Clone())
	}
	return out
}

// Put stores a record and returns when it is on disk.
func (l *Ledger) Put(r *Record) error {
	r = r.Clone()
	v, err := json.Marshal(r)
	if err != nil {
		return fmt.Errorf("record kernel %s: %w", r.Kernel, err)
	}
	err = l.commit(func(tx *bbolt.Tx) error { return tx.Bucket(bucketKernels).Put([]byte(r.Kernel), v) })
	if err != nil {
		return fmt.Errorf("record kernel %s: %w", r.Kernel, err)
	}
	l.mu.Lock()
	l.records[r.Kernel] = r
	l.mu.Unlock()
	return nil
}

// Delete forgets a kernel; an absent one is no error.
func (l *Ledger) Delete(kernel cluster.KernelID) error {
	err := l.commit(func(tx *bbolt.Tx) error { return tx.Bucket(bucketKernels).Delete([]byte(kernel)) })
	if err != nil {
		return fmt.Errorf("forget kernel %s: %w", kernel, err)
	}
	l.mu.Lock()
	delete(l.records, kernel)
	l.mu.Unlock()
	return nil
}

// Epoch returns the highest epoch of a manager seen so far.
func (l *Ledger) Epoch() int64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.epoch
}

// SetEpoch raises the epoch; a lower one is a Conflict: that manager has been replaced.
func (l *Ledger) SetEpoch(epoch int64) error {
	have := l.Epoch()
	switch {
	case epoch == have:
		return nil
	case epoch < have:
		return fault.Conflictf("a manager of epoch %d speaks, epoch %d was seen before", epoch, have).WithReason("stale-epoch")
	}
	err := l.commit(func(tx *bbolt.Tx) error {
		return tx.Bucket(bucketMeta).Put(keyEpoch, binary.BigEndian.AppendUint64(nil, uint64(epoch)))
	})
	if err != nil {
		return fmt.Errorf("record epoch: %w", err)
	}
	l.mu.Lock()
	l.epoch = max(l.epoch, epoch)
	l.mu.Unlock()
	return nil
}

// commit returns when apply is on disk, together with whatever else came meanwhile.
func (l *Ledger) commit(apply func(*bbolt.Tx) error) error {
	w := &write{apply: apply, done: make(chan error, 1)}
	l.mu.Lock()
	l.pending = append(l.pending, w)
	lead := !l.leading
	l.leading = true
	l.mu.Unlock()
	if !lead {
		if err := <-w.done; !errors.Is(err, errLead) {
			return err
		}
	}
	l.mu.Lock()
	batch := l.pending
	l.pending = nil
	l.mu.Unlock()
	err := l.db.Update(func(tx *bbolt.Tx) error {
		for _, w := range batch {
			if err := w.apply(tx); err != nil {
				return err
			}
		}
		return nil
	})
	for _, other := range batch {
		if other != w {
			other.done <- err
		}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.pending) > 0 {
		l.pending[0].done <- errLead
	} else {
		l.leading = false
	}
	return err
}
