package app

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/fault"
	"berth.dev/berth/internal/manager/store"
	"berth.dev/berth/internal/manager/store/dbgen"
	"berth.dev/berth/internal/wire/proxy"
)

const (
	// maxCircuits bounds the circuits of one session.
	maxCircuits = 64
	// portRest and labelRest are how long an address that somebody else had is not given on wish. Visitors keep links to labels,
	// and browsers what the app there left in them; ports are few, and known to change hands.
	portRest   = 10 * time.Minute
	labelRest  = 30 * 24 * time.Hour
	labelTries = 8
)

// wish is how somebody wants an app to be published.
type wish struct {
	session dbgen.AppSessionRow
	by      cluster.UserID
	proxy   Proxy
	target  target

	mode    proxy.Mode // "" is what the proxy prefers
	label   string
	port    int
	public  bool
	allowed []string // as parseAllowed gives them
	noReuse bool
	// passed are circuits that will not do, whatever they are.
	passed []string
	// byID says that the visitor names the circuit by its id: every circuit of the app will do, and a host name is not needed.
	byID bool
}

// modeOf decides how a new circuit is told from others; it refuses what the proxy cannot do.
func modeOf(w wish) (proxy.Mode, error) {
	ports, names := w.proxy.PortFrom > 0, w.proxy.Domain != ""
	if w.byID {
		return proxy.ModeSubdomain, nil // a label costs nothing, a port is one of few
	}
	http := proxy.Circuit{Protocol: w.target.protocol}.HTTP()
	mode := w.mode
	switch {
	case mode != "" && mode != proxy.ModePort && mode != proxy.ModeSubdomain:
		return "", fault.Invalidf("%.40q is not a mode of circuits", mode).WithNext("use subdomain or port")
	case w.label != "" && w.port != 0 || w.label != "" && mode == proxy.ModePort || w.port != 0 && mode == proxy.ModeSubdomain:
		return "", fault.Invalidf("a circuit has either a host name or a port").WithNext("ask for one of them")
	case w.label != "":
		mode = proxy.ModeSubdomain
	case w.port != 0:
		mode = proxy.ModePort
	case mode != "":
	case !http:
		mode = proxy.ModePort
	case w.proxy.Prefer == proxy.ModePort && ports, !names:
		mode = proxy.ModePort
	default:
		mode = proxy.ModeSubdomain
	}
	switch {
	case mode == proxy.ModeSubdomain && !http:
		return "", fault.Invalidf("app %s speaks %s, which needs a port of its own", w.target.app, w.target.protocol).
			WithNext("ask for mode port, or use `berth port-forward`")
	case mode == proxy.ModeSubdomain && !names:
		return "", fault.Invalidf("app proxy %s has no host names for circuits", w.proxy.Name).
			WithNext("ask for mode port, or set the proxy's domain")
	case mode == proxy.ModePort && !ports:
		return "", fault.Invalidf("app proxy %s has no ports for circuits", w.proxy.Name).
			WithNext("set the proxy's port range, or use `berth port-forward`")
	}
	return mode, nil
}

// fits reports whether a circuit is what a wish asks for. A private wish may be met by a circuit that is public already.
func fits(c dbgen.Circuit, w wish, mode proxy.Mode) bool {
	switch {
	case slices.Contains(w.passed, c.ID) || c.Proxy != w.proxy.Name || c.KernelID != w.session.KernelID || c.App != w.target.app ||
		int(c.Target) != w.target.port:
		return false
	case w.byID:
		return len(c.Allowed) == 0
	case c.Protocol != w.target.protocol || proxy.Mode(c.Mode) != mode:
		return false
	case w.label != "" && (c.Label == nil || *c.Label != w.label) || w.port != 0 && (c.Port == nil || int(*c.Port) != w.port):
		return false
	case w.public && (!c.Public || !slices.Equal(c.Allowed, w.allowed)):
		return false
	}
	return w.public || len(w.allowed) == 0 || slices.Equal(c.Allowed, w.allowed)
}

