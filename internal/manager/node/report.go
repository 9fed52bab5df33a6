package node

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"slices"
	"sync"
	"time"

	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/fault"
	"berth.dev/berth/internal/manager/image"
	"berth.dev/berth/internal/manager/seal"
	"berth.dev/berth/internal/manager/store"
	"berth.dev/berth/internal/manager/store/dbgen"
)

// Reports moves what agents are responsible for.
type Reports struct {
	// Store, Seal, Random, IDs and Log are required.
	Store  *store.Store
	Seal   *seal.Key
	Random io.Reader
	IDs    func() string
	Log    *slog.Logger
	// DefaultGroup is where agents go that name no resource group or an unknown one.
	DefaultGroup string

	once    sync.Once
	reports *store.Group[*report]
	wants   *store.Group[*want]
}

// groups makes what gathers calls that come at the same time.
func (n *Reports) groups() {
	n.once.Do(func() {
		n.reports = store.NewGroup(maxReports, n.storeReports)
		n.reports.Rest = reportRest
		n.wants = store.NewGroup(maxWants, n.answerWants)
	})
}

func (n *Reports) reporting() *store.Group[*report] { n.groups(); return n.reports }
func (n *Reports) wanting() *store.Group[*want]     { n.groups(); return n.wants }

// maxEpoch bounds what an agent may say of its highest epoch, so that nobody uses up the epochs of a name: who has it next could not
// register any more. The link counts revisions above the epoch's 32nd bit.
const maxEpoch = 1 << 30

// Register notes that an agent connected and returns its new epoch, higher than any before. Unknown agents are
// added to the resource group of their hello (or default). Kernels that were LOST with the agent come back with Observe.
func (n *Reports) Register(ctx context.Context, h cluster.NodeHello) (epoch int64, err error) {
	if h.Agent == "" || len(h.Agent) > 64 {
		return 0, fault.Invalidf("agent id %q must have 1 to 64 bytes", h.Agent)
	}
	group := h.ResourceGroup
	if group == "" {
		group = n.DefaultGroup
	}
	if _, err := n.Store.GetResourceGroup(ctx, group); store.Missing(err) {
		n.Log.Warn("an agent names a resource group that does not exist; it joins the default one", "agent", h.Agent, "resource_group", group)
		group = n.DefaultGroup
	} else if err != nil {
		return 0, fmt.Errorf("find resource group %s: %w", group, err)
	}
	epoch, err = n.Store.RegisterAgent(ctx, dbgen.RegisterAgentParams{ID: string(h.Agent), Region: h.Region, ResourceGroup: group,
		Addr:    h.Addr,
		Version: h.Version, BootID: h.BootID, Serial: h.Serial, HighestEpoch: min(max(h.HighestEpoch, 0), maxEpoch)})
	if err != nil {
		return 0, fmt.Errorf("register agent %s: %w", h.Agent, err)
	}
	n.Store.Wake(store.TopicSchedule)
	return epoch, nil
}

// UpdateFacts stores what a node is. Older revisions of the same epoch and stale epochs are ignored.
func (n *Reports) UpdateFacts(ctx context.Context, agent cluster.AgentID, epoch int64, f cluster.NodeFacts) error {
	kinds := map[string]string{}
	for k, v := range f.SlotKinds {
		kinds[string(k)] = string(v)
	}
	devices := f.Devices
	if len(devices) == 0 || !json.Valid(devices) {
		devices = json.RawMessage(`[]`)
	}
	broken, err := brokenOf(devices)
	if err != nil {
		return fmt.Errorf("read the devices of agent %s: %w", agent, err)
	}
	capacity := f.Capacity
	if capacity == nil {
		capacity = cluster.Slots{}
	}
	warnings := []string{}
	for _, w := range f.Warnings {
		warnings = append(warnings, store.Text(w))
	}
	hung := []string{}
	for _, host := range f.HungVolumes {
		hung = append(hung, store.Text(host))
	}
	err = n.Store.Tx(ctx, func(ctx context.Context, tx *store.Tx) error {
		before, err := tx.AgentConditions(ctx, string(agent))
		if store.Missing(err) {
			return nil // it was removed
		}
		if err != nil {
			return err
		}
		conditions, err := conditionsOf(before.Conditions, f.Conditions, before.At)
		if err != nil {
			return err
		}
		taken, err := tx.OthersTunnelKey(ctx, store.Text(f.TunnelKey), string(agent))
		if err != nil {
			return fmt.Errorf("look whose key of encrypted tunnels it is: %w", err)
		}
		if taken { // a key is its first owner's
			f.TunnelKey = ""
			f.TunnelProblem = "another agent has its key of encrypted tunnels; remove tunnel.key from its state directory and restart it"
		}
		changed, err := tx.SetAgentFacts(ctx, dbgen.SetAgentFactsParams{ID: string(agent), Epoch: epoch, FactsRevision: f.Revision,
			Architecture: f.Architecture, Capacity: capacity, SlotKinds: kinds, Devices: devices, BrokenDevices: broken,
			Engine: store.Text(f.Engine), EngineOk: f.EngineOK,
			EngineError: store.Text(f.EngineError), Warnings: warnings, HungVolumes: hung,
			DiskProblem: store.Text(f.DiskProblem), Conditions: conditions,
			DataAddress: store.Text(f.DataAddress), DataSocket: store.Text(f.DataSocket), NetworkAddress: store.Text(f.NetworkAddress),
			TunnelKey: store.Text(f.TunnelKey), TunnelPort: int32(f.TunnelPort), TunnelProblem: store.Text(f.TunnelProblem)})
		if err != nil || changed == 0 {
			return err
		}
		tx.Wake(store.TopicSchedule)
		return image.Report(ctx, tx, agent, f.Images)
	})
	if err != nil {
		return fmt.Errorf("store facts of agent %s: %w", agent, err)
	}
	return nil
}

