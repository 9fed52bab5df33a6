// Package stream serves the byte streams of kernels to the manager: the way to their
// runners, their logs, commits and statistics. It is an http.Handler; package link decides who
// may call it (the manager, over the agent's own connection) and doctor's local socket adds to it.
package stream

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"maps"
	"net/http"
	"net/http/httputil"
	"strconv"
	"strings"
	"sync"
	"time"

	"berth.dev/berth/internal/agent/keeper"
	"berth.dev/berth/internal/agent/runners"
	"berth.dev/berth/internal/agent/runtime"
	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/fault"
	"berth.dev/berth/internal/wire/node"
	"berth.dev/berth/internal/wire/run"
)

// Options are what the handler needs.
type Options struct {
	Find     func(cluster.KernelID) (keeper.Kernel, bool)
	LogTail  func(cluster.KernelID) string
	Runtime  runtime.Runtime
	Runners  *runners.Pool
	Log      *slog.Logger
	Stats    func(context.Context, keeper.Kernel) (node.KernelStats, error)
	OnCommit func() // after an image was made or deleted
	// SharedUser is the user number of sessions that have none of their own.
	SharedUser int
}

type handler struct {
	o     Options
	proxy httputil.ReverseProxy

	mu         sync.Mutex
	committing map[cluster.KernelID]bool
}

// New returns the handler of the routes in package wire/node.
func New(o Options) http.Handler {
	h := &handler{o: o, committing: map[cluster.KernelID]bool{}}
	h.proxy = httputil.ReverseProxy{
		Transport: o.Runners,
		// Replies of unknown length are passed on at once, piece by piece: a terminal's echo waits for no buffer. A
		// reply of known length is a whole document and goes out in one.
		FlushInterval: 0,
		BufferPool:    &buffers{},
		Rewrite:       gather, // the handler has made the rest of the outgoing request
		ErrorHandler: func(w http.ResponseWriter, r *http.Request, err error) {
			if r.Context().Err() != nil {
				return // the caller has left
			}
			run.WriteFailure(w, fault.Unavailablef("the runner does not answer").WithReason("runner-unreachable").WithCause(err))
		},
		ErrorLog: slog.NewLogLogger(o.Log.Handler(), slog.LevelDebug),
	}
	mux := http.NewServeMux()
	mux.HandleFunc(node.StreamRunner, h.runner)
	mux.HandleFunc("POST "+node.StreamPort, h.port)
	mux.HandleFunc("GET "+node.StreamLogs, h.logs)
	mux.HandleFunc("POST "+node.StreamCommit, h.commit)
	mux.HandleFunc("GET "+node.StreamImages, h.image)
	mux.HandleFunc("POST "+node.StreamRemoveImage, h.removeImage)
	mux.HandleFunc("GET "+node.StreamStats, h.stats)
	mux.HandleFunc("GET "+node.StreamHealth, func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "ok") })
	mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		run.WriteFailure(w, fault.NotFoundf("the agent has no route %s %s", r.Method, r.URL.Path))
	})
	return mux
}

// maxGathered is the largest request in bytes that is sent to a runner in one piece.
const maxGathered = 16 << 10

// gather takes a small body into memory: net/http sends a body that it knows to be in memory together with the header,
// which saves a runner a wake-up per cell.
func gather(r *httputil.ProxyRequest) {
	n := r.In.ContentLength
	if n <= 0 || n > maxGathered {
		return
	}
	b := make([]byte, n)
	got, err := io.ReadFull(r.In.Body, b)
	if err != nil { // the transport meets the same trouble where the body ends
		r.Out.Body = io.NopCloser(io.MultiReader(bytes.NewReader(b[:got]), r.In.Body))
		return
	}
	r.Out.Body = io.NopCloser(bytes.NewReader(b))
}

type buffers struct{ pool sync.Pool }

func (b *buffers) Get() []byte {
	if p, ok := b.pool.Get().(*[]byte); ok {
		return *p
	}
	return make([]byte, 32<<10)
}

func (b *buffers) Put(p []byte) { b.pool.Put(&p) }

// kernel finds the kernel that a request names. Where it returns false it has answered the request with an error.
func (h *handler) kernel(w http.ResponseWriter, r *http.Request) (keeper.Kernel, bool) {
	id, ok := cluster.CanonicalUUID(r.PathValue("id"))
	if ok {
		var k keeper.Kernel
		if k, ok = h.o.Find(cluster.KernelID(id)); ok {
			return k, true
		}
	}
	run.WriteFailure(w, fault.NotFoundf("kernel %s is not on this agent", r.PathValue("id")).WithReason("kernel-not-found"))
	return keeper.Kernel{}, false
}

// runner passes a request on to the kernel's runner byte for byte, in both directions at once.
func (h *handler) runner(w http.ResponseWriter, r *http.Request) {
	k, ok := h.kernel(w, r)
	if !ok {
		return
	}
	if err := k.Serving(); err != nil {
		run.WriteFailure(w, err)
		return
	}
	_, rest, _ := strings.Cut(r.URL.EscapedPath(), "/runner")
	out := r.WithContext(r.Context()) // a shallow copy; URL and Header are replaced, not changed
	u := *r.URL
	u.Scheme, u.Host = "http", runners.Host(k.ID, k.Generation)
	u.Path, u.RawPath = strings.TrimPrefix(r.URL.Path, "/kernels/"+r.PathValue("id")+"/runner"), rest
	out.URL, out.Host = &u, u.Host
	out.Header = r.Header.Clone()
	out.Header.Set("Authorization", "Bearer "+k.Token)
	h.proxy.ServeHTTP(w, out)
}

