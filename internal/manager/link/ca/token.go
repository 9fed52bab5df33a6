package ca

import (
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"
	"unicode"

	"berth.dev/berth/internal/fault"
	"berth.dev/berth/internal/wire/node"
)

const (
	keyTokens = "node-join-tokens"
	// keyOldTokens is where older managers kept tokens that let anybody in as anything. They are void.
	keyOldTokens = "join-tokens"

	// maxTokens bounds the tokens that are kept, maxMaker the name of who made one.
	maxTokens = 500
	maxMaker  = 200

	defaultTokenLife = time.Hour
	minTokenLife     = time.Second
	maxTokenLife     = 7 * 24 * time.Hour
	// tokenMemory is how long after its end a token is still listed.
	tokenMemory = 7 * 24 * time.Hour
)

// Token is what is known of a join token: everything but its secret.
type Token struct {
	ID   string `json:"id"`
	Role Role   `json:"role"`
	Name string `json:"name"`
	// Replace is the administrator's word that the bearer takes the place of everybody who has the name now.
	Replace bool `json:"replace,omitempty"`
	// ResourceGroup is where the agent goes when it registers first; "" means the default group.
	ResourceGroup string `json:"resource_group,omitempty"`
	// By is who made it, as the command line tells.
	By       string    `json:"made_by"`
	At       time.Time `json:"made_at"`
	Expires  time.Time `json:"expires_at"`
	UsedAt   time.Time `json:"used_at,omitzero"`
	UsedFrom string    `json:"used_from,omitempty"`
}

// Status is "unused", "used" or "expired".
func (t Token) Status(now time.Time) string {
	switch {
	case !t.UsedAt.IsZero():
		return "used"
	case !now.Before(t.Expires):
		return "expired"
	}
	return "unused"
}

// storedToken is a token as it is kept: its secret hashed, and bound to the first key that used it.
type storedToken struct {
	Token
	Hash       []byte `json:"hash"` // SHA-256
	Generation int    `json:"generation"`
	Key        string `json:"key,omitempty"`
}

// TokenRequest asks for a join token.
type TokenRequest struct {
	Node    Node
	Replace bool
	// ResourceGroup is where a new agent goes, "" for the default group.
	ResourceGroup string
	// Life is how long it may be used; 0 means an hour.
	Life time.Duration
	By   string
}

// NewToken makes a join token for one node, to be used once.
func (a *Authority) NewToken(ctx context.Context, r TokenRequest) (node.JoinToken, Token, error) {
	if err := r.Node.check(); err != nil {
		return node.JoinToken{}, Token{}, err
	}
	if r.ResourceGroup != "" && (r.Node.Role != RoleAgent || !plainName(r.ResourceGroup, 64)) {
		return node.JoinToken{}, Token{}, fault.Invalidf("a join token of %s cannot name the resource group %q", r.Node, r.ResourceGroup).
			WithNext("name an existing resource group of 1 to 64 letters, digits, '-', '_' or '.', for agents only")
	}
	life, err := tokenLife(r.Life)
	if err != nil {
		return node.JoinToken{}, Token{}, err
	}
	if len(r.By) > maxMaker || strings.ContainsFunc(r.By, unicode.IsControl) {
		return node.JoinToken{}, Token{}, fault.Invalidf("the name of who makes the join token is not allowed")
	}
	records, err := a.records(ctx, r.Node)
	if err != nil {
		return node.JoinToken{}, Token{}, err
	}
	raw := make([]byte, 32)
	if _, err := io.ReadFull(a.random, raw); err != nil {
		return node.JoinToken{}, Token{}, fmt.Errorf("make a join token: %w", err)
	}
	secret := base64.RawURLEncoding.EncodeToString(raw)
	now := a.clock.Now()
	sum := sha256.Sum256([]byte(secret))
	t := storedToken{Hash: sum[:], Generation: generation(records), Token: Token{
		Role: r.Node.Role, Name: r.Node.Name, Replace: r.Replace, ResourceGroup: r.ResourceGroup, By: r.By, At: now, Expires: now.Add(life),
	}}
	t.ID = hex.EncodeToString(t.Hash[:6])
	if r.Node.Role == RoleAgent && len(records) > 0 && !r.Replace {
		return node.JoinToken{}, Token{}, known(r.Node)
	}
	err = a.updateTokens(ctx, func(list []storedToken) ([]storedToken, error) {
		list = remembered(list, now)
		if len(list) >= maxTokens {
			return nil, fault.Exhaustedf("there are %d join tokens that can be used", len(list)).WithReason("too-many-join-tokens").
				WithNext("revoke some: berth admin join-token revoke ID")
		}
		return append(list, t), nil
	})
	if err != nil {
		return node.JoinToken{}, Token{}, fmt.Errorf("store a join token: %w", err)
	}
	return node.JoinToken{CA: a.pinned, Secret: secret}, t.Token, nil
}

// tokenLife is how long a token is valid: what was asked for within bounds, an hour when nothing was.
func tokenLife(asked time.Duration) (time.Duration, error) {
	switch {
	case asked == 0:
		return defaultTokenLife, nil
	case asked < minTokenLife || asked > maxTokenLife:
		return 0, fault.Invalidf("a join token cannot be valid for %s", asked).
			WithNext("choose between %s and %s", minTokenLife, maxTokenLife)
	}
	return asked, nil
}

