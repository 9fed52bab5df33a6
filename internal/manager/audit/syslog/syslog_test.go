package syslog_test

import (
	"bufio"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"berth.dev/berth/internal/fault"
	"berth.dev/berth/internal/manager/audit"
	"berth.dev/berth/internal/manager/audit/syslog"
	"berth.dev/berth/internal/manager/managertest"
	"berth.dev/berth/internal/manager/store"
)

// receiver takes messages of streams until it is stopped.
type receiver struct {
	l    net.Listener
	work sync.WaitGroup
	mu   sync.Mutex
	got  []string
}

func receive(t *testing.T, l net.Listener) *receiver {
	r := &receiver{l: l}
	r.work.Go(func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			r.work.Go(func() { r.serve(conn) })
		}
	})
	t.Cleanup(r.stop)
	return r
}

func (r *receiver) serve(conn net.Conn) {
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(30 * time.Second))
	in := bufio.NewReader(conn)
	for {
		size, err := in.ReadString(' ')
		if err != nil {
			return
		}
		n, err := strconv.Atoi(strings.TrimSpace(size))
		if err != nil {
			return
		}
		text := make([]byte, n)
		if _, err := io.ReadFull(in, text); err != nil {
			return
		}
		r.mu.Lock()
		r.got = append(r.got, string(text))
		r.mu.Unlock()
	}
}

func (r *receiver) stop() { _ = r.l.Close(); r.work.Wait() }

func (r *receiver) messages() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return append([]string{}, r.got...)
}

type world struct {
	*managertest.World
	pass func() (time.Duration, error)
}

// export begins the export of a new cluster to an address.
func export(t *testing.T, w *managertest.World, change func(*syslog.Config)) *world {
	t.Helper()
	c := syslog.DefaultConfig()
	change(&c)
	require.NoError(t, c.Validate())
	loops := syslog.Loops(c, w.Store, w.Audit, "manager one")
	require.Len(t, loops, 1)
	work := loops[0].Begin(w.Term())
	x := &world{World: w, pass: func() (time.Duration, error) { return work.Pass(t.Context()) }}
	x.passes()
	return x
}

func (w *world) passes() time.Duration {
	w.T.Helper()
	wait, err := w.pass()
	require.NoError(w.T, err)
	return wait
}

// sends makes passes until the receiver has so many messages. A transaction of another database of the server, such as another test's, can
// hold entries up for a moment.
func (w *world) sends(r *receiver, n int) {
	w.T.Helper()
	managertest.Soon(w.T, fmt.Sprint(n, " entries are sent"), func() bool {
		w.passes()
		return len(r.messages()) >= n
	})
}

// entry does something that is recorded.
func (w *world) entry(object string) {
	w.T.Helper()
	ctx, end := audit.Begin(w.T.Context(), w.Store, w.Admin, "user.modify", object)
	err := w.Store.Tx(ctx, func(ctx context.Context, tx *store.Tx) error {
		_, err := tx.DB().Exec(ctx, `UPDATE users SET description = $1 WHERE id = $2`, object, string(w.Admin.UserID))
		return err
	})
	end(&err)
	require.NoError(w.T, err)
}

// objects are what messages tell of, in order.
func objects(t *testing.T, messages []string) (out []string) {
	t.Helper()
	for _, m := range messages {
		var e struct{ Object string }
		require.NoError(t, json.Unmarshal([]byte(m[strings.Index(m, "] {")+2:]), &e), m)
		out = append(out, e.Object)
	}
	return out
}

// listen listens at an address, also at one that keep has.
func listen(t *testing.T, address string) net.Listener {
	t.Helper()
	c := net.ListenConfig{Control: func(_, _ string, c syscall.RawConn) (err error) {
		failed := c.Control(func(fd uintptr) { err = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_REUSEPORT, 1) })
		return errors.Join(failed, err)
	}}
	l, err := c.Listen(t.Context(), "tcp", address)
	require.NoError(t, err)
	return l
}

// keep returns an address that nobody else gets until the test ends. A socket has it that does not listen: who connects is refused.
func keep(t *testing.T) (address string) {
	t.Helper()
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	require.NoError(t, err)
	t.Cleanup(func() { _ = unix.Close(fd) })
	require.NoError(t, unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEPORT, 1))
	require.NoError(t, unix.Bind(fd, &unix.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}))
	at, err := unix.Getsockname(fd)
	require.NoError(t, err)
	return fmt.Sprint("127.0.0.1:", at.(*unix.SockaddrInet4).Port)
}

