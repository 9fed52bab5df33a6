package scheduler

import (
	"cmp"
	"encoding/binary"
	"slices"
	"time"

	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/scheduler/quota"
)

// request is what one kernel asks for.
type request struct {
	wants  []want   // not zero, in the order of slot numbers
	models []string // acceptable models of accelerators; empty: any
	// isolation is the least that accelerators must offer; empty: any.
	isolation cluster.Isolation
}

// choosy reports whether not every healthy device will do.
func (r *request) choosy() bool { return len(r.models) > 0 || r.isolation != "" }

// shape is what one agent must have room for at once: the request of one kernel, or those of all kernels of a single-node session.
// Equal requests share one shape.
type shape struct {
	key      string
	id       uint64
	refs     int
	idle     bool // in Cluster.idle
	requests []request
	sum      []want  // over all requests
	arch     int32   // -1: any
	image    int32   // -1: unknown
	local    []int32 // images that no registry has
	negative bool    // asks for less than nothing: fits nowhere
}

// isolation is the strongest that a request of the shape demands.
func (sh *shape) isolation() (most cluster.Isolation) {
	for i := range sh.requests {
		if x := sh.requests[i].isolation; x.AtLeast(most) {
			most = x
		}
	}
	return most
}

// unisolated is the shape without its demands for isolation.
func (sh *shape) unisolated() *shape {
	out := *sh
	out.requests = slices.Clone(sh.requests)
	for i := range out.requests {
		out.requests[i].isolation = ""
	}
	return &out
}

// kind is what decides where a session fits: everything but its owner, priority, age and name. Equal sessions share one kind, so that
// a long queue of them is looked at once.
type kind struct {
	key     string
	refs    int
	units   []unit // the largest first
	kernels int
	sum     []want      // of all kernels, by slot number
	asks    []quota.Ask // the same by name

	session Session // the first of the kind, without the fields that are not part of the key
	private bool
	life    int64 // declared lifetime in nanoseconds, 0: unknown
}

// unit is a shape of a session with the kernels that make it. A session with several units is a gang.
type unit struct {
	shape   *shape
	kernels []int // by request of the shape
}

// plain reports whether a kind has no wishes about agents, apart from volumes.
func (k *kind) plain() bool {
	s := &k.session
	return len(s.Designated) == 0 && len(s.Failed) == 0 && s.Companions.Name == ""
}

// hangs reports whether a volume that a kind needs does not answer on the agent.
func (a *agent) hangs(k *kind) bool {
	return len(a.facts.Hung) > 0 && slices.ContainsFunc(k.session.Volumes, func(v string) bool { return slices.Contains(a.facts.Hung, v) })
}

// exposes reports whether the network of a kind is to be encrypted, and the agent cannot do that.
func (a *agent) exposes(k *kind) bool {
	return k.session.Connected && a.facts.Unencrypted != "" &&
		(k.session.Encrypted || a.group != nil && a.group.policy.EncryptedNetworks)
}

// spares reports whether the agent is to be tried by sessions that have not failed there, and this kind has.
func (a *agent) spares(k *kind) bool {
	return a.facts.Probe == cluster.ProbeByOthers && slices.Contains(k.session.Failed, a.id)
}

// keyText builds the key of a kind or shape: equal keys mean equal values.
type keyText []byte

func (k *keyText) text(s string) {
	*k = binary.AppendUvarint(*k, uint64(len(s)))
	*k = append(*k, s...)
}

func (k *keyText) number(n int64) { *k = binary.AppendVarint(*k, n) }

func (k *keyText) flag(b bool) {
	if b {
		*k = append(*k, 1)
	} else {
		*k = append(*k, 0)
	}
}

func (k *keyText) agents(ids []cluster.AgentID) {
	k.number(int64(len(ids)))
	for _, id := range ids {
		k.text(string(id))
	}
}

// wantsOf sorts the slots asked for by number, without zeros.
func (c *Cluster) wantsOf(out []want, slots cluster.Slots) []want {
	for slot, v := range slots {
		if v != 0 {
			out = append(out, want{c.slots.of(slot), v})
		}
	}
	slices.SortFunc(out, func(a, b want) int { return cmp.Compare(a.slot, b.slot) })
	return out
}

