package bench_test

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/cookiejar"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/coder/websocket"
	"github.com/stretchr/testify/require"

	"berth.dev/berth/api"
)

// publish starts and publishes an app of a session.
func publish(b *testing.B, c *api.Client, session, app, protocol string) api.Published {
	b.Helper()
	l, err := c.StartApp(b.Context(), session, api.StartApp{App: app})
	require.NoError(b, err)
	p, err := c.PublishApp(b.Context(), l, session, api.Publish{App: app, Protocol: protocol, Mode: "port"})
	require.NoError(b, err)
	return p
}

// BenchmarkTerminal measures from RUNNING, as a client learns of it, to the first byte of a shell in a browser's web terminal:
// start, publish, log in, open the WebSocket, start the shell. There is no peer.
func BenchmarkTerminal(b *testing.B) {
	p := up(b)
	c := p.client()
	var all, again []time.Duration
	for i := range rounds {
		s := create(b, c, fmt.Sprintf("terminal-%d", i))
		first := func() { firstByte(b, publish(b, c, s.ID, "ttyd", "http").URL) }
		all = append(all, timed(first))
		again = append(again, timed(first))
		p.must("session", "rm", "--yes", s.Name)
	}
	b.ReportMetric(ms(median(all)), "ms/first-byte")
	b.ReportMetric(ms(median(again)), "ms/second-visit")
	b.ReportMetric(0, "ns/op")
}

// firstByte visits a web terminal and waits for the first output.
func firstByte(b *testing.B, enter string) {
	b.Helper()
	ctx, cancel := context.WithTimeout(b.Context(), time.Minute)
	defer cancel()
	jar, err := cookiejar.New(nil)
	require.NoError(b, err)
	client := &http.Client{Jar: jar}
	defer client.CloseIdleConnections()
	resp, err := client.Get(enter)
	require.NoError(b, err)
	_, _ = io.Copy(io.Discard, resp.Body)
	_ = resp.Body.Close()
	require.Equal(b, 200, resp.StatusCode)
	at := *resp.Request.URL
	origin := at.Scheme + "://" + at.Host
	ws, _, err := websocket.Dial(ctx, "ws"+strings.TrimPrefix(origin, "http")+"/ws?rows=24&cols=80",
		&websocket.DialOptions{HTTPClient: client, HTTPHeader: http.Header{"Origin": {origin}}})
	require.NoError(b, err)
	defer func() { _ = ws.CloseNow() }()
	for {
		kind, _, err := ws.Read(ctx)
		require.NoError(b, err)
		if kind == websocket.MessageBinary { // what the shell writes
			return
		}
	}
}

// BenchmarkSSHPrompt measures from the start of berth ssh on a terminal to the shell's prompt, and that of ssh through berth
// ssh-config.
func BenchmarkSSHPrompt(b *testing.B) {
	p := up(b)
	s := create(b, p.client(), "prompt")
	config := filepath.Join(b.TempDir(), "config")
	require.NoError(b, os.WriteFile(config, []byte(p.must("ssh-config")), 0o600))
	for name, command := range map[string]string{"berth-ssh": p.bin + " ssh " + s.Name,
		"openssh": "ssh -F " + config + " " + s.Name + ".berth"} {
		var all []time.Duration
		for range rounds {
			all = append(all, prompt(b, p, command))
		}
		b.ReportMetric(ms(median(all)), "ms/"+name)
	}
	b.ReportMetric(0, "ns/op")
}

// prompt runs a command on a terminal and measures until it shows a prompt.
func prompt(b *testing.B, p *platform, command string) time.Duration {
	b.Helper()
	cmd := exec.Command("script", "-qfec", command, "/dev/null")
	cmd.Env = p.cmd().Env
	in, err := cmd.StdinPipe()
	require.NoError(b, err)
	out, err := cmd.StdoutPipe()
	require.NoError(b, err)
	began := time.Now()
	require.NoError(b, cmd.Start())
	defer func() {
		_, _ = io.WriteString(in, "exit\n")
		_ = in.Close()
		_, _ = io.Copy(io.Discard, out)
		_ = cmd.Wait()
	}()
	stop := time.AfterFunc(time.Minute, func() { _ = cmd.Process.Kill() })
	defer stop.Stop()
	var shown strings.Builder
	for r := bufio.NewReader(out); ; {
		c, err := r.ReadByte()
		require.NoError(b, err, shown.String())
		shown.WriteByte(c)
		if strings.HasSuffix(shown.String(), "$ ") || strings.HasSuffix(shown.String(), "# ") {
			return time.Since(began)
		}
	}
}