// Progress extends the deadline of a pull when it went on.
func (n *Reports) Progress(ctx context.Context, agent cluster.AgentID, kernel cluster.KernelID, generation, current, total int64,
	message string) error {
	d, _ := cluster.KernelDeadline(cluster.Pulling)
	progress, err := json.Marshal(map[string]any{"pull": map[string]any{"current": current, "total": total, "message": store.Text(message)}})
	if err != nil {
		return fmt.Errorf("encode progress: %w", err)
	}
	_, err = n.Store.ExtendPull(ctx, dbgen.ExtendPullParams{ID: string(kernel), Generation: generation, AgentID: string(agent),
		Progress:  progress,
		Extension: d.After, Least: d.After - 2*time.Second})
	if err != nil {
		return fmt.Errorf("note progress of kernel %s: %w", kernel, err)
	}
	return nil
}

// Touch renews the lease of connected agents. Agents that had been declared LOST meanwhile are ALIVE again with
// their kernels; what really became of those, their next report says.
func (n *Reports) Touch(ctx context.Context, agents []cluster.AgentID) error {
	if len(agents) == 0 {
		return nil
	}
	ids := make([]string, len(agents))
	for i, a := range agents {
		ids[i] = string(a)
	}
	rows, err := n.Store.ReviveAgents(ctx, ids)
	if err != nil {
		return fmt.Errorf("renew leases: %w", err)
	}
	for _, r := range rows {
		if !r.WasLost {
			continue
		}
		n.Log.Info("agent is back", "agent", r.ID)
		if err := n.returnKernels(ctx, cluster.AgentID(r.ID)); err != nil {
			return err
		}
		n.Store.Wake(store.TopicSchedule)
	}
	return nil
}

// Delivered notes how far agents have been told what they should do.
func (n *Reports) Delivered(ctx context.Context, list []cluster.OrdersAge) error {
	ids, ages := make([]string, len(list)), make([]int64, len(list))
	for i, o := range list {
		ids[i], ages[i] = string(o.Agent), o.Age.Milliseconds()
	}
	if err := n.Store.NoteDeliveries(ctx, ids, ages); err != nil {
		return fmt.Errorf("note deliveries: %w", err)
	}
	return nil
}

func (n *Reports) returnKernels(ctx context.Context, agent cluster.AgentID) error {
	return n.eachSession(ctx, agent, func(ctx context.Context, l *store.Locked) error {
		for _, k := range l.Kernels {
			if k.Agent() != agent || k.Status != cluster.Lost || k.StatusBeforeLost == nil {
				continue
			}
			if err := k.Move(ctx, store.KernelMove{To: cluster.Status(*k.StatusBeforeLost)}); err != nil {
				return err
			}
		}
		return l.Settle(ctx, "", "")
	})
}

// Disconnected notes that an agent's stream of that epoch ended; the lease goes on, so that a short
// break changes nothing.
func (n *Reports) Disconnected(ctx context.Context, agent cluster.AgentID, epoch int64) error {
	n.Log.Info("agent disconnected; its lease goes on", "agent", agent, "epoch", epoch)
	return nil
}

