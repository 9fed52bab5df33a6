package agent

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"google.golang.org/protobuf/proto"

	"berth.dev/berth/internal/chassis"
	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/fault"
	"berth.dev/berth/internal/wire/node"
)

// The pause between two looks at an agent's desired state. Wakes that come meanwhile are answered together.
const (
	leastPushPause = 10 * time.Millisecond
	mostPushPause  = time.Second
)

// pushPause is the pause after a look whose successful query took so long: looking takes no more than a third of the time, while queries
// take less than half a second. Failed attempts do not count, because an outage of the database must not delay the orders after it.
func pushPause(took time.Duration) time.Duration {
	return min(max(leastPushPause, 2*took), mostPushPause)
}

// sentRevision is a desired state as an agent was sent it: kernels with their generations.
type sentRevision struct {
	revision int64
	kernels  map[cluster.KernelID]int64
}

func generationsOf(list []cluster.DesiredKernel) map[cluster.KernelID]int64 {
	out := make(map[cluster.KernelID]int64, len(list))
	for _, d := range list {
		out[d.Kernel] = max(out[d.Kernel], d.Generation)
	}
	return out
}

// pushing is what push works with. A connected agent that nothing happens to costs no goroutine here.
type pushing struct {
	mu sync.Mutex
	// open says that looks are taken; asked that one is to come, full that it is to send everything; busy that push runs.
	open, asked, full, busy bool
	work                    sync.WaitGroup
	resync                  chassis.Timer

	// These are push's own.
	sent     sentState
	revision int64
}

// startPushing sends the full desired state, at once and at every resync, and what changed since whenever somebody wakes the session.
func (s *session) startPushing() {
	p := &s.pushing
	p.sent = sentState{version: s.version, sums: map[string][sha256.Size]byte{}, told: map[cluster.KernelID]int64{},
		loose: map[string][sha256.Size]byte{}}
	// Revisions of a later session are higher than those of all earlier ones.
	p.revision = s.epoch.Load() << 32
	p.mu.Lock()
	p.open = true
	p.resync = s.link.d.Clock.AfterFunc(s.link.cfg.Resync, s.resync)
	p.mu.Unlock()
	s.look(true)
}

// stopPushing returns when push has ended; s.ctx must be over.
func (s *session) stopPushing() {
	p := &s.pushing
	p.mu.Lock()
	p.open = false
	p.resync.Stop()
	p.mu.Unlock()
	p.work.Wait()
}

func (s *session) resync() {
	s.look(true)
	p := &s.pushing
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.open {
		p.resync.Reset(s.link.cfg.Resync)
	}
}

// look has the desired state looked at soon. Looks that are asked for before the next one begins are one.
func (s *session) look(full bool) {
	p := &s.pushing
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.open {
		return // the first look sends everything
	}
	p.asked, p.full = true, p.full || full
	if !p.busy {
		p.busy = true
		p.work.Go(s.push)
	}
}

// turn tells push whether it is to look again, and whether in full.
func (p *pushing) turn() (full, again bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	full, again = p.full, p.asked && p.open
	p.full, p.asked, p.busy = false, false, again
	return full, again
}

// push looks for as long as looks are asked for; one look answers all that were asked for before it. It compares states, so a lost or
// doubled wake costs nothing.
func (s *session) push() {
	for {
		full, again := s.pushing.turn()
		if !again {
			return
		}
		took, ok := s.pushOnce(full)
		if !ok || chassis.Wait(s.ctx, chassis.RealClock(), pushPause(took)) != nil {
			return // the session is over
		}
	}
}

