package manager

import (
	"context"
	"crypto/rand"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"slices"
	"strings"
	"time"

	"berth.dev/berth/internal/fault"
	"berth.dev/berth/internal/manager/seal"
	"berth.dev/berth/internal/manager/store"
)

// A manager joins by the database, which it can reach, and a token, which its operator brings: the token is the key that opens the copy of
// the master key that an invitation holds. Who has only one of the two has nothing.

// ManagerToken is a join token of a manager.
type ManagerToken struct {
	ID      string    `json:"id"`
	Name    string    `json:"name"`
	Expires time.Time `json:"expires_at"`
	Text    string    `json:"token"`
}

const (
	// keyInvitations is the setting that holds invitations.
	keyInvitations = "manager-invitations"
	// managerTokenPrefix begins the text of every join token of a manager.
	managerTokenPrefix = "berth-manager-"
	maxInvitations     = 20
	leastManagerLife   = time.Second
	mostManagerLife    = 24 * time.Hour
	maxManagerName     = 64
)

// invitation is what the database keeps of a join token of a manager.
type invitation struct {
	ID      string    `json:"id"` // of the key that the token is
	Name    string    `json:"name"`
	By      string    `json:"made_by"`
	Expires time.Time `json:"expires_at"`
	Sealed  []byte    `json:"sealed"` // the master key file
}

func (i invitation) purpose() string { return "manager-join/" + i.Name }

// InviteManager makes a token with which the manager of a name gets the master key, once. cfg is that of a manager of the cluster, on whose
// host this runs.
func InviteManager(ctx context.Context, cfg Config, name, by string, life time.Duration) (t ManagerToken, err error) {
	if name == "" || len(name) > maxManagerName || strings.ContainsFunc(name, func(r rune) bool { return r <= ' ' || r > '~' }) {
		return t, fault.Invalidf("%q cannot be the id of a manager", name).WithNext("use the manager.id of its configuration, or its host's name")
	}
	if life < leastManagerLife || life > mostManagerLife {
		return t, fault.Invalidf("a join token of a manager cannot be valid for %s", life).
			WithNext("choose between %s and %s", leastManagerLife, mostManagerLife)
	}
	key, err := seal.Load(masterKeyFile(cfg.StateDir), rand.Reader)
	if err != nil {
		return t, fault.Invalidf("the master key of the managers cannot be read").WithCause(err).
			WithNext("run this on a manager's host as the manager's user, after its first start")
	}
	secret := make([]byte, 32)
	if _, err := rand.Read(secret); err != nil {
		return t, fmt.Errorf("make a join token: %w", err)
	}
	token, err := seal.New(secret, rand.Reader)
	if err != nil {
		return t, err
	}
	i := invitation{ID: token.ID(), Name: name, By: by}
	if i.Sealed, err = token.Seal(key.Export(), i.purpose()); err != nil {
		return t, fmt.Errorf("seal the master key: %w", err)
	}
	err = withInvitations(ctx, cfg, func(list []invitation, now time.Time) ([]invitation, error) {
		if len(list) >= maxInvitations {
			return nil, fault.Exhaustedf("%d join tokens of managers can be used", len(list)).WithNext("wait until they expire")
		}
		i.Expires = now.Add(life)
		return append(list, i), nil
	})
	if err != nil {
		return t, fmt.Errorf("store a join token: %w", err)
	}
	return ManagerToken{ID: i.ID, Name: name, Expires: i.Expires, Text: managerTokenPrefix + base64.RawURLEncoding.EncodeToString(secret)}, nil
}

