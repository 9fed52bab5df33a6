package app

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"berth.dev/berth/internal/clientaddr"
	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/fault"
	"berth.dev/berth/internal/manager/audit"
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
func (s *Service) Start(ctx context.Context, a authz.Actor, ref string, owner cluster.AccessKey, w Want) (_ Launched, err error) {
	ctx, end := audit.Begin(ctx, s.d.Store, a, "app.start", ref)
	defer end(&err)
	audit.ActingFor(ctx, string(owner))
	r, way, err := s.use(ctx, a, ref, owner)
	if err != nil {
		return Launched{}, err
	}
	address, name, err := s.proxyAddress(ctx, r)
	if err != nil {
		return Launched{}, err
	}
	t, err := start(ctx, run.NewClient(run.Options{Transport: way}), r, w)
	if err != nil {
		return Launched{}, err
	}
	token, err := s.launchToken(ctx, dbgen.AddLaunchParams{SessionID: r.ID, KernelID: &r.KernelID, UserID: string(a.UserID), App: w.App,
		AskedPort: int32(w.Port),
		Protocol:  t.protocol, Target: int32(t.port), Path: t.path, Started: startedWith(w),
		Proxy: name})
	return Launched{Token: token, Address: address}, err
}

// proxyAddress is where clients of a resource group find its app proxy, and the name of that one; "" when no connected one has the
// address that an administrator gave the group.
func (s *Service) proxyAddress(ctx context.Context, r dbgen.AppSessionRow) (address, name string, err error) {
	all, err := s.proxies(ctx, s.d.Store.Queries)
	if err != nil {
		return "", "", err
	}
	p, err := chosen(all, r.WsproxyAddr)
	switch {
	case r.WsproxyAddr == "":
		return p.URL, p.Name, err
	case err != nil || !sameURL(p.URL, r.WsproxyAddr):
		return r.WsproxyAddr, "", nil
	}
	return r.WsproxyAddr, p.Name, nil
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

// Conf makes a launch token for whoever knows the secret of the proxy of that name (proxies): the older way that clients of a
// coordinator go. The session must be one of the access key, and one that a manager named to this proxy: somebody started an app of it
// within the life of a launch token, and was sent to this proxy. Apps of its main kernel alone are reached this way.
func (s *Service) Conf(ctx context.Context, name string, req proxy.ConfRequest) (proxy.ConfReply, error) {
	r, err := s.session(ctx, cluster.SessionID(req.Session), nil)
	if err != nil {
		return proxy.ConfReply{}, err
	}
	if req.AccessKey == "" || r.AccessKey != req.AccessKey {
		return proxy.ConfReply{}, authz.NotFound(sessionNoun, req.Session)
	}
	named, err := s.d.Store.ProxyWasNamed(ctx, r.ID, name, s.d.Clock())
	if err != nil {
		return proxy.ConfReply{}, fmt.Errorf("look whether session %s was named to app proxy %s: %w", r.ID, name, err)
	}
	if !named {
		return proxy.ConfReply{}, authz.NotFound(sessionNoun, req.Session)
	}
	token, err := s.launchToken(ctx, dbgen.AddLaunchParams{SessionID: r.ID, UserID: r.UserID})
	return proxy.ConfReply{Token: token}, err
}

// launch finds what a token stands for, used up or not: its session, which must be the one that is named, and its user, who must
// still be active.
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
	r, err := s.session(ctx, cluster.SessionID(l.SessionID), l.KernelID)
	if err != nil {
		return none, err
	}
	who, err := s.visitor(ctx, l.UserID, func(a authz.Actor) error {
		return authz.Sessions.Check(a, authz.Change,
			objectOf(r))
	})
	if err != nil {
		return none, err
	}
	if err := from(who, req.Client); err != nil {
		return none, err
	}
	want, _, err := asks(l, req)
	if err != nil {
		return none, err
	}
	use := useOf(l, req, s.d.Clock())
	if err := unused(l, use); err != nil {
		return none, err
	}
	w := wish{session: r, by: cluster.UserID(l.UserID), mode: req.Mode, label: req.Label, port: req.ProxyPort, public: req.Public,
		noReuse: req.NoReuse,
		passed:  append(slices.Clone(req.Passed), req.Unopened)}
	if w.allowed, err = parseAllowed(splitAllowed(req.Allowed)); err != nil {
		return none, err
	}
	if w.target, err = s.started(ctx, r, l, want); err != nil {
		return none, err
	}
	if w.target.protocol, err = spoken(w.target.protocol, req.Protocol); err != nil {
		return none, err
	}
	s.d.Sessions.Uses().Touch(cluster.SessionID(r.ID), s.d.Clock())
	code, hash, err := s.secret()
	if err != nil {
		return none, err
	}
	reply := proxy.LaunchReply{Code: code}
	err = s.d.Store.Tx(ctx, func(ctx context.Context, tx *store.Tx) error {
		// Starting the app may have taken long.
		if _, err := held(ctx, tx, l.UserID, func(a authz.Actor) error {
			return authz.Sessions.Check(a, authz.Change,
				objectOf(r))
		}); err != nil {
			return err
		}
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
		if err := s.addCode(ctx, tx, hash, reply.Circuit, l.UserID); err != nil {
			return err
		}
		return takeLaunch(ctx, tx, use)
	})
	if err != nil {
		return none, err
	}
	if err := s.grant(ctx, req.Proxy, &reply.Circuit); err != nil {
		return none, fmt.Errorf("sign a grant of circuit %s: %w", reply.Circuit.ID, err)
	}
	return reply, nil
}

