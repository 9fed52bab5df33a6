// Package output keeps what a run has printed until its reader acknowledges it: numbered
// records in memory, then on disk, within bounds; beyond them the producer waits.
//
// It starts no process and speaks no protocol; runner feeds and reads it.
package output

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"unicode/utf8"
)

// Record is one numbered piece of output, or a mark such as the end of the run.
type Record struct {
	Type string // a console type, or the name of a mark
	Mime string
	Data string
	Mark bool
}

// Policy says what happens when the bounds are reached.
type Policy int

// The policies.
const (
	// Wait makes Append wait for the reader.
	Wait Policy = iota
	// DropOldest forgets the oldest output; nobody has to read. Nothing goes to disk.
	DropOldest
)

// Limits are bounds in bytes. SpillDir holds one unlinked file per log that needs it.
type Limits struct {
	Memory, Spill int64
	// Overshoot is what appends that do not wait may use of the disk beyond Spill: the
	// largest piece that a producer can have under way when Full tells it to pause.
	Overshoot int64
	SpillDir  string
}

const (
	recordCost = 64       // what a record costs beside its text
	pieceMax   = 32 << 10 // text records are cut and joined to about this size
)

// ErrClosed means that the log was abandoned.
var ErrClosed = errors.New("the output log is closed")

type entry struct {
	typ, mime string
	mark      bool
	onDisk    bool
	data      []byte // in memory
	off       int64  // on disk
	size      int
}

// Log holds the records of one run. Safe for concurrent use.
type Log struct {
	limits Limits
	policy Policy

	mu      sync.Mutex
	entries []entry
	base    int64 // sequence number of entries[0]
	handed  int64 // records below were handed out, so they never change again
	marks   int
	mem     int64
	disk    int64 // records' bytes on disk that are still needed
	end     int64 // where the spill file ends
	file    *os.File
	lost    int64 // bytes left out since the last time this was told
	loose   bool  // never wait: drop what does not fit
	closed  bool
	changed chan struct{}
}

// NewLog returns an empty log whose first record has number 0.
func NewLog(l Limits, p Policy) *Log {
	return &Log{limits: l, policy: p, changed: make(chan struct{})}
}

func (l *Log) wake() {
	close(l.changed)
	l.changed = make(chan struct{})
}

// Changed returns a channel that is closed with the next change. Take it before looking.
func (l *Log) Changed() <-chan struct{} {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.changed
}

// Text appends text of a console type. It waits while the log is full.
func (l *Log) Text(ctx context.Context, typ, text string) error {
	return cut(text, func(piece string) error { return l.put(ctx, entry{typ: typ, data: []byte(piece)}, true) })
}

// TextNow appends text without waiting: what does not fit is left out and counted.
func (l *Log) TextNow(typ, text string) {
	_ = cut(text, func(piece string) error { // a closed log wants nothing
		return l.putNow(entry{typ: typ, data: []byte(piece)}, true)
	})
}

// cut hands on pieces of bounded size that end between characters.
func cut(text string, hand func(string) error) error {
	for len(text) > 0 {
		n := len(text)
		if n > pieceMax {
			n = pieceMax
			for n > pieceMax-utf8.UTFMax && !utf8.RuneStart(text[n]) {
				n--
			}
		}
		if err := hand(text[:n]); err != nil {
			return err
		}
		text = text[n:]
	}
	return nil
}

// Item appends one item that is never cut or joined, such as a picture. It waits while the log is full.
func (l *Log) Item(ctx context.Context, typ, mime, data string) error {
	return l.put(ctx, entry{typ: typ, mime: mime, data: []byte(data)}, false)
}

// ItemNow is Item without waiting, as TextNow.
func (l *Log) ItemNow(typ, mime, data string) {
	_ = l.putNow(entry{typ: typ, mime: mime, data: []byte(data)}, false) // a closed log wants nothing
}

// Mark appends a mark; it never waits. It returns the mark's number.
func (l *Log) Mark(typ, data string) int64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	e := entry{typ: typ, data: []byte(data), size: len(data), mark: true}
	l.mem += recordCost + int64(e.size)
	l.marks++
	l.entries = append(l.entries, e)
	l.wake()
	return l.base + int64(len(l.entries)) - 1
}