// publish finds or makes the circuit of a wish. It holds the session's row: of launches at the same time one makes it.
func (s *Service) publish(ctx context.Context, tx *store.Tx, w wish) (id string, reused bool, err error) {
	mode, err := modeOf(w)
	if err != nil {
		return "", false, err
	}
	status, err := tx.HoldAppSession(ctx, &w.session.KernelID, w.session.ID)
	switch {
	case store.Missing(err) || err == nil && status != cluster.Running:
		return "", false, notRunning(w.session.Name)
	case err != nil:
		return "", false, fmt.Errorf("hold session %s: %w", w.session.Name, err)
	}
	present, err := tx.CircuitsOfSession(ctx, w.session.ID)
	if err != nil {
		return "", false, fmt.Errorf("read circuits of session %s: %w", w.session.Name, err)
	}
	now := s.d.Clock()
	if !w.noReuse {
		best := ""
		for _, c := range present {
			if (c.ExpiresAt == nil || now.Before(*c.ExpiresAt)) && fits(c, w, mode) {
				if best == "" || !c.Public && !w.public {
					best = c.ID
				}
				if !c.Public {
					break // the oldest private one
				}
			}
		}
		if best != "" {
			return best, true, nil
		}
	}
	if len(present) >= maxCircuits {
		return "", false, fault.Exhaustedf("session %s has %d circuits already", w.session.Name, len(present)).
			WithNext("close some with `berth app stop %s`", w.session.Name)
	}
	label, port, err := s.address(ctx, tx, w, mode)
	if err != nil {
		return "", false, err
	}
	c := dbgen.AddCircuitParams{ID: s.d.IDs(), Proxy: w.proxy.Name, Mode: string(mode), Label: label, Port: port, SessionID: w.session.ID,
		KernelID: w.session.KernelID,
		App:      w.target.app, Protocol: w.target.protocol, Target: int32(w.target.port), Path: w.target.path, UserID: w.session.UserID,
		CreatedBy: string(w.by),
		Public:    w.public, Allowed: w.allowed, CreatedAt: now}
	if c.Allowed == nil {
		c.Allowed = []string{}
	}
	if err := tx.AddCircuit(ctx, c); err != nil {
		return "", false, fmt.Errorf("publish app %s of session %s: %w", w.target.app, w.session.Name, err)
	}
	tx.Wake(store.TopicCircuits)
	return c.ID, false, nil
}

// address takes a label or port of the proxy. Whoever takes one waits for others who do.
func (s *Service) address(ctx context.Context, tx *store.Tx, w wish, mode proxy.Mode) (label *string, port *int32, err error) {
	if err := tx.LockProxyAddresses(ctx, w.proxy.Name); err != nil {
		return nil, nil, fmt.Errorf("wait for the addresses of app proxy %s: %w", w.proxy.Name, err)
	}
	rest := labelRest
	if mode == proxy.ModePort {
		rest = portRest
	}
	free := func(address string) (bool, error) {
		r, err := tx.AddressTaken(ctx, w.proxy.Name, address, w.session.UserID, rest)
		if err != nil {
			return false, fmt.Errorf("look at address %s of app proxy %s: %w", address, w.proxy.Name, err)
		}
		return !r.Taken && !r.Resting, nil
	}
	wished := func(what, address string) error {
		ok, err := free(address)
		if err == nil && !ok {
			err = fault.Conflictf("%s %s of app proxy %s is taken, or somebody else had it until lately", what, address, w.proxy.Name).
				WithReason("circuit-address-taken").
				WithNext("ask for another one, or for none")
		}
		return err
	}
	if mode == proxy.ModePort {
		if err := leaveSome(ctx, tx, w); err != nil {
			return nil, nil, err
		}
		if w.port == 0 {
			n, err := tx.FreePort(ctx, int32(w.proxy.PortFrom), int32(w.proxy.PortTo), w.proxy.Name)
			if store.Missing(err) {
				return nil, nil, fault.Exhaustedf("all ports of app proxy %s (%d to %d) are in use", w.proxy.Name, w.proxy.PortFrom, w.proxy.PortTo).
					WithReason("no-free-port").WithNext("close circuits that are not needed, or give the proxy a wider range")
			}
			if err != nil {
				return nil, nil, fmt.Errorf("look for a free port of app proxy %s: %w", w.proxy.Name, err)
			}
			return nil, &n, nil
		}
		if w.port < w.proxy.PortFrom || w.port > w.proxy.PortTo {
			return nil, nil, fault.Invalidf("port %d is not one of app proxy %s", w.port, w.proxy.Name).
				WithNext("choose one from %d to %d", w.proxy.PortFrom, w.proxy.PortTo)
		}
		n := int32(w.port)
		return nil, &n, wished("port", strconv.Itoa(w.port))
	}
	if w.label != "" {
		if err := checkLabel(w.label); err != nil {
			return nil, nil, err
		}
		return &w.label, nil, wished("host name", w.label)
	}
	for range labelTries {
		random := make([]byte, labelSuffix)
		if _, err := io.ReadFull(s.d.Random, random); err != nil {
			return nil, nil, fmt.Errorf("read randomness: %w", err)
		}
		name := labelOf(w.target.app, w.session.Name, random)
		if ok, err := free(name); err != nil || ok {
			return &name, nil, err
		}
	}
	return nil, nil, fault.Unavailablef("no free host name was found for app %s", w.target.app).WithNext("try again")
}