// dropUnopened ends a circuit that this launch made a moment ago and whose port its proxy cannot open. The port rests: others
// come first. A circuit has one port that all replicas of its proxy open, because any of them may be the one that a visitor
// reaches; one that cannot passes the circuit over, and ends none that others may serve.
func dropUnopened(ctx context.Context, tx *store.Tx, w wish, id string) error {
	id, ok := cluster.CanonicalUUID(id)
	if !ok {
		return nil
	}
	// As everybody: the session before its circuits.
	if _, err := tx.HoldAppSession(ctx, &w.session.KernelID, w.session.ID); err != nil && !store.Missing(err) {
		return fmt.Errorf("hold session %s: %w", w.session.Name, err)
	}
	gone, err := tx.DropUnopened(ctx, id, w.session.ID, w.proxy.Name, string(w.by))
	if err != nil {
		return fmt.Errorf("end circuit %s: %w", id, err)
	}
	if len(gone) > 0 {
		tx.Wake(store.TopicCircuits)
	}
	return nil
}

// started makes the app run, which changes nothing when it does. The agent may be connected to another manager: then what was
// started for the token counts.
func (s *Service) started(ctx context.Context, r dbgen.AppSessionRow, l dbgen.AppLaunch, want Want) (target, error) {
	client, err := s.look(r)
	if err == nil {
		var t target
		if t, err = start(ctx, client, r, want); err == nil {
			return t, nil
		}
	}
	if fault.Is(err, fault.Unavailable) && l.App == want.App && int(l.AskedPort) == want.Port && l.Target > 0 {
		return target{app: l.App, protocol: l.Protocol, port: int(l.Target), path: l.Path}, nil
	}
	return target{}, err
}

func (s *Service) addCode(ctx context.Context, tx *store.Tx, hash []byte, c proxy.Circuit, user string) error {
	err := tx.AddCode(ctx, dbgen.AddCodeParams{CodeHash: hash, CircuitID: c.ID, UserID: user, Epoch: c.Epoch, ExpiresAt: s.d.Clock().
		Add(codeLife)})
	if err != nil {
		return fmt.Errorf("store a code of circuit %s: %w", c.ID, err)
	}
	return nil
}

// visitorKey stands for the keypair of actors that no keypair stands behind; it is longer than any access key can be.
const visitorKey cluster.AccessKey = "(a visitor, no keypair)"

// visitor reads an active user and asks whether they may.
func (s *Service) visitor(ctx context.Context, user string, may func(authz.Actor) error) (authz.Actor, error) {
	u, err := s.d.Store.Visitor(ctx, user)
	return asked(dbgen.HoldVisitorRow(u), user, err, may)
}