// JoinManager gets the master key of the cluster that the database of cfg belongs to, and stores it in the state directory of cfg. The
// token cannot be used again.
func JoinManager(ctx context.Context, cfg Config, text string) error {
	bad := fault.New(fault.Unauthenticated, "the join token is not valid").WithReason("bad-join-token").
		WithNext("make a new one on the host of a manager: berth admin join-token create --role manager --name %s --config FILE", cfg.id())
	encoded, ok := strings.CutPrefix(strings.TrimSpace(text), managerTokenPrefix)
	secret, err := base64.RawURLEncoding.DecodeString(encoded)
	if !ok || err != nil {
		return bad
	}
	token, err := seal.New(secret, rand.Reader)
	if err != nil {
		return bad
	}
	if err := os.MkdirAll(cfg.StateDir, 0o711); err != nil {
		return fmt.Errorf("make state directory: %w", err)
	}
	err = withInvitations(ctx, cfg, func(list []invitation, _ time.Time) ([]invitation, error) {
		at := slices.IndexFunc(list, func(i invitation) bool { return i.ID == token.ID() })
		if at < 0 {
			return nil, bad // also when it has expired or was used
		}
		if list[at].Name != cfg.id() {
			return nil, fault.Deniedf("the join token is for manager %s, this is %s", list[at].Name, cfg.id()).
				WithReason("join-token-of-another").WithNext("set manager.id, or make a token for %s", cfg.id())
		}
		key, err := token.Open(list[at].Sealed, list[at].purpose())
		if err != nil {
			return nil, bad
		}
		// The file comes first: a token that is used up without it would be lost. A second attempt finds the file.
		if err := seal.Import(masterKeyFile(cfg.StateDir), key); err != nil {
			return nil, err
		}
		return slices.Delete(list, at, at+1), nil
	})
	if err != nil {
		return fmt.Errorf("join the managers: %w", err)
	}
	return nil
}

// withInvitations replaces the invitations that are valid by what fn makes of them, alone against others.
func withInvitations(ctx context.Context, cfg Config, fn func(list []invitation, now time.Time) ([]invitation, error)) error {
	db, err := store.Open(ctx, store.Config{DSN: cfg.Postgres.DSN.Reveal(), SkipMigrations: true, MaxConns: 1}, slog.New(slog.DiscardHandler))
	if err != nil {
		return err
	}
	defer db.Close()
	return db.Tx(ctx, func(ctx context.Context, tx *store.Tx) error {
		if err := tx.LockSetting(ctx, keyInvitations); err != nil {
			return fmt.Errorf("wait for others: %w", err)
		}
		now, err := tx.SessionNow(ctx)
		if err != nil {
			return fmt.Errorf("read the clock: %w", err)
		}
		var list []invitation
		raw, err := tx.GetSetting(ctx, keyInvitations)
		switch {
		case store.Missing(err):
		case err != nil:
			return fmt.Errorf("read the join tokens of managers: %w", err)
		default:
			if err := json.Unmarshal(raw, &list); err != nil {
				return fmt.Errorf("read the join tokens of managers: %w", err)
			}
		}
		list = slices.DeleteFunc(list, func(i invitation) bool { return !now.Before(i.Expires) })
		if list, err = fn(list, now); err != nil {
			return err
		}
		if raw, err = json.Marshal(list); err != nil {
			return fmt.Errorf("encode the join tokens of managers: %w", err)
		}
		return tx.SetSetting(ctx, keyInvitations, raw)
	})
}

// masterKey reads the master key. The first manager of a cluster makes it; another one must have joined.
func (m *Manager) masterKey(ctx context.Context) (*seal.Key, error) {
	path := masterKeyFile(m.cfg.StateDir)
	key, err := seal.Load(path, m.deps.Random)
	if !errors.Is(err, fs.ErrNotExist) {
		if err != nil {
			return nil, fmt.Errorf("load master key: %w", err)
		}
		return key, nil
	}
	_, err = m.store.FirstAdministrator(ctx)
	switch {
	case store.Missing(err):
	case err != nil:
		return nil, fmt.Errorf("see whether the database belongs to a cluster: %w", err)
	default:
		return nil, fault.Conflictf("this manager has no master key (%s), and the database belongs to a cluster", path).
			WithReason("no-master-key").
			WithNext("on the host of a manager of that cluster: berth admin join-token create --role manager --name %s --config FILE; then here: "+
				"berth manager join --config FILE --token-file TOKEN", m.cfg.id())
	}
	if key, err = seal.LoadOrCreate(path, m.deps.Random); err != nil {
		return nil, fmt.Errorf("load master key: %w", err)
	}
	return key, nil
}
