// Package task runs what takes long on volumes: clones, deletions of many files, transfers from and to object
// stores, the reaper of trash.
//
// A task is a document in its volume's journal, written before anything is done. Whoever holds the claim of the
// document works on it; the claim ends with its process, so that any proxy on the volume goes on with what a
// dead one left. Every kind of work can be begun again without doing anything twice.
package task

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"log/slog"
	"regexp"
	"strings"
	"sync"
	"time"

	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/fault"
	"berth.dev/berth/internal/storage/task/s3"
	"berth.dev/berth/internal/storage/volume"
	wire "berth.dev/berth/internal/wire/storage"
)

// Kind is what a task does, in the wire's words.
type Kind string

// The kinds.
const (
	Clone        Kind = "clone"
	DeleteFiles  Kind = "delete-files"
	Import       Kind = "import"
	Export       Kind = "export"
	DeleteFolder Kind = "delete-folder"
)

// Spec is a request for a task.
type Spec struct {
	Kind   Kind
	Volume string
	Folder cluster.FolderRef // of a clone: the new folder
	Source cluster.FolderRef // of a clone

	Paths     []string // clean, of delete-files
	Recursive bool

	Path   string           // clean, of transfers
	Prefix string           // of transfers
	Store  wire.ObjectStore // of transfers
}

// Volumes are the volumes of this proxy.
type Volumes interface {
	Names() []string
	// Volume is NotFound for names that nobody configured and Unavailable while the volume does not answer.
	Volume(name string) (volume.Volume, error)
}

// Clock is the time; see chassis.Clock.
type Clock interface {
	Now() time.Time
	// Wait returns nil once d has passed, or the context's error before that.
	Wait(ctx context.Context, d time.Duration) error
}

// Options are what an engine needs.
type Options struct {
	Volumes Volumes
	Clock   Clock
	Log     *slog.Logger
	NewID   func() string // for tasks whose requester gave none
	// SealKey protects the keys of object stores on disk; 32 bytes, the same for all nodes of a proxy.
	SealKey []byte
	Stores  s3.Policy
	// Workers is how many tasks of one volume run at once in this process, ReapRate how many entries of
	// trash go in a second.
	Workers  int
	ReapRate int
	// UploadExpiry is how long an unfinished upload is kept after its last byte.
	UploadExpiry time.Duration
}

const (
	// scanEvery is how long a task of a proxy that died waits for another at most.
	scanEvery = 3 * time.Second
	saveEvery = time.Second
	// keepFor is how long results can be asked for, at most keepMost of one volume.
	keepFor  = 24 * time.Hour
	keepMost = 10_000
	// maxUnfinished bounds the tasks that wait or run on one volume, maxOfScope those of one quota scope there.
	maxUnfinished = 1000
	maxOfScope    = 250
	// maxBegun is how often a task is begun before it is given up: crashes and stores that are away count.
	maxBegun = 40
	// maxPaths bounds a deletion, maxDocument a new document: journals hold 1 MiB, of which progress needs some.
	maxPaths    = 10_000
	maxDocument = 512 << 10
	fullJournal = 1 << 20
	askPatience = 5 * time.Second

	// A transfer is given up when its object store has not moved it on for neverPatience, if it never has, else for
	// silentPatience, and has been asked silentTries times at least. stallPatience is how long one attempt may stand.
	neverPatience  = 3 * time.Minute
	silentPatience = 15 * time.Minute
	stallPatience  = 15 * time.Minute
	silentTries    = 3

	documentPrefix = "task-"
	cancelPrefix   = "cancel-"
	reaperClaim    = "reaper"
)