// TestReceiverThatIsAway: entries wait for a receiver that is away, doctor says so, and nothing is lost or sent twice over its return and
// over another leader.
func TestReceiverThatIsAway(t *testing.T) {
	t.Parallel()
	address := keep(t)
	r := receive(t, listen(t, address))
	w := managertest.New(t)
	x := export(t, w, func(c *syslog.Config) { c.Address = "tcp://" + address })
	x.entry("one")
	x.sends(r, 1)
	require.Equal(t, []string{"one"}, objects(t, r.messages()))
	require.Regexp(t, regexp.MustCompile(`^<109>1 \d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z managerone berth - user\.modify `+
		`\[audit@32473 id="\d+" action="user\.modify" `+
		`object="one" result="done" user="[^"]+" domain="default"\] \{"id":\d+,.*"table":"users".*\}$`), r.messages()[0])

	r.stop()
	for i := range 3 {
		x.entry(fmt.Sprint("away ", i))
	}
	managertest.Soon(t, "it waits longer", func() bool { return x.passes() > time.Second })
	findings, err := w.Operations.Findings(t.Context())
	require.NoError(t, err)
	require.Len(t, findings, 1)
	require.Equal(t, "audit-export-waits", findings[0].Kind)
	require.Contains(t, findings[0].Detail, "3 entries wait")
	require.Contains(t, findings[0].Detail, "refused")

	r = receive(t, listen(t, address))
	again := export(t, w, func(c *syslog.Config) { c.Address = "tcp://" + address }) // by another leader
	again.sends(r, 3)
	require.Equal(t, []string{"away 0", "away 1", "away 2"}, objects(t, r.messages()))
	again.passes()
	require.Len(t, r.messages(), 3, "and not again")
	findings, err = w.Operations.Findings(t.Context())
	require.NoError(t, err)
	require.Empty(t, findings)
}

// TestEntriesThatAreLate: an entry whose transaction ends after that of a later one is not passed over.
func TestEntriesThatAreLate(t *testing.T) {
	t.Parallel()
	r := receive(t, listen(t, "127.0.0.1:0"))
	w := managertest.New(t)
	x := export(t, w, func(c *syslog.Config) { c.Address = "tcp://" + r.l.Addr().String() })
	slow, err := w.Store.Pool().Begin(t.Context())
	require.NoError(t, err)
	defer func() { _ = slow.Rollback(context.WithoutCancel(t.Context())) }()
	_, err = slow.Exec(t.Context(), `INSERT INTO audit_log (entry, action, object, result, user_id, email, role, domain_name, access_key,
address, request_id)
VALUES (gen_random_uuid(), 'x.y', 'slow', 'done', '', '', '', '', '', '', '')`)
	require.NoError(t, err)
	x.entry("quick")
	x.passes()
	require.Empty(t, r.messages(), "the later one waits for the earlier one")
	require.NoError(t, slow.Commit(t.Context()))
	x.sends(r, 2)
	require.Equal(t, []string{"slow", "quick"}, objects(t, r.messages()))
}

// TestManyEntries go in bounded batches, in order; a manager that was deposed stores nothing.
func TestManyEntries(t *testing.T) {
	t.Parallel()
	r := receive(t, listen(t, "127.0.0.1:0"))
	w := managertest.New(t)
	x := export(t, w, func(c *syslog.Config) { c.Address = "tcp://" + r.l.Addr().String() })
	w.Exec(`INSERT INTO audit_log (entry, action, object, result, reason, user_id, email, role, domain_name, access_key, address, request_id)
SELECT gen_random_uuid(), 'x.y', 'e' || n, 'denied', 'no "right" \ ]', '', '', '', '', '', '', '' FROM generate_series(1, 450) n`)
	managertest.Soon(t, "there are more", func() bool { return x.passes() == 0 })
	require.Len(t, r.messages(), 200)
	x.sends(r, 450)
	got := objects(t, r.messages())
	require.Len(t, got, 450)
	require.Equal(t, []string{"e1", "e450"}, []string{got[0], got[449]})
	require.True(t, strings.HasPrefix(r.messages()[0], "<108>1 "), "what was denied is a warning")

	x.entry("last")
	w.Exec(`UPDATE cluster_settings SET value = jsonb_set(value, '{token}', to_jsonb((value->>'token')::bigint + 1)) WHERE key = 'leader'`)
	_, err := x.pass()
	require.True(t, err == nil || fault.Is(err, fault.Conflict), "%v", err)
	var sent int64
	require.NoError(t, w.Store.Pool().QueryRow(t.Context(),
		`SELECT count(*) FROM audit_log a, audit_exports e WHERE (a.tx, a.id) > (e.tx, e.id)`).Scan(&sent))
	require.EqualValues(t, 1, sent, "its place is not stored")
}

