package manager_test

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/status"

	"berth.dev/berth/internal/manager"
	"berth.dev/berth/internal/manager/link/ca"
	"berth.dev/berth/internal/platform"
	"berth.dev/berth/internal/testkit"
	"berth.dev/berth/internal/testkit/await"
	"berth.dev/berth/internal/wire/node"
)

// stranger tries to join at a manager with a key of its own.
func stranger(t *testing.T, m *testkit.Manager, token node.JoinToken, commonName string) error {
	t.Helper()
	conn, err := grpc.NewClient("passthrough:///"+m.AgentAddr(), grpc.WithTransportCredentials(credentials.NewTLS(token.JoinTLS())))
	require.NoError(t, err)
	defer conn.Close()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	csr, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{}, key)
	require.NoError(t, err)
	_, err = node.NewNodeClient(conn).Join(t.Context(),
		&node.JoinRequest{Token: token.Secret, AgentId: commonName, CsrDer: csr, Version: node.Version})
	return err
}

// Two managers with one database decide as one.
func TestJoinsOfTwoManagers(t *testing.T) {
	t.Parallel()
	// i-00 is connected to the first one, and counts as connected also while the machine is too busy for its heartbeats.
	c := testkit.New(t, testkit.Options{Managers: 2, Manager: func(m *manager.Config) { m.Agents.Lease = time.Minute }})
	one, other := c.Managers[0], c.Managers[1]
	ctx := t.Context()
	token := func(n ca.Node, replace bool) node.JoinToken {
		t.Helper()
		text, _, err := one.Authority().NewToken(ctx, ca.TokenRequest{Node: n, Replace: replace, By: "ada"})
		require.NoError(t, err)
		return text
	}
	word := token(ca.Node{Role: ca.RoleAgent, Name: "i-00"}, true)
	err := stranger(t, other, word, "i-00")
	require.Equal(t, codes.FailedPrecondition, status.Code(err))
	require.ErrorContains(t, err, "agent i-00 is connected from", "connected to the first manager, asked of the second")

	fresh := token(ca.Node{Role: ca.RoleAgent, Name: "i-07"}, false)
	require.Equal(t, codes.PermissionDenied, status.Code(stranger(t, other, fresh, "appproxy:default")))
	require.Equal(t, codes.PermissionDenied, status.Code(stranger(t, other, fresh, "i-00")))
	var in atomic.Int32
	errs := make(chan error, 8)
	for i := range cap(errs) {
		go func() {
			err := stranger(t, c.Managers[i%2], fresh, "i-07")
			if err == nil {
				in.Add(1)
			} else if status.Code(err) == codes.Unauthenticated || status.Code(err) == codes.FailedPrecondition {
				err = nil
			}
			errs <- err
		}()
	}
	for range cap(errs) {
		require.NoError(t, await.Value(t, errs))
	}
	require.EqualValues(t, 1, in.Load())

	// The agent leaves its manager, and the other one knows at once.
	c.Agents[0].Stop()
	c.Until("the agent is replaced", func() bool { return stranger(t, other, word, "i-00") == nil })
	c.Agents[0].Start() // with its old key
	err = stranger(t, one, word, "i-00")
	require.Equal(t, codes.Unauthenticated, status.Code(err), "the word was for one machine: %v", err)
}

// An administrator on the manager's host needs no running manager, and sees what running ones did.
func TestJoinsInDatabase(t *testing.T) {
	t.Parallel()
	var cfg manager.Config
	c := testkit.New(t, testkit.Options{NoAgents: true, Manager: func(m *manager.Config) { cfg = *m }})
	open := func() platform.Joins {
		j, done, err := platform.JoinsInDatabase(t.Context(), cfg)
		require.NoError(t, err)
		t.Cleanup(done)
		return j
	}
	j := open()
	made, err := j.Create(t.Context(), platform.NewJoinToken{Role: platform.RoleAppProxy, Name: "web", By: "ada"})
	require.NoError(t, err)
	text, err := node.ParseJoinToken(made.Text)
	require.NoError(t, err)
	require.NoError(t, stranger(t, c.Managers[0], text, "appproxy:web"))
	list, err := j.List(t.Context())
	require.NoError(t, err)
	require.Len(t, list, 1)
	require.Equal(t, made.ID, list[0].ID)
	require.NotEmpty(t, list[0].UsedFrom)
	require.NoError(t, j.RevokeCertificates(t.Context(), platform.RoleAppProxy, "web"))
	require.NoError(t, j.Revoke(t.Context(), made.ID))
	require.Error(t, j.Revoke(t.Context(), made.ID))

	cfg.StateDir = t.TempDir() // not a manager's
	_, _, err = platform.JoinsInDatabase(context.Background(), cfg)
	require.ErrorContains(t, err, "the master key of the managers cannot be read")
}