// pushOnce is one look. It returns how long the successful query took; ok is false when the session is over.
func (s *session) pushOnce(full bool) (took time.Duration, ok bool) {
	sent := &s.pushing.sent
	var list []cluster.DesiredKernel
	var asked time.Time // when the successful query began
	s.delivery.begin(time.Now())
	if full {
		clear(sent.told)
	}
	ok = s.retry("load the desired state", func(ctx context.Context) (err error) {
		asked = time.Now()
		list, err = s.link.d.Sink.Desired(ctx, s.agent, maps.Clone(sent.told))
		took = time.Since(asked)
		return err
	})
	if !ok {
		return 0, false
	}
	held := make(map[cluster.KernelID]bool, len(list))
	for _, d := range list {
		if !d.Stop { // it may run elsewhere by now
			held[d.Kernel] = true
		}
	}
	s.held.Store(&held)
	kernels, err := sent.changed(list, full)
	if err != nil {
		s.cancel(err)
		return 0, false
	}
	if full || len(kernels) > 0 {
		s.pushing.revision++
		revision := s.pushing.revision
		// Stored before sending: a report that says it has seen this revision comes after.
		s.sent.Store(&sentRevision{revision, generationsOf(list)})
		d := &node.Desired{Full: full, Revision: revision, Epoch: s.epoch.Load(), Kernels: kernels}
		if !s.put(&node.Down{Kind: &node.Down_Desired{Desired: d}}) {
			return 0, false
		}
		if !full && slices.ContainsFunc(list, begins) {
			s.link.hub.want(s.agent) // owners come as soon as their sessions run
		}
	}
	s.delivery.done(asked)
	return took, true
}

// begins tells whether an order, of the news to an agent, is to start an interactive kernel.
func begins(d cluster.DesiredKernel) bool {
	return d.Spec != nil && !d.Stop && d.Spec.SessionType == cluster.Interactive
}

// The first versions of the stream whose agents know folders, and egress policies.
const (
	versionMounts = 2
	versionEgress = 6
)

// sentState is what an agent was told on this connection.
type sentState struct {
	version int32                        // of the stream
	sums    map[string][sha256.Size]byte // by kernel and generation
	// told are the generations of kernels whose specification it has.
	told map[cluster.KernelID]int64
	// loose are sums of what it was sent that may change within a generation. What is new is sent without the specification.
	loose map[string][sha256.Size]byte
}

// looseOf sums up what may change while a kernel runs, as far as the agent understands it.
func (s *sentState) looseOf(d *cluster.DesiredKernel) [sha256.Size]byte {
	var b strings.Builder
	if s.version >= versionEgress {
		b.WriteString(d.Egress.String())
	}
	if s.version >= node.VersionWithheld {
		for _, w := range d.Withheld {
			fmt.Fprintf(&b, "\n%s %s %s %t", w.Folder, w.Scope, w.Name, w.ReadOnly)
		}
		fmt.Fprintf(&b, "\n%t", d.AuthorizedKeys != nil)
		for _, line := range d.AuthorizedKeys {
			b.WriteString("\n" + line)
		}
	}
	if n := d.Network; n != nil && s.knows(n) {
		fmt.Fprintf(&b, "\n%d %s %t", n.Number, n.Subnet, n.Encrypted)
		for _, m := range n.Members {
			fmt.Fprintf(&b, "\n%s %s %s %s %s %s %s", m.Kernel, m.Name, m.Address, m.Agent, m.Host, m.Tunnel.Key, m.Tunnel.Endpoint)
		}
	}
	if s.version >= node.VersionPeers {
		fmt.Fprintf(&b, "\n%t", d.AllRun)
	}
	if s.version >= node.VersionHostNetwork {
		for _, h := range d.HostPeers {
			fmt.Fprintf(&b, "\nhost %s %s", h.Name, h.Endpoint)
		}
	}
	return sha256.Sum256([]byte(b.String()))
}

// knows reports whether the agent makes a network as it is to be.
func (s *sentState) knows(n *cluster.SessionNetwork) bool {
	return s.version >= node.VersionNetwork && (!n.Encrypted || s.version >= node.VersionEncrypted)
}