// document is a task as the journal keeps it.
type document struct {
	Format int            `json:"format"` // 1
	ID     string         `json:"id"`
	Kind   Kind           `json:"kind"`
	Folder string         `json:"folder"`
	Source string         `json:"source,omitempty"`
	Paths  []string       `json:"paths,omitempty"`
	Deep   bool           `json:"recursive,omitempty"`
	Path   string         `json:"path,omitempty"`
	Prefix string         `json:"prefix,omitempty"`
	Store  *sealedStore   `json:"store,omitempty"`
	Mark   string         `json:"mark"` // tells a repeated request from another one with the same id
	State  wire.TaskState `json:"state"`

	Current int64  `json:"current"`
	Total   int64  `json:"total"`
	Message string `json:"message,omitempty"`
	// Next is the first of Paths that is not known to be done, Failed what could not be removed.
	Next   int       `json:"next,omitempty"`
	Failed []string  `json:"failed,omitempty"`
	Resume s3.Resume `json:"resume,omitzero"`

	// Best is the most bytes that a transfer ever had, Seen the most objects it was done with. Silent is when the object
	// store began to bring it no further; zero while it does.
	Best   int64     `json:"best,omitempty"`
	Seen   int64     `json:"seen,omitempty"`
	Silent time.Time `json:"silent_since,omitzero"`

	Begun   int       `json:"begun,omitempty"` // how often, since it got further
	NotFor  time.Time `json:"not_before,omitzero"`
	Created time.Time `json:"created"`
	Updated time.Time `json:"updated"`
	Ended   time.Time `json:"ended,omitzero"`
}

// transfers tells whether a task depends on an object store.
func (k Kind) transfers() bool { return k == Import || k == Export }

// scope is the quota scope that a task works for.
func (d document) scope() string {
	scope, _, _ := strings.Cut(d.Folder, "/")
	return scope
}

func (d document) final() bool { return d.State != wire.TaskRunning }

func (d document) wire() wire.Task {
	return wire.Task{ID: d.ID, Kind: string(d.Kind), State: d.State, Current: d.Current, Total: d.Total, Message: d.Message}
}

// Engine runs the tasks of all volumes of this process.
type Engine struct {
	o     Options
	lanes map[string]*lane // by volume
}

// lane is what the engine knows of one volume.
type lane struct {
	e    *Engine
	name string
	// wake says that there is something new to do, reap that there is trash.
	wake, reap chan struct{}
	running    sync.WaitGroup

	mu         sync.Mutex
	active     map[string]*job
	finished   map[string]time.Time // ends of documents that need not be read again
	unfinished map[string]int       // by quota scope
	broken     map[string]string    // documents that cannot be read, and why
	orphans    map[string]time.Time
	reaper     reaperState
}

// New makes an engine; Run works.
func New(o Options) *Engine {
	e := &Engine{o: o, lanes: map[string]*lane{}}
	for _, name := range o.Volumes.Names() {
		e.lanes[name] = &lane{
			e: e, name: name, wake: make(chan struct{}, 1), reap: make(chan struct{}, 1),
			active: map[string]*job{}, finished: map[string]time.Time{}, broken: map[string]string{}, orphans: map[string]time.Time{},
			unfinished: map[string]int{},
		}
	}
	return e
}

// Run works on tasks and trash until ctx ends. Tasks that are under way are then left to the next process.
func (e *Engine) Run(ctx context.Context) error {
	var all sync.WaitGroup
	for _, l := range e.lanes {
		all.Go(func() { l.serve(ctx) })
		all.Go(func() { l.serveTrash(ctx) })
	}
	all.Wait()
	return nil
}

var validID = regexp.MustCompile(`^[A-Za-z0-9_-]{1,56}$`)

// Start writes the task down and returns its id, "" letting the engine choose one. The same id is the same task:
// starting it again changes nothing. It is Conflict when the id belongs to another request, and Exhausted when too
// many tasks wait. The work itself is done later, by any proxy on the volume.
func (e *Engine) Start(ctx context.Context, id string, s Spec) (string, error) {
	l, v, err := e.lane(s.Volume)
	if err != nil {
		return "", err
	}
	if id == "" {
		id = e.o.NewID()
	}
	if !validID.MatchString(id) {
		return "", fault.Invalidf("%q is no task id", fault.Clip(id, maxEcho)).WithReason("invalid-api-params").
			WithNext("use up to 56 letters, digits, '-' and '_'")
	}
	if len(s.Paths) > maxPaths {
		return "", fault.Invalidf("%d paths are too many for one task", len(s.Paths)).WithReason("invalid-api-params").
			WithNext("delete at most %d at once, or a directory as a whole", maxPaths)
	}
	d, err := e.describe(id, s)
	if err != nil {
		return "", err
	}
	if s.Kind.transfers() {
		b, err := s3.Open(s.Store, e.o.Stores)
		if err != nil {
			return "", err
		}
		b.Close()
	}
	if err := l.put(ctx, v, d, s.Kind == DeleteFolder); err != nil {
		return "", err
	}
	poke(l.wake)
	return id, nil
}

