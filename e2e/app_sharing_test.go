package e2e_test

import (
	"bufio"
	"encoding/json"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// change changes a circuit; fields are JSON.
func (c *console) change(id, fields string) {
	c.t.Helper()
	c.send(200, "PATCH", "/apps/circuits/"+id, fields)
}

// tryEnter asks for a code of one's own to a circuit that somebody else published.
func (c *console) tryEnter(id string) (p published, status int) {
	c.t.Helper()
	status, text := c.try("POST", "/apps/circuits/"+id+"/enter", "{}")
	if status != 200 {
		return p, status
	}
	var reply struct {
		URL string `json:"url"`
	}
	require.NoError(c.t, json.Unmarshal([]byte(text), &reply), text)
	scheme, rest, _ := strings.Cut(reply.URL, "://")
	host, _, _ := strings.Cut(rest, "/")
	return published{Enter: reply.URL, Base: scheme + "://" + host}, status
}

// TestSharedApps: a private app is its owner's, a shared one theirs with whom it is shared, a public one everybody's; what is
// taken back ends within moments, on open connections too.
func TestSharedApps(t *testing.T) {
	t.Parallel()
	p := up(t)
	demo := p.demo("demo")
	owner := newConsole(t, p.env())
	friend, stranger := newConsole(t, p.member("friend")), newConsole(t, p.member("stranger"))
	for _, mode := range modes {
		t.Run(mode, func(t *testing.T) {
			owner, friend, stranger := *owner, *friend, *stranger
			owner.t, friend.t, stranger.t = t, t, t
			sharing(t, &owner, &friend, &stranger, demo, mode)
		})
	}
	t.Run("another user cannot publish or see apps of the session", func(t *testing.T) {
		status, _ := stranger.try("POST", "/session/"+demo+"/start-service", `{"app":"web"}`)
		require.Contains(t, []int{403, 404}, status)
		status, text := stranger.try("GET", "/apps/circuits?session="+demo, "")
		require.True(t, status == 403 || status == 404 || strings.TrimSpace(text) == "[]", "%d %s", status, text)
	})
	p.must("session", "rm", "--yes", "demo")
	p.clean()
}

func sharing(t *testing.T, owner, friend, stranger *console, demo, mode string) {
	app := owner.launch(demo, "web", "mode="+mode)
	row := owner.circuit(demo, app)
	require.Equal(t, mode, row.Mode)
	require.False(t, row.Public)
	self := newVisitor(t, "").enters(app)
	self.sees(app.Base)

	anonymous := newVisitor(t, "")
	anonymous.shut(app.Base + "/headers")
	_, status := friend.tryEnter(row.ID)
	require.Contains(t, []int{403, 404}, status, "an app that is not shared")

	t.Log("a code works once")
	again := newVisitor(t, "")
	status, _, _ = again.get(app.Enter)
	require.NotEqual(t, 200, status, "a code is redeemed twice")
	again.shut(app.Base + "/headers")

	t.Log("shared with a user")
	owner.change(row.ID, `{"shared_users":["friend@berth.local"]}`)
	entered, status := friend.tryEnter(row.ID)
	require.Equal(t, 200, status)
	guest := newVisitor(t, "").enters(entered)
	guest.sees(app.Base)
	_, status = stranger.tryEnter(row.ID)
	require.Contains(t, []int{403, 404}, status, "shared with somebody else")
	anonymous.shut(app.Base + "/headers")
	status, _ = friend.try("PATCH", "/apps/circuits/"+row.ID, `{"public":true}`)
	require.Contains(t, []int{403, 404}, status, "a guest changes who may enter")

	t.Log("taken back from the user")
	stream := guest.streams(app.Base)
	owner.change(row.ID, `{"shared_users":[]}`)
	stream.ends()
	guest.eventually("the guest is out", func() bool { status, _, _ := guest.get(app.Base + "/headers"); return status != 200 })
	// All tickets of the circuit end, the owner's too, who may have a new one.
	self.enters(owner.launch(demo, "web", "mode="+mode)).sees(app.Base)

	t.Log("shared with a project")
	owner.change(row.ID, `{"shared_projects":["default"]}`)
	entered, status = stranger.tryEnter(row.ID)
	require.Equal(t, 200, status)
	newVisitor(t, "").enters(entered).sees(app.Base)
	owner.change(row.ID, `{"shared_projects":[]}`)

	t.Log("public")
	owner.change(row.ID, `{"public":true}`)
	anonymous.eventually("anybody may enter", func() bool { status, _, _ := anonymous.get(app.Base + "/headers"); return status == 200 })
	stream = anonymous.streams(app.Base)
	owner.change(row.ID, `{"public":false}`)
	stream.ends()
	anonymous.eventually("nobody else may enter", func() bool { status, _, _ := anonymous.get(app.Base + "/headers"); return status != 200 })
	self.enters(owner.launch(demo, "web", "mode="+mode)).sees(app.Base)

	t.Log("limited to addresses")
	owner.change(row.ID, `{"public":true,"allowed_client_ips":["127.0.0.9"]}`)
	self.eventually("other addresses may not enter, the owner neither",
		func() bool { status, _, _ := self.get(app.Base + "/headers"); return status == 403 })
	newVisitor(t, "127.0.0.9").sees(app.Base)
	owner.change(row.ID, `{"public":false,"allowed_client_ips":[]}`)

	t.Log("all tickets revoked")
	again = newVisitor(t, "").enters(owner.launch(demo, "web", "mode="+mode))
	stream = again.streams(app.Base)
	owner.change(row.ID, `{"revoke_tickets":true}`)
	stream.ends()
	again.eventually("the ticket is void", func() bool { status, _, _ := again.get(app.Base + "/headers"); return status != 200 })

	t.Log("closed")
	again = newVisitor(t, "").enters(owner.launch(demo, "web", "mode="+mode))
	stream = again.streams(app.Base)
	owner.send(204, "DELETE", "/apps/circuits/"+row.ID, "")
	stream.ends()
	require.NotContains(t, owner.circuits(demo), row)
}

// stream is an open stream of events.
type stream struct {
	t     testing.TB
	ended chan struct{}
}

// streams opens the stream of events of the web demo at base, which has no end of its own.
func (v *visitor) streams(base string) stream {
	v.t.Helper()
	client := *v.client
	client.Timeout = 0
	r, err := http.NewRequestWithContext(v.t.Context(), "GET", base+"/sse?every=50", nil)
	require.NoError(v.t, err)
	resp, err := client.Do(r)
	require.NoError(v.t, err)
	require.Equal(v.t, 200, resp.StatusCode)
	lines := bufio.NewReader(resp.Body)
	_, err = lines.ReadString('\n')
	require.NoError(v.t, err)
	s := stream{v.t, make(chan struct{})}
	go func() {
		_, _ = io.Copy(io.Discard, lines)
		_ = resp.Body.Close()
		close(s.ended)
	}()
	v.t.Cleanup(func() { _ = resp.Body.Close() })
	return s
}

func (s stream) ends() {
	s.t.Helper()
	select {
	case <-s.ended:
	case <-time.After(patience):
		s.t.Fatal("an open connection outlives its right")
	}
}
