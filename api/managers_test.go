package api_test

import (
	"fmt"
	"io"
	"mime"
	"mime/multipart"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/coder/websocket"
	"github.com/stretchr/testify/require"

	"berth.dev/berth/api"
	"berth.dev/berth/internal/testkit/address"
)

// desk is a manager that counts the requests that arrive.
type desk struct {
	*httptest.Server
	came atomic.Int32
	// drops makes it break the connection of every request instead of answering.
	drops atomic.Bool
}

func newDesk(t *testing.T, answer http.HandlerFunc) *desk {
	t.Helper()
	d := &desk{}
	d.Server = address.Serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		d.came.Add(1)
		if d.drops.Load() {
			conn, _, err := http.NewResponseController(w).Hijack()
			if err == nil {
				_ = conn.Close()
			}
			return
		}
		answer(w, r)
	}))
	return d
}

// pair is a client of two managers, which begins with the first.
func pair(t *testing.T, answer http.HandlerFunc) (c *api.Client, first, second *desk) {
	t.Helper()
	first, second = newDesk(t, answer), newDesk(t, answer)
	c, err := api.New(api.Config{Endpoint: first.URL, Others: []string{second.URL}, AccessKey: vectorAccess, SecretKey: vectorSecret})
	require.NoError(t, err)
	t.Cleanup(c.Close)
	return c, first, second
}

func empty(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, `{"data":{}}`) }

// TestAnotherManagerGetsWhatWasNotSent: nobody listens at the first address, so no request arrived there, whatever it does.
func TestAnotherManagerGetsWhatWasNotSent(t *testing.T) {
	t.Parallel()
	read := func(w http.ResponseWriter, r *http.Request) {
		_, params, err := mime.ParseMediaType(r.Header.Get("Content-Type"))
		if part, e := multipart.NewReader(r.Body, params["boundary"]).NextPart(); err == nil && e == nil {
			if text, _ := io.ReadAll(part); string(text) == "content" {
				return
			}
		}
		w.WriteHeader(http.StatusBadRequest)
	}
	for name, tc := range map[string]struct {
		answer http.HandlerFunc
		call   func(c *api.Client) error
	}{
		"get":  {empty, func(c *api.Client) error { _, err := c.SessionInfo(t.Context(), "x"); return err }},
		"post": {empty, func(c *api.Client) error { return c.InterruptSession(t.Context(), "x") }},
		"upload": {read, func(c *api.Client) error {
			return c.UploadFiles(t.Context(), "x", []api.Upload{{Path: "a", Open: func() (io.ReadCloser, error) {
				return io.NopCloser(strings.NewReader("content")), nil
			}}})
		}},
		"WebSocket": {
			func(w http.ResponseWriter, r *http.Request) {
				conn, err := websocket.Accept(w, r, nil)
				if err != nil {
					return
				}
				if _, _, err := conn.Read(r.Context()); err == nil {
					_ = conn.Write(r.Context(), websocket.MessageText, []byte(`{"status":"finished","exitCode":0}`))
				}
				_ = conn.CloseNow()
			},
			func(c *api.Client) error {
				s, err := c.Execute(t.Context(), "x", api.Execute{Mode: api.ModeQuery})
				if err != nil {
					return err
				}
				defer s.Close()
				_, err = s.Next(t.Context())
				return err
			},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c, first, second := pair(t, tc.answer)
			first.Close()
			require.NoError(t, tc.call(c))
			require.EqualValues(t, 1, second.came.Load())
		})
	}
}

// TestTheClientStaysWhereItIsAnswered: who answered last is asked first.
func TestTheClientStaysWhereItIsAnswered(t *testing.T) {
	t.Parallel()
	c, first, second := pair(t, empty)
	for range 3 {
		require.NoError(t, c.InterruptSession(t.Context(), "x"))
	}
	require.EqualValues(t, 3, first.came.Load())
	require.Zero(t, second.came.Load())
	first.drops.Store(true)
	_, err := c.SessionInfo(t.Context(), "x")
	require.NoError(t, err)
	before := first.came.Load()
	for range 3 {
		require.NoError(t, c.InterruptSession(t.Context(), "x"))
	}
	require.Equal(t, before, first.came.Load(), "it is not asked any more")
	require.EqualValues(t, 4, second.came.Load())
	second.Close()
	c.Close() // a request on a connection that is being closed fails
	first.drops.Store(false)
	require.NoError(t, c.InterruptSession(t.Context(), "x"), "the list goes round")
}

// TestWhatMayHaveArrivedIsNotSentTwice: the connection broke after the request was sent.
func TestWhatMayHaveArrivedIsNotSentTwice(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		again bool
		call  func(c *api.Client) error
	}{
		"get":   {true, func(c *api.Client) error { _, err := c.SessionInfo(t.Context(), "x"); return err }},
		"query": {true, func(c *api.Client) error { return c.GraphQL(t.Context(), "{ agent { id } }", nil, &struct{}{}) }},
		"post":  {false, func(c *api.Client) error { return c.InterruptSession(t.Context(), "x") }},
		"delete": {false, func(c *api.Client) error {
			_, err := c.DestroySession(t.Context(), "x", api.DestroyOptions{})
			return err
		}},
		"mutation": {false, func(c *api.Client) error {
			return c.GraphQL(t.Context(), "mutation { delete_agent { ok msg } }", nil, &struct{}{})
		}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c, first, second := pair(t, empty)
			first.drops.Store(true)
			err := tc.call(c)
			require.EqualValues(t, 1, first.came.Load())
			if tc.again {
				require.NoError(t, err)
				require.EqualValues(t, 1, second.came.Load())
				return
			}
			require.ErrorContains(t, err, first.URL, "it says which manager did not answer")
			require.Zero(t, second.came.Load())
			require.NoError(t, tc.call(c), "the next request goes to the other one")
			require.EqualValues(t, 1, second.came.Load())
		})
	}
}

// TestNoManagerAnswers: every manager is tried, a bounded number of times.
func TestNoManagerAnswers(t *testing.T) {
	t.Parallel()
	c, first, second := pair(t, empty)
	first.Close()
	second.Close()
	require.ErrorIs(t, c.InterruptSession(t.Context(), "x"), syscall.ECONNREFUSED)
	c, first, second = pair(t, empty)
	first.drops.Store(true)
	second.drops.Store(true)
	_, err := c.SessionInfo(t.Context(), "x")
	require.Error(t, err)
	require.EqualValues(t, 3, first.came.Load())
	require.EqualValues(t, 3, second.came.Load())
}
