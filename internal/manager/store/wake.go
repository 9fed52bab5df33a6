package store

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
)

// The topics of wake-up hints; AgentTopic and SessionTopic name one object. A hint says
// "look again" and nothing else; it may be lost, doubled or late.
const (
	TopicSchedule = "schedule"
	TopicEvents   = "events"
	// TopicFolders says that a storage proxy shall do something.
	TopicFolders = "folders"
	// TopicImages says that an agent shall delete an image.
	TopicImages = "images"
	// TopicKeypairs says that a keypair was replaced or deleted.
	TopicKeypairs = "keypairs"
	// TopicCircuits says that a published way to an app changed.
	TopicCircuits = "circuits"
	// TopicRights says that somebody may do less than before; the triggers of migration 0022 send it.
	TopicRights = "rights"
	// TopicPurges says that somebody or something is to be forgotten with all that they own.
	TopicPurges = "purges"
	// TopicDirectory says that the directory is to be compared with the users here.
	TopicDirectory = "directory"
	// TopicCallbacks says that a session with a callback changed.
	TopicCallbacks = "callbacks"
	// TopicNotices says that somebody asked for a notice to try the way.
	TopicNotices = "notices"
	// TopicAll is delivered after hints may have been lost: look at everything again.
	TopicAll = "*"
)

// AgentTopic is the topic of an agent's desired state.
func AgentTopic(agent string) string { return "agent:" + agent }

// SessionTopic is the topic of a session's status.
func SessionTopic(session string) string { return "session:" + session }

const (
	wakeChannel = "berth_wake"
	// wakeGather is how long hints to other managers are gathered before one NOTIFY sends them all.
	// NOTIFY takes a lock that is held until commit, so it stays out of the transactions themselves.
	wakeGather = 3 * time.Millisecond
	// maxPendingTopics bounds what one reader may leave untaken; beyond it everything is one TopicAll.
	maxPendingTopics = 4096
)

// wakes spreads hints: at once to readers in this process, soon after to other managers.
type wakes struct {
	mu      sync.Mutex
	readers map[*Wakes]struct{}
	out     map[string]struct{} // for other managers
	kick    chan struct{}       // capacity 1: out is not empty
	// connections counts how often the connection for hints was made or lost.
	connections atomic.Int64
}

func newWakes() *wakes {
	return &wakes{readers: map[*Wakes]struct{}{}, out: map[string]struct{}{}, kick: make(chan struct{}, 1)}
}

// Wakes is one reader's view of the hints.
type Wakes struct {
	// C has an item whenever Take may return something.
	C <-chan struct{}

	c       chan struct{}
	want    func(topic string) bool
	all     *wakes
	pending map[string]struct{}
}

// Wakes subscribes to the topics that want accepts (nil: all). TopicAll is always delivered. Close it.
func (s *Store) Wakes(want func(topic string) bool) *Wakes {
	c := make(chan struct{}, 1)
	w := &Wakes{C: c, c: c, want: want, all: s.wakes, pending: map[string]struct{}{}}
	s.wakes.mu.Lock()
	defer s.wakes.mu.Unlock()
	s.wakes.readers[w] = struct{}{}
	return w
}

// Take returns the topics since the last Take; nil when there are none.
func (w *Wakes) Take() []string {
	w.all.mu.Lock()
	defer w.all.mu.Unlock()
	if len(w.pending) == 0 {
		return nil
	}
	out := make([]string, 0, len(w.pending))
	for t := range w.pending {
		out = append(out, t)
	}
	clear(w.pending)
	return out
}

// Close ends the subscription.
func (w *Wakes) Close() {
	w.all.mu.Lock()
	defer w.all.mu.Unlock()
	delete(w.all.readers, w)
}

// Wake sends a hint now. Within a transaction use Tx.Wake.
func (s *Store) Wake(topic string) {
	w := s.wakes
	w.mu.Lock()
	defer w.mu.Unlock()
	w.deliver(topic)
	if len(w.out) < maxPendingTopics {
		w.out[topic] = struct{}{}
	} else {
		w.out = map[string]struct{}{TopicAll: {}}
	}
	select {
	case w.kick <- struct{}{}:
	default:
	}
}