func (h *handler) logs(w http.ResponseWriter, r *http.Request) {
	k, ok := h.kernel(w, r)
	if !ok {
		return
	}
	opt := runtime.LogOptions{Follow: r.FormValue("follow") == "true"}
	if t := r.FormValue("tail"); t != "" {
		n, err := strconv.Atoi(t)
		if err != nil || n < 0 {
			run.WriteFailure(w, fault.Invalidf("tail %q is not a number of lines", t))
			return
		}
		opt.Tail = n
	}
	w.Header().Set("Content-Type", "application/octet-stream")
	rc, err := h.o.Runtime.Logs(r.Context(), k.ID, opt)
	if fault.Is(err, fault.NotFound) {
		_, _ = io.WriteString(w, h.o.LogTail(k.ID)) // the container is gone, its last words may still be here
		return
	}
	if err != nil {
		w.Header().Del("Content-Type")
		run.WriteFailure(w, err)
		return
	}
	defer rc.Close()
	stop := context.AfterFunc(r.Context(), func() { _ = rc.Close() }) // unblocks the read below
	defer stop()
	w.WriteHeader(http.StatusOK)
	_ = http.NewResponseController(w).Flush() // the caller sees that the stream is open before the first byte
	if _, err := io.Copy(flushing{w}, rc); err != nil && r.Context().Err() == nil {
		h.o.Log.Debug("a log stream ended early", "kernel", k.ID, "err", err)
		panic(http.ErrAbortHandler) // an incomplete log must not look like a whole one
	}
}

// flushing passes every piece on at once.
type flushing struct{ w http.ResponseWriter }

func (f flushing) Write(p []byte) (int, error) {
	n, err := f.w.Write(p)
	if err == nil {
		err = http.NewResponseController(f.w).Flush()
	}
	return n, err
}

func (h *handler) commit(w http.ResponseWriter, r *http.Request) {
	k, ok := h.kernel(w, r)
	if !ok {
		return
	}
	var req node.CommitRequest
	d := json.NewDecoder(http.MaxBytesReader(w, r.Body, 1<<20))
	if err := d.Decode(&req); err != nil || req.Reference == "" {
		run.WriteFailure(w, fault.Invalidf("a commit needs a JSON body with a reference").WithCause(err))
		return
	}
	if !k.Exists {
		run.WriteFailure(w, fault.Conflictf("kernel %s has no container to commit", k.ID).WithReason("kernel-not-running"))
		return
	}
	h.mu.Lock()
	busy := h.committing[k.ID]
	h.committing[k.ID] = true
	h.mu.Unlock()
	if busy {
		run.WriteFailure(w, fault.Conflictf("kernel %s is being committed already", k.ID).WithReason("commit-in-progress").
			WithNext("wait for that commit to end"))
		return
	}
	defer func() {
		h.mu.Lock()
		defer h.mu.Unlock()
		delete(h.committing, k.ID)
	}()
	w.Header().Set("Content-Type", "application/x-ndjson")
	var write sync.Mutex
	say := func(p node.CommitProgress) {
		write.Lock()
		defer write.Unlock()
		b, _ := json.Marshal(p) // strings and numbers always encode
		_, _ = flushing{w}.Write(append(b, '\n'))
	}
	say(node.CommitProgress{Message: "committing"})
	// The engine reports no progress of a commit: a line every few seconds keeps the stream alive.
	type result struct {
		image runtime.Image
		err   error
	}
	done := make(chan result, 1)
	go func() { // ends with the commit; the handler waits for it
		img, err := h.o.Runtime.Commit(r.Context(), k.ID, h.commitOf(k, req))
		done <- result{img, err}
	}()
	tick := time.NewTicker(5 * time.Second)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			say(node.CommitProgress{Message: "committing"})
		case res := <-done:
			if res.err != nil {
				say(node.CommitProgress{Error: res.err.Error(), Kind: fault.KindOf(res.err).String()})
				return
			}
			if h.o.OnCommit != nil {
				h.o.OnCommit()
			}
			say(node.CommitProgress{Image: &node.CommittedImage{
				Reference: req.Reference, ID: res.image.ID, SizeBytes: res.image.SizeBytes, Architecture: res.image.Architecture}})
			return
		}
	}
}

// commitOf says what image to make of a kernel. A session that has a number of its own must not leave it in the image; any other may have
// written files as the number that the next one has, too.
func (h *handler) commitOf(k keeper.Kernel, req node.CommitRequest) runtime.Commit {
	c := runtime.Commit{Reference: req.Reference, Labels: maps.Clone(req.Labels), MaxBytes: req.MaxBytes}
	if k.User > 0 {
		c.User = runtime.LayerUser{Session: k.User, Image: h.o.SharedUser}
		return c
	}
	if c.Labels == nil {
		c.Labels = map[string]string{}
	}
	c.Labels[cluster.LabelSessionFiles] = cluster.SessionFiles
	return c
}

func (h *handler) stats(w http.ResponseWriter, r *http.Request) {
	k, ok := h.kernel(w, r)
	if !ok {
		return
	}
	s, err := h.o.Stats(r.Context(), k)
	if err != nil {
		if errors.Is(err, context.DeadlineExceeded) {
			err = fault.New(fault.Timeout, "the counters of kernel %s cannot be read in time", k.ID)
		}
		run.WriteFailure(w, err)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(s) // a caller that left needs no answer
}
