package runner_test

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"berth.dev/berth/internal/fault"
	"berth.dev/berth/internal/wire/run"
)

func TestExec(t *testing.T) {
	t.Parallel()
	b := start(t, config(t))
	s, err := b.c.Exec(ctx(t), run.ExecStart{Argv: []string{"sh", "-c", "echo $X; cat; echo err >&2; exit 7"},
		Env: map[string]string{"X": "env"}})
	require.NoError(t, err)
	big := bytes.Repeat([]byte("0123456789"), 300_000)
	go func() {
		_, _ = s.Write(big)
		_ = s.CloseInput()
	}()
	var out, errs bytes.Buffer
	exit, err := s.Wait(&out, &errs)
	require.NoError(t, err)
	require.Equal(t, run.Exit{Code: 7}, exit)
	require.Equal(t, "env\n"+string(big), out.String())
	require.Equal(t, "err\n", errs.String())
	s.Close()

	s, err = b.c.Exec(ctx(t), run.ExecStart{Argv: []string{"sh", "-c", "stty size; tty >/dev/null && echo tty"}, TTY: true, Rows: 33,
		Cols: 77})
	require.NoError(t, err)
	out.Reset()
	exit, err = s.Wait(&out, nil)
	require.NoError(t, err)
	require.Equal(t, 0, exit.Code)
	require.Equal(t, "33 77\r\ntty\r\n", out.String())
	s.Close()

	s, err = b.c.Exec(ctx(t), run.ExecStart{Argv: []string{"no-such-program"}})
	require.NoError(t, err)
	exit, err = s.Wait(nil, nil)
	require.NoError(t, err)
	require.Equal(t, 127, exit.Code)
	require.Contains(t, exit.Error, "not found")
	s.Close()
	_, err = b.c.Exec(ctx(t), run.ExecStart{})
	require.Error(t, err)
}

// TestExitReachesWhoStillWrites: the exit is read late, after the caller has written to a command that takes no input.
func TestExitReachesWhoStillWrites(t *testing.T) {
	t.Parallel()
	b := start(t, config(t))
	for program, code := range map[string]int{"true": 0, "no-such-program": 127} {
		s, err := b.c.Exec(ctx(t), run.ExecStart{Argv: []string{program}})
		require.NoError(t, err)
		// More than the connection's buffers hold: it ends when the runner has read it, or has closed the connection.
		_, err = s.Write(make([]byte, 8<<20))
		require.NoError(t, err, program)
		exit, err := s.Wait(nil, nil)
		require.NoError(t, err, program)
		require.Equal(t, code, exit.Code)
		s.Close()
	}
}

func TestExecEndsWithItsStream(t *testing.T) {
	t.Parallel()
	b := start(t, config(t))
	s, err := b.c.Exec(ctx(t), run.ExecStart{Argv: []string{"sh", "-c", "echo $$; exec sleep 600"}})
	require.NoError(t, err)
	f, err := s.Recv()
	require.NoError(t, err)
	pid := 0
	_, err = fmt.Sscan(string(f.Data), &pid)
	require.NoError(t, err)
	s.Close()
	require.Eventually(t, func() bool { return syscall.Kill(pid, 0) == syscall.ESRCH }, patience, 5*time.Millisecond,
		"the command goes on without its stream")
	s, err = b.c.Exec(ctx(t), run.ExecStart{Argv: []string{"sleep", "600"}})
	require.NoError(t, err)
	require.NoError(t, s.Send(run.Frame{Type: run.FrameSignal, Data: []byte("INT")}))
	exit, err := s.Wait(nil, nil)
	require.NoError(t, err)
	require.Equal(t, run.Exit{Code: 130, Signal: 2}, exit)
	s.Close()
}

