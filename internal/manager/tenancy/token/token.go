// Package token is API tokens: secrets that a user's programs send instead of signing requests, with a name, an end, and a scope that
// narrows what the user may do (authz.Scope). Of a token only its SHA-256 is kept, so it is shown once, when it is made.
//
// It also makes service accounts: users that no password lets in, which programs use by tokens alone.
package token

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"fmt"
	"io"
	"log/slog"
	"regexp"
	"slices"
	"strings"
	"time"
	"unicode"

	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/fault"
	"berth.dev/berth/internal/manager/audit"
	"berth.dev/berth/internal/manager/authz"
	"berth.dev/berth/internal/manager/recent"
	"berth.dev/berth/internal/manager/seal"
	"berth.dev/berth/internal/manager/store"
	"berth.dev/berth/internal/manager/store/dbgen"
	"berth.dev/berth/internal/manager/store/facts"
	"berth.dev/berth/internal/manager/store/list"
	"berth.dev/berth/internal/manager/tenancy"
)

// providerNames are those of identity providers (identity.CheckName).
var providerNames = regexp.MustCompile(`^[a-z0-9]([a-z0-9-]{0,30}[a-z0-9])?$`)

const (
	noun = "API token"
	// Prefix begins every token, so that people and scanners of secrets know one when they see it.
	Prefix = "berth_"
	// randomBytes is the length of what follows, before its encoding.
	randomBytes = 32
	textLength  = len(Prefix) + 43

	// MaxPerUser is how many tokens a user has at one time.
	MaxPerUser = 50
	// DefaultLife and MaxLife bound how long tokens live.
	DefaultLife, MaxLife = 90 * 24 * time.Hour, 366 * 24 * time.Hour
	minLife              = time.Minute
	// keepExpired is how long lists show tokens that have ended.
	keepExpired = 30 * 24 * time.Hour
	maxProjects = 100
)

// Deps are what a Service works with. Store, Tenancy and Log are required; Clock, IDs and Random default to the system's.
type Deps struct {
	Store   *store.Store
	Tenancy *tenancy.Service
	Clock   func() time.Time
	IDs     func() string
	Random  io.Reader
	Log     *slog.Logger
}

// Service is the use cases of API tokens.
type Service struct {
	d Deps
	// known are tokens by their hash, strangers hashes of no token.
	known     *recent.Cache[hash, knownToken]
	strangers *recent.Cache[hash, struct{}]
}

type hash = [sha256.Size]byte

// knownToken is what is remembered of a token; nobody writes into it.
type knownToken struct {
	key     cluster.AccessKey
	expires time.Time
	scope   authz.Scope
}

// New makes the use cases.
func New(d Deps) (*Service, error) {
	if d.Store == nil || d.Tenancy == nil || d.Log == nil {
		return nil, fault.New(fault.Internal, "token: store, tenancy and log are required")
	}
	if d.Random == nil {
		d.Random = rand.Reader
	}
	if d.Clock == nil {
		d.Clock = time.Now
	}
	if d.IDs == nil {
		d.IDs = tenancy.RandomIDs(d.Random)
	}
	return &Service{d: d, known: recent.New[hash, knownToken](d.Store.ActorsTurn),
		strangers: recent.New[hash, struct{}](d.Store.ActorsTurn)}, nil
}

// Authenticate finds the actor of a token: that of its keypair, within the token's scope. Unknown, expired and revoked tokens, and those
// of inactive keypairs, are Unauthenticated alike (public). Like access keys, tokens are believed for a moment and forgotten at once
// when something about actors changes.
func (s *Service) Authenticate(ctx context.Context, text seal.Secret) (authz.Actor, error) {
	if !strings.HasPrefix(string(text), Prefix) || len(text) != textLength {
		return authz.Actor{}, tenancy.AuthFailed()
	}
	key, now := hash(sha256.Sum256([]byte(text))), s.d.Clock()
	t, turn, ok := s.known.Find(key, now)
	if !ok {
		_, refusedTurn, refused := s.strangers.Find(key, now)
		if refused {
			return authz.Actor{}, tenancy.AuthFailed()
		}
		row, err := s.d.Store.TokenByHash(ctx, key[:])
		if store.Missing(err) {
			s.strangers.Keep(key, struct{}{}, refusedTurn, now)
			return authz.Actor{}, tenancy.AuthFailed()
		}
		if err != nil {
			return authz.Actor{}, fmt.Errorf("find API token: %w", err)
		}
		t = known(dbgen.TokenByIDRow(row))
		s.known.Keep(key, t, turn, now)
		if now.Before(t.expires) {
			s.touch(ctx, row.ID)
		}
	}
	return s.actor(ctx, t, now)
}

