// Package proxy serves app proxies on the agent port: it carries circuits and keys down on a watch, and the few questions
// and reports of proxies up (package wire/proxy). It decides nothing; package app does. link/agent hands it connections whose
// certificate it has verified.
package proxy

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"slices"
	"time"

	"golang.org/x/net/http2"

	"berth.dev/berth/internal/chassis"
	"berth.dev/berth/internal/fault"
	"berth.dev/berth/internal/manager/app"
	"berth.dev/berth/internal/manager/link/h2"
	"berth.dev/berth/internal/wire/node"
	"berth.dev/berth/internal/wire/proxy"
	"berth.dev/berth/internal/wire/run"
)

const (
	// askPatience bounds one question of a proxy; starting an app is the longest of them.
	askPatience = 90 * time.Second
	// bodyPatience bounds how long the body of a question may take to arrive.
	bodyPatience = 15 * time.Second
	// takePatience is how long a proxy may take to take one event.
	takePatience = 3 * proxy.Beat
	maxStreams   = 128
	// maxGone and maxEvent bound what one event holds: ids, and estimated bytes of circuits.
	maxGone  = 4096
	maxEvent = proxy.MaxLine / 2
)

// Deps are what a Link works with; Managers and Counts may be nil.
type Deps struct {
	App *app.Service
	// Managers are the agent ports of all managers, for proxies to choose from; nil or empty tells proxies nothing.
	Managers func() []string
	// Counts fails when the certificate of a connection was replaced or revoked meanwhile. It is asked before grants are handed out.
	Counts func(context.Context, net.Conn) error
	Clock  chassis.Clock
	Log    *slog.Logger
}

// Link serves app proxies.
type Link struct {
	app      *app.Service
	managers func() []string
	counts   func(context.Context, net.Conn) error
	clock    chassis.Clock
	log      *slog.Logger
}

// New makes a link.
func New(d Deps) *Link {
	l := &Link{app: d.App, managers: d.Managers, counts: d.Counts, clock: d.Clock, log: d.Log}
	if l.managers == nil {
		l.managers = func() []string { return nil }
	}
	if l.counts == nil {
		l.counts = func(context.Context, net.Conn) error { return nil }
	}
	return l
}

// Serve serves one connection of the proxy of that name until it or ctx ends, and waits for what it began. It closes conn.
func (l *Link) Serve(ctx context.Context, name string, conn net.Conn) {
	h2.Serve(ctx, conn, &http2.Server{
		MaxConcurrentStreams: maxStreams, IdleTimeout: time.Minute,
		ReadIdleTimeout: 3 * proxy.Beat, PingTimeout: 2 * proxy.Beat, WriteByteTimeout: takePatience,
	}, 16<<10, l.handler(name, conn), l.log)
}

func (l *Link) handler(name string, conn net.Conn) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("POST "+proxy.PathWatch, func(w http.ResponseWriter, r *http.Request) { l.watch(name, conn, w, r) })
	handle(mux, proxy.PathLookup, l, func(ctx context.Context, req proxy.LookupRequest) (proxy.LookupReply, error) {
		return l.app.Lookup(ctx, name, req)
	})
	handle(mux, proxy.PathConf, l, func(ctx context.Context, req proxy.ConfRequest) (proxy.ConfReply, error) {
		return l.app.Conf(ctx, name, req)
	})
	handle(mux, proxy.PathBind, l, l.app.Bind)
	handle(mux, proxy.PathLaunch, l, func(ctx context.Context, req proxy.LaunchRequest) (proxy.LaunchReply, error) {
		req.Proxy = name // whatever it says: the certificate counts
		reply, err := l.app.Launch(ctx, req)
		if err != nil {
			return reply, err
		}
		return reply, l.counts(ctx, conn)
	})
	handle(mux, proxy.PathRedeem, l, func(ctx context.Context, req proxy.RedeemRequest) (proxy.RedeemReply, error) {
		return l.app.Redeem(ctx, name, req)
	})
	handle(mux, proxy.PathClose, l, func(ctx context.Context, req proxy.CloseRequest) (struct{}, error) {
		return struct{}{}, l.app.Close(ctx, name, req)
	})
	handle(mux, proxy.PathActivity, l, func(ctx context.Context, req proxy.Activity) (struct{}, error) {
		if len(req.Circuits) > proxy.MaxCircuits {
			return struct{}{}, fault.Invalidf("%d circuits in one report are too many", len(req.Circuits)).
				WithNext("send at most %d", proxy.MaxCircuits)
		}
		return struct{}{}, l.app.Activity(ctx, name, req)
	})
	mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		run.WriteFailure(w, fault.NotFoundf("this manager does not know %s %.100s", r.Method, r.URL.Path).
			WithNext("use an app proxy of the manager's version"))
	})
	return mux
}