func (c *Cluster) kernelKey(out *keyText, k *Kernel) {
	out.text(k.Architecture)
	out.text(k.Image)
	out.flag(k.Local)
	out.text(string(k.Isolation))
	out.number(int64(len(k.Models)))
	for _, m := range k.Models {
		out.text(m)
	}
	c.wants = c.wantsOf(c.wants[:0], k.Slots)
	out.number(int64(len(c.wants)))
	for _, w := range c.wants {
		out.number(int64(w.slot))
		out.number(int64(w.amount))
	}
}

// kindOf finds or makes the kind of a session and counts a reference.
func (c *Cluster) kindOf(s *Session) *kind {
	key := c.key[:0]
	key.flag(s.SingleNode)
	key.flag(s.Private)
	key.flag(s.Preemptible)
	key.flag(s.Connected)
	key.flag(s.Encrypted)
	key.number(int64(s.Lifetime))
	key.text(s.Companions.Name)
	key.flag(s.Companions.Apart)
	key.flag(s.Companions.Strict)
	key.agents(s.Designated)
	key.agents(s.Failed)
	key.number(int64(len(s.Volumes)))
	for _, v := range s.Volumes {
		key.text(v)
	}
	for i := range s.Kernels {
		c.kernelKey(&key, &s.Kernels[i])
		key.text(s.Kernels[i].Role)
	}
	c.key = key
	k := c.kinds[string(key)]
	if k == nil {
		k = c.newKind(string(key), s)
		c.kinds[k.key] = k
	}
	k.refs++
	return k
}

func (c *Cluster) newKind(key string, s *Session) *kind {
	k := &kind{key: key, kernels: len(s.Kernels), private: s.Private, life: int64(max(0, s.Lifetime))}
	k.session = Session{
		SingleNode: s.SingleNode, Private: s.Private, Preemptible: s.Preemptible, Lifetime: s.Lifetime, Companions: s.Companions,
		Designated: slices.Clone(s.Designated), Failed: slices.Clone(s.Failed), Volumes: slices.Clone(s.Volumes),
		Connected: s.Connected, Encrypted: s.Encrypted,
		Kernels: slices.Clone(s.Kernels),
	}
	total := cluster.Slots{}
	for i := range s.Kernels {
		for slot, v := range s.Kernels[i].Slots {
			total[slot] += v
		}
	}
	k.sum, k.asks = c.wantsOf(nil, total), quota.Asks(total)
	order := bySize(s.Kernels)
	if s.SingleNode && len(order) > 1 {
		k.units = []unit{{c.shapeOf(s, order), order}}
	} else {
		for _, i := range order {
			k.units = append(k.units, unit{c.shapeOf(s, []int{i}), []int{i}})
		}
	}
	return k
}

// shapeOf finds or makes the shape of some kernels of a session and counts a reference.
func (c *Cluster) shapeOf(s *Session, kernels []int) *shape {
	key := keyText{}
	for _, i := range kernels {
		c.kernelKey(&key, &s.Kernels[i])
	}
	sh := c.shapes[string(key)]
	if sh == nil {
		c.shaped++
		sh = &shape{key: string(key), id: c.shaped, arch: -1, image: -1}
		total := cluster.Slots{}
		for _, i := range kernels {
			k := &s.Kernels[i]
			sh.requests = append(sh.requests, request{wants: c.wantsOf(nil, k.Slots), models: slices.Clone(k.Models), isolation: k.Isolation})
			for slot, v := range k.Slots {
				total[slot] += v
				sh.negative = sh.negative || v < 0
			}
			if k.Architecture != "" {
				arch := c.archs.of(k.Architecture)
				sh.negative = sh.negative || sh.arch >= 0 && sh.arch != arch // two architectures on one agent
				sh.arch = arch
			}
			if k.Image != "" && sh.image < 0 {
				sh.image = c.images.of(k.Image)
			}
			if image := c.images.of(k.Image); k.Local && !slices.Contains(sh.local, image) {
				sh.local = append(sh.local, image)
			}
		}
		sh.sum = c.wantsOf(nil, total)
		c.shapes[sh.key] = sh
	}
	sh.refs++
	return sh
}

