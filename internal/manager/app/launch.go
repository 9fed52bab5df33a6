package app

import (
	"context"
	"fmt"
	"net/netip"
	"time"

	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/fault"
	"berth.dev/berth/internal/manager/authz"
	"berth.dev/berth/internal/manager/store"
	"berth.dev/berth/internal/manager/store/dbgen"
	"berth.dev/berth/internal/wire/proxy"
	"berth.dev/berth/internal/wire/run"
)

const (
	launchLife = 10 * time.Minute
	codeLife   = 3 * time.Minute
	// TicketLife is how long a visitor may stay without asking anew.
	TicketLife = 12 * time.Hour
	// maxAdmissions bounds the addresses that are let in to one raw port.
	maxAdmissions = 256
)

// Launched is the right to publish an app, for a client that goes on to an app proxy.
type Launched struct {
	Token string
	// Address is the base URL of the app proxy.
	Address string
}

// Start starts an app and gives the actor a token with which an app proxy publishes it.
func (s *Service) Start(ctx context.Context, a Actor, ref string, owner cluster.AccessKey, w Want) (Launched, error) {
	r, way, err := s.use(ctx, a, ref, owner)
	if err != nil {
		return Launched{}, err
	}
	address, err := s.proxyAddress(ctx, r)
	if err != nil {
		return Launched{}, err
	}
	t, err := start(ctx, run.NewClient(run.Options{Transport: way}), r.Name, w)
	if err != nil {
		return Launched{}, err
	}
	token, err := s.launchToken(ctx, dbgen.AddLaunchParams{SessionID: r.ID, UserID: string(a.UserID), App: w.App, AskedPort: int32(w.Port), Protocol: t.protocol, Target: int32(t.port), Path: t.path})
	return Launched{Token: token, Address: address}, err
}

// proxyAddress is where clients of a resource group find its app proxy.
func (s *Service) proxyAddress(ctx context.Context, r dbgen.AppSessionRow) (string, error) {
	if r.WsproxyAddr != "" {
		return r.WsproxyAddr, nil
	}
	all, err := s.proxies(ctx, s.d.Store.Queries)
	if err != nil {
		return "", err
	}
	p, err := chosen(all, "")
	return p.URL, err
}

func (s *Service) launchToken(ctx context.Context, l dbgen.AddLaunchParams) (string, error) {
	token, hash, err := s.secret()
	if err != nil {
		return "", err
	}
	l.TokenHash, l.ExpiresAt = hash, s.d.Clock().Add(launchLife)
	if err := s.d.Store.AddLaunch(ctx, l); err != nil {
		return "", fmt.Errorf("store a launch token: %w", err)
	}
	return token, nil
}

// Conf makes a launch token for whoever knows the proxy's secret (proxies): the older way that clients of a coordinator go. The
// session must be one of the access key.
func (s *Service) Conf(ctx context.Context, req proxy.ConfRequest) (proxy.ConfReply, error) {
	r, err := s.session(ctx, cluster.SessionID(req.Session))
	if err != nil {
		return proxy.ConfReply{}, err
	}
	if req.AccessKey == "" || r.AccessKey != req.AccessKey {
		return proxy.ConfReply{}, authz.NotFound(sessionNoun, req.Session)
	}
	token, err := s.launchToken(ctx, dbgen.AddLaunchParams{SessionID: r.ID, UserID: r.UserID})
	return proxy.ConfReply{Token: token}, err
}

// launch finds what a token stands for: its session, which must be the one that is named, and its user, who must still be active.
func (s *Service) launch(ctx context.Context, token, session string) (dbgen.AppLaunch, error) {
	none := dbgen.AppLaunch{}
	id, ok := cluster.CanonicalUUID(session)
	if len(token) == 0 || len(token) > 128 || !ok {
		return none, badToken()
	}
	row, err := s.d.Store.FindLaunch(ctx, hashed(token))
	l := row.AppLaunch
	switch {
	case store.Missing(err):
		return none, badToken()
	case err != nil:
		return none, fmt.Errorf("find a launch token: %w", err)
	case l.SessionID != id || !s.d.Clock().Before(l.ExpiresAt):
		return none, badToken()
	}
	return l, nil
}