// deliver gives a topic to the readers here; mu is held.
func (w *wakes) deliver(topic string) {
	for r := range w.readers {
		if topic != TopicAll && r.want != nil && !r.want(topic) {
			continue
		}
		if len(r.pending) >= maxPendingTopics {
			clear(r.pending)
			r.pending[TopicAll] = struct{}{}
		} else {
			r.pending[topic] = struct{}{}
		}
		select {
		case r.c <- struct{}{}:
		default:
		}
	}
}

func (w *wakes) takeOut() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	out := make([]string, 0, len(w.out))
	for t := range w.out {
		out = append(out, t)
	}
	clear(w.out)
	return out
}

// Connections counts how often the connection that carries hints was made or lost. The same number twice says that the server
// did not crash in between: a crash ends all of its connections before it lets anybody in again.
func (s *Store) Connections() int64 { return s.wakes.connections.Load() }

// Run exchanges hints with other managers until ctx ends. After every reconnect readers get TopicAll.
func (s *Store) Run(ctx context.Context) error {
	pause := 50 * time.Millisecond
	for {
		began := time.Now()
		err := s.exchange(ctx)
		if ctx.Err() != nil {
			return nil
		}
		if time.Since(began) > 10*time.Second {
			pause = 50 * time.Millisecond
		}
		s.log.Warn("lost the connection that carries hints between managers; connecting again", "error", err, "in", pause)
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return nil
		}
		pause = min(2*pause, 5*time.Second)
	}
}

// exchange sends and receives on one connection. Using a single one makes own
// notifications recognisable by the sender's process id.
func (s *Store) exchange(ctx context.Context) error {
	config := s.pool.Config().ConnConfig
	config.OnNotification = nil // WaitForNotification returns them
	conn, err := pgx.ConnectConfig(ctx, config)
	if err != nil {
		return err
	}
	defer func() {
		cctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
		defer cancel()
		_ = conn.Close(cctx)
	}()
	if _, err := conn.Exec(ctx, "LISTEN "+wakeChannel+"; LISTEN "+actorsChannel); err != nil {
		return err
	}
	s.wakes.connections.Add(1)
	defer s.wakes.connections.Add(1)
	s.actorsTurn.Add(1) // changes before may have been missed
	s.wakes.mu.Lock()
	s.wakes.deliver(TopicAll)
	s.wakes.mu.Unlock()
	self := conn.PgConn().PID()
	for {
		if out := s.wakes.takeOut(); len(out) > 0 {
			if _, err := conn.Exec(ctx, "SELECT pg_notify('"+wakeChannel+"', t) FROM unnest($1::text[]) t", out); err != nil {
				return err
			}
		}
		if err := s.receive(ctx, conn, self); err != nil {
			return err
		}
	}
}

// receive delivers notifications until there is something to send.
func (s *Store) receive(ctx context.Context, conn *pgx.Conn, self uint32) error {
	wctx, stop := context.WithCancel(ctx)
	defer stop()
	watched := make(chan struct{})
	go func() {
		defer close(watched)
		select {
		case <-s.wakes.kick:
			select {
			case <-time.After(wakeGather):
			case <-wctx.Done():
			}
			stop()
		case <-wctx.Done():
		}
	}()
	defer func() { stop(); <-watched }()
	for {
		n, err := conn.WaitForNotification(wctx)
		if err != nil {
			if wctx.Err() != nil && ctx.Err() == nil && !conn.IsClosed() {
				return nil // there is something to send
			}
			return err
		}
		if n.Channel == actorsChannel {
			s.actorsTurn.Add(1)
			continue
		}
		if n.PID == self {
			continue
		}
		s.wakes.mu.Lock()
		s.wakes.deliver(n.Payload)
		s.wakes.mu.Unlock()
	}
}