// drop gives a reference to a kind back.
func (c *Cluster) drop(k *kind) {
	if k.refs--; k.refs > 0 {
		return
	}
	delete(c.kinds, k.key)
	for _, g := range c.groups {
		if t := g.queue.kinds[k]; t != nil {
			g.queue.unrefuse(t)
			t.join(nil)
			delete(g.queue.kinds, k)
		}
	}
	for _, u := range k.units {
		if u.shape.refs--; u.shape.refs == 0 && !u.shape.idle {
			u.shape.idle = true
			c.idle = append(c.idle, u.shape)
		}
	}
	for len(c.idle) > maxIdle {
		sh := c.idle[0]
		c.idle = c.idle[1:]
		if sh.idle = false; sh.refs == 0 {
			delete(c.shapes, sh.key)
			for _, g := range c.groups {
				delete(g.search.cache, sh)
			}
		}
	}
}

// maxIdle bounds the shapes that are remembered although nobody asks for them now: what was
// asked for is often asked for again.
const maxIdle = 256

// bySize returns the kernels' indices, the largest first: most slots kinds beyond cpu and mem,
// then mem, then cpu, then their order.
func bySize(kernels []Kernel) []int {
	out := make([]int, len(kernels))
	for i := range out {
		out[i] = i
	}
	weight := func(k *Kernel) (devices, mem, cpu cluster.Amount) {
		for slot, v := range k.Slots {
			if accelerates(slot) {
				devices += v
			}
		}
		return devices, k.Slots[cluster.SlotMem], k.Slots[cluster.SlotCPU]
	}
	slices.SortStableFunc(out, func(a, b int) int {
		d1, m1, c1 := weight(&kernels[a])
		d2, m2, c2 := weight(&kernels[b])
		return cmp.Or(cmp.Compare(d2, d1), cmp.Compare(m2, m1), cmp.Compare(c2, c1))
	})
	return out
}

// accelerates reports whether a slot is neither cores nor memory.
func accelerates(slot cluster.SlotName) bool {
	return slot != cluster.SlotCPU && slot != cluster.SlotMem
}

// eligible applies the filters that do not depend on what is free; "" passes.
func (a *agent) eligible(k *kind, sh *shape) string {
	switch {
	case sh.arch >= 0 && a.arch != sh.arch:
		return filterArchitecture
	case k != nil && len(k.session.Designated) > 0 && !slices.Contains(k.session.Designated, a.id):
		return filterDesignated
	case !a.facts.Alive:
		return filterLost
	case !a.facts.Schedulable:
		return filterNotSchedulable
	case a.facts.Problem != "" || a.probed || k != nil && a.spares(k):
		return filterCondition
	case k != nil && a.hangs(k):
		return filterVolume
	case k != nil && a.exposes(k):
		return filterUnencrypted
	case slices.ContainsFunc(sh.local, func(image int32) bool { return !a.has(image) }):
		return filterImage
	}
	return ""
}

// usable reports whether an agent takes sessions now.
func (a *agent) usable() bool {
	return a.facts.Alive && a.facts.Schedulable && a.facts.Problem == "" && !a.probed
}

// The filters' names; short slots add their own.
const (
	filterLost           = "lost"
	filterNotSchedulable = "not-schedulable"
	filterArchitecture   = "architecture"
	filterDesignated     = "designated"
	filterVolume         = "hung-volume"
	filterUnencrypted    = "unencrypted"
	filterCondition      = "condition"
	filterImage          = "image"
	filterDevices        = "devices"
	filterModels         = "models"
	filterIsolation      = "isolation"
	filterReserved       = "reserved"
	filterCompanions     = "companions"
)

func nanos(t time.Time) int64 {
	if t.IsZero() {
		return -forever
	}
	return t.UnixNano()
}