// TestStreamsEndThoughNobodyTakesTheInput: the caller's end is seen behind what it had sent.
func TestStreamsEndThoughNobodyTakesTheInput(t *testing.T) {
	t.Parallel()
	cfg := config(t)
	cfg.Limits.MaxStreams = 1
	b := start(t, cfg)
	stuck := func(s *run.Stream) {
		t.Helper()
		go func() { _, _ = s.Write(make([]byte, 4<<20)) }()
		for {
			f, err := s.Recv()
			require.NoError(t, err)
			if f.Type == run.FramePong {
				break
			}
		}
		s.Close()
	}
	var s *run.Stream
	again := func(open func() (*run.Stream, error)) {
		t.Helper()
		require.Eventually(t, func() (ok bool) {
			var err error
			s, err = open()
			return err == nil
		}, patience, 5*time.Millisecond, "the stream before holds its place")
	}
	again(func() (*run.Stream, error) {
		return b.c.Exec(ctx(t), run.ExecStart{Argv: []string{"sh", "-c", "echo $$; exec sleep 600"}})
	})
	f, err := s.Recv()
	require.NoError(t, err)
	pid := 0
	_, err = fmt.Sscan(string(f.Data), &pid)
	require.NoError(t, err)
	stuck(s)
	require.Eventually(t, func() bool { return syscall.Kill(pid, 0) == syscall.ESRCH }, patience, 5*time.Millisecond,
		"the command goes on without its stream")
	again(func() (*run.Stream, error) { return b.c.PTY(ctx(t), run.PTYStart{}) })
	_, err = s.Write([]byte("stty raw -echo; echo ready$((4+4)); exec sleep 600\n"))
	require.NoError(t, err)
	expect(t, s, "ready8")
	stuck(s)
	again(func() (*run.Stream, error) { return b.c.PTY(ctx(t), run.PTYStart{}) })
	s.Close()
}

// expect reads a terminal's output until it holds want.
func expect(t *testing.T, s *run.Stream, want string) string {
	t.Helper()
	var got strings.Builder
	for {
		f, err := s.Recv()
		require.NoError(t, err, "so far: %q", got.String())
		if f.Type == run.FrameStdout {
			got.Write(f.Data)
		}
		if strings.Contains(got.String(), want) {
			return got.String()
		}
	}
}

func TestTerminal(t *testing.T) {
	t.Parallel()
	cfg := config(t)
	cfg.User.Shell = "/bin/sh"
	cfg.Limits.MaxTerminals = 2
	b := start(t, cfg)
	s, err := b.c.PTY(ctx(t), run.PTYStart{Rows: 40, Cols: 100})
	require.NoError(t, err)
	_, err = s.Write([]byte("X=kept; stty size; echo mark$((1+1))\n"))
	require.NoError(t, err)
	require.Contains(t, expect(t, s, "mark2"), "40 100")
	s.Close()

	s, err = b.c.PTY(ctx(t), run.PTYStart{})
	require.NoError(t, err)
	expect(t, s, "mark2") // the recent output comes first
	require.NoError(t, s.Resize(50, 120))
	_, err = s.Write([]byte("echo $X; stty size; echo mark$((2+2))\n"))
	require.NoError(t, err)
	got := expect(t, s, "mark4")
	require.Contains(t, got, "kept")
	require.Contains(t, got, "50 120")

	other, err := b.c.PTY(ctx(t), run.PTYStart{Terminal: "other"})
	require.NoError(t, err)
	_, err = other.Write([]byte("echo new$((3+3))$X\n"))
	require.NoError(t, err)
	require.NotContains(t, expect(t, other, "new6"), "kept")
	_, err = b.c.PTY(ctx(t), run.PTYStart{Terminal: "third"})
	require.Equal(t, fault.Exhausted, fault.KindOf(err))

	_, err = s.Write([]byte("exit 5\n"))
	require.NoError(t, err)
	exit, err := s.Wait(io.Discard, nil)
	require.NoError(t, err)
	require.Equal(t, 5, exit.Code)
	s.Close()
	s, err = b.c.PTY(ctx(t), run.PTYStart{Terminal: "other", Restart: true})
	require.NoError(t, err)
	_, err = s.Write([]byte("echo again$((4+4))\n"))
	require.NoError(t, err)
	require.NotContains(t, expect(t, s, "again8"), "new6")
	s.Close()
	other.Close()
}