// Recheck is the actor of a token as it is now, for what began with it and goes on.
func (s *Service) Recheck(ctx context.Context, id string) (authz.Actor, error) {
	row, err := s.d.Store.TokenByID(ctx, id)
	if store.Missing(err) {
		return authz.Actor{}, tenancy.AuthFailed()
	}
	if err != nil {
		return authz.Actor{}, fmt.Errorf("find API token: %w", err)
	}
	return s.actor(ctx, known(row), s.d.Clock())
}

func (s *Service) actor(ctx context.Context, t knownToken, now time.Time) (authz.Actor, error) {
	if !now.Before(t.expires) {
		return authz.Actor{}, tenancy.AuthFailed()
	}
	a, _, err := s.d.Tenancy.Authenticate(ctx, t.key)
	if err != nil {
		return authz.Actor{}, err
	}
	return a.Within(&t.scope), nil
}

// touch notes the use of a token. Nobody waits for a database that takes no changes.
func (s *Service) touch(ctx context.Context, id string) {
	if err := s.d.Store.TouchToken(ctx, id); err != nil && ctx.Err() == nil {
		s.d.Log.Debug("could not note the use of an API token", "token", id, "error", err)
	}
}

func known(r dbgen.TokenByIDRow) knownToken {
	t := knownToken{key: cluster.AccessKey(r.AccessKey), expires: r.ExpiresAt, scope: authz.Scope{Token: r.ID, ReadOnly: r.ReadOnly,
		Provider: r.Provider}}
	for _, a := range r.Areas {
		t.scope.Areas = append(t.scope.Areas, authz.Area(a))
	}
	for _, p := range r.Projects {
		t.scope.Projects = append(t.scope.Projects, cluster.ProjectID(p))
	}
	return t
}

// Token is a token as lists show it; the secret is not in it.
type Token struct {
	ID        string
	UserID    cluster.UserID
	Email     string
	Service   bool // it belongs to a service account
	AccessKey cluster.AccessKey
	Name      string
	ReadOnly  bool
	Areas     []authz.Area
	Projects  []cluster.ProjectID
	CreatedAt time.Time
	ExpiresAt time.Time
	LastUsed  *time.Time
	// Provider is the identity provider that it speaks for by SCIM; "" for others.
	Provider string
}

// Request is what the maker of a token asks for.
type Request struct {
	Name string
	// For is the email of the service account that the token is for; "" is the actor.
	For      string
	ReadOnly bool
	// Provider makes a token for SCIM alone, of this identity provider and the domain of a service account.
	Provider string
	Areas    []authz.Area
	// Projects are names or ids.
	Projects []string
	// Life is how long it lives; 0 is DefaultLife.
	Life time.Duration
}

