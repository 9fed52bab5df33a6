package tunnel_test

import (
	"io"
	"net"
	"net/http"
	"os"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"berth.dev/berth/internal/testkit/await"
	"berth.dev/berth/internal/wire/tunnel"
)

// borrow opens a tunnel to a lender of connections to a. ended is closed when the lender has done with it.
func borrow(t *testing.T, a net.Listener) (conn net.Conn, loan *tunnel.Loan, ended <-chan struct{}) {
	t.Helper()
	l := listenUnix(t)
	loans, done := make(chan *tunnel.Loan, 1), make(chan struct{})
	var wg sync.WaitGroup
	srv := &http.Server{ReadHeaderTimeout: patience, Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		c, err := net.Dial(a.Addr().Network(), a.Addr().String())
		if err != nil {
			panic(err)
		}
		loan := tunnel.NewLoan(c)
		loans <- loan
		_, _, lent, err := tunnel.Lend(w, r, loan, true)
		if err != nil || !lent {
			panic("not lent")
		}
		wg.Go(func() { loan.Wait(); close(done) })
	})}
	wg.Go(func() { _ = srv.Serve(l) })
	conn = open(t, dial(t, l))
	require.IsType(t, &tunnel.Lent{}, conn)
	loan = await.Value(t, loans)
	t.Cleanup(func() { loan.TakeBack(); _ = srv.Close(); wg.Wait() })
	return conn, loan, done
}

// TestLent: the borrower talks to the app itself, and its end is the app's.
func TestLent(t *testing.T) {
	t.Parallel()
	a := app(t)
	conn, _, ended := borrow(t, a)
	require.Equal(t, a.Addr().String(), conn.RemoteAddr().String())
	talk(t, conn, 1<<20)
	require.NoError(t, conn.Close())
	await.Value(t, ended)
}

// TestTakenBack: the connection ends for the borrower and for whoever else has a descriptor of it.
func TestTakenBack(t *testing.T) {
	t.Parallel()
	conn, loan, ended := borrow(t, app(t))
	other, err := conn.(*tunnel.Lent).NetConn().(*net.TCPConn).File()
	require.NoError(t, err)
	defer other.Close()
	_, err = io.ReadFull(conn, make([]byte, len("hello\n")))
	require.NoError(t, err)
	loan.TakeBack()
	loan.TakeBack()
	await.Value(t, ended)
	_, err = io.Copy(io.Discard, conn)
	require.NotErrorIs(t, err, os.ErrDeadlineExceeded)
	_, err = other.WriteString("more")
	require.Error(t, err, "nothing more reaches the app")
}

// TestReleased: without the lender the connection is the borrower's alone.
func TestReleased(t *testing.T) {
	t.Parallel()
	conn, loan, ended := borrow(t, app(t))
	loan.Release()
	await.Value(t, ended)
	loan.TakeBack()
	talk(t, conn, 1<<16)
}

// TestWhoeverReturnsALoanKeepsNothing: a borrower may have passed the socket on.
func TestWhoeverReturnsALoanKeepsNothing(t *testing.T) {
	t.Parallel()
	conn, _, ended := borrow(t, app(t))
	kept, err := conn.(*tunnel.Lent).NetConn().(*net.TCPConn).File()
	require.NoError(t, err)
	defer kept.Close()
	require.NoError(t, conn.Close())
	await.Value(t, ended)
	_, err = kept.WriteString("more")
	require.Error(t, err, "nothing more reaches the app")
}

// TestBorrowersReset: the app sees an error where the borrower wants it to, and not an orderly end.
func TestBorrowersReset(t *testing.T) {
	t.Parallel()
	a, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer a.Close()
	seen := make(chan error, 1)
	var wg sync.WaitGroup
	defer wg.Wait()
	wg.Go(func() {
		c, err := a.Accept()
		if err == nil {
			_ = c.SetDeadline(time.Now().Add(patience))
			_, err = io.Copy(io.Discard, c)
			_ = c.Close()
		}
		seen <- err
	})
	conn, _, _ := borrow(t, a)
	require.NoError(t, conn.(*tunnel.Lent).NetConn().(*net.TCPConn).SetLinger(0))
	require.NoError(t, conn.Close())
	require.ErrorIs(t, await.Value(t, seen), syscall.ECONNRESET)
}
