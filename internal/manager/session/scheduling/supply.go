package scheduling

import (
	"container/heap"
	"context"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	"berth.dev/berth/internal/alloc"
	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/fault"
	"berth.dev/berth/internal/manager/resource/limit"
	"berth.dev/berth/internal/manager/store"
	"berth.dev/berth/internal/manager/store/dbgen"
	"berth.dev/berth/internal/scheduler"
)

// groupEntry is a resource group: its scheduling policy as it is in effect, and its waiting sessions.
type groupEntry struct {
	digest uint64
	policy scheduler.Group
	// warning says why the stored policy is not in effect; "" when it is.
	warning string
	// waiting counts its waiting sessions.
	waiting int
	// wake is when something changes by the passing of time alone, such as a start time, as the last pass found out.
	wake time.Time
	// queue is a heap of waiting sessions, the oldest first. It is used only while the policy bounds how long sessions may wait. A session
	// that no longer waits is dropped when it comes to the top.
	queue ages
}

// age is a waiting session in the heap ages.
type age struct {
	since time.Time
	id    cluster.SessionID
}

type ages []age

func (a ages) Len() int           { return len(a) }
func (a ages) Less(i, j int) bool { return a[i].since.Before(a[j].since) }
func (a ages) Swap(i, j int)      { a[i], a[j] = a[j], a[i] }
func (a *ages) Push(x any)        { *a = append(*a, x.(age)) }
func (a *ages) Pop() any {
	last := (*a)[len(*a)-1]
	*a = (*a)[:len(*a)-1]
	return last
}

// wait notes that a session waits since an instant, if the policy bounds how long.
func (g *groupEntry) wait(id cluster.SessionID, since time.Time) {
	if g.policy.PendingTimeout > 0 {
		heap.Push(&g.queue, age{since, id})
	}
}

// group returns the entry of a resource group and makes an empty one if needed: a session may be read before its group.
func (m *memory) group(name string) *groupEntry {
	if m.groups[name] == nil {
		m.groups[name] = &groupEntry{policy: scheduler.Group{Name: name}}
	}
	return m.groups[name]
}

// late returns at most most sessions that have waited longer than their group allows. next is when the next session will have waited too
// long; zero: none will.
func (m *memory) late(now time.Time, most int) (ids []cluster.SessionID, next time.Time) {
	for _, g := range m.groups {
		var due []age
		for len(g.queue) > 0 && len(ids) < most {
			top := g.queue[0]
			if e := m.sessions[top.id]; e == nil || e.status != cluster.Pending {
				heap.Pop(&g.queue)
				continue
			}
			at := top.since.Add(g.policy.PendingTimeout)
			if now.Before(at) {
				if next.IsZero() || at.Before(next) {
					next = at
				}
				break
			}
			if heap.Pop(&g.queue); !slices.Contains(ids, top.id) {
				ids, due = append(ids, top.id), append(due, top)
			}
		}
		for _, a := range due { // the caller cancels them; if that fails, they are found here again
			heap.Push(&g.queue, a)
		}
	}
	return ids, next
}

// readGroups reads the policies of all resource groups. If a stored policy cannot be used, the last usable one stays in effect (at first
// the default, fifo), and the group gets a warning.
func (m *memory) readGroups(ctx context.Context, q *dbgen.Queries) (changed int, err error) {
	rows, err := q.GroupPolicies(ctx)
	if err != nil {
		return 0, fmt.Errorf("read resource groups: %w", err)
	}
	known := map[string]bool{}
	for _, r := range rows {
		known[r.Name] = true
		opts, err := json.Marshal(r.SchedulerOpts)
		if err != nil {
			return changed, fmt.Errorf("read options of resource group %s: %w", r.Name, err)
		}
		g := m.group(r.Name)
		digest := sum(fmt.Appendf(nil, "%t %s %s %t", r.IsActive, r.Scheduler, opts, r.EncryptedNetworks))
		if g.digest == digest {
			continue
		}
		changed++
		policy, err := scheduler.ParseGroup(r.Name, r.Scheduler, r.SchedulerOpts)
		g.warning = ""
		if err != nil {
			g.warning = "its stored policy cannot be used: " + words(err)
			policy = g.policy
		}
		policy.Name, policy.Inactive, policy.EncryptedNetworks = r.Name, !r.IsActive, r.EncryptedNetworks
		if err := m.cluster.SetGroup(policy); err != nil {
			g.warning = "its stored policy cannot be used: " + words(err)
			policy = g.policy
			policy.Name, policy.Inactive, policy.EncryptedNetworks = r.Name, !r.IsActive, r.EncryptedNetworks
			if err := m.cluster.SetGroup(policy); err != nil {
				return changed, fmt.Errorf("set policy of resource group %s: %w", r.Name, err)
			}
		}
		had := g.policy.PendingTimeout > 0
		g.digest, g.policy = digest, policy
		if !had && policy.PendingTimeout > 0 {
			g.queue = nil
			for id, e := range m.sessions {
				if e.group == r.Name && e.status == cluster.Pending {
					g.queue = append(g.queue, age{e.since, id})
				}
			}
			heap.Init(&g.queue)
		}
	}
	for name := range m.groups {
		if !known[name] {
			delete(m.groups, name)
			m.cluster.RemoveGroup(name)
			changed++
		}
	}
	return changed, nil
}

