package httpapi

import (
	"context"
	"errors"
	"net/netip"
	"time"

	"github.com/coder/websocket"

	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/fault"
	"berth.dev/berth/internal/manager/authz"
)

// A request that lasts was admitted once, when it began. What admitted it may end while it is open: the keypair, its user or domain is
// made inactive, the user's role changes, or the address of the client is taken off the user's list. Run looks again whenever something
// about actors changed, and ends such requests within seconds.

const (
	// rightsEvery is how often Run asks whether something changed.
	rightsEvery = time.Second
	// rightsAnyway is how often it looks without a change, as a safety net.
	rightsAnyway = time.Minute
)

// errRevoked ends requests whose right is gone.
var errRevoked = fault.New(fault.Unauthenticated, "the access key may not be used for this any more").WithReason(reasonAuthFailed).
	WithNext("ask your administrator whether your account, role or network was changed")

// held is one request that lasts, with what it was admitted by.
type held struct {
	actor authz.Actor
	from  netip.Addr
	end   context.CancelCauseFunc
}

// Run ends requests that last when their right is gone. It returns when ctx ends.
func (a *API) Run(ctx context.Context) error {
	tick := time.NewTicker(rightsEvery)
	defer tick.Stop()
	var turn uint64
	var looked time.Time
	for {
		select {
		case <-ctx.Done():
			return nil
		case now := <-tick.C:
			next := a.actorsTurn()
			if next == turn && now.Sub(looked) < rightsAnyway {
				continue
			}
			if a.checkRights(ctx) {
				turn, looked = next, now
			}
		}
	}
}

// checkRights ends the requests whose right is gone. It reports whether all could be examined.
func (a *API) checkRights(ctx context.Context) (complete bool) {
	a.mu.Lock()
	all := make([]*held, 0, len(a.held))
	for h := range a.held {
		all = append(all, h)
	}
	a.mu.Unlock()
	complete = true
	refused := map[cluster.AccessKey]bool{} // keys that were examined
	actors := map[cluster.AccessKey]authz.Actor{}
	for _, h := range all {
		key := h.actor.AccessKey
		if _, known := refused[key]; !known {
			actor, _, err := a.tenancy.Authenticate(ctx, key)
			if err != nil && !fault.Is(err, fault.Unauthenticated) {
				complete = false
				continue
			}
			refused[key], actors[key] = err != nil, actor
		}
		now := actors[key]
		if refused[key] || authz.From(now, h.from) != nil || now.UserID != h.actor.UserID || now.Role != h.actor.Role ||
			now.Domain != h.actor.Domain || now.KeypairAdmin != h.actor.KeypairAdmin {
			h.end(errRevoked)
		}
	}
	return complete
}

// ending says why the manager itself ends a stream, and how WebSockets are told. It is false when the client or the session ended it.
func (a *API) ending(ctx context.Context) (code websocket.StatusCode, why string, ours bool) {
	switch {
	case a.stopping.Err() != nil:
		return websocket.StatusServiceRestart, errStopping.Msg, true
	case errors.Is(context.Cause(ctx), errRevoked):
		return websocket.StatusPolicyViolation, errRevoked.Msg, true
	}
	return websocket.StatusNormalClosure, "", false
}
