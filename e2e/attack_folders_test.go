package e2e_test

import (
	"io"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// transferTicket is a token of a storage proxy and where it is used.
type transferTicket struct{ Token, URL string }

func (k transferTicket) address() string { return k.URL + "?token=" + url.QueryEscape(k.Token) }

// ticket asks for a token as a client does; it has to get one.
func (c *console) ticket(folder, verb, body string) (k transferTicket) {
	c.t.Helper()
	c.into(&k, 200, "POST", "/folders/"+folder+"/"+verb, body)
	require.NotEmpty(c.t, k.Token)
	return k
}

// uses brings a token to its proxy and returns the status.
func (k transferTicket) uses(t *testing.T, method string, offset string, body string) int {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), method, k.address(), strings.NewReader(body))
	require.NoError(t, err)
	if method != "GET" {
		r.Header.Set("Tus-Resumable", "1.0.0")
		r.Header.Set("Content-Type", "application/offset+octet-stream")
		r.Header.Set("Upload-Offset", offset)
	}
	resp, err := http.DefaultClient.Do(r)
	require.NoError(t, err)
	defer resp.Body.Close()
	_, _ = io.Copy(io.Discard, resp.Body)
	return resp.StatusCode
}

// TestAttackFolders is somebody who had access to a folder, kept the tokens, and lost the access.
func TestAttackFolders(t *testing.T) {
	t.Parallel()
	p := up(t)
	owner := newConsole(t, p.env())
	mallory := newConsole(t, p.member("mallory"))
	const size = 32 << 20
	p.onDisk("loot")
	owner.upload("loot", "big", strings.Repeat("loot", size/4))
	p.onDisk("other")
	owner.upload("other", "f", "other")
	share := func(folder string) {
		owner.send(201, "POST", "/folders/"+folder+"/invite", `{"permission":"rw","emails":["mallory@berth.local"]}`)
		var open struct{ Invitations []struct{ ID string } }
		mallory.into(&open, 200, "GET", "/folders/invitations/list", "")
		require.Len(t, open.Invitations, 1)
		mallory.send(200, "POST", "/folders/invitations/accept", `{"inv_id":"`+open.Invitations[0].ID+`"}`)
	}
	// tokens are a download and an upload under way, both of which work now.
	tokens := func(who *console, folder, file string) (down, up transferTicket) {
		down = who.ticket(folder, "request-download", `{"path":"`+file+`"}`)
		require.Equal(t, 200, down.uses(t, "GET", "", ""))
		up = who.ticket(folder, "request-upload", `{"path":"planted","size":8}`)
		require.Equal(t, 204, up.uses(t, "PATCH", "0", "half"))
		return down, up
	}
	shut := func(what string, down, up transferTicket) {
		t.Helper()
		began := time.Now()
		for _, use := range []func() int{
			func() int { return down.uses(t, "GET", "", "") }, func() int { return up.uses(t, "HEAD", "", "") },
			func() int { return up.uses(t, "PATCH", "4", "half") },
		} {
			require.Eventually(t, func() bool { return use() == 403 }, patience, 5*time.Millisecond, what)
		}
		t.Logf("%s: both tokens are refused after %s at most", what, time.Since(began).Round(time.Millisecond))
	}

	share("loot")
	down, up := tokens(mallory, "loot", "big")
	// A download that is slow enough to be caught.
	slow, err := http.Get(down.address())
	require.NoError(t, err)
	defer slow.Body.Close()
	_, err = io.ReadFull(slow.Body, make([]byte, 1000))
	require.NoError(t, err)
	ownersDown, ownersUp := tokens(owner, "loot", "big")
	owner.send(200, "DELETE", "/folders/loot/unshare", `{"emails":["mallory@berth.local"]}`)
	shut("unshared", down, up)
	rest, err := io.ReadAll(slow.Body)
	require.Error(t, err, "the running download breaks off")
	require.Less(t, len(rest), size-1000)
	require.Equal(t, 200, ownersDown.uses(t, "GET", "", ""), "the owner's tokens go on")

	owner.send(204, "DELETE", "/folders/loot", "")
	shut("trashed", ownersDown, ownersUp)

	share("other")
	down, up = tokens(mallory, "other", "f")
	p.sql("UPDATE users SET status = 'inactive' WHERE username = 'mallory'")
	shut("inactive user", down, up)
	p.sql("UPDATE users SET status = 'active' WHERE username = 'mallory'")
	require.Equal(t, 403, down.uses(t, "GET", "", ""), "an old token stays dead")
	down, up = tokens(mallory, "other", "f")
	p.sql("UPDATE domains SET is_active = false WHERE name = 'default'")
	shut("inactive domain", down, up)
	p.sql("UPDATE domains SET is_active = true WHERE name = 'default'")
	require.Contains(t, p.must("folder", "ls", "other:"), "f")
	require.NotContains(t, p.must("folder", "ls", "other:"), "planted")

	// A proxy that hears nothing of managers refuses within a minute; one that hears again goes on. The proxy of this cluster is in
	// the same process as its manager, so the package tests show that part.
	p.must("folder", "rm", "--yes", "other")
	p.clean()
}