// words returns an error's message followed by what to do next.
func words(err error) string {
	if next := fault.NextOf(err); next != "" {
		return err.Error() + "; " + next
	}
	return err.Error()
}

// readAgents reads agents by id (nil: all) and forgets those that no longer exist.
func (m *memory) readAgents(ctx context.Context, q *dbgen.Queries, ids []string) (changed int, err error) {
	rows, err := q.AgentFacts(ctx, ids)
	if err != nil {
		return 0, fmt.Errorf("read agents: %w", err)
	}
	images, err := q.AgentImageFacts(ctx, ids)
	if err != nil {
		return 0, fmt.Errorf("read images of agents: %w", err)
	}
	owed, err := q.RemovalFacts(ctx, ids)
	if err != nil {
		return 0, fmt.Errorf("read what agents must remove: %w", err)
	}
	removals := map[string][]dbgen.RemovalFactsRow{}
	for _, r := range owed {
		removals[r.AgentID] = append(removals[r.AgentID], r)
	}
	present := map[string][]string{}
	for _, im := range images {
		present[im.AgentID] = append(present[im.AgentID], im.Reference)
	}
	found := map[cluster.AgentID]bool{}
	for _, r := range rows {
		id := cluster.AgentID(r.ID)
		found[id] = true
		slices.Sort(present[r.ID])
		standing, err := store.Standing(r.Conditions, r.Trial)
		if err != nil {
			return changed, fmt.Errorf("agent %s: %w", r.ID, err)
		}
		standing.EngineOK, standing.EngineError, standing.DiskProblem = r.EngineOk, r.EngineError, r.DiskProblem
		problem, probe := standing.Problem(r.At)
		delete(m.trials, id)
		if _, next := standing.Trial.MayProbe(r.At); !next.IsZero() {
			m.trials[id] = m.clock.Now().Add(next.Sub(r.At))
		}
		unencrypted := r.TunnelProblem
		if unencrypted == "" && !r.HasTunnel {
			unencrypted = "its version encrypts no networks of sessions"
		}
		digest := sum(fmt.Appendf(nil, "%s %s %s %t %q %d %s %q %q %q", r.ResourceGroup, r.Architecture, r.Status, r.Schedulable, problem, probe,
			r.Devices, present[r.ID], r.HungVolumes, unencrypted))
		for _, o := range removals[r.ID] {
			digest = sum(fmt.Appendf(nil, "%d %s %d %s", digest, o.KernelID, o.Generation, o.Allocation))
		}
		if m.agents[id].digest == digest {
			continue
		}
		if _, stale := m.staleAgents[id]; !stale { // time alone changes what may be done with an agent in quarantine
			changed++
		}
		devices, err := m.sharedDevices(r.Devices)
		if err != nil {
			return changed, fmt.Errorf("read devices of agent %s: %w", r.ID, err)
		}
		for _, d := range devices {
			m.slots[d.Slot] = true
		}
		a := scheduler.Agent{ID: id, Architecture: r.Architecture, Schedulable: r.Schedulable,
			Alive:   r.Status == cluster.AgentAlive,
			Problem: problem, Probe: probe,
			Devices: devices, Images: map[string]bool{}, Hung: r.HungVolumes, Unencrypted: unencrypted}
		for _, ref := range present[r.ID] {
			a.Images[m.text(ref)] = true
		}
		m.cluster.SetAgent(r.ResourceGroup, a)
		if err := m.holdRemovals(r.ResourceGroup, id, removals[r.ID]); err != nil {
			return changed, err
		}
		m.agents[id] = supply{seen{digest, r.ResourceGroup}, a.Alive && a.Schedulable && problem == "", capacityOf(devices)}
	}
	gone := func(id cluster.AgentID) {
		if _, known := m.agents[id]; known && !found[id] {
			m.cluster.RemoveAgent(id)
			m.cluster.Remove(heldOn(id))
			delete(m.agents, id)
			delete(m.trials, id)
			changed++
		}
	}
	if ids == nil {
		for id := range m.agents {
			gone(id)
		}
	}
	for _, id := range ids {
		gone(cluster.AgentID(id))
	}
	return changed, nil
}