// BenchmarkSCP copies 1 GiB with OpenSSH's scp into a session and to OpenSSH's sshd on the loopback address, in turn.
func BenchmarkSCP(b *testing.B) {
	p := up(b)
	const size, turns = 1 << 30, 3
	s := create(b, p.client(), "copies")
	dir := b.TempDir()
	file := filepath.Join(dir, "big")
	run(b, "sh", "-c", fmt.Sprintf("head -c %d /dev/zero | openssl enc -aes-128-ctr -pass pass:x -nosalt 2>/dev/null > %s || head -c %d "+
		"/dev/urandom > %s", size, file, size, file))
	config := filepath.Join(dir, "config")
	require.NoError(b, os.WriteFile(config, []byte(p.must("ssh-config")), 0o600))
	peer := sshd(b, dir)
	copies := func(args ...string) time.Duration {
		return timed(func() {
			cmd := exec.Command("scp", append([]string{"-q"}, args...)...)
			cmd.Env = p.cmd().Env
			out, err := cmd.CombinedOutput()
			require.NoError(b, err, string(out))
		})
	}
	var ours, theirs []time.Duration
	for range turns {
		theirs = append(theirs, copies(append(peer, file, "localhost:"+filepath.Join(dir, "copy"))...))
		ours = append(ours, copies("-F", config, file, s.Name+".berth:copy"))
	}
	mb := func(d time.Duration) float64 { return size / d.Seconds() / 1e6 }
	b.ReportMetric(mb(median(ours)), "MB/s/ours")
	b.ReportMetric(mb(median(theirs)), "MB/s/openssh")
	b.ReportMetric(float64(median(theirs))/float64(median(ours)), "of-openssh")
	b.ReportMetric(0, "ns/op")
}

// sshd starts OpenSSH's server for this user and returns scp's options for it.
func sshd(b *testing.B, dir string) []string {
	b.Helper()
	bin, err := exec.LookPath("sshd")
	if err != nil {
		bin = "/usr/sbin/sshd"
	}
	if _, err := os.Stat(bin); err != nil {
		b.Skip("needs OpenSSH's server: scripts/install-deps.sh bench")
	}
	for _, key := range []string{"host", "user"} {
		run(b, "ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", filepath.Join(dir, key))
	}
	port := closedPort(b)
	conf := filepath.Join(dir, "sshd_config")
	require.NoError(b, os.WriteFile(conf, fmt.Appendf(nil,
		"ListenAddress 127.0.0.1:%s\nHostKey %s/host\nAuthorizedKeysFile %s/user.pub\nStrictModes no\nPidFile none\nUsePAM no\n"+
			"PermitRootLogin yes\nSubsystem sftp internal-sftp\n", port, dir, dir), 0o600))
	_ = os.MkdirAll("/run/sshd", 0o755)
	c := exec.Command(bin, "-f", conf, "-D", "-e")
	require.NoError(b, c.Start())
	b.Cleanup(func() { _ = c.Process.Kill(); _ = c.Wait() })
	answering(b, "127.0.0.1:"+port)
	return []string{"-F", "none", "-P", port, "-i", filepath.Join(dir, "user"), "-o", "StrictHostKeyChecking=no", "-o",
		"UserKnownHostsFile=/dev/null", "-o", "LogLevel=ERROR"}
}

func closedPort(b *testing.B) string {
	b.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(b, err)
	_, port, err := net.SplitHostPort(ln.Addr().String())
	require.NoError(b, err)
	require.NoError(b, ln.Close())
	return port
}

func answering(b *testing.B, address string) {
	b.Helper()
	require.Eventually(b, func() bool {
		conn, err := net.DialTimeout("tcp", address, time.Second)
		if err == nil {
			_ = conn.Close()
		}
		return err == nil
	}, 30*time.Second, 10*time.Millisecond, address)
}