// handle answers one kind of question.
func handle[Req, Reply any](mux *http.ServeMux, path string, l *Link, do func(context.Context, Req) (Reply, error)) {
	mux.HandleFunc("POST "+path, func(w http.ResponseWriter, r *http.Request) {
		ctx, cancel := context.WithTimeout(r.Context(), askPatience)
		defer cancel()
		var req Req
		err := read(w, r, &req)
		var reply Reply
		if err == nil {
			reply, err = do(ctx, req)
		}
		if err != nil {
			if ctx.Err() == nil && fault.KindOf(err) == fault.Internal {
				l.log.Error("a question of an app proxy failed", "path", path, "error", err)
				err = fault.New(fault.Internal, "the manager met an error that it did not expect").WithNext("see the manager's log")
			}
			run.WriteFailure(w, err)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(reply) // a proxy that went away needs no answer
	})
}

// read decodes the one JSON value of a body.
func read(w http.ResponseWriter, r *http.Request, into any) error {
	rc := http.NewResponseController(w)
	if rc.SetReadDeadline(time.Now().Add(bodyPatience)) == nil {
		defer func() { _ = rc.SetReadDeadline(time.Time{}) }()
	}
	raw, err := io.ReadAll(http.MaxBytesReader(w, r.Body, proxy.MaxRequest))
	if err != nil {
		var large *http.MaxBytesError
		if errors.As(err, &large) {
			return fault.Exhaustedf("the request is larger than %d bytes", large.Limit)
		}
		return fault.Invalidf("the request broke off").WithCause(err)
	}
	if err := json.Unmarshal(raw, into); err != nil {
		return fault.Invalidf("the request cannot be read").WithCause(err)
	}
	return nil
}

// watch tells a proxy about its circuits until either goes.
func (l *Link) watch(name string, conn net.Conn, w http.ResponseWriter, r *http.Request) {
	var req proxy.WatchRequest
	if err := read(w, r, &req); err != nil {
		run.WriteFailure(w, err)
		return
	}
	i := req.Instance
	if i.Name != "" && i.Name != name {
		run.WriteFailure(w, fault.Deniedf("the certificate is of app proxy %s, not of %.100s", name, i.Name))
		return
	}
	ctx, cancel := context.WithTimeout(r.Context(), askPatience)
	err := l.app.See(ctx, name, i)
	var watch *app.Watch
	if err == nil {
		watch, err = l.app.Watch(ctx, name)
	}
	cancel()
	if err != nil {
		run.WriteFailure(w, err)
		return
	}
	defer watch.Close()
	l.log.Info("an app proxy watches its circuits", "proxy", name, "node", i.Node, "url", i.URL, "build", i.Build)
	seen := l.clock.Now()
	defer func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(r.Context()), 2*time.Second)
		defer cancel()
		// Another manager may see the replica already.
		if err := l.app.Leave(ctx, name, i.Node, seen); err != nil {
			l.log.Debug("cannot note that an app proxy left", "proxy", name, "error", err)
		}
	}()
	w.Header().Set("Content-Type", "application/x-ndjson")
	w.WriteHeader(http.StatusOK)
	out := &events{w: w, rc: http.NewResponseController(w)}
	beat := l.clock.NewTicker(proxy.Beat)
	defer beat.Stop()
	for {
		err := l.tell(r.Context(), conn, out, watch)
		for err == nil {
			select {
			case <-watch.C:
			case <-beat.C():
				if l.clock.Now().Sub(seen) >= app.SeeEvery && l.app.See(r.Context(), name, i) == nil {
					seen = l.clock.Now() // not before what was stored
				}
				if err = out.send(l.beat(out)); err != nil {
					continue
				}
			case <-r.Context().Done():
				err = r.Context().Err()
				continue
			}
			break
		}
		if err != nil {
			l.log.Info("an app proxy's watch ended", "proxy", name, "node", i.Node, "error", err)
			return
		}
	}
}