// Create makes a token and returns its secret, which nobody can be told again. Users make their own, administrators those of service
// accounts of their domain.
func (s *Service) Create(ctx context.Context, a authz.Actor, r Request) (_ Token, _ seal.Secret, err error) {
	ctx, end := audit.Begin(ctx, s.d.Store, a, "token.create", r.Name)
	defer end(&err)
	var none Token
	if err := authz.InPerson(a, "make API tokens"); err != nil {
		return none, "", err
	}
	email := r.For
	if email == "" {
		email = a.Email
	}
	owner, err := s.owner(ctx, a, email)
	if err != nil {
		return none, "", err
	}
	if err := check(&r); err != nil {
		return none, "", err
	}
	if r.Provider != "" && !owner.IsService {
		return none, "", fault.Invalidf("an API token for SCIM belongs to a service account").
			WithNext("make one (berth service-account create), and name it with --for")
	}
	key := owner.MainAccessKey
	if owner.ID == string(a.UserID) {
		key = string(a.AccessKey)
	}
	projects, err := s.projects(ctx, owner, r.Projects)
	if err != nil {
		return none, "", err
	}
	raw := make([]byte, randomBytes)
	if _, err := io.ReadFull(s.d.Random, raw); err != nil {
		return none, "", fmt.Errorf("make an API token: %w", err)
	}
	text := seal.Secret(Prefix + base64.RawURLEncoding.EncodeToString(raw))
	sum, now := sha256.Sum256([]byte(text)), s.d.Clock()
	id := s.d.IDs()
	err = s.d.Store.Tx(ctx, func(ctx context.Context, tx *store.Tx) error {
		if _, err := tx.LockTokensOf(ctx, owner.ID); err != nil {
			return fmt.Errorf("wait for other changes of tokens: %w", err)
		}
		if err := tx.ForgetExpiredTokens(ctx, owner.ID, now.Add(-keepExpired)); err != nil {
			return fmt.Errorf("forget old tokens: %w", err)
		}
		n, err := tx.CountTokens(ctx, owner.ID)
		if err != nil {
			return fmt.Errorf("count tokens: %w", err)
		}
		if n >= MaxPerUser {
			return fault.Exhaustedf("%s has %d API tokens, which is all that a user may have", owner.Email, n).
				WithNext("take back one that is not used: berth token list, berth token rm")
		}
		err = tx.InsertToken(ctx, dbgen.InsertTokenParams{ID: id, TokenHash: sum[:], UserID: owner.ID, AccessKey: key, Name: r.Name,
			ReadOnly: r.ReadOnly, Areas: store.Texts(r.Areas), Projects: projects, Provider: r.Provider, ExpiresAt: now.Add(r.Life)})
		if store.Duplicate(err, "api_tokens_user_id_name_key") {
			return fault.Conflictf("%s has an API token called %s already", owner.Email, r.Name).WithNext("choose another name")
		}
		return err
	})
	if err != nil {
		return none, "", fmt.Errorf("make API token %s: %w", r.Name, err)
	}
	views, err := s.views(ctx, []string{id})
	if err != nil || views[id] == nil {
		return none, "", fmt.Errorf("read API token %s: %w", r.Name, err)
	}
	return *views[id], text, nil
}

// owner finds the user whom a token is to be of.
func (s *Service) owner(ctx context.Context, a authz.Actor, email string) (dbgen.OwnerOfTokensRow, error) {
	row, err := s.d.Store.OwnerOfTokens(ctx, store.Text(email))
	if err != nil && !store.Missing(err) {
		return row, fmt.Errorf("find user %s: %w", email, err)
	}
	o := authz.Object{Name: email, Owner: cluster.UserID(row.ID), OwnerRole: authz.Role(row.Role), Domain: row.DomainName,
		Service: row.IsService}
	if err := authz.Tokens.Need(a, authz.Create, o, "make API tokens of "+email); err != nil {
		return row, err
	}
	if row.Status != "active" || row.MainAccessKey == "" {
		return row, fault.Conflictf("%s is not active or has no keypair", email).WithNext("activate the account first")
	}
	return row, nil
}

// check tidies a request and refuses what is out of bounds.
func check(r *Request) error {
	if n := len(r.Name); n == 0 || n > 64 || strings.ContainsFunc(r.Name, func(c rune) bool { return !unicode.IsPrint(c) }) {
		return fault.Invalidf("an API token has a name of 1 to 64 characters")
	}
	if r.Life == 0 {
		r.Life = DefaultLife
	}
	if r.Life < minLife || r.Life > MaxLife {
		return fault.Invalidf("an API token cannot live for %s", r.Life).WithNext("choose between a minute and %d days",
			int(MaxLife.Hours()/24))
	}
	for _, area := range r.Areas {
		if !slices.Contains(authz.Areas(), area) {
			return fault.Invalidf("%.40q is no area of API tokens", string(area)).
				WithNext("choose among %s", strings.Join(store.Texts(authz.Areas()), ", "))
		}
	}
	slices.Sort(r.Areas)
	r.Areas = slices.Compact(r.Areas)
	if r.Provider != "" && (!providerNames.MatchString(r.Provider) || r.ReadOnly || len(r.Areas)+len(r.Projects) > 0) {
		return fault.Invalidf("an API token for SCIM names a provider such as okta, and neither areas nor projects, nor is it for " +
			"reading alone")
	}
	if len(r.Projects) > maxProjects {
		return fault.Invalidf("an API token names %d projects at most", maxProjects)
	}
	return nil
}