// put writes a new document, unless the task exists.
func (l *lane) put(ctx context.Context, v volume.Volume, d document, trash bool) error {
	journal := v.Tasks()
	text, err := json.Marshal(d)
	if err != nil {
		return err
	}
	if len(text) > maxDocument {
		return fault.Invalidf("the request is too large to be written down: %d bytes", len(text)).WithReason("invalid-api-params").
			WithNext("name fewer paths, or a directory as a whole")
	}
	for {
		old, err := read(journal, d.ID)
		if err == nil {
			if old.Mark != d.Mark {
				return fault.Conflictf("task %s exists and does something else", d.ID).WithReason("task-exists").WithNext("use another task id")
			}
			return nil
		}
		if !fault.Is(err, fault.NotFound) {
			return err
		}
		if err := l.room(d); err != nil && !trash {
			return err
		}
		// The claim keeps two proxies from writing the same new task at the same time.
		release, ok, err := journal.Claim(documentPrefix + d.ID)
		if err != nil {
			return err
		}
		if !ok {
			if err := l.e.o.Clock.Wait(ctx, 20*time.Millisecond); err != nil {
				return err
			}
			continue
		}
		defer release()
		if _, err := read(journal, d.ID); !fault.Is(err, fault.NotFound) {
			continue // somebody was faster
		}
		if trash {
			// One rename, so that the folder is gone before anybody is answered.
			ref, err := cluster.ParseFolderRef(d.Folder)
			if err != nil {
				return err
			}
			if err := v.TrashFolder(ctx, ref); err != nil {
				return err
			}
			poke(l.reap)
			d.State, d.Ended, d.Current, d.Total = wire.TaskDone, l.e.o.Clock.Now().UTC(), 1, 1
		}
		if err := write(journal, d); err != nil {
			if trash && fault.Is(err, fault.Exhausted) {
				return nil // the folder is gone and makes room; who asks for its task asks again
			}
			return fmt.Errorf("write down task %s: %w", d.ID, err)
		}
		if !d.final() {
			l.mu.Lock()
			l.unfinished[d.scope()]++
			l.mu.Unlock()
		}
		return nil
	}
}

// room is Exhausted where too many tasks wait already, on the volume or for one quota scope.
func (l *lane) room(d document) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	all := 0
	for _, n := range l.unfinished {
		all += n
	}
	tooMany := func(n int, where string) error {
		return fault.Exhaustedf("%d tasks wait %s", n, where).WithReason("too-many-tasks").WithNext("try again when some have ended")
	}
	switch mine := l.unfinished[d.scope()]; {
	case all >= maxUnfinished:
		return tooMany(all, "on volume "+l.name)
	case mine >= maxOfScope:
		return tooMany(mine, "for "+d.scope()+" on volume "+l.name)
	}
	return nil
}

// describe turns a request into a document.
func (e *Engine) describe(id string, s Spec) (document, error) {
	now := e.o.Clock.Now().UTC()
	d := document{
		Format: 1, ID: id, Kind: s.Kind, Folder: s.Folder.String(), Paths: s.Paths, Deep: s.Recursive, Path: s.Path, Prefix: s.Prefix,
		State: wire.TaskRunning, Created: now, Updated: now,
	}
	if s.Kind == Clone {
		d.Source = s.Source.String()
	}
	clear, err := json.Marshal(s)
	if err != nil {
		return d, err
	}
	mac := hmac.New(sha256.New, e.o.SealKey)
	mac.Write(clear)
	d.Mark = hex.EncodeToString(mac.Sum(nil)[:16])
	if s.Kind.transfers() {
		d.Store, err = seal(e.o.SealKey, id, s.Store)
	}
	return d, err
}

// Get is the task's state; NotFound when it never began on these volumes or ended more than a day ago.
func (e *Engine) Get(ctx context.Context, id string) (wire.Task, error) {
	d, _, err := e.find(ctx, id)
	return d.wire(), err
}

