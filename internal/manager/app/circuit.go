package app

import (
	"context"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"time"

	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/fault"
	"berth.dev/berth/internal/manager/audit"
	"berth.dev/berth/internal/manager/authz"
	"berth.dev/berth/internal/manager/store"
	"berth.dev/berth/internal/manager/store/dbgen"
	"berth.dev/berth/internal/wire/proxy"
)

const (
	circuitNoun = "circuit"
	maxListed   = 1000
	maxShares   = 100
)

// Circuit is a published way to an app as people see it.
type Circuit struct {
	ID          string
	App         string
	Protocol    string
	SessionID   cluster.SessionID
	SessionName string
	Kernel      string // its name in the session
	Mode        proxy.Mode
	URL         string // "" when the proxy has no address for it: it is reached by id
	Public      bool
	// Mine says that the actor may change it. Others see neither addresses nor shares.
	Mine           bool
	Allowed        []string
	SharedUsers    []string // emails
	SharedProjects []string // names
	CreatedAt      time.Time
	ExpiresAt      *time.Time
	LastUsed       *time.Time
}

func noCircuit(id string) error { return authz.NotFound(circuitNoun, fmt.Sprintf("%.64s", id)) }

// view reads one circuit with what a viewer needs for a decision.
func view(ctx context.Context, q *dbgen.Queries, id, viewer string) (dbgen.CircuitViewsRow, error) {
	canonical, ok := cluster.CanonicalUUID(id)
	if !ok {
		return dbgen.CircuitViewsRow{}, noCircuit(id)
	}
	rows, err := q.CircuitViews(ctx, viewer, []string{canonical})
	if err != nil {
		return dbgen.CircuitViewsRow{}, fmt.Errorf("read circuit %s: %w", id, err)
	}
	if len(rows) == 0 {
		return dbgen.CircuitViewsRow{}, noCircuit(id)
	}
	return rows[0], nil
}

func circuitObject(v dbgen.CircuitViewsRow) authz.Object {
	return authz.Object{Name: v.Circuit.ID, Owner: cluster.UserID(v.Circuit.UserID), OwnerRole: authz.Role(v.OwnerRole), Domain: v.DomainName,
		Project: cluster.ProjectID(v.ProjectID), Public: v.Circuit.Public, Given: v.Shared}
}

// mayVisit lets in the owner, administrators, whom it is shared with, and everybody when it is public.
func mayVisit(a authz.Actor, v dbgen.CircuitViewsRow) error {
	return authz.Circuits.Check(a, authz.Visit, circuitObject(v))
}

func (s *Service) seen(a authz.Actor, v dbgen.CircuitViewsRow, all map[string]Proxy) Circuit {
	c := v.Circuit
	out := Circuit{ID: c.ID, App: c.App, Protocol: c.Protocol, SessionID: cluster.SessionID(c.SessionID), SessionName: v.SessionName,
		Kernel: v.KernelName, Mode: proxy.Mode(c.Mode), Public: c.Public,
		Mine: authz.Circuits.May(a, authz.Change, circuitObject(v)), Allowed: []string{}, SharedUsers: []string{}, SharedProjects: []string{},
		CreatedAt: c.CreatedAt.UTC()}
	label, port := "", 0
	if c.Label != nil {
		label = *c.Label
	}
	if c.Port != nil {
		port = int(*c.Port)
	}
	out.URL = all[c.Proxy].Address(out.Mode, label, port, (proxy.Circuit{Protocol: c.Protocol}).HTTP())
	if c.ExpiresAt != nil {
		at := c.ExpiresAt.UTC()
		out.ExpiresAt = &at
	}
	if c.LastActivity != nil {
		at := c.LastActivity.UTC()
		out.LastUsed = &at
	}
	if authz.Sessions.May(a, authz.See, circuitObject(v)) {
		out.Allowed, out.SharedUsers, out.SharedProjects = c.Allowed, v.SharedUsers, v.SharedProjects
	}
	return out
}

