// Package membershiptest gives tests a manager's agent port that members can join.
package membershiptest

import (
	"context"
	"crypto/rand"
	"crypto/tls"
	"log/slog"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"berth.dev/berth/internal/chassis"
	agentlink "berth.dev/berth/internal/manager/link/agent"
	"berth.dev/berth/internal/manager/link/ca"
	"berth.dev/berth/internal/membership"
)

// Manager is an agent port without a database behind it.
type Manager struct {
	Addr string
	link *agentlink.Link
}

// NewManager opens a port until the test ends. proxies serves the connections of app proxies; nil refuses them.
func NewManager(t testing.TB, proxies func(ctx context.Context, name string, conn *tls.Conn)) Manager {
	t.Helper()
	cfg := agentlink.DefaultConfig()
	cfg.Listen = "127.0.0.1:0"
	link, err := agentlink.New(cfg, agentlink.Deps{
		ClusterID: "c", Vault: &vault{values: map[string][]byte{}}, Proxies: proxies, Clock: chassis.RealClock(), Random: rand.Reader,
		Log: slog.New(slog.DiscardHandler),
	})
	require.NoError(t, err)
	svc := link.Service("agentlink")
	require.NoError(t, svc.Start(t.Context()))
	t.Cleanup(func() { require.NoError(t, svc.Stop(context.Background())) })
	return Manager{link.Addr().String(), link}
}

// Token makes a join token for a common name.
func (m Manager) Token(t testing.TB, name string) chassis.Secret {
	t.Helper()
	who, err := ca.NodeOf(name)
	require.NoError(t, err)
	token, _, err := m.link.Authority().NewToken(t.Context(), ca.TokenRequest{Node: who, By: "a test"})
	require.NoError(t, err)
	return chassis.NewSecret(token.String())
}

// Join returns a member that has joined.
func (m Manager) Join(t testing.TB, name string) *membership.Member {
	t.Helper()
	token := m.Token(t, name)
	member, err := membership.Open(membership.Options{
		Dir: t.TempDir(), Name: name, Clock: chassis.RealClock(), Log: slog.New(slog.DiscardHandler),
		Token: func() (chassis.Secret, error) { return token, nil },
	})
	require.NoError(t, err)
	require.NoError(t, member.EnsureJoined(t.Context(), m.Addr))
	return member
}

type vault struct {
	mu     sync.Mutex
	values map[string][]byte
}

func (v *vault) Get(_ context.Context, key string) ([]byte, error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.values[key], nil
}

func (v *vault) Update(_ context.Context, key string, fn func([]byte) ([]byte, error)) ([]byte, error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	b, err := fn(v.values[key])
	if err == nil && b != nil {
		v.values[key] = b
	}
	return v.values[key], err
}
