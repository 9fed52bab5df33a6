package runner_test

import (
	"context"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/crypto/ssh"

	"berth.dev/berth/internal/runner/sshd"
	"berth.dev/berth/internal/wire/tunnel"
)

// ssh logs in through a tunnel with the key that the runner made in the home directory.
func (b *box) ssh(home string) *ssh.Client {
	b.t.Helper()
	text, err := os.ReadFile(filepath.Join(home, sshd.SessionKey))
	require.NoError(b.t, err)
	key, err := ssh.ParsePrivateKey(text)
	require.NoError(b.t, err)
	conn, err := b.dial(strconv.Itoa(tunnel.PortSSH), false)
	require.NoError(b.t, err)
	c, chans, reqs, err := ssh.NewClientConn(conn, "",
		&ssh.ClientConfig{User: "work", Auth: []ssh.AuthMethod{ssh.PublicKeys(key)}, HostKeyCallback: ssh.InsecureIgnoreHostKey()})
	require.NoError(b.t, err)
	client := ssh.NewClient(c, chans, reqs)
	b.t.Cleanup(func() { client.Close() })
	return client
}

func TestSSHOfTheSession(t *testing.T) {
	t.Parallel()
	b := start(t, config(t))
	s, err := b.ssh(b.cfg.User.Home).NewSession()
	require.NoError(t, err)
	out, err := s.CombinedOutput("id -u; pwd; echo $HOME")
	require.NoError(t, err)
	require.Equal(t, strconv.Itoa(b.cfg.User.UID)+"\n"+b.cfg.User.Home+"\n"+b.cfg.User.Home+"\n", string(out))
	if os.Getuid() == 0 {
		s, err = b.ssh(b.cfg.User.Home).NewSession()
		require.NoError(t, err)
		require.Error(t, s.Run("cat "+filepath.Join(b.cfg.Dir, "ssh_host_key")), "the host key is nobody's business")
	}
}

// TestTerminalPageOfTheSession: HTTP over a tunnel; package webterm tests what the page does.
func TestTerminalPageOfTheSession(t *testing.T) {
	t.Parallel()
	b := start(t, config(t))
	client := &http.Client{Transport: &http.Transport{DialContext: func(context.Context, string, string) (net.Conn, error) {
		return b.dial(strconv.Itoa(tunnel.PortTerminal), false)
	}}, Timeout: time.Minute}
	defer client.CloseIdleConnections()
	r, err := client.Get("http://session/")
	require.NoError(t, err)
	defer r.Body.Close()
	text, err := io.ReadAll(r.Body)
	require.NoError(t, err)
	require.Equal(t, 200, r.StatusCode)
	require.Contains(t, string(text), "page.mjs")
}
