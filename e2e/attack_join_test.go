package e2e_test

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/json"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/status"

	"berth.dev/berth/internal/wire/node"
)

// thief has what an attacker finds on a host: join tokens, and a key of its own.
type thief struct {
	t   testing.TB
	csr []byte
}

func newThief(t *testing.T) *thief {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	csr, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{}, key)
	require.NoError(t, err)
	return &thief{t, csr}
}

// joins tries to get a certificate of that name from a manager.
func (h *thief) joins(manager, token, name string) error {
	h.t.Helper()
	j, err := node.ParseJoinToken(token)
	require.NoError(h.t, err)
	conn, err := grpc.NewClient("passthrough:///"+manager, grpc.WithTransportCredentials(credentials.NewTLS(j.JoinTLS())))
	require.NoError(h.t, err)
	defer conn.Close()
	ctx, cancel := context.WithTimeout(h.t.Context(), patience)
	defer cancel()
	_, err = node.NewNodeClient(conn).Join(ctx, &node.JoinRequest{Token: j.Secret, AgentId: name, CsrDer: h.csr, Version: node.Version})
	return err
}

// TestAttackJoin attacks the way into the cluster, as a stranger who stole join tokens and from a compromised agent host. Two managers
// serve the cluster, and what one refuses the other refuses too.
func TestAttackJoin(t *testing.T) {
	t.Parallel()
	a := newApart(t, "i-join", "", "")
	dir := filepath.Dir(a.config)
	managers := []string{a.hub, secondManager(a)}
	read := func(file string) string {
		t.Helper()
		text, err := os.ReadFile(file)
		require.NoError(t, err)
		return string(text)
	}
	create := func(role, name string, flags ...string) string {
		t.Helper()
		return a.must(append([]string{"admin", "join-token", "create", "--config", a.config, "--role", role, "--name", name}, flags...)...)
	}
	refused := func(code codes.Code, words, token, name string) {
		t.Helper()
		for _, m := range managers {
			err := newThief(t).joins(m, token, name)
			require.Equal(t, code, status.Code(err), "%s at %s: %v", name, m, err)
			require.ErrorContains(t, err, words)
		}
	}

	// The token on the agent's host has been used, by the agent's key.
	used := read(filepath.Join(dir, "agent.token"))
	refused(codes.Unauthenticated, "was used at", used, "i-join")
	refused(codes.PermissionDenied, "is for agent i-join", used, "appproxy:default")

	// A token that waits for its host is worth that host's name and nothing else.
	waiting := create("agent", "i-new")
	refused(codes.PermissionDenied, "is for agent i-new, not for app proxy default", waiting, "appproxy:default")
	refused(codes.PermissionDenied, "is for agent i-new, not for agent i-join", waiting, "i-join")
	a.kill("agent") // and an agent that is down is no free name
	refused(codes.PermissionDenied, "is for agent i-new, not for agent i-join", waiting, "i-join")
	refused(codes.Unauthenticated, "was used at", used, "i-join")
	owner, late := newThief(t), create("agent", "i-new")
	require.NoError(t, owner.joins(managers[0], waiting, "i-new"))
	require.NoError(t, owner.joins(managers[1], waiting, "i-new"), "the same host may ask again")
	refused(codes.Unauthenticated, "was used at", waiting, "i-new")
	refused(codes.FailedPrecondition, "has joined this cluster before, with another key", late, "i-new")
	known := a.run("", "admin", "join-token", "create", "--config", a.config, "--role", "agent", "--name", "i-new")
	require.NotZero(t, known.code)
	require.Contains(t, known.stderr, "--replace")

	// Time and administrators end tokens.
	short := create("appproxy", "eu1", "--expires", "1s")
	a.eventually("the token expires", func() bool { return a.tokenStatus("eu1") == "expired" })
	refused(codes.Unauthenticated, "expired at", short, "appproxy:eu1")
	revoked := create("appproxy", "eu2")
	a.must("admin", "join-token", "revoke", a.token("eu2").ID, "--config", a.config)
	refused(codes.Unauthenticated, "the join token is not valid", revoked, "appproxy:eu2")

	// The agent itself comes back by its key, without its certificate and without a token.
	require.NoError(t, os.Remove(filepath.Join(dir, "agent", "node", "node.crt")))
	require.NoError(t, os.Remove(filepath.Join(dir, "agent.token")))
	a.begin("agent")

	// While it is connected, to either manager, not even an administrator's word gives its name away by mistake.
	word := create("agent", "i-join", "--replace")
	refused(codes.FailedPrecondition, "agent i-join is connected from", word, "i-join")
	// When its host was taken over, its certificate is ended: it loses its connections, and its key opens nothing any more.
	a.must("admin", "certificate", "revoke", "--config", a.config, "--role", "agent", "--name", "i-join")
	word = create("agent", "i-join", "--replace")
	clean := newThief(t) // the machine that takes its place
	a.eventually("the agent's connections end", func() bool { return clean.joins(managers[1], word, "i-join") == nil })
	log := filepath.Join(dir, "agent.log")
	a.eventually("the agent is told", func() bool { return strings.Contains(read(log), "it was replaced or revoked") })

	// A stranger holds many half-open connections; a new app proxy joins all the same.
	eu3 := create("appproxy", "eu3")
	for range 600 {
		conn, err := net.Dial("tcp", managers[0])
		require.NoError(t, err)
		defer conn.Close()
	}
	require.NoError(t, newThief(t).joins(managers[0], eu3, "appproxy:eu3"))
}