// Circuits lists what the actor owns or may visit by a share; with a session, all of that session, which the actor must see, and with
// SESSION:KERNEL all of that kernel.
func (s *Service) Circuits(ctx context.Context, a authz.Actor, session string, owner cluster.AccessKey) ([]Circuit, error) {
	if err := authz.Authenticated(a); err != nil {
		return nil, err
	}
	var of, kernel *string
	if session != "" {
		v, k, err := s.kernel(ctx, a, session, owner)
		if err != nil {
			return nil, err
		}
		of = new(string(v.ID))
		if strings.Contains(session, ":") {
			kernel = new(string(k.ID))
		}
	}
	ids, err := s.d.Store.CircuitsInReach(ctx, of, kernel, string(a.UserID), maxListed)
	if err != nil {
		return nil, fmt.Errorf("list circuits: %w", err)
	}
	rows, err := s.d.Store.CircuitViews(ctx, string(a.UserID), ids)
	if err != nil {
		return nil, fmt.Errorf("read circuits: %w", err)
	}
	all, err := s.proxies(ctx, s.d.Store.Queries)
	if err != nil {
		return nil, err
	}
	out := make([]Circuit, len(rows))
	for i, r := range rows {
		out[i] = s.seen(a, r, all)
	}
	return out, nil
}

// Entry is the way of one visitor into a circuit.
type Entry struct {
	// URL carries a one-time code: opening it in a browser makes the visitor known there.
	URL string
	// Ticket is for clients that are no browser.
	Ticket Ticket
}

// Enter gives whoever may visit a circuit a code and a ticket of their own.
func (s *Service) Enter(ctx context.Context, a authz.Actor, id string) (Entry, error) {
	if err := authz.Authenticated(a); err != nil {
		return Entry{}, err
	}
	known, err := view(ctx, s.d.Store.Queries, id, string(a.UserID)) // whether the actor may is asked below
	if err != nil {
		return Entry{}, err
	}
	keys, err := s.Keys(ctx, known.Circuit.Proxy)
	if err != nil {
		return Entry{}, err
	}
	code, hash, err := s.secret()
	if err != nil {
		return Entry{}, err
	}
	var out Entry
	err = s.d.Store.Tx(ctx, func(ctx context.Context, tx *store.Tx) error {
		v, err := view(ctx, tx.Queries, id, string(a.UserID))
		if err != nil {
			return err
		}
		if err := mayVisit(a, v); err != nil {
			return err
		}
		// A change may have taken the right since; the epoch that is signed must be one at which it is held.
		who, err := held(ctx, tx, string(a.UserID), func(authz.Actor) error { return nil })
		if err != nil {
			return err
		}
		if v, err = locked(ctx, tx, id, string(a.UserID)); err != nil {
			return err
		}
		if err := mayVisit(who, v); err != nil {
			return err
		}
		c, _, err := onePublished(ctx, tx.Queries, v.Circuit.ID)
		if err != nil {
			return err
		}
		if c.ExpiresAt != nil && !s.d.Clock().Before(*c.ExpiresAt) {
			return noCircuit(id)
		}
		all, err := s.proxies(ctx, tx.Queries)
		if err != nil {
			return err
		}
		p, ok := all[v.Circuit.Proxy]
		if !ok {
			return noProxy()
		}
		out.Ticket = s.sign(p, c, who, a.ClientIP, keys)
		out.URL = setupURL(p, c, code)
		if err := noteOffice(ctx, tx, v, string(a.UserID), out.Ticket.ExpiresAt); err != nil {
			return err
		}
		return s.addCode(ctx, tx, hash, c, string(a.UserID))
	})
	return out, err
}

// setupURL is where a browser redeems a code: on the circuit's own host, or on the proxy's where the circuit has no pages.
func setupURL(p Proxy, c proxy.Circuit, code string) string {
	q := url.Values{"token": {code}}
	base := p.Address(c.Mode, c.Label, c.Port, c.HTTP())
	if base == "" || !c.HTTP() {
		base = strings.TrimSuffix(p.URL, "/")
		q.Set("circuit", c.ID)
	}
	return base + "/setup?" + q.Encode()
}