func (l *Log) put(ctx context.Context, e entry, join bool) error {
	for {
		kept, changed, err := l.try(e, join, false)
		if kept || err != nil {
			return err
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

func (l *Log) putNow(e entry, join bool) error {
	_, _, err := l.try(e, join, true)
	return err
}

// try keeps e, or leaves it out and counts it when nobody may wait; else kept is false and
// changed tells when to try again.
func (l *Log) try(e entry, join, hurried bool) (kept bool, changed <-chan struct{}, err error) {
	e.size = len(e.data)
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case l.closed:
		return false, nil, ErrClosed
	case l.store(e, join, hurried):
		l.wake()
	case l.loose, hurried:
		l.lost += int64(e.size)
	default:
		return false, l.changed, nil
	}
	return true, nil, nil
}

// store keeps e when there is room.
func (l *Log) store(e entry, join, hurried bool) bool {
	if join && len(l.entries) > 0 {
		last := &l.entries[len(l.entries)-1]
		mine := l.base+int64(len(l.entries))-1 >= l.handed
		// The last record may grow to its full size even when memory is used up, so that what goes to
		// disk are few large records.
		if mine && !last.mark && !last.onDisk && last.typ == e.typ && last.mime == "" && last.size+e.size <= pieceMax &&
			l.mem+int64(e.size) <= l.limits.Memory+pieceMax {
			last.data = append(last.data, e.data...)
			last.size += e.size
			l.mem += int64(e.size)
			return true
		}
	}
	cost := recordCost + int64(e.size)
	if l.policy == DropOldest {
		for len(l.entries) > 0 && l.mem+cost > l.limits.Memory && !l.entries[0].mark {
			l.lost += int64(l.entries[0].size)
			l.drop(1)
		}
		l.mem += cost
		l.entries = append(l.entries, e)
		return true
	}
	if l.mem+cost <= l.limits.Memory || len(l.entries) == 0 {
		l.mem += cost
		l.entries = append(l.entries, e)
		return true
	}
	bound := l.limits.Spill
	if hurried && !l.loose {
		bound += l.limits.Overshoot
	}
	if l.end+cost > bound {
		return false
	}
	// The newest record stays in memory, where it can still grow; the one before it makes room.
	if last := &l.entries[len(l.entries)-1]; !last.mark && !last.onDisk && join && l.end+recordCost+int64(last.size) <= bound {
		size := recordCost + int64(last.size)
		if !l.spill(last) {
			return false
		}
		l.mem += cost - size
	} else if !l.spill(&e) {
		return false
	}
	l.entries = append(l.entries, e)
	return true
}

// spill moves e's data to the file; false when there is no file or no space for it.
func (l *Log) spill(e *entry) bool {
	if l.file == nil {
		if l.limits.SpillDir == "" {
			return false
		}
		f, err := os.CreateTemp(l.limits.SpillDir, "spill-*")
		if err != nil {
			return false
		}
		_ = os.Remove(f.Name()) // the open file is enough; nothing is left behind after a crash
		l.file = f
	}
	if _, err := l.file.WriteAt(e.data, l.end); err != nil {
		return false
	}
	e.onDisk, e.off, e.data = true, l.end, nil
	l.end += recordCost + int64(e.size) // the cost on top bounds the number of records, too
	l.disk += recordCost + int64(e.size)
	return true
}

// drop forgets the first n entries.
func (l *Log) drop(n int) {
	for i := range n {
		e := &l.entries[i]
		cost := recordCost + int64(e.size)
		if e.mark {
			l.marks--
		}
		if e.onDisk {
			l.disk -= cost
		} else {
			l.mem -= cost
		}
		*e = entry{}
	}
	l.entries = l.entries[n:]
	l.base += int64(n)
	if len(l.entries) == 0 {
		l.entries = nil
	}
	if l.disk == 0 && l.end > 0 {
		l.end = 0
		_ = l.file.Truncate(0) // a failure costs space only
	}
}

// Ack forgets the records below seq.
func (l *Log) Ack(seq int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if n := min(seq-l.base, int64(len(l.entries))); n > 0 {
		l.drop(int(n))
		l.wake()
	}
}

// Batch is what one Read found.
type Batch struct {
	Records []Record
	Next    int64 // number after the last record
	Lost    int64 // bytes left out before these
	More    bool  // more is there already
	Bytes   int
}

// Read returns records from number seq on (from the oldest kept one when seq was forgotten), up to
// and including the first mark, and at most about limit bytes but at least one record.
func (l *Log) Read(seq int64, limit int) (Batch, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if last := l.base + int64(len(l.entries)); seq > last {
		return Batch{}, fmt.Errorf("record %d does not exist yet; the next one is %d", seq, last)
	}
	seq = max64(seq, l.base)
	b := Batch{Next: seq}
	for _, e := range l.entries[seq-l.base:] {
		if len(b.Records) > 0 && b.Bytes+e.size > limit {
			b.More = true
			break
		}
		data := e.data
		if e.onDisk {
			data = make([]byte, e.size)
			if _, err := l.file.ReadAt(data, e.off); err != nil {
				return Batch{}, fmt.Errorf("read spilled output: %w", err)
			}
		}
		b.Records = append(b.Records, Record{Type: e.typ, Mime: e.mime, Data: string(data), Mark: e.mark})
		b.Next++
		b.Bytes += e.size
		if e.mark {
			break
		}
	}
	l.handed = max64(l.handed, b.Next)
	if len(b.Records) > 0 {
		b.Lost, l.lost = l.lost, 0
	}
	return b, nil
}

func max64(a, b int64) int64 {
	if a > b {
		return a
	}
	return b
}

// Full reports that the producer should pause: memory and spill are used up. Overshoot
// takes what a producer that cannot be stopped at once has under way.
func (l *Log) Full() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return !l.loose && l.policy == Wait && l.mem+pieceMax > l.limits.Memory && l.end+pieceMax+recordCost > l.limits.Spill
}

// Loosen stops all waiting: from now on what does not fit is left out and counted. An
// interrupted producer must be able to come to its end.
func (l *Log) Loosen() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.loose {
		l.loose = true
		l.wake()
	}
}

// Pending counts the bytes and marks that are not acknowledged, without reading them.
func (l *Log) Pending() (bytes int64, marks int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.mem + l.disk, l.marks
}

// Close gives the records up.
func (l *Log) Close() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return
	}
	l.closed = true
	l.entries = nil
	if l.file != nil {
		_ = l.file.Close()
	}
	l.wake()
}
