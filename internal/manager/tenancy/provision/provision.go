// Package provision keeps what identity providers say by SCIM 2.0 about users and groups, and has package identity make accounts of it.
//
// A client is an API token that is bound to a provider, and speaks for it in the token's domain: it sees and changes nobody else. What it
// says is stored first and settled then: a change that broke off in the middle is settled by the loop. Deleting somebody deactivates the
// account. A provider that takes access from more users in an hour than the limit says has to wait for an administrator's word.
package provision

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"strconv"
	"strings"
	"time"

	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/fault"
	"berth.dev/berth/internal/manager/audit"
	"berth.dev/berth/internal/manager/authz"
	"berth.dev/berth/internal/manager/scim"
	"berth.dev/berth/internal/manager/store"
	"berth.dev/berth/internal/manager/tenancy/identity"
)

const (
	// window is the time over which removals are counted, and for which an administrator's word counts.
	window = time.Hour
	// MaxAllowance bounds that word.
	MaxAllowance = 1_000_000
	// inline is how many users a request settles itself; the loop does the rest.
	inline    = 50
	maxGroups = 10_000 // of a user
)

// Provider is what the configuration says of a client.
type Provider struct {
	// Rules say what its users become. Their domain is that of the provider, and they give no role beyond administrators of it.
	Rules identity.Rules
	// MostRemovals is from how many users it may take access in an hour.
	MostRemovals int
}

// DefaultMostRemovals is the documented default.
const DefaultMostRemovals = 50

// Validate reports the first value that cannot be meant; key is where it stands in the configuration.
func (p Provider) Validate(key string) error {
	if p.Rules.Domain == "" {
		return fault.Invalidf("%s.rules.domain is empty", key).WithNext("name the domain that the provider's users belong to")
	}
	for _, g := range p.Rules.Groups {
		if g.Domain != "" && g.Domain != p.Rules.Domain {
			return fault.Invalidf("%s.rules: the group %s is of domain %s", key, g.Group, g.Domain).
				WithNext("a provider speaks for one domain; set up another one for domain %s", g.Domain)
		}
		if g.Role != "" && g.Role != authz.RoleAdmin {
			return fault.Invalidf("%s.rules: the group %s gives the role %s", key, g.Group, g.Role).WithNext("SCIM gives no role but admin")
		}
	}
	if p.MostRemovals < 0 || p.MostRemovals > MaxAllowance {
		return fault.Invalidf("%s.most_removals is %d", key, p.MostRemovals).WithNext("choose 0 to %d", MaxAllowance)
	}
	return p.Rules.Validate(key + ".rules")
}

// Deps are what a Service works with. Store, Identity, IDs and Log are required; Clock defaults to the system's.
type Deps struct {
	Store     *store.Store
	Identity  *identity.Service
	Providers map[string]Provider
	Clock     func() time.Time
	IDs       func() string
	Log       *slog.Logger
}

// Service is the use cases of SCIM.
type Service struct{ d Deps }

// New makes the use cases.
func New(d Deps) (*Service, error) {
	if d.Store == nil || d.Identity == nil || d.Log == nil || d.IDs == nil {
		return nil, fault.New(fault.Internal, "provision: store, identity, ids and log are required")
	}
	if d.Clock == nil {
		d.Clock = time.Now
	}
	return &Service{d}, nil
}

// client is who calls: a provider in a domain.
type client struct {
	name, domain string
	is           Provider
}

// client finds for whom the actor's token speaks.
func (s *Service) client(a authz.Actor) (client, error) {
	name, err := authz.Provisions(a)
	if err != nil {
		return client{}, err
	}
	is, ok := s.d.Providers[name]
	switch {
	case !ok:
		return client{}, fault.Deniedf("the token is for the identity provider %q, which is not configured", name).
			WithNext("operators set manager.scim.%s", name)
	case is.Rules.Domain != a.Domain:
		return client{}, fault.Deniedf("the identity provider %s is of domain %s, and the token of domain %s", name, is.Rules.Domain,
			a.Domain).
			WithNext("make a token of a service account of domain %s", is.Rules.Domain)
	}
	return client{name, a.Domain, is}, nil
}