// Change is what to change of a circuit; nil leaves a field as it is.
type Change struct {
	Public  *bool
	Allowed *[]string
	// SharedUsers (ids or emails) and SharedProjects (ids or names) replace those that are there.
	SharedUsers    *[]string
	SharedProjects *[]string
	// ExpiresAt: the zero time means that it does not expire.
	ExpiresAt *time.Time
	// RevokeTickets makes all tickets and codes invalid and ends live connections.
	RevokeTickets bool
}

// Patch changes who may visit a circuit (its owner and administrators). Whoever loses the right is thrown out: taking a
// share away, or the public's right, revokes all tickets; those who keep the right get in again.
func (s *Service) Patch(ctx context.Context, a authz.Actor, id string, ch Change) (_ Circuit, err error) {
	ctx, end := audit.Begin(ctx, s.d.Store, a, "circuit.modify", id)
	defer end(&err)
	var none Circuit
	if err := authz.Authenticated(a); err != nil {
		return none, err
	}
	now := s.d.Clock()
	set := dbgen.ChangeCircuitParams{Public: ch.Public, Revoke: ch.RevokeTickets, SetExpiry: ch.ExpiresAt != nil}
	if ch.Allowed != nil {
		var err error
		if set.Allowed, err = parseAllowed(*ch.Allowed); err != nil {
			return none, err
		}
	}
	if ch.ExpiresAt != nil && !ch.ExpiresAt.IsZero() {
		if !ch.ExpiresAt.After(now) {
			return none, fault.Invalidf("%s is not in the future", ch.ExpiresAt.UTC().Format(time.RFC3339)).
				WithNext("name a later time, or delete the circuit")
		}
		set.ExpiresAt = ch.ExpiresAt
	}
	var out Circuit
	err = s.d.Store.Tx(ctx, func(ctx context.Context, tx *store.Tx) error {
		set := set
		v, err := s.lockMine(ctx, tx, a, id)
		if err != nil {
			return err
		}
		set.ID = v.Circuit.ID
		lost, err := s.share(ctx, tx, v, ch)
		if err != nil {
			return err
		}
		if lost || v.Circuit.Public && ch.Public != nil && !*ch.Public {
			set.Revoke = true
		}
		if set.Revoke {
			if err := tx.DropAdmissions(ctx, set.ID); err != nil {
				return fmt.Errorf("drop the addresses of circuit %s: %w", id, err)
			}
			if err := tx.DropCodes(ctx, set.ID); err != nil {
				return fmt.Errorf("drop the codes of circuit %s: %w", id, err)
			}
		}
		if _, err := tx.ChangeCircuit(ctx, set); err != nil {
			return fmt.Errorf("change circuit %s: %w", id, err)
		}
		tx.Wake(store.TopicCircuits)
		if v, err = view(ctx, tx.Queries, set.ID, string(a.UserID)); err != nil {
			return err
		}
		all, err := s.proxies(ctx, tx.Queries)
		if err != nil {
			return err
		}
		out = s.seen(a, v, all)
		return nil
	})
	return out, err
}

// lockMine reads a circuit that the actor may change and keeps it from changing otherwise.
func (s *Service) lockMine(ctx context.Context, tx *store.Tx, a authz.Actor, id string) (dbgen.CircuitViewsRow, error) {
	v, err := view(ctx, tx.Queries, id, string(a.UserID))
	if err != nil {
		return v, err
	}
	if err := authz.Circuits.Check(a, authz.Change, circuitObject(v)); err != nil {
		return v, err
	}
	return locked(ctx, tx, v.Circuit.ID, string(a.UserID))
}

// locked waits for changes of a circuit that is known to exist, and reads it as it is until the transaction ends.
func locked(ctx context.Context, tx *store.Tx, id, viewer string) (dbgen.CircuitViewsRow, error) {
	canonical, ok := cluster.CanonicalUUID(id)
	if !ok {
		return dbgen.CircuitViewsRow{}, noCircuit(id)
	}
	if _, err := tx.LockCircuit(ctx, canonical); err != nil {
		if store.Missing(err) {
			return dbgen.CircuitViewsRow{}, noCircuit(id)
		}
		return dbgen.CircuitViewsRow{}, fmt.Errorf("lock circuit %s: %w", id, err)
	}
	return view(ctx, tx.Queries, canonical, viewer)
}

