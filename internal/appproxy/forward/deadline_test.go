package forward

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"testing"
	"time"

	"github.com/coder/websocket"
	"github.com/stretchr/testify/require"
)

// hours makes every limit far longer than a test and an hour apart from the others: none passes by itself, and each can be told apart.
func hours(c *Config) {
	c.HeaderTimeout, c.IdleTimeout, c.StallTimeout, c.ResponseTimeout = time.Hour, 2*time.Hour, 3*time.Hour, 4*time.Hour
}

// visit is the rig's only connection.
func (r *rig) visit() (v *visit) {
	r.e.connsMu.Lock()
	defer r.e.connsMu.Unlock()
	if len(r.e.conns) == 1 {
		for v = range r.e.conns {
		}
	}
	return v
}

// late waits until the rig's only connection has waited in a phase for some time, at most limit. Then it makes the engine look as if that
// limit was reached, which changes nothing, and as if it had passed. A connection that moved meanwhile did not wait yet: after the machine
// stood still for a while, the engine's clock is ahead of what moves.
func (r *rig) late(p phase, limit, since time.Duration) {
	r.t.Helper()
	for {
		var v *visit
		var s int64
		until(r.t, fmt.Sprintf("it waits in phase %d", p), func() bool {
			if v = r.visit(); v == nil {
				return false
			}
			s = v.state.Load()
			left := time.Duration(s&^phaseMask - r.e.now.Load())
			return phase(s&phaseMask) == p && left > limit-time.Hour && left <= limit-since
		})
		r.e.sweep(s &^ phaseMask)
		now := v.state.Load()
		require.NotEqual(r.t, int64(expired), now, "too early")
		if now == s {
			r.e.sweep(s&^phaseMask + 1)
			return
		}
	}
}

func TestDeadlines(t *testing.T) {
	r := newRig(t, hours)
	limits := r.e.cfg
	hang := make(chan struct{})
	defer close(hang)
	r.app("app", canned("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"))
	r.app("silent", func(c net.Conn) {
		b := bufio.NewReader(c)
		_, _ = http.ReadRequest(b)
		_, _ = io.Copy(io.Discard, b)
	})
	r.app("deaf", func(c net.Conn) { <-hang })
	r.app("flood", func(c net.Conn) {
		_, _ = http.ReadRequest(bufio.NewReader(c))
		_, _ = io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Length: 1000000000\r\n\r\n")
		_, _ = io.CopyN(c, zeros{}, 1e9)
	})
	for _, one := range []struct {
		what, text  string
		p           phase
		limit       time.Duration
		want, words string
	}{
		{"slow head", "GET / HTTP/1.1\r\nHos", phaseHead, limits.HeaderTimeout, "408 Request Timeout", ""},
		{"nothing at all", "", phaseIdle, limits.HeaderTimeout, "", ""},
		{"nothing more", "GET / HTTP/1.1\r\nHost: app\r\n\r\n", phaseIdle, limits.IdleTimeout, "200 OK", ""},
		{"an app that never answers", get("silent", "/"), phaseWait, limits.ResponseTimeout, "504 Gateway Timeout",
			"The app did not answer in time."},
		{"slow body", "POST / HTTP/1.1\r\nHost: silent\r\nContent-Length: 10\r\n\r\nabc", phaseUpload, limits.StallTimeout,
			"408 Request Timeout", ""},
	} {
		c := r.conn()
		_, err := io.WriteString(c, one.text)
		require.NoError(t, err)
		r.late(one.p, one.limit, 0)
		answer, err := io.ReadAll(c)
		require.NoError(t, err, one.what)
		require.Equal(t, one.want, status(string(answer)), one.what)
		require.Contains(t, string(answer), one.words, one.what)
		require.NoError(t, c.Close())
		until(t, "it has left", func() bool { return r.e.Live().Connections == 0 })
	}
	// For a second nothing has moved: what lies between the two ends of a body is full.
	c := r.conn()
	go func() {
		_, _ = io.WriteString(c, "POST / HTTP/1.1\r\nHost: deaf\r\nContent-Length: 100000000\r\n\r\n")
		_, _ = io.CopyN(c, zeros{}, 1e8)
	}()
	r.late(phaseSend, limits.StallTimeout, time.Second)
	line, err := bufio.NewReader(c).ReadString('\n')
	require.NoError(t, err)
	require.Equal(t, "HTTP/1.1 504 Gateway Timeout\r\n", line, "an app that does not read")
	require.NoError(t, c.Close())
	until(t, "it has left", func() bool { return r.e.Live().Connections == 0 })
	c = r.conn()
	_, err = io.WriteString(c, "GET / HTTP/1.1\r\nHost: flood\r\n\r\n")
	require.NoError(t, err)
	r.late(phaseStall, limits.StallTimeout, time.Second)
	until(t, "a visitor who does not read is put out", func() bool { return r.e.Live().Connections == 0 })
}

// TestDeadlinesPass: the engine sees by itself that each of the limits has passed. The others are hours.
func TestDeadlinesPass(t *testing.T) {
	const short = 50 * time.Millisecond
	for _, one := range []struct {
		what, text string
		change     func(*Config)
	}{
		{"header", "", func(c *Config) { c.HeaderTimeout = short }},
		{"idle", "GET / HTTP/1.1\r\nHost: app\r\n\r\n", func(c *Config) { c.IdleTimeout = short }},
		{"stall", "POST / HTTP/1.1\r\nHost: app\r\nContent-Length: 10\r\n\r\nabc", func(c *Config) { c.StallTimeout = short }},
		{"response", get("silent", "/"), func(c *Config) { c.ResponseTimeout = short }},
		{"lifetime", "", func(c *Config) { c.Lifetime = short }},
	} {
		r := newRig(t, func(c *Config) { hours(c); one.change(c) })
		r.app("app", canned("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"))
		r.app("silent", func(c net.Conn) { _, _ = io.Copy(io.Discard, c) })
		c := r.conn()
		_, err := io.WriteString(c, one.text)
		require.NoError(t, err)
		_, err = io.Copy(io.Discard, c)
		require.NotErrorIs(t, err, os.ErrDeadlineExceeded, one.what)
	}
}

func TestLifetime(t *testing.T) {
	r := newRig(t, func(c *Config) { hours(c); c.Lifetime = time.Hour })
	r.server("app", http.HandlerFunc(echoSockets))
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	c, _, err := websocket.Dial(ctx, "ws://app/", &websocket.DialOptions{HTTPClient: r.client()})
	require.NoError(t, err)
	defer c.CloseNow()
	end := r.visit().opened + int64(time.Hour)
	r.e.sweep(end)
	require.NoError(t, c.Write(ctx, websocket.MessageText, []byte("still here")))
	_, text, err := c.Read(ctx)
	require.NoError(t, err)
	require.Equal(t, "still here", string(text))
	r.e.sweep(end + 1)
	_, _, err = c.Read(ctx)
	require.Error(t, err)
	require.NoError(t, ctx.Err(), "the engine ended it")
}