// changed returns the messages for kernels that differ from what was sent, or all of them,
// and notes them as sent.
func (s *sentState) changed(list []cluster.DesiredKernel, full bool) ([]*node.DesiredKernel, error) {
	var out []*node.DesiredKernel
	present := make(map[string]bool, len(list))
	for i := range list {
		d := &list[i]
		// One kernel may be named twice: its present generation to run, an older one to remove.
		key := string(d.Kernel) + "/" + strconv.FormatInt(d.Generation, 10)
		present[key] = true
		loose := s.looseOf(d)
		if d.Spec == nil && !d.Stop && s.loose[key] == loose {
			continue // the agent has it
		}
		if d.Spec != nil && !d.Egress.Open() && s.version < versionEgress {
			continue // it would start with everything open; its deadline moves it to another agent
		}
		if d.Spec != nil && d.Network != nil && !s.knows(d.Network) {
			continue // it would start alone, or in clear; its deadline moves it to another agent
		}
		if d.Spec != nil && d.Spec.HostNetwork && s.version < node.VersionHostNetwork {
			continue // it would get a network of its own; its deadline moves it to another agent
		}
		if d.Spec != nil && len(d.Spec.Mounts) > 0 && s.version < versionMounts {
			continue // it would start without its folders; its deadline moves it to another agent
		}
		m := desiredOf(d)
		if d.Network != nil && !s.knows(d.Network) {
			m.Network = nil // an agent that was replaced by an older one makes no network of it
		}
		raw, err := proto.MarshalOptions{Deterministic: true}.Marshal(m)
		if err != nil {
			return nil, fmt.Errorf("encode kernel %s: %w", m.KernelId, err)
		}
		sum := sha256.Sum256(raw)
		s.loose[key] = loose
		if full || s.sums[key] != sum {
			out = append(out, m)
			s.sums[key] = sum
		}
		if d.Spec != nil {
			s.told[d.Kernel] = d.Generation
		}
	}
	for key := range s.sums {
		if !present[key] {
			delete(s.sums, key)
			delete(s.loose, key)
			kernel, _, _ := strings.Cut(key, "/")
			delete(s.told, cluster.KernelID(kernel))
		}
	}
	return out, nil
}

// Do runs a piece of imperative work on an agent and returns its answer (JSON of the verb).
// The context must have a deadline.
func (l *Link) Do(ctx context.Context, agent cluster.AgentID, verb string, body []byte) ([]byte, error) {
	l.mu.Lock()
	s := l.sessions[agent]
	l.mu.Unlock()
	if s == nil || !s.sending.welcomed() {
		return nil, notConnected(agent)
	}
	deadline, ok := ctx.Deadline()
	if !ok {
		return nil, fault.New(fault.Internal, "action %s for agent %s has no deadline", verb, agent)
	}
	raw := make([]byte, 16)
	if _, err := io.ReadFull(l.d.Random, raw); err != nil {
		return nil, fmt.Errorf("make the id of an action: %w", err)
	}
	id := hex.EncodeToString(raw)
	reply := make(chan *node.ActionReply, 1)
	s.mu.Lock()
	s.actions[id] = reply
	s.mu.Unlock()
	defer func() {
		s.mu.Lock()
		delete(s.actions, id)
		s.mu.Unlock()
	}()
	m := &node.Down{Kind: &node.Down_Action{Action: &node.Action{
		RequestId: id, DeadlineMs: time.Until(deadline).Milliseconds(), Verb: verb, Body: body,
	}}}
	select {
	case s.out <- m:
		s.wakeSend()
	case <-s.ctx.Done():
		return nil, notConnected(agent)
	case <-ctx.Done():
		return nil, fault.New(fault.Timeout, "agent %s takes no more work", agent).WithCause(ctx.Err())
	}
	select {
	case r := <-reply:
		if r.Error != "" {
			return nil, fault.New(kindOf(r.ErrorKind), "agent %s: %s", agent, r.Error)
		}
		return r.Body, nil
	case <-s.ctx.Done():
		return nil, notConnected(agent)
	case <-ctx.Done():
		return nil, fault.New(fault.Timeout, "agent %s did not answer %s in time", agent, verb).WithCause(ctx.Err())
	}
}

func (s *session) reply(r *node.ActionReply) {
	s.mu.Lock()
	c := s.actions[r.GetRequestId()]
	s.mu.Unlock()
	if c == nil {
		return // nobody waits any more
	}
	select {
	case c <- r:
	default: // answered twice
	}
}

func notConnected(agent cluster.AgentID) error {
	return fault.Unavailablef("agent %s is not connected to this manager", agent).WithReason("agent-not-connected").
		WithNext("try again; if it stays away, look at it with berth agent info %s", agent)
}

func kindOf(text string) fault.Kind {
	for k := fault.Internal; k <= fault.Timeout; k++ {
		if k.String() == text {
			return k
		}
	}
	return fault.Internal
}