// projects are the ids of those that a scope names: the owner's, or any of the domain for its administrators.
func (s *Service) projects(ctx context.Context, owner dbgen.OwnerOfTokensRow, refs []string) ([]string, error) {
	out := []string{}
	for _, ref := range refs {
		p, err := s.d.Tenancy.FindProject(ctx, ref, owner.DomainName)
		if err != nil {
			return nil, err
		}
		if p.DomainName != owner.DomainName && owner.Role != string(authz.RoleSuperadmin) {
			return nil, authz.NotFound("project", ref)
		}
		out = append(out, p.ID)
	}
	slices.Sort(out)
	return slices.Compact(out), nil
}

// Filter narrows List.
type Filter struct {
	// Filter and Order are in the language of lists.
	Filter, Order string
	Limit, Offset int
	// Email leaves the tokens of one user.
	Email string
}

var fields = list.Fields{
	"name": list.Text("t.name"), "email": list.Text("u.email"), "access_key": list.Text("t.access_key"),
	"read_only":  list.Bool("t.read_only"),
	"created_at": list.Time("t.created_at"), "expires_at": list.Time("t.expires_at"), "last_used": list.Time("t.last_used"),
	"is_service": list.Bool("u.is_service"),
}

// List lists the tokens of the actor, of the domain for its administrators, all for superadmins.
func (s *Service) List(ctx context.Context, a authz.Actor, f Filter) (list.Page[*Token], error) {
	var none list.Page[*Token]
	if err := authz.Authenticated(a); err != nil {
		return none, err
	}
	l := &list.Spec{From: facts.Tokens.From, Key: facts.Tokens.Key, Fields: fields, Order: "t.created_at DESC"}
	l.Where(facts.Tokens.Where(a, authz.See, l.Arg))
	if f.Email != "" {
		l.And("u.email = %s", f.Email)
	}
	keys, total, err := l.Keys(ctx, s.d.Store.DB(), list.Query{Filter: f.Filter, Order: f.Order, Limit: f.Limit, Offset: f.Offset})
	if err != nil {
		return none, err
	}
	views, err := s.views(ctx, keys)
	if err != nil {
		return none, err
	}
	return list.Page[*Token]{Items: list.InOrder(keys, views), Total: total}, nil
}

func (s *Service) views(ctx context.Context, ids []string) (map[string]*Token, error) {
	rows, err := s.d.Store.TokenViews(ctx, ids)
	if err != nil {
		return nil, fmt.Errorf("read API tokens: %w", err)
	}
	out := map[string]*Token{}
	for _, r := range rows {
		t := known(dbgen.TokenByIDRow{ID: r.ID, Areas: r.Areas, Projects: r.Projects})
		out[r.ID] = &Token{ID: r.ID, UserID: cluster.UserID(r.UserID), Email: r.Email, Service: r.IsService,
			Provider: r.Provider, AccessKey: cluster.AccessKey(r.AccessKey), Name: r.Name, ReadOnly: r.ReadOnly, Areas: t.scope.Areas,
			Projects:  t.scope.Projects,
			CreatedAt: r.CreatedAt.UTC(), ExpiresAt: r.ExpiresAt.UTC(), LastUsed: store.UTC(r.LastUsed)}
	}
	return out, nil
}

// Delete takes a token back: requests with it are refused from then on, and streams that began with it end.
func (s *Service) Delete(ctx context.Context, a authz.Actor, id string) (err error) {
	ctx, end := audit.Begin(ctx, s.d.Store, a, "token.delete", id)
	defer end(&err)
	if err := authz.InPerson(a, "take back API tokens"); err != nil {
		return err
	}
	canonical, ok := cluster.CanonicalUUID(id)
	if !ok {
		return authz.NotFound(noun, id)
	}
	rows, err := s.d.Store.TokenViews(ctx, []string{canonical})
	if err != nil {
		return fmt.Errorf("find API token %s: %w", id, err)
	}
	if len(rows) == 0 {
		return authz.NotFound(noun, id)
	}
	r := rows[0]
	o := authz.Object{Name: id, Owner: cluster.UserID(r.UserID), OwnerRole: authz.Role(r.Role), Domain: r.DomainName, Service: r.IsService}
	if err := authz.Tokens.Check(a, authz.Change, o); err != nil {
		return err
	}
	n, err := s.d.Store.DeleteToken(ctx, canonical)
	if err != nil {
		return fmt.Errorf("delete API token %s: %w", id, err)
	}
	if n == 0 {
		return authz.NotFound(noun, id)
	}
	return nil
}