func TestUpgradedStream(t *testing.T) {
	t.Parallel()
	b := start(t, config(t))
	conn, err := net.Dial("unix", b.cfg.Socket)
	require.NoError(t, err)
	defer conn.Close()
	require.NoError(t, conn.SetDeadline(time.Now().Add(time.Minute)))
	fmt.Fprintf(conn, "POST %s HTTP/1.1\r\nHost: r\r\nAuthorization: Bearer %s\r\nConnection: Upgrade\r\nUpgrade: %s\r\n\r\n", run.PathExec,
		token, run.UpgradeProtocol)
	in := bufio.NewReader(conn)
	line, err := in.ReadString('\n')
	require.NoError(t, err)
	require.Contains(t, line, "101")
	for line != "\r\n" {
		line, err = in.ReadString('\n')
		require.NoError(t, err)
	}
	require.NoError(t, run.WriteFrame(conn, run.JSONFrame(run.FrameStart, run.ExecStart{Argv: []string{"cat"}})))
	require.NoError(t, run.WriteFrame(conn, run.Frame{Type: run.FramePing, Data: []byte("p")}))
	require.NoError(t, run.WriteFrame(conn, run.Frame{Type: run.FrameStdin, Data: []byte("hello")}))
	require.NoError(t, run.WriteFrame(conn, run.Frame{Type: run.FrameStdinClose}))
	var types []run.FrameType
	for {
		f, err := run.ReadFrame(in)
		require.NoError(t, err)
		types = append(types, f.Type)
		if f.Type == run.FrameExit {
			break
		}
	}
	require.Equal(t, []run.FrameType{run.FrameReady, run.FramePong, run.FrameStdout, run.FrameExit}, types)
}

func TestAccess(t *testing.T) {
	t.Parallel()
	b := start(t, config(t))
	for _, bad := range []string{"", "wrong-token-0123456789", token + "x"} {
		_, err := run.NewClient(run.Options{Dial: run.UnixDialer(b.cfg.Socket), Token: bad}).Hello(ctx(t))
		require.Equal(t, fault.Unauthenticated, fault.KindOf(err))
		_, err = run.NewClient(run.Options{Dial: run.UnixDialer(b.cfg.Socket), Token: bad}).Exec(ctx(t), run.ExecStart{Argv: []string{"id"}})
		require.Error(t, err)
	}
	if os.Getuid() == 0 {
		s, err := b.c.Exec(ctx(t), run.ExecStart{Argv: []string{"cat", b.cfg.Dir + "/config.json"}})
		require.NoError(t, err)
		exit, err := s.Wait(nil, nil)
		require.NoError(t, err)
		require.NotZero(t, exit.Code, "the session's user must not read the token")
		s.Close()
		s, err = b.c.Exec(ctx(t), run.ExecStart{Argv: []string{"sh", "-c", "id -u; id -g; grep -i capeff /proc/self/status"}})
		require.NoError(t, err)
		var out bytes.Buffer
		_, err = s.Wait(&out, nil)
		require.NoError(t, err)
		require.Equal(t, "4242\n4243\nCapEff:\t0000000000000000\n", out.String())
		s.Close()
	}
}

func TestEndsAndReaps(t *testing.T) {
	t.Parallel()
	b := start(t, config(t))
	// Orphans are reaped: the runner is PID 1, or a subreaper here.
	r := b.shell("orphans", "for i in 1 2 3 4 5; do (sleep 0.01 & ) ; done; (setsid sleep 600 &); echo done")
	require.Equal(t, "done\n", r.stdout)
	require.Eventually(t, func() bool { return len(children(t, b.cmd.Process.Pid, "Z")) == 0 }, patience, 5*time.Millisecond)
	require.Equal(t, 0, b.query("warm", "pass").exit)
	require.NoError(t, b.c.Shutdown(ctx(t), time.Second))
	require.Equal(t, 0, b.wait())
}

// children lists the children of a process in a given state.
func children(t *testing.T, pid int, state string) []string {
	var out []string
	list, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%d/children", pid, pid))
	if err != nil {
		return nil
	}
	for _, c := range strings.Fields(string(list)) {
		stat, err := os.ReadFile("/proc/" + c + "/stat")
		if err == nil && strings.Contains(string(stat), ") "+state+" ") {
			out = append(out, c)
		}
	}
	return out
}
