package keeper

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"maps"
	"slices"
	"strconv"
	"strings"

	"berth.dev/berth/internal/agent/host"
	"berth.dev/berth/internal/agent/runtime"
	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/fault"
)

// Users are the user numbers of the host that kernels get for themselves, one each, so that they share none of the limits that the kernel
// of the host keeps by user number. With Count 0 all run as Options.UID.
type Users struct{ First, Count int }

// begin is where an agent without records starts to give out numbers. Several agents of one host, which have the same range unless they are
// told otherwise, begin at different places.
func (u Users) begin(scope string) int {
	if u.Count == 0 {
		return 0
	}
	h := fnv.New32a()
	_, _ = h.Write([]byte(scope)) // never fails
	return u.First + int(h.Sum32()%uint32(u.Count))
}

// Why a kernel runs as the user number that others have too.
const (
	sharedAll    = "all user numbers of agent.users are taken"
	sharedOlder  = "they began before this agent gave out user numbers"
	sharedCommit = "their image was made of a session and holds files of its user"
)

// pick returns the first free number after last, and then from the start of the range; 0 when all are taken. A number rests as long as it
// can before it is given out again.
func (u Users) pick(last int, taken map[int]bool) int {
	if last < u.First || last >= u.First+u.Count {
		last = u.First - 1
	}
	for i := range u.Count {
		n := u.First + (last-u.First+1+i)%u.Count
		if !taken[n] {
			return n
		}
	}
	return 0
}

// sharedBy says why a session of an image cannot have a user number of its own; "" when it can. The files of an image are not mapped, so
// a session can change those of the shared number only if it runs as that. An image of a session says whether it has such files; others
// have a user of that number if they were made for it.
func sharedBy(img runtime.Image, passwd []byte, shared int) string {
	if img.Labels[cluster.LabelCustomizedOwner] != "" && img.Labels[cluster.LabelSessionFiles] != cluster.NoSessionFiles {
		return sharedCommit
	}
	for line := range strings.Lines(string(passwd)) {
		if f := strings.Split(line, ":"); len(f) > 2 && f[2] == strconv.Itoa(shared) {
			return fmt.Sprintf("their image has a user of the number %d", shared)
		}
	}
	return ""
}

// userNumber returns the number that a new generation's record has, and why it has none. A kernel keeps what it began with, because its
// home belongs to that.
func (n *kernel) userNumber(s *cluster.KernelSpec) (uid int, shared string) {
	k := n.k
	if k.o.Users.Count == 0 || s.UID > 0 { // the manager named one
		return 0, ""
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if r := n.record; r != nil {
		if r.UID == 0 && r.Shared == "" {
			return 0, sharedOlder
		}
		return r.UID, r.Shared
	}
	if n.uid == 0 {
		taken := map[int]bool{}
		for _, other := range k.kernels {
			taken[other.uid] = true
		}
		n.uid = k.o.Users.pick(k.lastUser, taken)
	}
	if n.uid == 0 {
		return 0, sharedAll
	}
	k.lastUser = n.uid
	return n.uid, ""
}

// numberOf reads the user number of a container that no record describes from the configuration of its runner; 0 where it is none of the
// range.
func (k *Keeper) numberOf(id cluster.KernelID) int {
	conf, err := k.o.Host.Runner(id)
	if uid := conf.User.UID; err == nil && uid >= k.o.Users.First && uid < k.o.Users.First+k.o.Users.Count {
		return uid
	}
	return 0
}

// owner is the kernel's user as it is recorded.
func (n *kernel) owner(s *cluster.KernelSpec) host.Owner {
	o := host.Owner{UID: n.k.o.UID, GID: n.k.o.GID}
	if uid := n.record.UID; uid > 0 && s.UID <= 0 {
		o.UID, o.Own = uid, true
	}
	o.UID, o.GID = userOf(s, o.UID, o.GID)
	return o
}

// share records that the kernel does without a user number of its own. Its folders have to be attached again.
func (n *kernel) share(reason string) error {
	k := n.k
	r := n.record.Clone()
	r.UID, r.Shared = 0, reason
	if err := k.o.Ledger.Put(r); err != nil {
		return err
	}
	n.mounted = 0
	k.mu.Lock()
	defer k.mu.Unlock()
	n.record, n.uid = r, 0
	k.tellShared(reason)
	return nil
}

// maxReasons bounds the reasons that are remembered as told.
const maxReasons = 64

// tellShared logs a reason once; the caller holds mu.
func (k *Keeper) tellShared(reason string) {
	if reason == "" || k.toldShared[reason] || len(k.toldShared) >= maxReasons {
		return
	}
	k.toldShared[reason] = true
	k.o.Log.Warn("a session shares its user number with others", "uid", k.o.UID, "reason", reason)
}

// Shared describes, in words and in order, the kernels that share a user number although the agent gives out numbers.
func (k *Keeper) Shared() []string {
	if k.o.Users.Count == 0 {
		return nil
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	count := map[string]int{}
	for _, n := range k.kernels {
		if r := n.record; r != nil && r.Final == nil && r.Shared != "" {
			count[r.Shared]++
		}
	}
	var out []string
	for _, reason := range slices.Sorted(maps.Keys(count)) {
		out = append(out, fmt.Sprintf("%d kernels share the user number %d, and with it limits of this host's kernel: %s", count[reason], k.o.UID,
			reason))
	}
	return out
}

// attachAs attaches folders for the kernel's user. A folder whose files cannot be mapped takes the kernel's own number from it.
func (n *kernel) attachAs(ctx context.Context, s *cluster.KernelSpec, list []cluster.FolderMount) ([]runtime.Mount, error) {
	folders, err := n.k.o.Host.Attach(ctx, n.id, n.owner(s), list)
	var refused *fault.Error
	if fault.ReasonOf(err) != host.ReasonShared || !errors.As(err, &refused) {
		return folders, err
	}
	if err := n.share(refused.Error()); err != nil { // without the folder's name: many have the same reason
		return nil, err
	}
	return n.k.o.Host.Attach(ctx, n.id, n.owner(s), list)
}