func badToken() error {
	return fault.Deniedf("this launch token is not valid, or not any more").WithReason("bad-launch-token").WithNext("start the app again")
}

// Launch publishes an app for whoever holds a launch token (proxies), and makes a code for the visitor. Launches of the same app
// share one circuit.
func (s *Service) Launch(ctx context.Context, req proxy.LaunchRequest) (proxy.LaunchReply, error) {
	var none proxy.LaunchReply
	l, err := s.launch(ctx, req.Token, req.Session)
	if err != nil {
		return none, err
	}
	r, err := s.session(ctx, cluster.SessionID(l.SessionID))
	if err != nil {
		return none, err
	}
	if _, err := s.visitor(ctx, s.d.Store.Queries, l.UserID, func(a Actor) error { return authz.Write(a, owned(r)) }); err != nil {
		return none, err
	}
	want, err := ParseWant(req.App, req.Port, req.Envs, req.Arguments)
	if err != nil {
		return none, err
	}
	if want.App == "" {
		return none, fault.Invalidf("the launch names no app").WithReason("invalid-api-params").WithNext("name one, for example app=jupyter")
	}
	w := wish{session: r, by: cluster.UserID(l.UserID), mode: req.Mode, label: req.Label, port: req.ProxyPort, public: req.Public, noReuse: req.NoReuse}
	if w.allowed, err = parseAllowed(splitAllowed(req.Allowed)); err != nil {
		return none, err
	}
	if w.target, err = s.started(ctx, r, l, want); err != nil {
		return none, err
	}
	if w.target.protocol, err = spoken(w.target.protocol, req.Protocol); err != nil {
		return none, err
	}
	s.accesses.Touch(cluster.SessionID(r.ID), s.d.Clock())
	code, hash, err := s.secret()
	if err != nil {
		return none, err
	}
	reply := proxy.LaunchReply{Code: code}
	err = s.d.Store.Tx(ctx, func(ctx context.Context, tx *store.Tx) error {
		all, err := s.proxies(ctx, tx.Queries)
		if err != nil {
			return err
		}
		p, ok := all[req.Proxy]
		if !ok {
			return fault.Conflictf("app proxy %s has not announced itself", req.Proxy).WithNext("wait until its watch is open")
		}
		w.proxy = p
		if err := dropUnopened(ctx, tx, w, req.Unopened); err != nil {
			return err
		}
		id, reused, err := s.publish(ctx, tx, w)
		if err != nil {
			return err
		}
		if reply.Circuit, reply.Path, err = onePublished(ctx, tx.Queries, id); err != nil {
			return err
		}
		reply.Reused = reused
		reply.URL = p.Address(reply.Circuit.Mode, reply.Circuit.Label, reply.Circuit.Port, reply.Circuit.HTTP())
		return s.addCode(ctx, tx, hash, reply.Circuit, l.UserID)
	})
	if err != nil {
		return none, err
	}
	return reply, nil
}

// dropUnopened ends a private circuit of the wish's own user whose port its proxy cannot open. The port rests: others come first.
func dropUnopened(ctx context.Context, tx *store.Tx, w wish, id string) error {
	if id == "" {
		return nil
	}
	if _, err := tx.HoldAppSession(ctx, w.session.ID); err != nil && !store.Missing(err) { // as everybody: the session before its circuits
		return fmt.Errorf("hold session %s: %w", w.session.Name, err)
	}
	present, err := tx.CircuitsOfSession(ctx, w.session.ID)
	if err != nil {
		return fmt.Errorf("read circuits of session %s: %w", w.session.Name, err)
	}
	for _, c := range present {
		if c.ID == id && c.Proxy == w.proxy.Name && c.CreatedBy == string(w.by) && c.Port != nil && !c.Public {
			if _, err := tx.DropCircuits(ctx, []string{id}); err != nil {
				return fmt.Errorf("end circuit %s: %w", id, err)
			}
			tx.Wake(store.TopicCircuits)
		}
	}
	return nil
}

