package e2e_test

import (
	"bytes"
	"fmt"
	"net"
	"os"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"berth.dev/berth/internal/agent/wireguard"
	"berth.dev/berth/internal/testkit/await"
)

// encryptedSession is the part of TestSessionsOverTwoAgents that has an encrypted network: kernels on two hosts reach each other, nothing
// of it is on the wire in clear, and connections live on while an agent is killed.
func (l *lan) encryptedSession(t *testing.T, create func(name string, size int) string) {
	if err := wireguard.Supported(); err != nil {
		t.Skipf("%v", err)
	}
	l.must("resource-group", "set", "default", "--encrypted-networks")
	require.Contains(t, l.must("scheduler", "network", "default"), "encrypted")
	w := l.watch(t)
	id := create("sealed", 3)
	names := []string{"main1", "sub1", "sub2"}
	from, to := l.apart(id, names)
	require.NotEmpty(t, from)
	require.NotEmpty(t, to)
	l.serve(id, to, "i-am-"+to)
	say := l.talk(id, from, to)
	say()
	require.Equal(t, to, strings.TrimSpace(l.must("session", "exec", "--kernel", from, "sealed", "--", "ssh", to, "hostname")))
	w.clean(t)

	h, _ := l.kernel(id, from)
	killed(t, h.process.Process.Pid)
	out, err := l.in(id, from, "timeout 2 bash -c 'read w </dev/tcp/"+to+"/7000'")
	require.Error(t, err, "there is no way while the agent is down: %s", out)
	l.startAgent(h)
	say() // when the agent is back
	w.clean(t)

	l.must("resource-group", "set", "default", "--encrypted-networks=false")
	say() // what runs stays as it is
	w.clean(t)
	l.must("session", "rm", "sealed")
}

// wireTap counts what passes the switch.
type wireTap struct {
	mu     sync.Mutex
	sealed int
	clear  []string
	spoken bool
	to     string // a host beyond the switch
	marks  int
}

// watch looks at all packets of the switch until the test ends.
func (l *lan) watch(t *testing.T) *wireTap {
	t.Helper()
	const all = unix.ETH_P_ALL
	fd := make(chan int, 1)
	go func() {
		runtime.LockOSThread()
		own, err := os.Open("/proc/thread-self/ns/net")
		if err != nil {
			fd <- -1
			return
		}
		defer own.Close()
		space, err := os.Open("/run/netns/" + l.id + "sw")
		if err != nil {
			fd <- -1
			return
		}
		defer space.Close()
		if unix.Setns(int(space.Fd()), unix.CLONE_NEWNET) != nil {
			fd <- -1
			return
		}
		s, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, all<<8)
		if err != nil {
			s = -1
		}
		// Without this the thread would end with the goroutine; the first thread of a process cannot, and stays where it is.
		if unix.Setns(int(own.Fd()), unix.CLONE_NEWNET) == nil {
			runtime.UnlockOSThread()
		}
		fd <- s
	}()
	s := await.Value(t, fd)
	require.Positive(t, s, "the switch cannot be looked at")
	require.NoError(t, unix.SetsockoptTimeval(s, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Usec: 50_000}))
	w, end, ended := &wireTap{to: lanAddress + ".10:9"}, make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		b := make([]byte, 1<<16)
		for {
			if n, _, err := unix.Recvfrom(s, b, 0); err == nil {
				w.note(b[:n])
				continue
			}
			select {
			case <-end:
				return
			default:
			}
		}
	}()
	t.Cleanup(func() { close(end); <-ended; _ = unix.Close(s) })
	return w
}

func (w *wireTap) note(p []byte) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.spoken = w.spoken || bytes.Contains(p, []byte(spoken))
	if len(p) < 42 || p[12] != 8 || p[13] != 0 || p[23] != unix.IPPROTO_UDP {
		return
	}
	switch int(p[36])<<8 | int(p[37]) {
	case 4798:
		w.sealed++
	case 9:
		w.marks++
	case 4799:
		w.clear = append(w.clear, fmt.Sprintf("%x", p[26:42]))
	}
}

// clean fails when something was in clear among what has been sent so far. All of it has been seen when a mark that comes after it has.
func (w *wireTap) clean(t *testing.T) {
	t.Helper()
	w.mu.Lock()
	before := w.marks
	w.mu.Unlock()
	require.Eventually(t, func() bool {
		if c, err := net.Dial("udp4", w.to); err == nil {
			_, _ = c.Write([]byte("mark")) // nobody listens
			_ = c.Close()
		}
		w.mu.Lock()
		defer w.mu.Unlock()
		return w.marks > before
	}, 30*time.Second, 20*time.Millisecond)
	w.mu.Lock()
	defer w.mu.Unlock()
	require.NotZero(t, w.sealed)
	require.Empty(t, w.clear, "VXLAN is on the wire in clear")
	require.False(t, w.spoken, "what kernels say is on the wire in clear")
}