func TestKindsOfReceivers(t *testing.T) {
	t.Parallel()
	t.Run("tls", func(t *testing.T) {
		t.Parallel()
		cert, ca := certificate(t)
		l, err := tls.Listen("tcp", "127.0.0.1:0", &tls.Config{Certificates: []tls.Certificate{cert}})
		require.NoError(t, err)
		r := receive(t, l)
		w := managertest.New(t)
		x := export(t, w, func(c *syslog.Config) { c.Address, c.CA = "tls://"+l.Addr().String(), ca })
		x.entry("secret")
		x.sends(r, 1)
		require.Equal(t, []string{"secret"}, objects(t, r.messages()))
		stranger := export(t, w, func(c *syslog.Config) { c.Address = "tls://" + l.Addr().String() })
		stranger.entry("not for strangers")
		stranger.passes()
		require.Len(t, r.messages(), 1, "an unknown certificate gets nothing")
	})
	for _, kind := range []string{"udp", "unix"} {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			var conn net.PacketConn
			var err error
			address := ""
			if kind == "udp" {
				conn, err = net.ListenPacket("udp", "127.0.0.1:0")
				require.NoError(t, err)
				address = "udp://" + conn.LocalAddr().String()
			} else {
				dir, derr := os.MkdirTemp("", "sl")
				require.NoError(t, derr)
				t.Cleanup(func() { os.RemoveAll(dir) })
				file := filepath.Join(dir, "log")
				conn, err = net.ListenPacket("unixgram", file)
				require.NoError(t, err)
				address = "unix://" + file
			}
			defer conn.Close()
			x := export(t, managertest.New(t), func(c *syslog.Config) { c.Address = address })
			x.entry("gram")
			buffer, n := make([]byte, 64<<10), 0
			managertest.Soon(t, "a datagram comes", func() bool {
				x.passes()
				require.NoError(t, conn.SetReadDeadline(time.Now().Add(10*time.Millisecond)))
				n, _, err = conn.ReadFrom(buffer)
				return err == nil
			})
			require.Equal(t, []string{"gram"}, objects(t, []string{string(buffer[:n])}))
		})
	}
}

func TestConfigIsStrict(t *testing.T) {
	t.Parallel()
	for _, bad := range []func(*syslog.Config){
		func(c *syslog.Config) { c.Address = "syslog.example.org:514" },
		func(c *syslog.Config) { c.Address = "http://example.org:80" },
		func(c *syslog.Config) { c.Address = "tcp://example.org" },
		func(c *syslog.Config) { c.Address = "tcp://user@example.org:514" },
		func(c *syslog.Config) { c.Address = "unix://log" },
		func(c *syslog.Config) { c.Address, c.CA = "tcp://example.org:514", "/ca" },
		func(c *syslog.Config) { c.CA = "/ca" },
		func(c *syslog.Config) { c.Facility = 24 },
		func(c *syslog.Config) { c.MaxMessage = 100 },
		func(c *syslog.Config) { c.Address, c.MaxMessage = "udp://example.org:514", 1<<20 },
	} {
		c := syslog.DefaultConfig()
		bad(&c)
		err := c.Validate()
		require.Equal(t, fault.Invalid, fault.KindOf(err), "%+v", c)
		require.NotEmpty(t, fault.NextOf(err))
	}
	require.Empty(t, syslog.Loops(syslog.DefaultConfig(), nil, nil, ""))
}

// certificate makes a certificate of 127.0.0.1 and the file that verifies it.
func certificate(t *testing.T) (tls.Certificate, string) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	template := &x509.Certificate{SerialNumber: big.NewInt(1), NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, IsCA: true, BasicConstraintsValid: true}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	require.NoError(t, err)
	file := filepath.Join(t.TempDir(), "ca.pem")
	require.NoError(t, os.WriteFile(file, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), 0o600))
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}, file
}
