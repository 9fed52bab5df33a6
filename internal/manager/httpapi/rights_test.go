package httpapi_test

import (
	"context"
	"io"
	"testing"
	"time"

	"github.com/coder/websocket"
	"github.com/stretchr/testify/require"

	"berth.dev/berth/api"
	"berth.dev/berth/internal/manager/httpapi"
	"berth.dev/berth/internal/testkit/await"
)

// looking makes the handler of a site examine the rights of requests that last, as a manager does.
func looking(t *testing.T, a *httpapi.API) {
	t.Helper()
	ctx, stop := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { defer close(done); _ = a.Run(ctx) }()
	t.Cleanup(func() { stop(); await.Value(t, done) })
}

// Streams end soon after what admitted them is gone: server-sent events and WebSockets alike.
func TestStreamsEndWithTheirRight(t *testing.T) {
	t.Parallel()
	for what, change := range map[string]string{
		"a revoked key":         `UPDATE keypairs SET is_active = false`,
		"an inactive user":      `UPDATE users SET status = 'inactive'`,
		"an inactive domain":    `UPDATE domains SET is_active = false`,
		"another role":          `UPDATE users SET role = 'user'`,
		"a list of addresses":   `UPDATE users SET allowed_client_ip = '{10.0.0.0/8}'`,
		"a list with junk":      `UPDATE users SET allowed_client_ip = '{junk}'`,
		"a key of other rights": `UPDATE keypairs SET is_admin = NOT is_admin`,
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			c := newCell(t)
			looking(t, c.site.api)
			c.running("term-one")
			conn := c.dial("/stream/session/term-one/pty")
			r := c.request("GET", "/events/session?sessionName=*", "", "")
			api.SignRequest(r, string(c.site.admin.AccessKey), c.site.admin.SecretKey.Reveal(), time.Now())
			resp, err := client.Do(r)
			require.NoError(t, err)
			defer resp.Body.Close()
			require.Equal(t, 200, resp.StatusCode)
			ended := make(chan struct{})
			go func() {
				defer close(ended)
				buf := make([]byte, 1024)
				for {
					if _, err := resp.Body.Read(buf); err != nil {
						return
					}
				}
			}()

			_, err = c.store.Pool().Exec(t.Context(), change)
			require.NoError(t, err)
			await.Value(t, ended)
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			for {
				if _, _, err = conn.Read(ctx); err != nil {
					break
				}
			}
			require.Equal(t, websocket.StatusPolicyViolation, websocket.CloseStatus(err), "%v", err)
		})
	}
}

// A change that takes nothing from a stream leaves it open.
func TestStreamsOutliveOtherChanges(t *testing.T) {
	t.Parallel()
	c := newCell(t)
	looking(t, c.site.api)
	c.running("term-one")
	conn := c.dial("/stream/session/term-one/pty")
	for _, change := range []string{
		`UPDATE users SET full_name = 'Ada'`, `UPDATE users SET allowed_client_ip = '{127.0.0.0/8}'`, `UPDATE keypairs SET rate_limit = 30000`,
	} {
		_, err := c.store.Pool().Exec(t.Context(), change)
		require.NoError(t, err)
	}
	require.True(t, httpapi.CheckRights(t.Context(), c.site.api))
	require.NoError(t, conn.Write(t.Context(), websocket.MessageText, []byte(`{"type":"stdin","chars":"ZWNobyAkKCg2KjcpKQo="}`)))
	require.Equal(t, "out", c.read(conn)["type"])
}

// A stream that a login opened ends with the login, whether by logout or because the password changed.
func TestStreamsEndWithTheirLogin(t *testing.T) {
	t.Parallel()
	c := newCell(t)
	looking(t, c.site.api)
	stream := func() (l api.Login, ended chan struct{}) {
		l = c.site.login("")
		r := c.request("GET", "/events/session?sessionName=*", "", "")
		r.Header.Set("Authorization", api.LoginScheme+" "+l.SessionToken)
		resp, err := client.Do(r)
		require.NoError(t, err)
		t.Cleanup(func() { _ = resp.Body.Close() })
		require.Equal(t, 200, resp.StatusCode)
		ended = make(chan struct{})
		go func() { defer close(ended); _, _ = io.Copy(io.Discard, resp.Body) }()
		return l, ended
	}
	l, ended := stream()
	_, other := stream()
	require.Equal(t, 200, c.site.post("/auth/logout", `{"session_token":"`+l.SessionToken+`"}`).status)
	await.Value(t, ended)
	select {
	case <-other:
		t.Fatal("a stream ended with the login of another one")
	default:
	}
	_, err := c.store.Pool().Exec(t.Context(), `UPDATE users SET password_changed_at = now()`)
	require.NoError(t, err)
	await.Value(t, other)
}
