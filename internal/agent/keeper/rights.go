package keeper

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"berth.dev/berth/internal/agent/host"
	"berth.dev/berth/internal/agent/ledger"
	"berth.dev/berth/internal/agent/runtime"
	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/fault"
	"berth.dev/berth/internal/wire/run"
)

// What a ledger record says of a folder that was withheld.
const (
	gone     = "gone"
	readOnly = "ro"
)

// rightsLimit bounds each step of taking rights from a container: one that takes long leaves the others their time.
const rightsLimit = 20 * time.Second

// sumOfKeys names a set of SSH keys.
func sumOfKeys(keys []string) string {
	keys = slices.Sorted(slices.Values(keys))
	sum := sha256.Sum256([]byte(strings.Join(keys, "\n")))
	return hex.EncodeToString(sum[:8])
}

// pending are the folders that a container must still lose or have read-only.
func pending(d *cluster.DesiredKernel, r *ledger.Record) []cluster.Withheld {
	return slices.DeleteFunc(slices.Clone(d.Withheld), func(w cluster.Withheld) bool {
		done := r.Withheld[w.Folder]
		return done == gone || done == readOnly && w.ReadOnly
	})
}

func keysDiffer(d *cluster.DesiredKernel, r *ledger.Record) bool {
	return d.AuthorizedKeys != nil && r.Keys != sumOfKeys(d.AuthorizedKeys)
}

// rightsDiffer reports whether a running container has more, or other keys, than its owner may have.
func rightsDiffer(d *cluster.DesiredKernel, r *ledger.Record) bool {
	return len(pending(d, r)) > 0 || keysDiffer(d, r)
}

// rightsOf names what is wanted of a container's rights.
func rightsOf(d *cluster.DesiredKernel) string {
	var b strings.Builder
	for _, w := range d.Withheld {
		fmt.Fprintf(&b, "%s %t\n", w.Folder, w.ReadOnly)
	}
	return b.String() + sumOfKeys(d.AuthorizedKeys)
}

// rights takes folders out of a running container and tells its runner the SSH keys. Both are tried, whatever becomes of the other. What
// fails is tried again and told to the owner; where programs keep hold of a folder, the kernel ends.
func (n *kernel) rights(ctx context.Context, v view) error {
	k := n.k
	list := pending(v.desired, v.record)
	var errs []error
	for _, w := range list {
		err := n.takeAway(ctx, v, w)
		switch {
		case err == nil:
			if err := n.withheld(ctx, w); err != nil {
				errs = append(errs, err)
			}
		case fault.ReasonOf(err) == host.ReasonHeld:
			k.o.Log.Warn("a kernel ends, because its programs keep a folder that its owner has lost", "kernel", n.id, "folder", w.Folder, "err", err)
			k.Evict(n.id, v.record.Generation, cluster.ReasonRightEnded,
				fmt.Sprintf("its owner has no right to folder %s any more, and its programs kept hold of it", w.Name))
			return nil
		case ctx.Err() != nil:
			return context.Cause(ctx) // what is wanted of the kernel has changed; what became of this try is found out by the next
		default:
			errs = append(errs, err)
			k.Note(n.id, v.record.Generation,
				fmt.Sprintf("folder %s is still in the container, although the session's owner has lost a right to it: %v", w.Name, err))
		}
	}
	if keysDiffer(v.desired, v.record) {
		if err := n.tellKeys(ctx, v); err != nil {
			errs = append(errs, err)
		}
	}
	if len(errs) > 0 && !slices.ContainsFunc(errs, func(e error) bool { return fault.ReasonOf(e) != host.ReasonCannot }) {
		// This host will not be able to later on. The owner was told; another change of rights, or another agent, tries again.
		k.o.Log.Error("a folder stays in a container although its owner has lost a right to it", "kernel", n.id, "err", errors.Join(errs...))
		k.mu.Lock()
		n.stays = rightsOf(v.desired)
		k.mu.Unlock()
		return nil
	}
	return errors.Join(errs...)
}

func (n *kernel) takeAway(ctx context.Context, v view, w cluster.Withheld) error {
	ctx, cancel := context.WithTimeout(ctx, rightsLimit)
	defer cancel()
	if rt, ok := n.k.o.Runtime.(runtime.MountHolder); ok {
		return rt.Withhold(ctx, n.id, []cluster.Withheld{w})
	}
	return n.k.o.Host.Withhold(ctx, *v.container, []cluster.Withheld{w})
}

// withheld records that a folder is not in the container any more and tells those who are at its terminals.
func (n *kernel) withheld(ctx context.Context, w cluster.Withheld) error {
	mark, text := gone, fmt.Sprintf("folder %s was taken out of the container: the session's owner has no right to it any more", w.Name)
	if w.ReadOnly {
		mark, text = readOnly, fmt.Sprintf("folder %s is read-only: the session's owner may not change it any more", w.Name)
	}
	r := n.record.Clone()
	if r.Withheld == nil {
		r.Withheld = map[cluster.FolderID]string{}
	}
	r.Withheld[w.Folder] = mark
	if err := n.k.o.Ledger.Put(r); err != nil {
		return err // it is done again, which changes nothing
	}
	n.k.mu.Lock()
	n.record = r
	n.k.mu.Unlock()
	n.k.Note(n.id, r.Generation, text)
	ctx, cancel := context.WithTimeout(ctx, rightsLimit)
	defer cancel()
	if err := n.k.o.Host.Notice(ctx, n.id, r.Token, text); err != nil {
		n.k.o.Log.Debug("terminals were not told of a folder that is gone", "kernel", n.id, "err", err)
	}
	return nil
}

// tellKeys gives the runner the SSH keys that may log in. A runner that is too old for that keeps what it started with, and its owner is
// told.
func (n *kernel) tellKeys(ctx context.Context, v view) error {
	k := n.k
	ctx, cancel := context.WithTimeout(ctx, rightsLimit)
	defer cancel()
	err := k.o.Host.SetKeys(ctx, n.id, v.record.Token, v.desired.AuthorizedKeys)
	if fault.ReasonOf(err) == run.ReasonTooOld {
		k.Note(n.id, v.record.Generation, "its SSH keys stay as they were when it started: restart the session for the new ones")
		err = nil
	}
	if err != nil {
		return fmt.Errorf("tell the runner the SSH keys: %w", err)
	}
	r := n.record.Clone()
	r.Keys = sumOfKeys(v.desired.AuthorizedKeys)
	if err := k.o.Ledger.Put(r); err != nil {
		return err
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	n.record = r
	return nil
}

// mountsOf are the folders that a new container gets: those of its specification without what was lost since that was written.
func mountsOf(d *cluster.DesiredKernel) []cluster.FolderMount {
	var out []cluster.FolderMount
	for _, m := range d.Spec.Mounts {
		i := slices.IndexFunc(d.Withheld, func(w cluster.Withheld) bool { return w.Folder == m.Folder })
		switch {
		case i < 0:
		case !d.Withheld[i].ReadOnly:
			continue
		default:
			m.Perm = cluster.ReadOnly
		}
		out = append(out, m)
	}
	return out
}
