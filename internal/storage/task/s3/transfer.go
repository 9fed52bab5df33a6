package s3

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"unicode/utf8"

	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/fault"
	"berth.dev/berth/internal/storage/volume"
)

// Transfer is one import or export.
type Transfer struct {
	Volume volume.Volume
	Folder cluster.FolderRef
	Path   string // clean, of a file or directory inside the folder
	Prefix string // of keys, or the key of one object
	// Task names the transfer; unfinished downloads are found again by it.
	Task string
	// Tell hears of progress in bytes; resume says where to go on, now or whenever it is called. Tell must not block.
	Tell func(p volume.Progress, resume func() Resume)
}

// Resume is what a transfer remembers over a crash.
type Resume struct {
	// After is the last key before which every object of an import is done; Done are later ones with their etags.
	After string            `json:"after,omitempty"`
	Done  map[string]string `json:"done,omitempty"`
	// Open are the keys whose multipart uploads an export has begun.
	Open  []string `json:"open,omitempty"`
	Count Count    `json:"count"`
}

// Count is what a transfer did.
type Count struct {
	Objects int64 `json:"objects"` // copied
	Bytes   int64 `json:"bytes"`
	Skipped int64 `json:"skipped,omitempty"` // complete already
	// Refused have names, or are things, that the other side cannot hold; Example is one of them.
	Refused int64  `json:"refused,omitempty"`
	Example string `json:"example,omitempty"`
}

// String is what people read at the end of a transfer.
func (c Count) String() string {
	s := fmt.Sprintf("%d objects, %d bytes copied", c.Objects, c.Bytes)
	if c.Skipped > 0 {
		s += fmt.Sprintf(", %d were there already", c.Skipped)
	}
	if c.Refused > 0 {
		s += fmt.Sprintf(", %d left out because of their name or kind, or because they changed meanwhile, such as %s", c.Refused, c.Example)
	}
	return s
}

// ledger is the state of a running transfer, for its workers.
type ledger struct {
	mu     sync.Mutex
	resume Resume
	total  int64
	now    int64    // bytes done, with parts of objects that are under way
	order  []string // keys under way, in the order of the listing
	// ahead has an item for every key in order: a large object must not let thousands of later ones be remembered.
	ahead chan struct{}
	tell  func(volume.Progress, func() Resume)
}

// maxAhead bounds the keys behind one that takes long.
const maxAhead = 256

func newLedger(r Resume, tell func(volume.Progress, func() Resume)) *ledger {
	done := make(map[string]string, len(r.Done))
	maps.Copy(done, r.Done)
	r.Done = done
	return &ledger{resume: r, now: r.Count.Bytes, tell: tell, ahead: make(chan struct{}, maxAhead)}
}

// say tells the listener; the caller holds the lock.
func (l *ledger) say() {
	if l.tell != nil {
		l.tell(volume.Progress{Current: l.now, Total: l.total, Message: l.resume.Count.String()}, l.snapshot)
	}
}

func (l *ledger) snapshot() Resume {
	l.mu.Lock()
	defer l.mu.Unlock()
	r := l.resume
	r.Done, r.Open = maps.Clone(l.resume.Done), slices.Clone(l.resume.Open)
	return r
}

func (l *ledger) expect(total int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.total = total
	l.say()
}

// alive tells the listener that something happens although no byte moves.
func (l *ledger) alive() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.say()
}

// moved counts bytes of an object that is not complete yet.
func (l *ledger) moved(n int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.now += n
	l.say()
}

// begin notes a key in the order of the listing; known is true when an earlier run has completed it.
func (l *ledger) begin(ctx context.Context, key, etag string) (known bool, err error) {
	select {
	case l.ahead <- struct{}{}:
	case <-ctx.Done():
		return false, context.Cause(ctx)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if old, ok := l.resume.Done[key]; ok && old == etag {
		// It stays among the later ones until everything before it is done.
		l.order = append(l.order, key)
		l.settle()
		return true, nil
	}
	delete(l.resume.Done, key)
	l.order = append(l.order, key)
	return false, nil
}

// end notes that a key is done: copied, or left out for good.
func (l *ledger) end(key, etag string, count func(*Count)) {
	l.mu.Lock()
	defer l.mu.Unlock()
	count(&l.resume.Count)
	l.resume.Done[key] = etag
	l.settle()
	l.say()
}

// settle moves After over the keys that are done; the caller holds the lock.
func (l *ledger) settle() {
	for len(l.order) > 0 {
		key := l.order[0]
		if _, done := l.resume.Done[key]; !done {
			return
		}
		delete(l.resume.Done, key)
		l.resume.After, l.order = key, l.order[1:]
		<-l.ahead
	}
}

func (l *ledger) refuse(name string) func(*Count) {
	return func(c *Count) {
		c.Refused++
		if c.Example == "" {
			c.Example = fmt.Sprintf("%q", fault.Clip(name, maxEcho))
		}
	}
}

func (l *ledger) open(key string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.resume.Open = append(l.resume.Open, key)
	l.say()
}

func (l *ledger) close(key string, count func(*Count)) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.resume.Open = slices.DeleteFunc(l.resume.Open, func(k string) bool { return k == key })
	count(&l.resume.Count)
	l.say()
}

func (l *ledger) count() Count {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.resume.Count
}

// stageID names the unfinished file of one object of one task; another version of the object is another file.
func stageID(task, key, etag string) string {
	sum := sha256.Sum256([]byte(task + "\x00" + key + "\x00" + etag))
	return "s3-" + hex.EncodeToString(sum[:20])
}

// target is where an object goes inside the folder, below the directory dir; ok is false for keys that are no
// path. A key that ends with a slash stands for a directory.
func target(dir, rest string) (path string, isDir, ok bool) {
	rest, isDir = strings.CutSuffix(rest, "/")
	clean, err := volume.CleanPath(rest)
	// A key that means another path once it is cleaned would let two objects fall together.
	if err != nil || clean != rest || clean == "." {
		return "", isDir, false
	}
	if dir == "." {
		return clean, isDir, true
	}
	path, err = volume.CleanPath(dir + "/" + clean)
	return path, isDir, err == nil
}

// directory turns a prefix into one that names whole path elements.
func directory(prefix string) string {
	if prefix == "" || strings.HasSuffix(prefix, "/") {
		return prefix
	}
	return prefix + "/"
}

// maxKey is the longest key of S3, in bytes.
const maxKey = 1024

func keyFor(prefix, rel string) (key string, ok bool) {
	key = directory(prefix) + rel
	return key, len(key) <= maxKey && utf8.ValidString(key)
}