// share replaces shares; lost says that somebody who had one has none any more.
func (s *Service) share(ctx context.Context, tx *store.Tx, v dbgen.CircuitViewsRow, ch Change) (lost bool, err error) {
	if ch.SharedUsers == nil && ch.SharedProjects == nil {
		return false, nil
	}
	id := v.Circuit.ID
	before, err := tx.SharesOf(ctx, id)
	if err != nil {
		return false, fmt.Errorf("read the shares of circuit %s: %w", id, err)
	}
	var users, projects []string
	if ch.SharedUsers != nil {
		rows, err := tx.UsersToShare(ctx, v.DomainName, refs(*ch.SharedUsers))
		if err != nil {
			return false, fmt.Errorf("find users: %w", err)
		}
		known := make([]string, 0, 2*len(rows))
		for _, r := range rows {
			users, known = append(users, r.ID), append(known, r.ID, r.Email)
		}
		if err := unknown(*ch.SharedUsers, known, "user", "users of domain "+v.DomainName); err != nil {
			return false, err
		}
	}
	if ch.SharedProjects != nil {
		rows, err := tx.ProjectsToShare(ctx, v.Circuit.UserID, refs(*ch.SharedProjects))
		if err != nil {
			return false, fmt.Errorf("find projects: %w", err)
		}
		known := make([]string, 0, 2*len(rows))
		for _, r := range rows {
			projects, known = append(projects, r.ID), append(known, r.ID, r.Name)
		}
		if err := unknown(*ch.SharedProjects, known, "project", "projects that the owner belongs to"); err != nil {
			return false, err
		}
	}
	if len(users) > maxShares || len(projects) > maxShares {
		return false, fault.Invalidf("a circuit is shared with at most %d users and %d projects", maxShares, maxShares).
			WithNext("share with a project, or make it public")
	}
	for _, b := range before {
		lost = lost || ch.SharedUsers != nil && b.UserID != nil && !slices.Contains(users, *b.UserID) ||
			ch.SharedProjects != nil && b.ProjectID != nil && !slices.Contains(projects, *b.ProjectID)
	}
	if err := tx.DropShares(ctx, id, ch.SharedUsers != nil, ch.SharedProjects != nil); err != nil {
		return false, fmt.Errorf("replace the shares of circuit %s: %w", id, err)
	}
	if err := tx.AddUserShares(ctx, id, users); err != nil {
		return false, fmt.Errorf("share circuit %s: %w", id, err)
	}
	if err := tx.AddProjectShares(ctx, id, projects); err != nil {
		return false, fmt.Errorf("share circuit %s: %w", id, err)
	}
	return lost, nil
}

// refs are the names as they are looked up: ids in their one form.
func refs(list []string) []string {
	out := make([]string, len(list))
	for i, r := range list {
		out[i] = strings.TrimSpace(r)
		if id, ok := cluster.CanonicalUUID(out[i]); ok {
			out[i] = id
		}
	}
	return out
}

// unknown refuses names that were not found among those that are allowed.
func unknown(list, known []string, noun, allowed string) error {
	for _, r := range refs(list) {
		if !slices.Contains(known, r) {
			return fault.Invalidf("a circuit cannot be shared with %s %.80q", noun, r).
				WithNext("name active %s", allowed)
		}
	}
	return nil
}

// Delete closes a circuit (its owner and administrators); the app runs on.
func (s *Service) Delete(ctx context.Context, a authz.Actor, id string) (err error) {
	ctx, end := audit.Begin(ctx, s.d.Store, a, "circuit.delete", id)
	defer end(&err)
	if err := authz.Authenticated(a); err != nil {
		return err
	}
	return s.d.Store.Tx(ctx, func(ctx context.Context, tx *store.Tx) error {
		v, err := s.lockMine(ctx, tx, a, id)
		if err != nil {
			return err
		}
		if _, err := tx.DropCircuits(ctx, []string{v.Circuit.ID}); err != nil {
			return fmt.Errorf("close circuit %s: %w", id, err)
		}
		tx.Wake(store.TopicCircuits)
		return nil
	})
}
