package httpapi

import (
	"context"
	"errors"
	"net/netip"
	"slices"
	"time"

	"github.com/coder/websocket"

	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/fault"
	"berth.dev/berth/internal/manager/authz"
	"berth.dev/berth/internal/manager/seal"
	"berth.dev/berth/internal/manager/tenancy"
)

// A request that lasts was admitted once, when it began. What admitted it may end while it is open: the keypair, its user or domain is
// made inactive, the user's role changes or they administer a project no more, or the address of the client is taken off the user's list.
// Run looks again whenever something about actors changed, and ends such requests within seconds. A login ends without such a change, so
// requests by logins are looked at every few seconds.

const (
	// rightsEvery is how often Run asks whether something changed.
	rightsEvery = time.Second
	// rightsAnyway is how often it looks without a change, as a safety net.
	rightsAnyway = time.Minute
	// loginsEvery is how often it looks while requests by logins are open.
	loginsEvery = 5 * time.Second
)

// errRevoked ends requests whose right is gone.
var errRevoked = fault.New(fault.Unauthenticated, "the access key may not be used for this any more").WithReason(reasonAuthFailed).
	WithNext("ask your administrator whether your account, role or network was changed")

// held is one request that lasts, with what it was admitted by.
type held struct {
	actor authz.Actor
	from  netip.Addr
	login seal.Secret // the token of the login that it came by, "" for none
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
			if next == turn && now.Sub(looked) < a.anyway() {
				continue
			}
			if a.checkRights(ctx) {
				turn, looked = next, now
			}
		}
	}
}

// anyway is how long no change may keep Run from looking.
func (a *API) anyway() time.Duration {
	a.mu.Lock()
	defer a.mu.Unlock()
	for h := range a.held {
		if h.login != "" {
			return loginsEvery
		}
	}
	return rightsAnyway
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
	// by is what a caller came with.
	type by struct {
		key, acting cluster.AccessKey
		token       string
		login       seal.Secret
	}
	refused := map[by]bool{} // those that were examined
	actors := map[by]authz.Actor{}
	for _, h := range all {
		key := by{key: h.actor.AccessKey, login: h.login}
		if h.actor.By != nil {
			key.acting = h.actor.By.AccessKey
		}
		if h.actor.Scope != nil {
			key.token = h.actor.Scope.Token
		}
		if _, known := refused[key]; !known {
			actor, err := a.again(ctx, h)
			if err != nil && !fault.Is(err, fault.Unauthenticated) {
				complete = false
				continue
			}
			refused[key], actors[key] = err != nil, actor
		}
		now := actors[key]
		if refused[key] || authz.From(now, h.from) != nil || now.UserID != h.actor.UserID || now.Role != h.actor.Role ||
			now.Domain != h.actor.Domain || now.KeypairAdmin != h.actor.KeypairAdmin || !keeps(now.Leads, h.actor.Leads) {
			h.end(errRevoked)
		}
	}
	return complete
}

// again is the actor of a request as they are now, by the keypair, the login or the API token that they came with.
func (a *API) again(ctx context.Context, h *held) (authz.Actor, error) {
	actor := h.actor
	if h.login != "" {
		if now, err := a.tenancy.ActorOfLogin(ctx, h.login); err != nil {
			return now, err
		}
	}
	if by := actor.By; by != nil {
		now, _, err := a.tenancy.Authenticate(ctx, by.AccessKey)
		if err != nil {
			return now, err
		}
		now.ClientIP = by.ClientIP
		now, err = a.tenancy.ActAs(ctx, now, string(actor.UserID))
		if fault.Is(err, fault.Denied) || fault.Is(err, fault.Conflict) || fault.Is(err, fault.NotFound) {
			err = tenancy.AuthFailed()
		}
		return now, err
	}
	if actor.Scope != nil {
		return a.tokens.Recheck(ctx, actor.Scope.Token)
	}
	now, _, err := a.tenancy.Authenticate(ctx, actor.AccessKey)
	return now, err
}

// keeps reports whether somebody still administers all projects of before.
func keeps(now, before []cluster.ProjectID) bool {
	return !slices.ContainsFunc(before, func(p cluster.ProjectID) bool { return !slices.Contains(now, p) })
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