// leaveSome keeps the last quarter of a proxy's ports for users who have not a quarter already.
func leaveSome(ctx context.Context, tx *store.Tx, w wish) error {
	r, err := tx.PortsTaken(ctx, w.session.UserID, w.proxy.Name, int32(w.proxy.PortFrom), int32(w.proxy.PortTo))
	if err != nil {
		return fmt.Errorf("count the ports of app proxy %s: %w", w.proxy.Name, err)
	}
	size := int64(w.proxy.PortTo - w.proxy.PortFrom + 1)
	if r.Taken < size && 4*r.Taken >= 3*size && 4*r.Theirs >= size {
		return fault.Exhaustedf("%d of %d ports of app proxy %s are in use, %d of them by apps of this user", r.Taken, size, w.proxy.Name,
			r.Theirs).
			WithReason("no-free-port").WithNext("close circuits that are not needed: the last ports are kept for others")
	}
	return nil
}

// published reads circuits as proxies are told of them; nil ids mean all.
func published(ctx context.Context, q *dbgen.Queries, ids []string) ([]dbgen.PublishedCircuitsRow, error) {
	rows, err := q.PublishedCircuits(ctx, ids)
	if err != nil {
		return nil, fmt.Errorf("read circuits: %w", err)
	}
	return rows, nil
}

// onePublished reads one; a circuit that is not published is missing. It has no grants yet.
func onePublished(ctx context.Context, q *dbgen.Queries, id string) (proxy.Circuit, string, error) {
	rows, err := published(ctx, q, []string{id})
	if err != nil {
		return proxy.Circuit{}, "", err
	}
	if len(rows) == 0 {
		return proxy.Circuit{}, "", noCircuit(id)
	}
	return wireCircuit(rows[0]), rows[0].Circuit.Path, nil
}

func wireCircuit(r dbgen.PublishedCircuitsRow) proxy.Circuit {
	c := r.Circuit
	w := proxy.Circuit{
		ID: c.ID, Revision: c.Revision, Epoch: c.Epoch, Mode: proxy.Mode(c.Mode), App: c.App, Protocol: c.Protocol, Session: c.SessionID,
		Name:  r.SessionName,
		Owner: c.UserID, Public: c.Public, Allowed: prefixes(c.Allowed),
		Targets: []proxy.Target{{Kernel: cluster.KernelID(c.KernelID), Port: int(c.Target), Weight: 1, Generation: r.Generation,
			Agent: proxy.AgentAddress{ID: cluster.AgentID(r.AgentID), Address: r.DataAddress, Socket: r.DataSocket, BootID: r.BootID}}},
	}
	if c.Label != nil {
		w.Label = *c.Label
	}
	if c.Port != nil {
		w.Port = int(*c.Port)
	}
	if c.ExpiresAt != nil {
		at := c.ExpiresAt.UTC()
		w.ExpiresAt = &at
	}
	_ = json.Unmarshal(c.Limits, &w.Limits) // the proxy's defaults hold for what cannot be read
	for _, a := range r.Admitted {
		if addr, err := netip.ParseAddr(a); err == nil {
			w.Admitted = append(w.Admitted, addr)
		}
	}
	return w
}

func splitAllowed(text string) []string {
	if strings.TrimSpace(text) == "" {
		return nil
	}
	return strings.Split(text, ",")
}