// started makes the app run, which changes nothing when it does. The agent may be connected to another manager: then what was
// started for the token counts.
func (s *Service) started(ctx context.Context, r dbgen.AppSessionRow, l dbgen.AppLaunch, want Want) (target, error) {
	client, err := s.look(r)
	if err == nil {
		var t target
		if t, err = start(ctx, client, r.Name, want); err == nil {
			return t, nil
		}
	}
	if fault.Is(err, fault.Unavailable) && l.App == want.App && int(l.AskedPort) == want.Port && l.Target > 0 {
		return target{app: l.App, protocol: l.Protocol, port: int(l.Target), path: l.Path}, nil
	}
	return target{}, err
}

func (s *Service) addCode(ctx context.Context, tx *store.Tx, hash []byte, c proxy.Circuit, user string) error {
	err := tx.AddCode(ctx, dbgen.AddCodeParams{CodeHash: hash, CircuitID: c.ID, UserID: user, Epoch: c.Epoch, ExpiresAt: s.d.Clock().Add(codeLife)})
	if err != nil {
		return fmt.Errorf("store a code of circuit %s: %w", c.ID, err)
	}
	return nil
}

// visitorKey stands for the keypair of actors that no keypair stands behind; it is longer than any access key can be.
const visitorKey cluster.AccessKey = "(a visitor, no keypair)"

// visitor reads an active user and asks whether they may.
func (s *Service) visitor(ctx context.Context, q *dbgen.Queries, user string, may func(Actor) error) (Actor, error) {
	u, err := q.Visitor(ctx, user)
	if store.Missing(err) {
		return Actor{}, fault.Deniedf("this user is not active").WithReason("generic-forbidden")
	}
	if err != nil {
		return Actor{}, fmt.Errorf("read user %s: %w", user, err)
	}
	a := Actor{UserID: cluster.UserID(u.ID), Email: u.Email, Role: authz.Role(u.Role), Domain: u.DomainName, AccessKey: visitorKey}
	return a, may(a)
}

// Redeem turns a code into the right to be a visitor until the returned time (proxies). A code is gone with the first who
// shows it, also when it was too old or its user has lost the right.
func (s *Service) Redeem(ctx context.Context, name string, req proxy.RedeemRequest) (proxy.RedeemReply, error) {
	id, ok := cluster.CanonicalUUID(req.Circuit)
	if !ok || req.Code == "" || len(req.Code) > 128 {
		return proxy.RedeemReply{}, badCode()
	}
	var reply proxy.RedeemReply
	var refused error // commits all the same
	err := s.d.Store.Tx(ctx, func(ctx context.Context, tx *store.Tx) error {
		reply, refused = proxy.RedeemReply{}, nil
		code, err := tx.TakeCode(ctx, hashed(req.Code), id)
		if store.Missing(err) {
			refused = badCode()
			return nil
		}
		if err != nil {
			return fmt.Errorf("take a code of circuit %s: %w", id, err)
		}
		reply, refused, err = s.redeem(ctx, tx, name, id, code, req.Client)
		return err
	})
	if err == nil {
		err = refused
	}
	return reply, err
}

func (s *Service) redeem(ctx context.Context, tx *store.Tx, name, id string, code dbgen.TakeCodeRow, client netip.Addr) (reply proxy.RedeemReply, refused, err error) {
	now := s.d.Clock()
	v, err := view(ctx, tx.Queries, id, code.UserID)
	if fault.Is(err, fault.NotFound) {
		return reply, badCode(), nil
	}
	if err != nil {
		return reply, nil, err
	}
	c := v.Circuit
	expires := now.Add(TicketLife)
	if c.ExpiresAt != nil && c.ExpiresAt.Before(expires) {
		expires = *c.ExpiresAt
	}
	switch {
	case c.Proxy != name || c.Epoch != code.Epoch || !now.Before(code.ExpiresAt) || !now.Before(expires):
		return reply, badCode(), nil
	case !allowedFrom(prefixes(c.Allowed), client):
		return reply, fault.Deniedf("app %s of session %s is not open to the address %s", c.App, v.SessionName, client).WithReason("address-not-allowed").
			WithNext("ask its owner to allow your address"), nil
	}
	if _, err := s.visitor(ctx, tx.Queries, code.UserID, func(a Actor) error { return mayVisit(a, v) }); err != nil {
		if k := fault.KindOf(err); k == fault.Denied || k == fault.NotFound {
			return reply, badCode(), nil
		}
		return reply, nil, err
	}
	if !(proxy.Circuit{Protocol: c.Protocol}).HTTP() && proxy.Mode(c.Mode) == proxy.ModePort && client.IsValid() {
		n, err := tx.CountAdmissions(ctx, id)
		if err != nil {
			return reply, nil, fmt.Errorf("count the addresses of circuit %s: %w", id, err)
		}
		if n >= maxAdmissions {
			return reply, fault.Exhaustedf("%d addresses may use app %s of session %s already", n, c.App, v.SessionName).WithNext("make the circuit anew"), nil
		}
		if err := tx.Admit(ctx, id, client.Unmap().String(), code.UserID, expires); err != nil {
			return reply, nil, fmt.Errorf("admit an address to circuit %s: %w", id, err)
		}
		tx.Wake(store.TopicCircuits)
	}
	return proxy.RedeemReply{User: code.UserID, Epoch: c.Epoch, ExpiresAt: expires.UTC(), Path: c.Path}, nil, nil
}

