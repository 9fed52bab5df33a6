package runner_test

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"berth.dev/berth/internal/testkit/await"
	"berth.dev/berth/internal/wire/run"
)

// among makes a runner one of several kernels of a session, with files of its own for what belongs to the container.
func among(t *testing.T, name, secret string, port int, change ...func(*run.Config)) run.Config {
	cfg := config(t)
	cfg.Peers = &run.PeersConfig{Name: name, Secret: secret, Port: port, Hosts: filepath.Join(cfg.Dir, "hosts"),
		ClientConfig: filepath.Join(cfg.Dir, "etc", "ssh_config")}
	if os.Getuid() == 0 {
		cfg.User.UID, cfg.User.GID = 65534, 65534 // OpenSSH's programs want a name
	}
	for _, c := range change {
		c(&cfg)
	}
	return cfg
}

// lines counts the runs of this file: each has an id of its own.
var lines atomic.Int32

func bash(b *box, line string) result {
	return b.play("line"+strconv.Itoa(int(lines.Add(1))), run.StepRequest{Mode: run.ModeBatch, Options: &run.BatchOptions{Exec: &line}})
}

const sessionSecret = "a secret of one session"

// TestKernelsLogInToEachOther: `ssh sub1` in main1 asks nothing, with the files that the runner writes; strangers do not get in, with
// whatever key and from wherever.
func TestKernelsLogInToEachOther(t *testing.T) {
	t.Parallel()
	client, err := exec.LookPath("ssh")
	if err != nil {
		t.Skip("no ssh here")
	}
	port := unused(t)
	main := start(t, among(t, "main1", sessionSecret, port))
	sub := start(t, among(t, "sub1", sessionSecret, port, func(c *run.Config) { c.Env["WHO"] = "sub1" }))
	other := start(t, among(t, "main1", "the secret of another", port))
	list := []run.Peer{{Name: "main1", Address: "127.77.0.1"}, {Name: "sub1", Address: "127.77.0.2"}}
	for _, b := range []*box{main, sub} {
		res, err := b.c.SetPeers(ctx(t), run.PeersRequest{Peers: list, Running: true})
		require.NoError(t, err)
		require.True(t, res.Running)
		text, err := os.ReadFile(b.cfg.Peers.Hosts)
		require.NoError(t, err)
		require.Contains(t, string(text), "127.77.0.2\tsub1\n")
	}
	_, err = other.c.SetPeers(ctx(t), run.PeersRequest{Peers: append(list, run.Peer{Name: "sub2", Address: "127.77.0.3"})[1:], Running: true})
	require.NoError(t, err)

	// The names are not in this host's own file of names: the address is given, and how it is bound is not what is tested here.
	ssh := func(b *box, from, to, command string) result {
		return bash(b, client+" -F "+b.cfg.Peers.ClientConfig+" -b "+from+" -o HostName="+to+" sub1 "+command)
	}
	r := ssh(main, "127.77.0.1", "127.77.0.2", "'echo $WHO; id -u'")
	require.Equal(t, 0, r.exit, "%s%s", r.stdout, r.stderr)
	require.True(t, strings.HasPrefix(r.stdout, "sub1\n"), r.stdout)
	require.Empty(t, r.stderr, "nothing is asked and nothing is remarked")

	r = ssh(main, "127.77.0.8", "127.77.0.2", "true")
	require.NotEqual(t, 0, r.exit, "an address that is none of the session's")
	r = ssh(other, "127.77.0.1", "127.77.0.2", "true")
	require.Contains(t, r.stderr, "Host key verification failed", "a kernel of another session does not take it for its own")
	r = ssh(other, "127.77.0.1", "127.77.0.2", "true -o")
	require.NotEqual(t, 0, r.exit)
	line := client + " -F " + other.cfg.Peers.ClientConfig + " -b 127.77.0.1 -o HostName=127.77.0.2 -o StrictHostKeyChecking=no " +
		"-o UserKnownHostsFile=/dev/null -o BatchMode=yes sub1 true"
	r = bash(other, line)
	require.Contains(t, r.stderr, "Permission denied", "its key is another")

	// The owner's keys log in to app sshd alone.
	line = client + " -F /dev/null -i " + filepath.Join(sub.cfg.User.Home, "id_container") + " -b 127.77.0.1 -p " + strconv.Itoa(port) +
		" -o StrictHostKeyChecking=no -o UserKnownHostsFile=/dev/null -o BatchMode=yes -l work 127.77.0.2 true"
	r = bash(sub, line)
	require.Contains(t, r.stderr, "Permission denied")

	// A kernel that left is not known any more, and one that moved is reached where it is.
	list[1].Address = "127.77.0.4"
	_, err = sub.c.SetPeers(ctx(t), run.PeersRequest{Peers: list})
	require.NoError(t, err)
	r = ssh(main, "127.77.0.1", "127.77.0.2", "true")
	require.NotEqual(t, 0, r.exit)
	r = ssh(main, "127.77.0.1", "127.77.0.4", "true")
	require.Equal(t, 0, r.exit, r.stderr)
	_, err = sub.c.SetPeers(ctx(t), run.PeersRequest{Peers: []run.Peer{{Name: "sub1", Address: "127.77.0.4"}}})
	require.NoError(t, err)
	r = ssh(main, "127.77.0.1", "127.77.0.4", "true")
	require.NotEqual(t, 0, r.exit)
}