// BenchmarkTCP compares raw connections into a session, through the proxy and all hops, with the same program on the loopback
// address, in turn: a stream of 4 GiB out of it, as much through an echo and back, which makes five busy processes of
// three, and messages of 128 bytes one after the other.
func BenchmarkTCP(b *testing.B) {
	p := up(b)
	const turns, messages = 7, 5_000
	c := p.client()
	s, err := c.CreateSession(b.Context(), api.CreateSession{Name: "echo", Image: "berth/web-demo:1",
		Config: api.SessionConfig{Resources: map[string]string{"cpu": "2", "mem": "256m"}}})
	require.NoError(b, err)
	demo := filepath.Join(b.TempDir(), "webdemo")
	run(b, "go", "build", "-o", demo, "../e2e/webdemo")
	web, echo := closedPort(b), closedPort(b)
	peer := exec.Command(demo, "--http", web, "--tcp", echo)
	require.NoError(b, peer.Start())
	b.Cleanup(func() { _ = peer.Process.Kill(); _ = peer.Wait() })
	webs := [2]string{publish(b, c, s.ID, "web", "tcp").Gateway, "127.0.0.1:" + web}
	echoes := [2]string{publish(b, c, s.ID, "echo", "tcp").Gateway, "127.0.0.1:" + echo}
	answering(b, webs[1])
	answering(b, echoes[1])
	var stream, back, turn [2][]time.Duration
	for range turns {
		for i := range echoes {
			stream[i] = append(stream[i], timed(func() { fetch(b, webs[i]) }))
			back[i] = append(back[i], timed(func() { bulk(b, echoes[i]) }))
			turn[i] = append(turn[i], timed(func() { pingPong(b, echoes[i], messages) }))
		}
	}
	rate := func(d time.Duration) float64 { return bulkBytes / 1e6 / d.Seconds() }
	fmt.Printf("tcp stream: %.0f MB/s, direct %.0f MB/s, ratio %.2f (1 is equal, more is better)\n",
		rate(median(stream[0])), rate(median(stream[1])), float64(median(stream[1]))/float64(median(stream[0])))
	fmt.Printf("tcp there and back: %.0f MB/s, direct %.0f MB/s, ratio %.2f\n",
		2*rate(median(back[0])), 2*rate(median(back[1])), float64(median(back[1]))/float64(median(back[0])))
	fmt.Printf("tcp message of 128 B: %.0f us, direct %.0f us\n",
		us(median(turn[0]))/messages, us(median(turn[1]))/messages)
}

// bulkBytes is what fetch and bulk move.
const bulkBytes = 4 << 30

// fetch reads a stream of a page's server. The head is some bytes more.
func fetch(b *testing.B, address string) {
	b.Helper()
	conn, err := net.Dial("tcp", address)
	require.NoError(b, err)
	defer conn.Close()
	_, err = fmt.Fprintf(conn, "GET /bytes?n=%d HTTP/1.0\r\n\r\n", bulkBytes)
	require.NoError(b, err)
	block, got := make([]byte, 1<<20), 0
	for err == nil {
		var n int
		n, err = conn.Read(block)
		got += n
	}
	require.ErrorIs(b, err, io.EOF)
	require.Greater(b, got, bulkBytes)
}

func bulk(b *testing.B, address string) {
	b.Helper()
	conn, err := net.Dial("tcp", address)
	require.NoError(b, err)
	defer conn.Close()
	go func() {
		block := make([]byte, 256<<10)
		for sent := 0; sent < bulkBytes; sent += len(block) {
			if _, err := conn.Write(block); err != nil {
				return
			}
		}
		_ = conn.(*net.TCPConn).CloseWrite()
	}()
	block, got := make([]byte, 256<<10), 0
	for {
		n, err := conn.Read(block)
		got += n
		if err != nil {
			break
		}
	}
	require.Equal(b, bulkBytes, got)
}

func pingPong(b *testing.B, address string, n int) {
	b.Helper()
	conn, err := net.Dial("tcp", address)
	require.NoError(b, err)
	defer conn.Close()
	m := make([]byte, 128)
	for range n {
		_, err := conn.Write(m)
		require.NoError(b, err)
		_, err = io.ReadFull(conn, m)
		require.NoError(b, err)
	}
}