// held is visitor for transactions that give something out: until the end of tx the answer stays true. It comes before what
// locks sessions and circuits.
func held(ctx context.Context, tx *store.Tx, user string, may func(authz.Actor) error) (authz.Actor, error) {
	u, err := tx.HoldVisitor(ctx, user)
	return asked(u, user, err, may)
}

func asked(u dbgen.HoldVisitorRow, user string, err error, may func(authz.Actor) error) (authz.Actor, error) {
	if store.Missing(err) {
		return authz.Actor{}, fault.Deniedf("this user is not active")
	}
	if err != nil {
		return authz.Actor{}, fmt.Errorf("read user %s: %w", user, err)
	}
	a := authz.Actor{UserID: cluster.UserID(u.ID), Email: u.Email, Role: authz.Role(u.Role), Domain: u.DomainName, AccessKey: visitorKey,
		AllowedClientIP: clientaddr.ParseNetworks(u.AllowedClientIp)}
	for _, p := range u.Leads {
		a.Leads = append(a.Leads, cluster.ProjectID(p))
	}
	return a, may(a)
}

// from refuses users at addresses that they may not come from. The words name nobody: a stranger may have found the link.
func from(who authz.Actor, client netip.Addr) error {
	if who.AllowedClientIP.Admit(client) {
		return nil
	}
	return fault.Deniedf("this app cannot be opened from the address %s", client).WithReason("address-not-allowed").
		WithNext("use a network that your administrator allows")
}

// maxNetworks bounds the networks that a ticket carries.
const maxNetworks = 40

// noteOffice remembers that somebody has a ticket of a circuit that is not theirs, by the right of an administrator. The rights
// of shares and of everybody are known by themselves.
func noteOffice(ctx context.Context, tx *store.Tx, v dbgen.CircuitViewsRow, user string, expires time.Time) error {
	if v.Shared || v.Circuit.Public || v.Circuit.UserID == user {
		return nil
	}
	if err := tx.NoteOfficeTicket(ctx, v.Circuit.ID, user, expires); err != nil {
		return fmt.Errorf("note a ticket of circuit %s: %w", v.Circuit.ID, err)
	}
	return nil
}

// Redeem turns a code into the right to be a visitor until the returned time (proxies). A code is gone with the first who
// shows it, also when it was too old or its user has lost the right; where it may yet work for the same visitor it stays.
func (s *Service) Redeem(ctx context.Context, name string, req proxy.RedeemRequest) (proxy.RedeemReply, error) {
	id, ok := cluster.CanonicalUUID(req.Circuit)
	if !ok || req.Code == "" || len(req.Code) > 128 {
		return proxy.RedeemReply{}, badCode()
	}
	var reply proxy.RedeemReply
	var refused error // commits all the same
	err := s.d.Store.Tx(ctx, func(ctx context.Context, tx *store.Tx) (err error) {
		reply, refused, err = s.redeem(ctx, tx, name, id, req)
		return err
	})
	if err == nil {
		err = refused
	}
	if err != nil {
		return proxy.RedeemReply{}, err
	}
	return reply, nil
}

