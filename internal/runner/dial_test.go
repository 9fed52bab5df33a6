package runner_test

import (
	"context"
	"io"
	"net"
	"net/http"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"berth.dev/berth/internal/fault"
	"berth.dev/berth/internal/testkit/address"
	"berth.dev/berth/internal/testkit/await"
	"berth.dev/berth/internal/wire/run"
	"berth.dev/berth/internal/wire/tunnel"
)

// echo serves one address until the test ends.
func echo(t *testing.T, address string) (port int) {
	l, err := net.Listen("tcp", address)
	if err != nil {
		t.Skipf("this machine has no %s: %v", address, err)
	}
	t.Cleanup(func() { _ = l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				_, _ = io.Copy(c, c)
			}()
		}
	}()
	return l.Addr().(*net.TCPAddr).Port
}

// dial opens a tunnel to a port, carried when that is wanted.
func (b *box) dial(port string, carried bool) (net.Conn, error) {
	b.t.Helper()
	c, err := net.Dial("unix", b.cfg.Socket)
	require.NoError(b.t, err)
	if carried {
		c = struct{ net.Conn }{c}
	}
	within, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	conn, err := tunnel.Open(within, c, run.PathDial+"?port="+port, http.Header{"Authorization": {"Bearer " + token}})
	if err == nil {
		b.t.Cleanup(func() { _ = conn.Close() })
		_ = conn.SetDeadline(time.Now().Add(patience))
	}
	return conn, err
}

func TestDialReachesPortsOfTheContainer(t *testing.T) {
	b := start(t, config(t))
	hello, err := b.c.Hello(ctx(t))
	require.NoError(t, err)
	require.Contains(t, hello.Capabilities, run.CanDial)
	for _, address := range []string{"127.0.0.1:0", "[::1]:0"} {
		for name, carried := range map[string]bool{"handed over": false, "carried": true} {
			t.Run(address+" "+name, func(t *testing.T) {
				port := echo(t, address)
				conn, err := b.dial(strconv.Itoa(port), carried)
				require.NoError(t, err)
				_, isTCP := conn.(*net.TCPConn)
				require.Equal(t, !carried, isTCP, "%T", conn)
				_, err = io.WriteString(conn, "over and out")
				require.NoError(t, err)
				if half, ok := conn.(interface{ CloseWrite() error }); ok {
					require.NoError(t, half.CloseWrite())
				} else {
					require.NoError(t, conn.(struct{ net.Conn }).Conn.(*net.UnixConn).CloseWrite())
				}
				back, err := io.ReadAll(conn)
				require.NoError(t, err)
				require.Equal(t, "over and out", string(back))
			})
		}
	}
}

func TestAnAppThatEndsItsHalfFirstIsHeardOn(t *testing.T) {
	b := start(t, config(t))
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer l.Close()
	heard := make(chan string, 1)
	go func() {
		c, err := l.Accept()
		if err != nil {
			return
		}
		defer c.Close()
		_ = c.(*net.TCPConn).CloseWrite()
		all, _ := io.ReadAll(c)
		heard <- string(all)
	}()
	conn, err := b.dial(strconv.Itoa(l.Addr().(*net.TCPAddr).Port), true)
	require.NoError(t, err)
	_, err = conn.Read(make([]byte, 1))
	require.ErrorIs(t, err, io.EOF)
	_, err = io.WriteString(conn, "still here")
	require.NoError(t, err)
	require.NoError(t, conn.Close())
	require.Equal(t, "still here", await.Value(t, heard))
}

func TestDialSaysWhyNot(t *testing.T) {
	b := start(t, config(t))
	_, free, err := net.SplitHostPort(address.Hold(t))
	require.NoError(t, err)
	_, err = b.dial(free, false)
	require.True(t, fault.Is(err, fault.Unavailable), "%v", err)
	require.Equal(t, "app-refused", fault.ReasonOf(err))
	require.NotEmpty(t, fault.NextOf(err))
	for _, port := range []string{"", "0", "65536", "-1", "http", "80x"} {
		_, err = b.dial(port, false)
		require.True(t, fault.Is(err, fault.Invalid), "%q: %v", port, err)
	}
	req, err := http.NewRequest(http.MethodPost, "http://runner"+run.PathDial+"?port=80", nil)
	require.NoError(t, err)
	req.Header.Set("Authorization", "Bearer "+token)
	client := http.Client{Transport: &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return run.UnixDialer(b.cfg.Socket)(ctx)
	}}, Timeout: time.Minute}
	defer client.CloseIdleConnections()
	resp, err := client.Do(req)
	require.NoError(t, err)
	require.NoError(t, resp.Body.Close())
	require.Equal(t, http.StatusBadRequest, resp.StatusCode)
}
