package keeper

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"strings"
	"time"

	"berth.dev/berth/internal/agent/ledger"
	"berth.dev/berth/internal/agent/runtime"
	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/fault"
	"berth.dev/berth/internal/wire/run"
)

// peersLimit bounds one attempt to tell a runner who the session's kernels are.
const peersLimit = 10 * time.Second

// peersOf is what a kernel's runner should know of the others; false where the kernel is the only one of its session. A container that the
// engine connects has no way to the addresses of its session's network, so it is told none.
func peersOf(d *cluster.DesiredKernel, c *runtime.Observed) (run.PeersRequest, bool) {
	if d == nil || d.Stop || d.Spec == nil || d.Spec.PeerSecret == "" {
		return run.PeersRequest{}, false
	}
	req := run.PeersRequest{Peers: []run.Peer{}, Running: d.AllRun}
	if c != nil && c.Identity.HostNetwork {
		for _, h := range d.HostPeers {
			if h.Endpoint.IsValid() {
				req.Peers = append(req.Peers, run.Peer{Name: h.Name, Address: h.Endpoint.Addr().String(), Port: int(h.Endpoint.Port())})
			}
		}
	} else if d.Network != nil && c != nil && c.Identity.Address != "" {
		for _, m := range d.Network.Members {
			req.Peers = append(req.Peers, run.Peer{Name: m.Name, Address: m.Address.String()})
		}
	}
	return req, true
}

func sumOfPeers(req run.PeersRequest) string {
	var b strings.Builder
	for _, p := range req.Peers {
		b.WriteString(p.Name + " " + p.Address)
		if p.Port != 0 {
			fmt.Fprintf(&b, " %d", p.Port)
		}
		b.WriteString("\n")
	}
	sum := sha256.Sum256([]byte(b.String()))
	return fmt.Sprintf("%t %s", req.Running, hex.EncodeToString(sum[:8]))
}

// peersDiffer reports whether a runner must be told of the others, or that all of them run.
func peersDiffer(d *cluster.DesiredKernel, c *runtime.Observed, r *ledger.Record) bool {
	req, several := peersOf(d, c)
	return several && r.Peers != sumOfPeers(req)
}

// tellPeers tells the runner who the session's kernels are, and whether all of them run. It knows their names before its kernel counts as
// running: when all kernels of a session run, each knows all others. What it was told is recorded, so that a restart of the agent neither
// forgets nor repeats it.
func (n *kernel) tellPeers(ctx context.Context, v view) error {
	req, several := peersOf(v.desired, n.container)
	if !several {
		return nil
	}
	k := n.k
	ctx, cancel := context.WithTimeout(ctx, peersLimit)
	defer cancel()
	err := k.o.Host.SetPeers(ctx, n.id, n.record.Token, req)
	if kind := fault.KindOf(err); fault.ReasonOf(err) == run.ReasonTooOld || kind == fault.Invalid {
		// It was started before kernels of one session knew each other, and waits for nobody.
		k.Note(n.id, n.record.Generation, "it does not know the other kernels of its session by name: restart the session for that")
		err = nil
	}
	if err != nil {
		return fmt.Errorf("tell the runner who the session's kernels are: %w", err)
	}
	r := n.record.Clone()
	r.Peers = sumOfPeers(req)
	if err := k.o.Ledger.Put(r); err != nil {
		return err // it is told again, which changes nothing
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	n.record = r
	return nil
}