func (s *Service) redeem(ctx context.Context, tx *store.Tx, name, id string,
	req proxy.RedeemRequest) (reply proxy.RedeemReply, refused, err error) {
	now, hash := s.d.Clock(), hashed(req.Code)
	user, err := tx.FindCode(ctx, hash, id)
	if store.Missing(err) {
		return reply, badCode(), nil
	}
	if err != nil {
		return reply, nil, fmt.Errorf("find a code of circuit %s: %w", id, err)
	}
	// The user, the circuit, then its codes: whoever takes the right away takes them in this order too, and what is read here
	// holds until the right is written.
	who, denied := held(ctx, tx, user, func(authz.Actor) error { return nil })
	if denied != nil && !fault.Is(denied, fault.Denied) {
		return reply, nil, denied
	}
	v, err := locked(ctx, tx, id, user)
	if fault.Is(err, fault.NotFound) {
		return reply, badCode(), nil
	}
	if err != nil {
		return reply, nil, err
	}
	code, err := tx.TakeCode(ctx, hash, id)
	if store.Missing(err) || err == nil && denied != nil {
		return reply, badCode(), nil
	}
	if err != nil {
		return reply, nil, fmt.Errorf("take a code of circuit %s: %w", id, err)
	}
	c := v.Circuit
	expires := now.Add(TicketLife)
	if c.ExpiresAt != nil && c.ExpiresAt.Before(expires) {
		expires = *c.ExpiresAt
	}
	switch {
	case c.Proxy != name || c.Epoch != code.Epoch || !now.Before(code.ExpiresAt) || !now.Before(expires) || mayVisit(who, v) != nil:
		return reply, badCode(), nil
	case !allowedFrom(prefixes(c.Allowed), req.Client):
		return reply, nil, fault.Deniedf("app %s of session %s is not open to the address %s", c.App, v.SessionName, req.Client).
			WithReason("address-not-allowed").
			WithNext("ask its owner to allow your address")
	}
	if err := from(who, req.Client); err != nil {
		return reply, err, nil
	}
	if err := noteOffice(ctx, tx, v, user, expires); err != nil {
		return reply, nil, err
	}
	if !(proxy.Circuit{Protocol: c.Protocol}).HTTP() && proxy.Mode(c.Mode) == proxy.ModePort && req.Client.IsValid() {
		address := req.Client.Unmap().String()
		n, err := tx.CountOtherAdmissions(ctx, id, address)
		if err != nil {
			return reply, nil, fmt.Errorf("count the addresses of circuit %s: %w", id, err)
		}
		if n >= maxAdmissions {
			return reply, nil, fault.Exhaustedf("%d addresses may use app %s of session %s already", n, c.App, v.SessionName).
				WithReason("too-many-addresses").
				WithNext("use `berth port-forward`, or let its owner revoke its tickets, which forgets the addresses")
		}
		if err := tx.Admit(ctx, id, address, user, expires); err != nil {
			return reply, nil, fmt.Errorf("admit an address to circuit %s: %w", id, err)
		}
		tx.Wake(store.TopicCircuits)
	}
	return proxy.RedeemReply{User: user, Epoch: c.Epoch, ExpiresAt: expires.UTC(), Path: c.Path,
		Clients: who.AllowedClientIP.TextsFor(req.Client, maxNetworks)}, nil, nil
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
func (s *Service) Ticket(ctx context.Context, a authz.Actor, ref string, owner cluster.AccessKey, want Want) (Ticket, error) {
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
	if w.target, err = start(ctx, run.NewClient(run.Options{Transport: way}), r, want); err != nil {
		return Ticket{}, err
	}
	keys, err := s.Keys(ctx, w.proxy.Name)
	if err != nil {
		return Ticket{}, err
	}
	var out Ticket
	err = s.d.Store.Tx(ctx, func(ctx context.Context, tx *store.Tx) error {
		// Starting the app may have taken long.
		who, err := held(ctx, tx, string(a.UserID), func(a authz.Actor) error {
			return authz.Sessions.Check(a, authz.Change,
				objectOf(r))
		})
		if err != nil {
			return err
		}
		id, _, err := s.publish(ctx, tx, w)
		if err != nil {
			return err
		}
		v, err := locked(ctx, tx, id, string(a.UserID)) // the epoch that is signed must not be one that was just ended
		if err != nil {
			return err
		}
		c, _, err := onePublished(ctx, tx.Queries, id)
		if err != nil {
			return err
		}
		out = s.sign(w.proxy, c, who, a.ClientIP, keys)
		return noteOffice(ctx, tx, v, string(a.UserID), out.ExpiresAt)
	})
	return out, err
}

// sign makes a ticket of somebody at a client address, as the manager sees it.
func (s *Service) sign(p Proxy, c proxy.Circuit, who authz.Actor, client string, keys [][]byte) Ticket {
	expires := s.d.Clock().Add(TicketLife).Truncate(time.Second)
	if c.ExpiresAt != nil && c.ExpiresAt.Before(expires) {
		expires = c.ExpiresAt.Truncate(time.Second)
	}
	return Ticket{URL: p.URL, Circuit: c.ID, ExpiresAt: expires.UTC(),
		Ticket: proxy.SignTicket(proxy.Ticket{Circuit: c.ID, User: string(who.UserID), Epoch: c.Epoch, Expires: expires,
			Clients: who.AllowedClientIP.TextsFor(clientaddr.Parse(client), maxNetworks)}, keys[0])}
}