// remembered drops tokens that ended long ago, and of those that cannot be used any more the oldest when there are too many.
func remembered(list []storedToken, now time.Time) []storedToken {
	list = slices.DeleteFunc(list, func(t storedToken) bool { return now.After(t.Expires.Add(tokenMemory)) })
	for len(list) >= maxTokens {
		i := slices.IndexFunc(list, func(t storedToken) bool { return t.Status(now) != "unused" })
		if i < 0 {
			break
		}
		list = slices.Delete(list, i, i+1)
	}
	return list
}

// Tokens lists the tokens, the oldest first; those that ended are listed for a week.
func (a *Authority) Tokens(ctx context.Context) ([]Token, error) {
	list, err := a.tokens(ctx)
	if err != nil {
		return nil, err
	}
	out := []Token{}
	for _, t := range list {
		if !a.clock.Now().After(t.Expires.Add(tokenMemory)) {
			out = append(out, t.Token)
		}
	}
	return out, nil
}

// RevokeToken makes a token invalid. Who joined with it before stays.
func (a *Authority) RevokeToken(ctx context.Context, id string) error {
	err := a.updateTokens(ctx, func(list []storedToken) ([]storedToken, error) {
		i := slices.IndexFunc(list, func(t storedToken) bool { return t.ID == id })
		if i < 0 {
			return nil, fault.NotFoundf("there is no join token %q", id).WithNext("berth admin join-token list")
		}
		return slices.Delete(list, i, i+1), nil
	})
	if err != nil {
		return fmt.Errorf("revoke a join token: %w", err)
	}
	return nil
}

// usable finds the token of a secret and tells whether the node may join with it by that key.
func (a *Authority) usable(ctx context.Context, n Node, secret, key string) (storedToken, error) {
	list, err := a.tokens(ctx)
	if err != nil {
		return storedToken{}, err
	}
	i, err := find(list, n, secret, key, a.clock.Now())
	if err != nil {
		return storedToken{}, err
	}
	return list[i], nil
}

// use binds the token to the key. Of several keys that come at the same time, to any managers, one gets it.
func (a *Authority) use(ctx context.Context, n Node, secret, key, from string) error {
	err := a.updateTokens(ctx, func(list []storedToken) ([]storedToken, error) {
		now := a.clock.Now()
		i, err := find(list, n, secret, key, now)
		if err != nil || list[i].Key != "" {
			return nil, err
		}
		list[i].Key, list[i].UsedAt, list[i].UsedFrom = key, now, from
		return list, nil
	})
	if err != nil {
		return fmt.Errorf("use a join token: %w", err)
	}
	return nil
}

// find looks at every token, in the same time whichever matches.
func find(list []storedToken, n Node, secret, key string, now time.Time) (int, error) {
	sum := sha256.Sum256([]byte(secret))
	found := -1
	for i, t := range list {
		found = subtle.ConstantTimeSelect(subtle.ConstantTimeCompare(sum[:], t.Hash), i, found)
	}
	anew := fmt.Sprintf("make a new one: berth admin join-token create --role %s --name %s", n.Role, n.Name)
	if found < 0 || secret == "" {
		return 0, fault.New(fault.Unauthenticated, "the join token is not valid").WithReason("bad-join-token").WithNext("%s", anew)
	}
	t := list[found]
	switch {
	case t.Role != n.Role || t.Name != n.Name:
		return 0, fault.Deniedf("join token %s is for %s, not for %s", t.ID, Node{t.Role, t.Name}, n).WithReason("join-token-of-another").
			WithNext("%s", anew)
	case !now.Before(t.Expires):
		return 0, fault.New(fault.Unauthenticated, "join token %s expired at %s", t.ID, t.Expires.UTC().Format(time.RFC3339)).
			WithReason("join-token-expired").WithNext("%s", anew)
	case t.Key != "" && t.Key != key:
		return 0, fault.New(fault.Unauthenticated, "join token %s was used at %s from %s, by another key", t.ID,
			t.UsedAt.UTC().Format(time.RFC3339), t.UsedFrom).WithReason("join-token-used").
			WithNext("%s; if that was not you, end what it let in: berth admin certificate revoke --role %s --name %s", anew, n.Role, n.Name)
	}
	return found, nil
}

func (a *Authority) tokens(ctx context.Context) ([]storedToken, error) {
	raw, err := a.vault.Get(ctx, keyTokens)
	if err != nil {
		return nil, fmt.Errorf("load join tokens: %w", err)
	}
	return readTokens(raw)
}

// updateTokens replaces the list by what fn makes of it; nil leaves it as it is.
func (a *Authority) updateTokens(ctx context.Context, fn func([]storedToken) ([]storedToken, error)) error {
	_, err := a.vault.Update(ctx, keyTokens, func(old []byte) ([]byte, error) {
		list, err := readTokens(old)
		if err != nil {
			return nil, err
		}
		next, err := fn(list)
		if err != nil || next == nil {
			return nil, err
		}
		return json.Marshal(next)
	})
	return err
}

func readTokens(raw []byte) ([]storedToken, error) {
	if raw == nil {
		return nil, nil
	}
	var list []storedToken
	if err := json.Unmarshal(raw, &list); err != nil {
		return nil, fmt.Errorf("read join tokens: %w", err)
	}
	return list, nil
}

// voidOldTokens ends the tokens of older managers, which let anybody in as anything for ever.
func (a *Authority) voidOldTokens(ctx context.Context) error {
	_, err := a.vault.Update(ctx, keyOldTokens, func(old []byte) ([]byte, error) {
		if old == nil || string(old) == "[]" {
			return nil, nil
		}
		return []byte("[]"), nil
	})
	if err != nil {
		return fmt.Errorf("end the join tokens of older managers: %w", err)
	}
	return nil
}
