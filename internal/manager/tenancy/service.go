// Package tenancy is who may use the cluster: domains, projects, users, keypairs and what their policies allow. It tells who a
// caller is, keeps what users bring to their sessions (dotfiles, bootstrap scripts, SSH keypairs), and makes the first rows of an
// empty cluster.
//
// It knows no sessions, folders or agents: whether a limit is reached is decided by the noun that it limits. httpapi calls it for
// every request; other nouns ask it who owns what.
package tenancy

import (
	"crypto/rand"
	"fmt"
	"io"
	"log/slog"
	"time"

	"github.com/google/uuid"

	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/fault"
	"berth.dev/berth/internal/manager/login"
	"berth.dev/berth/internal/manager/recent"
	"berth.dev/berth/internal/manager/seal"
	"berth.dev/berth/internal/manager/store"
)

// Nouns of errors.
const (
	userNoun    = "user"
	domainNoun  = "domain"
	projectNoun = "project"
	keypairNoun = "keypair"
	policyNoun  = "resource policy"
)

const zeroUUID = "00000000-0000-0000-0000-000000000000"

// Deps are what a Service works with. Store, Seal and Log are required; Clock, IDs, Random and PasswordCost have defaults, Logins is the
// memory of this process then.
type Deps struct {
	Store        *store.Store
	Seal         *seal.Key
	Clock        func() time.Time
	IDs          func() string
	Random       io.Reader
	PasswordCost seal.Cost
	// Logins keeps who is logged in, LoginPolicy bounds it; SecondFactors are what logins ask for beside the password, in this order.
	Logins        login.Keeper
	LoginPolicy   LoginPolicy
	SecondFactors []SecondFactor
	SignUp        SignUpPolicy
	// Directory proves users who log in at a directory; nil proves none.
	Directory Directory
	Log       *slog.Logger
}

// Service is the use cases of tenancy.
type Service struct {
	d         Deps
	policy    LoginPolicy
	passwords *seal.Passwords
	// actors are who owns an access key.
	actors *recent.Cache[cluster.AccessKey, knownActor]
	// strangers are access keys that nobody owns or that are not active.
	strangers *recent.Cache[cluster.AccessKey, struct{}]
}

// New makes the use cases.
func New(d Deps) (*Service, error) {
	if d.Store == nil || d.Seal == nil || d.Log == nil {
		return nil, fault.New(fault.Internal, "tenancy: store, seal and log are required")
	}
	d = d.withDefaults()
	return &Service{d: d, policy: d.LoginPolicy.withDefaults(), passwords: seal.NewPasswords(0, d.PasswordCost, d.Random),
			actors:    recent.New[cluster.AccessKey, knownActor](d.Store.ActorsTurn),
			strangers: recent.New[cluster.AccessKey, struct{}](d.Store.ActorsTurn)},
		nil
}

func (d Deps) withDefaults() Deps {
	if d.Random == nil {
		d.Random = rand.Reader
	}
	if d.Clock == nil {
		d.Clock = time.Now
	}
	if d.IDs == nil {
		d.IDs = RandomIDs(d.Random)
	}
	if d.Logins == nil {
		d.Logins = login.NewMemory(d.Clock)
	}
	return d
}

// RandomIDs makes UUIDs of version 4 from random bytes.
func RandomIDs(random io.Reader) func() string {
	return func() string {
		id, err := uuid.NewRandomFromReader(random)
		if err != nil {
			panic(fmt.Sprintf("make an id: %v", err)) // the system's randomness does not fail
		}
		return id.String()
	}
}