// LoseSilent marks agents LOST whose lease is over, and their kernels; it returns them.
func (n *Reports) LoseSilent(ctx context.Context, lease time.Duration) ([]cluster.AgentID, error) {
	ids, err := n.Store.SilentAgents(ctx, lease)
	if err != nil {
		return nil, fmt.Errorf("look for silent agents: %w", err)
	}
	var lost []cluster.AgentID
	for _, id := range ids {
		changed, err := n.Store.LoseAgent(ctx, id, lease)
		if err != nil {
			return lost, fmt.Errorf("mark agent %s lost: %w", id, err)
		}
		if changed == 0 {
			continue // it spoke meanwhile
		}
		n.Log.Warn("agent is lost: it was silent for longer than its lease", "agent", id, "lease", lease)
		lost = append(lost, cluster.AgentID(id))
		n.Store.Wake(store.TopicSchedule)
	}
	// Kernels of all lost agents, also of those that another manager marked and did not finish.
	rows, err := n.Store.LostAgentsWithLiveKernels(ctx)
	if err != nil {
		return lost, fmt.Errorf("look for kernels of lost agents: %w", err)
	}
	for _, id := range rows {
		if err := n.loseKernels(ctx, cluster.AgentID(id)); err != nil {
			return lost, err
		}
	}
	return lost, nil
}

func (n *Reports) loseKernels(ctx context.Context, agent cluster.AgentID) error {
	return n.eachSession(ctx, agent, func(ctx context.Context, l *store.Locked) error {
		for _, k := range l.Kernels {
			if k.Agent() == agent && cluster.KernelMayMove(k.Status, cluster.Lost) {
				if err := k.Move(ctx, store.KernelMove{To: cluster.Lost, Reason: cluster.ReasonAgentLost,
					Detail: "agent " + string(agent) + " is silent"}); err != nil {
					return err
				}
			}
		}
		return nil // a session keeps its status beside lost kernels
	})
}

// ExpireLost ends kernels of agents that stayed LOST longer than the grace, and kernels that have been LOST so long; it returns how many.
// Sessions that never ran go back into the queue; the agent is told to remove the rest when it returns.
func (n *Reports) ExpireLost(ctx context.Context, grace time.Duration) (int, error) {
	rows, err := n.Store.LongLostKernels(ctx, grace)
	if err != nil {
		return 0, fmt.Errorf("look for long lost kernels: %w", err)
	}
	type place struct{ agent, session string }
	expired := map[place][]string{}
	var places []place
	for _, r := range rows {
		p := place{r.AgentID, r.SessionID}
		if expired[p] == nil {
			places = append(places, p)
		}
		expired[p] = append(expired[p], r.ID)
	}
	ended := 0
	for _, p := range places {
		detail := fmt.Sprintf("agent %s did not return within %s", p.agent, grace)
		err := n.withSession(ctx, cluster.SessionID(p.session), func(ctx context.Context, l *store.Locked) error {
			for _, k := range l.Kernels {
				if string(k.Agent()) != p.agent || !slices.Contains(expired[p], k.ID) || k.Status.Final() || k.Status == cluster.Pending ||
					cluster.KernelMayMove(k.Status, cluster.Lost) { // the agent spoke of it meanwhile
					continue
				}
				ended++
				if k.Status == cluster.Terminating {
					if err := k.Abandon(ctx, store.KernelMove{To: cluster.Terminated, Reason: cluster.ReasonAgentLost, Detail: detail}); err != nil {
						return err
					}
					continue
				}
				if err := k.Fail(ctx, store.KernelMove{Reason: cluster.ReasonAgentLost, Detail: detail}, true, false); err != nil {
					return err
				}
			}
			return l.Settle(ctx, cluster.ReasonAgentLost, detail)
		})
		if err != nil {
			return ended, err
		}
	}
	return ended, nil
}

// eachSession runs fn for every session with live kernels on the agent, each in a transaction of its own.
func (n *Reports) eachSession(ctx context.Context, agent cluster.AgentID, fn func(ctx context.Context, l *store.Locked) error) error {
	rows, err := n.Store.KernelsOfAgent(ctx, string(agent))
	if err != nil {
		return fmt.Errorf("read kernels of agent %s: %w", agent, err)
	}
	done := ""
	for _, r := range rows { // ordered by session
		if r.SessionID == done {
			continue
		}
		done = r.SessionID
		if err := n.withSession(ctx, cluster.SessionID(r.SessionID), fn); err != nil {
			return err
		}
	}
	return nil
}

// withSession runs fn under the session's lock. A Conflict means that the session changed in a way that fn did not
// expect; the next report or sweep sees the new state, so it is logged and no more.
func (n *Reports) withSession(ctx context.Context, id cluster.SessionID, fn func(ctx context.Context, l *store.Locked) error) error {
	_, err := n.inSession(ctx, id, fn)
	return err
}