// Cancel asks for the task's end and returns its state; a task that has ended stays as it is.
func (e *Engine) Cancel(ctx context.Context, id string) (wire.Task, error) {
	d, l, err := e.find(ctx, id)
	if err != nil || d.final() {
		return d.wire(), err
	}
	_, v, err := e.lane(l.name)
	if err != nil {
		return d.wire(), err
	}
	// Written down first: whoever works on it, or will, reads it.
	put := make(chan error, 1)
	go func() { put <- v.Tasks().Put(cancelPrefix+id, []byte("{}")) }() // ends late on a volume that hangs
	ctx, cancel := context.WithTimeout(ctx, askPatience)
	defer cancel()
	select {
	case err = <-put:
	case <-ctx.Done():
		err = fault.Unavailablef("volume %s does not answer", l.name).WithNext("ask again")
	}
	if err != nil {
		return d.wire(), fmt.Errorf("cancel task %s: %w", id, err)
	}
	l.mu.Lock()
	if j := l.active[id]; j != nil {
		j.cancel(errCancelled)
	}
	l.mu.Unlock()
	poke(l.wake)
	return d.wire(), nil
}

func (e *Engine) lane(name string) (*lane, volume.Volume, error) {
	v, err := e.o.Volumes.Volume(name)
	if err != nil {
		return nil, nil, err
	}
	l := e.lanes[name]
	if l == nil {
		return nil, nil, fault.NotFoundf("volume %q is not here", fault.Clip(name, maxEcho))
	}
	return l, v, nil
}

// find looks for a task on every volume. A volume that does not answer makes "not found" uncertain.
func (e *Engine) find(ctx context.Context, id string) (document, *lane, error) {
	if !validID.MatchString(id) {
		return document{}, nil, fault.NotFoundf("there is no task %q", fault.Clip(id, maxEcho)).WithReason("task-not-found")
	}
	type answer struct {
		d   document
		l   *lane
		err error
	}
	ctx, cancel := context.WithTimeout(ctx, askPatience)
	defer cancel()
	answers := make(chan answer, len(e.lanes))
	for _, l := range e.lanes {
		l.mu.Lock()
		if j := l.active[id]; j != nil {
			l.mu.Unlock()
			return j.snapshot(), l, nil
		}
		l.mu.Unlock()
	}
	for _, l := range e.lanes {
		go func() { // ends late on a volume that hangs; the health check keeps further ones away
			v, err := e.o.Volumes.Volume(l.name)
			a := answer{l: l, err: err}
			if err == nil {
				a.d, a.err = read(v.Tasks(), id)
			}
			answers <- a
		}()
	}
	var uncertain error
	for range e.lanes {
		select {
		case a := <-answers:
			if a.err == nil {
				return a.d, a.l, nil
			}
			if !fault.Is(a.err, fault.NotFound) {
				uncertain = a.err
			}
		case <-ctx.Done():
			return document{}, nil, fault.Unavailablef("not every volume answers, so task %s is not known now", id).WithNext("ask again")
		}
	}
	if uncertain != nil {
		return document{}, nil, fmt.Errorf("look for task %s: %w", id, uncertain)
	}
	return document{}, nil, fault.NotFoundf("there is no task %s", id).WithReason("task-not-found").
		WithNext("results are kept for a day")
}

func read(j volume.Journal, id string) (document, error) {
	var d document
	text, err := j.Get(documentPrefix + id)
	if err != nil {
		return d, err
	}
	if err := json.Unmarshal(text, &d); err != nil || d.Format != 1 || d.ID != id {
		return d, fault.New(fault.Internal, "the document of task %s cannot be read", id).WithReason("task-unreadable").WithCause(err)
	}
	return d, nil
}

func write(j volume.Journal, d document) error {
	text, err := json.Marshal(d)
	if err == nil && len(text) > fullJournal && len(d.Resume.Done) > 0 {
		// Names that JSON makes long. Without them some complete objects are read again, and the task can end.
		d.Resume.Done = nil
		text, err = json.Marshal(d)
	}
	if err != nil {
		return err
	}
	return j.Put(documentPrefix+d.ID, text)
}

func poke(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// maxEcho bounds what is repeated of text that others sent.
const maxEcho = 120