func badCode() error {
	return fault.Deniedf("this code is not valid, or not any more: a code works once").WithReason("bad-code").WithNext("open the app again")
}

// Close ends all circuits that a launch token's user made of a session through a proxy (proxies).
func (s *Service) Close(ctx context.Context, name string, req proxy.CloseRequest) error {
	l, err := s.launch(ctx, req.Token, req.Session)
	if err != nil {
		return err
	}
	return s.d.Store.Tx(ctx, func(ctx context.Context, tx *store.Tx) error {
		gone, err := tx.DropCircuitsOf(ctx, l.SessionID, l.UserID, name)
		if err != nil {
			return fmt.Errorf("close circuits of session %s: %w", l.SessionID, err)
		}
		if len(gone) > 0 {
			tx.Wake(store.TopicCircuits)
		}
		return nil
	})
}

// Ticket is the right to use one circuit for a client that is no browser.
type Ticket struct {
	// URL is the base of the app proxy.
	URL     string
	Circuit string
	// Ticket is shown as `Authorization: Berth TICKET`.
	Ticket    string
	ExpiresAt time.Time
}

// Ticket starts an app, or names a port with App "", and gives the actor a ticket for a circuit of it.
func (s *Service) Ticket(ctx context.Context, a Actor, ref string, owner cluster.AccessKey, want Want) (Ticket, error) {
	r, way, err := s.use(ctx, a, ref, owner)
	if err != nil {
		return Ticket{}, err
	}
	all, err := s.proxies(ctx, s.d.Store.Queries)
	if err != nil {
		return Ticket{}, err
	}
	w := wish{session: r, by: a.UserID, byID: true}
	if w.proxy, err = chosen(all, r.WsproxyAddr); err != nil {
		return Ticket{}, err
	}
	if w.target, err = start(ctx, run.NewClient(run.Options{Transport: way}), r.Name, want); err != nil {
		return Ticket{}, err
	}
	keys, err := s.Keys(ctx)
	if err != nil {
		return Ticket{}, err
	}
	var c proxy.Circuit
	err = s.d.Store.Tx(ctx, func(ctx context.Context, tx *store.Tx) error {
		id, _, err := s.publish(ctx, tx, w)
		if err != nil {
			return err
		}
		c, _, err = onePublished(ctx, tx.Queries, id)
		return err
	})
	if err != nil {
		return Ticket{}, err
	}
	return s.sign(w.proxy, c, a.UserID, keys), nil
}

func (s *Service) sign(p Proxy, c proxy.Circuit, user cluster.UserID, keys [][]byte) Ticket {
	expires := s.d.Clock().Add(TicketLife).Truncate(time.Second)
	if c.ExpiresAt != nil && c.ExpiresAt.Before(expires) {
		expires = c.ExpiresAt.Truncate(time.Second)
	}
	return Ticket{URL: p.URL, Circuit: c.ID, ExpiresAt: expires.UTC(),
		Ticket: proxy.SignTicket(proxy.Ticket{Circuit: c.ID, User: string(user), Epoch: c.Epoch, Expires: expires}, keys[0])}
}