// inSession is withSession that says whether what fn did is stored; it is not after a Conflict or when the session is gone.
func (n *Reports) inSession(ctx context.Context, id cluster.SessionID,
	fn func(ctx context.Context, l *store.Locked) error) (stored bool, err error) {
	err = n.Store.Tx(ctx, func(ctx context.Context, tx *store.Tx) error {
		locked, err := tx.Lock(ctx, id)
		if stored = err == nil && len(locked) > 0; !stored {
			return err
		}
		if locked[0].CallbackUrl != nil {
			tx.Wake(store.TopicCallbacks)
		}
		return fn(ctx, locked[0])
	})
	if fault.Is(err, fault.Conflict) {
		n.Log.Warn("a session changed while it was being moved", "session", id, "error", err)
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("move session %s: %w", id, err)
	}
	return stored, nil
}

// maxOverdue bounds one pass.
const maxOverdue = 200

// MissDeadlines acts on kernels whose deadline has passed: a retry elsewhere or the named failure; a stop that is not answered
// is repeated with force and then given up, leaving the removal to the agent. It returns how many kernels it moved.
func (n *Reports) MissDeadlines(ctx context.Context) (int, error) {
	ids, err := n.Store.OverdueKernels(ctx, maxOverdue)
	if err != nil {
		return 0, fmt.Errorf("look for missed deadlines: %w", err)
	}
	// One reading for the pass, before any transaction: within one it would need a second connection.
	now, err := n.Store.SessionNow(ctx)
	if err != nil {
		return 0, fmt.Errorf("read the clock: %w", err)
	}
	moved := 0
	for _, id := range ids {
		err := n.withSession(ctx, cluster.SessionID(id), func(ctx context.Context, l *store.Locked) error {
			for _, k := range l.Kernels {
				if k.Deadline == nil || k.Deadline.After(now) || k.Status.Final() {
					continue
				}
				class, due := cluster.KernelDeadline(k.Status)
				if !due {
					continue
				}
				moved++
				back, err := n.giveBack(ctx, l, k)
				if err != nil {
					return err
				}
				if back {
					break
				}
				if err := n.missed(ctx, k, class); err != nil {
					return err
				}
				if k.Status == cluster.Pending || k.Doubted() {
					break
				}
			}
			return l.Settle(ctx, cluster.ReasonStopTimeout, "")
		})
		if err != nil {
			return moved, err
		}
	}
	return moved, nil
}

// giveBack gives a session back to the queue that an agent could not begin because it has not been told of it. That is no failed attempt.
func (n *Reports) giveBack(ctx context.Context, l *store.Locked, k *store.LockedKernel) (bool, error) {
	since, untold, err := k.Untold(ctx)
	if err != nil || !untold {
		return false, err
	}
	agent := k.Agent()
	m := store.KernelMove{Reason: cluster.ReasonNotDelivered, Detail: notDelivered(agent, since)}
	if l.Type == cluster.Batch {
		// A manager that died may have told the agent without a note of it, so the agent is asked.
		return k.Doubt(ctx, m)
	}
	back, err := l.GiveBack(ctx, agent, m)
	if back {
		n.Log.Warn("a session goes back into the queue: its agent could not be told of it", "session", l.ID, "agent", agent)
	}
	return back, err
}

func notDelivered(agent cluster.AgentID, since time.Time) string {
	return fmt.Sprintf("orders to agent %s have not been delivered since %s", agent, since.UTC().Format(time.RFC3339))
}

func (n *Reports) missed(ctx context.Context, k *store.LockedKernel, class cluster.Deadline) error {
	n.Log.Warn("a kernel missed its deadline", "kernel", k.ID, "session", k.SessionID, "status", k.Status, "reason", class.Reason)
	detail := fmt.Sprintf("still %s after %s on agent %s", k.Status, class.After, k.Agent())
	m := store.KernelMove{Reason: class.Reason, Detail: detail}
	if k.Status != cluster.Terminating {
		if class.Retry {
			if asked, err := k.Doubt(ctx, m); asked || err != nil {
				return err
			}
		}
		return k.Fail(ctx, m, class.Retry, false)
	}
	if !k.ForceStop {
		return k.Insist(ctx, class.After)
	}
	if m.To = cluster.Terminated; k.Doubted() {
		m.Reason = cluster.ReasonAgentLost // it was asked twice and says nothing
	}
	return k.Abandon(ctx, m)
}