func failed(status int, kind, words string, args ...any) error {
	return &scim.Error{Status: status, Type: kind, Detail: fmt.Sprintf(words, args...)}
}

func missing(what, id string) error {
	return failed(http.StatusNotFound, "", "there is no %s %.60q", what, id)
}

// Version is the text of a version, as ETags have it.
func Version(n int64) string { return `W/"` + strconv.FormatInt(n, 10) + `"` }

// matches reports whether a version is the one that a client asked for; "" asks for none.
func matches(version int64, ifMatch string) error {
	if ifMatch == "" || ifMatch == "*" {
		return nil
	}
	for one := range strings.SplitSeq(ifMatch, ",") {
		one = strings.TrimSpace(one)
		if one == Version(version) || "W/"+one == Version(version) {
			return nil
		}
	}
	return failed(http.StatusPreconditionFailed, "", "it was changed meanwhile: its version is %s", Version(version))
}

// maxTries bounds how often a change is made again that met another one.
const maxTries = 5

// errMoved says that a row changed between reading and writing.
var errMoved = errors.New("the row moved")

// again runs a change until it meets no other one.
func again(do func() error) error {
	for range maxTries {
		if err := do(); !errors.Is(err, errMoved) {
			return err
		}
	}
	return failed(http.StatusConflict, "", "others change it all the time; try again")
}

// remove counts users who lose access against the limit of the provider, in the transaction that takes it.
func (s *Service) remove(ctx context.Context, tx *store.Tx, c client, n int) error {
	if n == 0 {
		return nil
	}
	now := s.d.Clock()
	done, err := tx.ScimRemovals(ctx, c.name, now.Add(-window))
	if err != nil {
		return fmt.Errorf("count removals: %w", err)
	}
	allowed, err := tx.ScimAllowance(ctx, c.name, now)
	if err != nil {
		return fmt.Errorf("read the allowance: %w", err)
	}
	if most := max(int64(c.is.MostRemovals), allowed); done+int64(n) > most {
		s.d.Log.Warn("an identity provider takes access from too many users", "provider", c.name, "wanted", n, "last_hour", done,
			"most", most)
		return failed(http.StatusTooManyRequests, "",
			"%s would take access from %d users beside the %d of the last hour, and may do so with %d; "+
				"if it is meant, an administrator runs: berth directory allow-removals %s %d", c.name, n, done, most, c.name, done+int64(n))
	}
	if err := tx.AddScimRemovals(ctx, c.name, int32(min(n, MaxAllowance)), now); err != nil {
		return fmt.Errorf("note removals: %w", err)
	}
	return tx.ForgetScimRemovals(ctx, now.Add(-2*window))
}

// AllowRemovals lets a provider take access from so many users within the hour that begins now (superadmins). 0 takes the word back.
func (s *Service) AllowRemovals(ctx context.Context, a authz.Actor, provider string, n int) (err error) {
	ctx, end := audit.Begin(ctx, s.d.Store, a, "scim.allow-removals", provider)
	defer end(&err)
	if err := authz.Cluster.Need(a, authz.Administer, authz.Object{}, "let an identity provider remove users"); err != nil {
		return err
	}
	if _, ok := s.d.Providers[provider]; !ok {
		return authz.NotFound("identity provider", fault.Clip(provider, 60))
	}
	if n < 0 || n > MaxAllowance {
		return fault.Invalidf("%d users cannot be allowed", n).WithNext("choose 0 to %d", MaxAllowance)
	}
	return s.d.Store.Tx(ctx, func(ctx context.Context, tx *store.Tx) error {
		if err := tx.AllowScimRemovals(ctx, provider, int32(n), s.d.Clock().Add(window), a.Email); err != nil {
			return fmt.Errorf("note the allowance: %w", err)
		}
		return nil
	})
}

// canonical is an id as the database has it.
func canonical(what, id string) (string, error) {
	out, ok := cluster.CanonicalUUID(id)
	if !ok {
		return "", missing(what, id)
	}
	return out, nil
}
