// Package login keeps who is logged in: one record for each login by password, found by a token that only its holder has. The records
// live in Redis, or in memory where there is none; losing them loses logins and nothing else. What is kept of a token is its hash, and of
// a keypair its name: whoever reads the records cannot log in by them.
//
// Whether a user is still let in is decided by tenancy, from PostgreSQL, each time that a login is used.
package login

import (
	"cmp"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"slices"
	"time"

	"github.com/google/uuid"

	"berth.dev/berth/internal/cluster"
)

// Session is one login. Its times are of the manager that opened it.
type Session struct {
	// ID names the login in lists; it opens nothing.
	ID        string            `json:"id"`
	AccessKey cluster.AccessKey `json:"key"`
	Created   time.Time         `json:"created"`
	Expires   time.Time         `json:"expires"`
	// Seen is when it was last used, to about a minute.
	Seen time.Time `json:"seen"`
	// Address and Agent are where the login came from, and the program that it came by.
	Address string `json:"address,omitempty"`
	Agent   string `json:"agent,omitempty"`
	// Stamp is what the user's password was when the login was made, see tenancy; a login with another stamp has ended.
	Stamp string `json:"stamp"`
}

// Keeper keeps the logins of users. A login that has expired is not there. Errors are about the place where they are kept.
type Keeper interface {
	// Open adds a login. Where the user has most already, it ends the oldest ones when force is set, else it returns ErrFull. 0 means no
	// bound but MaxSessions, beyond which the oldest one always ends.
	Open(ctx context.Context, t Token, s Session, most int, force bool) error
	Find(ctx context.Context, t Token) (s Session, ok bool, err error)
	// Replace changes a login that is there.
	Replace(ctx context.Context, t Token, s Session) error
	Remove(ctx context.Context, t Token) error
	// List tells a user's logins, the newest first; End ends the one of that name, or all for "", and tells how many it ended.
	List(ctx context.Context, u cluster.UserID) ([]Session, error)
	End(ctx context.Context, u cluster.UserID, id string) (int, error)
}

// ErrFull says that a user has as many logins as allowed.
var ErrFull = errors.New("the user has as many logins as allowed")

// MaxSessions bounds the logins of one user.
const MaxSessions = 100

// Token is what the holder of a login has: the user's number and 32 random bytes.
type Token struct {
	text string
	user cluster.UserID
	hash string
}

const (
	tokenRandom = 32
	tokenBytes  = 16 + tokenRandom
	// TokenLength is that of a token as text: 64 characters of base64 as in URLs.
	TokenLength = tokenBytes * 4 / 3
)

// NewToken makes the token of a user's new login.
func NewToken(u cluster.UserID) (Token, error) {
	id, err := uuid.Parse(string(u))
	if err != nil {
		return Token{}, err
	}
	raw := make([]byte, tokenBytes)
	copy(raw, id[:])
	_, _ = rand.Read(raw[16:]) // never fails
	t, _ := ParseToken(base64.RawURLEncoding.EncodeToString(raw))
	return t, nil
}

// ParseToken reads a token; it says nothing of whether there is such a login.
func ParseToken(text string) (Token, bool) {
	if len(text) != TokenLength {
		return Token{}, false
	}
	raw, err := base64.RawURLEncoding.DecodeString(text)
	if err != nil || len(raw) != tokenBytes {
		return Token{}, false
	}
	sum := sha256.Sum256(raw)
	return Token{text: text, user: cluster.UserID(uuid.UUID(raw[:16]).String()), hash: hex.EncodeToString(sum[:])}, true
}

// User is whose login the token claims to be.
func (t Token) User() cluster.UserID { return t.user }

// Reveal is the token as its holder sends it.
func (t Token) Reveal() string { return t.text }

// String hides the token.
func (Token) String() string { return "[token]" }

// GoString hides the token.
func (Token) GoString() string { return "[token]" }

// NewID is a name for a login.
func NewID() string {
	var b [8]byte
	_, _ = rand.Read(b[:]) // never fails
	return hex.EncodeToString(b[:])
}

// oldest sorts what is to end first to the front. Logins that were made of one login have its time.
func oldest(a, b Session) int {
	return cmp.Or(a.Created.Compare(b.Created), a.Seen.Compare(b.Seen), cmp.Compare(a.ID, b.ID))
}

func newestFirst(list []Session) []Session {
	slices.SortFunc(list, func(a, b Session) int { return oldest(b, a) })
	return list
}
