package httpapi_test

import (
	"net/http"
	"testing"

	"github.com/stretchr/testify/require"

	"berth.dev/berth/api/notice"
)

// Everybody sets where they hear of what, and nobody sees what others set. A secret is in the answer that made it alone.
func TestNotices(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	eve := s.user("eve", "user", true)
	g := recordAnswers(t, "notice")
	g.ask(s, "GET", "/notices/preferences", "")
	made := g.ask(s, "PUT", "/notices/preferences",
		`{"email_kinds":["failed"],"webhook_url":"https://hooks.example.org/x","webhook_kinds":["shared","ended"]}`)
	var first notice.Preferences
	made.into(t, &first)
	require.Regexp(t, `^bwhs_`, first.WebhookSecret)
	again := g.ask(s, "GET", "/notices/preferences", "")
	require.NotContains(t, again.body, "bwhs_")
	g.ask(s, "PUT", "/notices/preferences", `{"webhook_url":"file:///etc/passwd"}`)
	g.ask(s, "PUT", "/notices/preferences", `{"email_kinds":["everything"]}`)
	g.ask(s, "POST", "/notices/test", `{"channel":"webhook"}`)
	g.ask(s, "POST", "/notices/test", `{"channel":"email"}`)
	list := s.call("GET", "/notices", "")
	var sent notice.Deliveries
	list.into(t, &sent)
	require.Len(t, sent.Items, 1)
	require.Equal(t, "test", sent.Items[0].Kind)
	g.ask(s, "GET", "/notices", "")
	for range 4 {
		require.Equal(t, http.StatusAccepted, s.call("POST", "/notices/test", `{"channel":"webhook"}`).status)
	}
	g.ask(s, "POST", "/notices/test", `{"channel":"webhook"}`)
	g.compare()

	var hers notice.Preferences
	eve.call("GET", "/notices/preferences", "").into(t, &hers)
	require.Empty(t, hers.WebhookURL)
	var none notice.Deliveries
	eve.call("GET", "/notices", "").into(t, &none)
	require.Empty(t, none.Items)
	require.Equal(t, http.StatusBadRequest, eve.call("POST", "/notices/test", `{"channel":"webhook"}`).status)
}