// TestCommandsAwaitTheOthers: neither bootstrap script nor batch command runs before all kernels of the session do, whatever else is said
// of them before; said once, it holds.
func TestCommandsAwaitTheOthers(t *testing.T) {
	t.Parallel()
	cfg := among(t, "main1", sessionSecret, unused(t))
	began := filepath.Join(cfg.Dir, "home", "began")
	cfg.SessionType, cfg.Batch = "batch", &run.BatchCommand{Command: "grep sub1 " + cfg.Peers.Hosts + " && test -e " + began}
	cfg.Bootstrap = "#!/bin/sh\ntouch " + began + "\n"
	b := start(t, cfg)
	for _, list := range [][]run.Peer{nil, {{Name: "main1", Address: "127.77.1.1"}}} {
		res, err := b.c.SetPeers(ctx(t), run.PeersRequest{Peers: list})
		require.NoError(t, err)
		require.False(t, res.Running)
		require.NoFileExists(t, began)
		st, err := b.c.Batch(ctx(t))
		require.NoError(t, err)
		require.Equal(t, run.BatchNone, st.Phase)
	}
	_, err := b.c.SetPeers(ctx(t), run.PeersRequest{Running: true, Peers: []run.Peer{{Name: "main1", Address: "127.77.1.1"},
		{Name: "sub1", Address: "127.77.1.2"}}})
	require.NoError(t, err)
	await.Value(t, b.exit)
	require.Equal(t, 0, b.code, b.out)
}

// TestOthersThatDoNotCome: the wait has an end, and nothing of the session's ran. A runner that is told to end meanwhile ends.
func TestOthersThatDoNotCome(t *testing.T) {
	t.Parallel()
	cfg := among(t, "main1", sessionSecret, unused(t), func(c *run.Config) { c.Peers.WaitMS = 20 })
	ran := filepath.Join(cfg.Dir, "home", "ran")
	cfg.SessionType, cfg.Batch = "batch", &run.BatchCommand{Command: "touch " + ran}
	b := launch(t, cfg)
	await.Value(t, b.exit)
	require.Equal(t, run.ExitPeersMissing, b.code)
	require.NoFileExists(t, ran)
	require.NoFileExists(t, cfg.WithDefaults().StartedFile(), "it may start elsewhere")
	require.Contains(t, b.out.String(), "the session's other kernels did not run in time")

	cfg = among(t, "main1", sessionSecret, unused(t))
	cfg.SessionType, cfg.Batch = "batch", &run.BatchCommand{Command: "true"}
	b = start(t, cfg)
	require.NoError(t, b.cmd.Process.Signal(syscall.SIGTERM))
	await.Value(t, b.exit)
	require.Equal(t, 143, b.code)
}

// TestPeersThatAreNone: bad lists change nothing, and a session's only kernel knows no others.
func TestPeersThatAreNone(t *testing.T) {
	t.Parallel()
	b := start(t, among(t, "main1", sessionSecret, unused(t)))
	hello, err := b.c.Hello(ctx(t))
	require.NoError(t, err)
	require.Contains(t, hello.Capabilities, run.CanPeers)
	_, err = b.c.SetPeers(ctx(t), run.PeersRequest{Peers: []run.Peer{{Name: "main1", Address: "127.77.2.1"}}})
	require.NoError(t, err)
	before, err := os.ReadFile(b.cfg.Peers.Hosts)
	require.NoError(t, err)
	_, err = b.c.SetPeers(ctx(t), run.PeersRequest{Peers: []run.Peer{{Name: "x\ny", Address: "127.77.2.1"}}, Running: true})
	require.Error(t, err)
	after, err := os.ReadFile(b.cfg.Peers.Hosts)
	require.NoError(t, err)
	require.True(t, bytes.Equal(before, after))
	alone := start(t, config(t))
	_, err = alone.c.SetPeers(ctx(t), run.PeersRequest{Running: true})
	require.Error(t, err)
}
