package transfer

import (
	"context"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// A server of transfers takes BBR from connections that stay on this machine.
func TestTransfersWithinAMachineAreNotPaced(t *testing.T) {
	var lc net.ListenConfig
	lc.Control = func(_, _ string, raw syscall.RawConn) (err error) {
		cerr := raw.Control(func(fd uintptr) { err = unix.SetsockoptString(int(fd), unix.IPPROTO_TCP, unix.TCP_CONGESTION, "bbr") })
		if cerr != nil {
			return cerr
		}
		return err
	}
	l, err := lc.Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Skipf("this machine has no BBR to take away: %v", err)
	}
	srv := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		raw, err := connOf(r).SyscallConn()
		if err == nil {
			err = raw.Control(func(fd uintptr) {
				name, _ := unix.GetsockoptString(int(fd), unix.IPPROTO_TCP, unix.TCP_CONGESTION)
				w.Header().Set("Control", name)
			})
		}
		if err != nil {
			w.WriteHeader(http.StatusInternalServerError)
		}
	}))
	_ = srv.Listener.Close()
	srv.Listener = l
	new(Server).Configure(srv.Config)
	srv.Start()
	defer srv.Close()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, srv.URL, nil)
	require.NoError(t, err)
	res, err := srv.Client().Do(req)
	require.NoError(t, err)
	_ = res.Body.Close()
	require.Equal(t, http.StatusOK, res.StatusCode)
	require.NotEmpty(t, res.Header.Get("Control"))
	require.False(t, strings.HasPrefix(res.Header.Get("Control"), "bbr"))
}
