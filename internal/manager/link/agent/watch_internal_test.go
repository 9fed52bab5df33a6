package agent

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"log/slog"
	"math/big"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"berth.dev/berth/internal/chassis"
	"berth.dev/berth/internal/fault"
	"berth.dev/berth/internal/manager/link/ca"
	"berth.dev/berth/internal/testkit/await"
)

// fakeCertificates answers as the test says, and tells what was asked.
type fakeCertificates struct {
	ended string
	err   error // of Ended and Counts
	void  map[ca.Node]bool
	asked int // Counts
}

func (f *fakeCertificates) Ended(context.Context) (string, error) { return f.ended, f.err }

func (f *fakeCertificates) Counts(_ context.Context, n ca.Node, _ string) error {
	f.asked++
	if f.void[n] {
		return fault.New(fault.Unauthenticated, "void")
	}
	return f.err
}

// beats is a clock whose ticker the test drives. A tick is taken once what the one before caused is over.
type beats struct {
	chassis.Clock
	c chan time.Time
}

func (b beats) NewTicker(time.Duration) chassis.Ticker { return beatTicker(b) }

type beatTicker struct {
	chassis.Clock
	c chan time.Time
}

func (t beatTicker) C() <-chan time.Time { return t.c }
func (beatTicker) Stop()                 {}
func (beatTicker) Reset(time.Duration)   {}

func shows(name string) tls.ConnectionState {
	leaf := &x509.Certificate{Subject: pkix.Name{CommonName: name}, SerialNumber: big.NewInt(7)}
	return tls.ConnectionState{PeerCertificates: []*x509.Certificate{leaf}, VerifiedChains: [][]*x509.Certificate{{leaf}}}
}

func TestWatchAsksRarely(t *testing.T) {
	t.Parallel()
	w, certs := newWatch(), &fakeCertificates{void: map[ca.Node]bool{}}
	var ended []string
	add := func(name string) *member { return w.add(shows(name), func(error) { ended = append(ended, name) }) }
	add("a1")
	add("a1") // its other connection
	web := add("appproxy:web")
	require.Nil(t, add("manager:m1"), "managers have no records")
	require.Nil(t, w.add(tls.ConnectionState{}, nil), "nor have strangers")
	(*member)(nil).leave()

	clock := beats{Clock: chassis.RealClock(), c: make(chan time.Time)}
	// run lets the watch live for some heartbeats and returns when it is over.
	run := func(heartbeats int) {
		ctx, stop := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() {
			w.run(ctx, clock, time.Second, certs, slog.New(slog.DiscardHandler))
			close(done)
		}()
		for range heartbeats {
			await.Return(t, func() { clock.c <- time.Time{} })
		}
		stop()
		await.Value(t, done)
	}
	run(lookAnyway - 1)
	require.Zero(t, certs.asked, "nothing ended")
	run(lookAnyway + 1)
	require.Equal(t, 2, certs.asked, "each certificate once, now and then")

	certs.asked, certs.void[ca.Node{Role: ca.RoleAgent, Name: "a1"}] = 0, true
	certs.ended = "1"
	run(2)
	require.Equal(t, []string{"a1", "a1"}, ended)
	web.leave()
	certs.asked, certs.ended, certs.void = 0, "2", map[ca.Node]bool{}
	run(2)
	require.Equal(t, 1, certs.asked, "who left is not asked about")

	// What could not be found out is asked again with the next heartbeat.
	require.True(t, w.look(t.Context(), certs, slog.New(slog.DiscardHandler)))
	certs.err = fault.Unavailablef("no database")
	require.False(t, w.look(t.Context(), certs, slog.New(slog.DiscardHandler)))
}