// tell sends what changed since the last time.
func (l *Link) tell(ctx context.Context, conn net.Conn, out *events, watch *app.Watch) error {
	kctx, cancel := context.WithTimeout(ctx, takePatience)
	keys, err := l.app.Keys(kctx, watch.Name())
	cancel()
	if err != nil && out.keys == nil {
		return fmt.Errorf("read the keys of tickets: %w", err) // without keys nobody gets in: the proxy dials anew
	}
	var fresh [][]byte
	if err == nil && !slices.EqualFunc(keys, out.keys, bytes.Equal) {
		fresh = keys
	}
	circuits, gone, full := watch.Take(l.clock.Now())
	slices.SortFunc(circuits, func(a, b proxy.Circuit) int { return int(a.Revision - b.Revision) })
	for _, e := range eventsOf(circuits, gone, full, fresh) {
		if err := l.app.Grant(ctx, watch, e.Circuits); err != nil {
			return err // a proxy without grants reaches nothing: it dials anew
		}
		if len(e.Circuits) > 0 {
			if err := l.counts(ctx, conn); err != nil { // after signing: what was signed before an end is refused by agents
				return err
			}
		}
		if err := out.send(e); err != nil {
			return err
		}
	}
	if full { // a snapshot is the first that a proxy hears
		e := l.beat(out)
		e.Version = proxy.Version
		if err := out.send(e); err != nil {
			return err
		}
	}
	if fresh != nil {
		out.keys = fresh
	}
	return nil
}

// beat is an event without circuits; it names the managers when their list is not what the proxy heard last.
func (l *Link) beat(out *events) proxy.Event {
	list := l.managers()
	list = list[:min(len(list), node.MaxManagers)]
	if slices.Equal(list, out.managers) {
		return proxy.Event{}
	}
	out.managers = list
	return proxy.Event{Managers: list}
}

// eventsOf cuts a change into events that keep to the bounds; none when there is nothing to say.
func eventsOf(circuits []proxy.Circuit, gone []string, full bool, keys [][]byte) []proxy.Event {
	var out []proxy.Event
	e := proxy.Event{Snapshot: full, Keys: keys}
	size := 0
	cut := func() {
		out = append(out, e)
		e, size = proxy.Event{Snapshot: full}, 0
	}
	for _, c := range circuits {
		n := 1024 + 64*(len(c.Allowed)+len(c.Admitted)) + 1024*len(c.Targets)
		if len(e.Circuits) == proxy.MaxCircuits || size > 0 && size+n > maxEvent {
			cut()
		}
		e.Circuits = append(e.Circuits, c)
		size += n
	}
	for part := range slices.Chunk(gone, maxGone) {
		if len(e.Gone) > 0 || size > 0 {
			cut()
		}
		e.Gone = part
	}
	if full || len(e.Circuits) > 0 || len(e.Gone) > 0 || len(e.Keys) > 0 {
		e.Complete = full
		out = append(out, e)
	}
	return out
}

// events writes a watch.
type events struct {
	w  io.Writer
	rc *http.ResponseController
	// As they were sent last.
	keys     [][]byte
	managers []string
}

func (o *events) send(e proxy.Event) error {
	line, err := json.Marshal(e)
	if err != nil {
		return fmt.Errorf("render an event: %w", err)
	}
	_ = o.rc.SetWriteDeadline(time.Now().Add(takePatience))
	if _, err := o.w.Write(append(line, '\n')); err != nil {
		return fmt.Errorf("send an event: %w", err)
	}
	if err := o.rc.Flush(); err != nil {
		return fmt.Errorf("send an event: %w", err)
	}
	return nil
}