type joinToken struct {
	ID, Name string
	UsedAt   string `json:"used_at"`
}

// token is what the administrator's list says about the token for a name.
func (a *apart) token(name string) (found joinToken) {
	a.t.Helper()
	var list []joinToken
	require.NoError(a.t, json.Unmarshal([]byte(a.must("admin", "join-token", "list", "--json", "--config", a.config)), &list))
	for _, token := range list {
		if token.Name == name {
			found = token
		}
	}
	require.NotEmpty(a.t, found.ID, "there is no token for %s", name)
	return found
}

// tokenStatus is the status of the token for a name in the administrator's list.
func (a *apart) tokenStatus(name string) string {
	a.t.Helper()
	for line := range strings.Lines(a.must("admin", "join-token", "list", "--config", a.config)) {
		if fields := strings.Fields(line); len(fields) > 3 && fields[2] == name {
			return fields[3]
		}
	}
	return ""
}

// secondManager starts another manager of the cluster, with the same master key, and returns its agent port.
func secondManager(a *apart) string {
	a.t.Helper()
	dir := filepath.Join(filepath.Dir(a.config), "manager2")
	require.NoError(a.t, os.Mkdir(dir, 0o700))
	key, err := os.Open(filepath.Join(a.dir, "master.key"))
	require.NoError(a.t, err)
	defer key.Close()
	copied, err := os.OpenFile(filepath.Join(dir, "master.key"), os.O_CREATE|os.O_WRONLY, 0o600)
	require.NoError(a.t, err)
	_, err = io.Copy(copied, key)
	require.NoError(a.t, err)
	require.NoError(a.t, copied.Close())
	text, err := os.ReadFile(a.config)
	require.NoError(a.t, err)
	api, agents := freePort(a.t), freePort(a.t)
	config := filepath.Join(filepath.Dir(a.config), "second.toml")
	require.NoError(a.t, os.WriteFile(config, []byte(strings.NewReplacer(
		"[manager]\nlisten = \"127.0.0.1:"+a.api+"\"", "[manager]\nid = \"m2\"\nlisten = \"127.0.0.1:"+api+"\"",
		`state_dir = "`+a.dir+`"`, `state_dir = "`+dir+`"`,
		"[manager.agents]\nlisten = \""+a.hub+"\"", "[manager.agents]\nlisten = \"127.0.0.1:"+agents+"\"",
	).Replace(string(text))), 0o600))
	process(a.t, filepath.Dir(a.config), "manager2", binary, "manager", "--config", config)
	listening(a.t, agents)
	return "127.0.0.1:" + agents
}