// heldOn names what stands in scheduler.Cluster for the kernels that an agent must still remove. It is no session's id.
func heldOn(agent cluster.AgentID) cluster.SessionID {
	return cluster.SessionID("held on " + string(agent))
}

// holdRemovals keeps taken what the kernels hold that an agent must still remove: their sessions have ended or wait again, but until
// the agent says that they are gone, it has no room for others in their place.
func (m *memory) holdRemovals(group string, agent cluster.AgentID, owed []dbgen.RemovalFactsRow) error {
	if len(owed) == 0 {
		m.cluster.Remove(heldOn(agent))
		return nil
	}
	run := scheduler.Running{Session: scheduler.Session{ID: heldOn(agent), Name: "kernels to remove", Type: cluster.System, Private: true}}
	for _, r := range owed {
		a, err := alloc.Parse(string(r.Allocation))
		if err != nil {
			return fmt.Errorf("read what kernel %s holds on agent %s: %w", r.KernelID, agent, err)
		}
		run.Placements = append(run.Placements, scheduler.Placement{Kernel: cluster.KernelID(r.KernelID), Agent: agent, Allocation: a})
	}
	m.cluster.Run(group, run)
	return nil
}

// capacityOf adds up the healthy devices of an agent.
func capacityOf(devices []alloc.Device) cluster.Slots {
	out := cluster.Slots{}
	for _, d := range devices {
		if d.Healthy {
			out[d.Slot] += d.Capacity
		}
	}
	return out
}

func devicesOf(raw json.RawMessage) ([]alloc.Device, error) {
	var out []alloc.Device
	if len(raw) == 0 {
		return nil, nil
	}
	err := json.Unmarshal(raw, &out)
	return out, err
}

// maxDeviceLists bounds the lists of devices that agents may share.
const maxDeviceLists = 256

// sharedDevices reads the devices of an agent. Agents with the same devices share the list, which nobody changes.
func (m *memory) sharedDevices(raw json.RawMessage) ([]alloc.Device, error) {
	key := sha256.Sum256(raw)
	if shared, ok := m.devices[key]; ok {
		return shared, nil
	}
	list, err := devicesOf(raw)
	if err != nil {
		return nil, err
	}
	if m.devices == nil || len(m.devices) >= maxDeviceLists {
		m.devices = map[[sha256.Size]byte][]alloc.Device{}
	}
	list = slices.Clip(slices.Clone(list)) // without the room that decoding left
	m.devices[key] = list
	return list, nil
}

func agentIDs(in []string) []cluster.AgentID {
	if len(in) == 0 {
		return nil
	}
	out := make([]cluster.AgentID, len(in))
	for i, id := range in {
		out[i] = cluster.AgentID(id)
	}
	return out
}

// knownOwners returns all owners whose limits the memory has read.
func (m *memory) knownOwners() map[scheduler.Scope]bool {
	out := make(map[scheduler.Scope]bool, len(m.owners))
	for s := range m.owners {
		out[s] = true
	}
	return out
}

// readQuotas reads the limits of owners and passes those that changed on to the scheduler.
func (m *memory) readQuotas(ctx context.Context, q *dbgen.Queries, scopes map[scheduler.Scope]bool) (changed int, err error) {
	if len(scopes) == 0 {
		return 0, nil
	}
	quotas, listed, err := limit.Quotas(ctx, q, scopes, m.slots)
	if err != nil {
		return 0, err
	}
	m.listed = m.listed || listed
	for s := range scopes {
		var digest uint64 = 1
		quota := quotas[s]
		if quota != nil {
			digest = sum(fmt.Appendf(nil, "%s %d %d %t %v", quota.Name, quota.Sessions, quota.Private, quota.Closed, quota.Slots.Wire()))
		}
		if m.owners[s].digest == digest {
			continue
		}
		m.owners[s] = seen{digest: digest}
		m.cluster.SetQuota(s, quota)
		changed++
	}
	return changed, nil
}

// readTree reads the hierarchical quotas and passes them on to the scheduler if they changed.
func (m *memory) readTree(ctx context.Context, q *dbgen.Queries) (changed int, err error) {
	t, err := limit.ReadTree(ctx, q)
	if err != nil {
		return 0, err
	}
	// fmt writes maps in the order of their keys.
	digest := sum(fmt.Appendf(nil, "%v %v %v %v", t.Rules, t.Projects, t.Users, t.Weights))
	if m.treeDigest == digest || m.treeDigest == 0 && len(t.Rules)+len(t.Projects) == 0 {
		return 0, nil
	}
	m.tree, m.treeDigest, m.sharesAt = t, digest, time.Time{}
	m.cluster.SetTree(t.Facts)
	return 1, nil
}
