package cli

import (
	"encoding/json"
	"net/http"
	"testing"

	"github.com/stretchr/testify/require"

	"berth.dev/berth/api/notice"
	"berth.dev/berth/internal/cli/frame"
)

// noticeRoutes keep the preferences of the one user.
func (f *fakeManager) noticeRoutes(handle func(pattern string, h func(w http.ResponseWriter, r *http.Request))) {
	now := notice.Preferences{Kinds: []string{"ended", "failed", "idle", "shared"}, Email: "ada@x.org",
		NoEmail: "this cluster sends no e-mail", EmailKinds: []string{}, WebhookKinds: []string{}}
	handle("GET /notices/preferences", func(w http.ResponseWriter, _ *http.Request) { reply(w, 200, now) })
	handle("PUT /notices/preferences", func(w http.ResponseWriter, r *http.Request) {
		var c notice.PreferenceChange
		_ = json.NewDecoder(r.Body).Decode(&c)
		shown := now
		shown.EmailKinds, shown.WebhookKinds, shown.WebhookURL = c.EmailKinds, c.WebhookKinds, c.WebhookURL
		if c.NewSecret || c.WebhookURL != "" && c.WebhookURL != now.WebhookURL {
			shown.WebhookSecret = "bwhs_told-once"
		}
		now = shown
		now.WebhookSecret = ""
		reply(w, 200, shown)
	})
	handle("POST /notices/test", func(w http.ResponseWriter, r *http.Request) {
		var c notice.Trial
		_ = json.NewDecoder(r.Body).Decode(&c)
		if c.Channel != "webhook" {
			problem(w, 400, "invalid-api-params", c.Channel+" is no way for notices", "use email or webhook")
			return
		}
		reply(w, 202, notice.Tried{ID: "n1"})
	})
	handle("GET /notices", func(w http.ResponseWriter, _ *http.Request) {
		reply(w, 200, notice.Deliveries{Items: []notice.Delivery{
			{ID: "n2", Channel: "webhook", Kind: "failed", State: "waiting", Error: "the receiver answered 503", Text: "Session a failed."},
			{ID: "n1", Channel: "email", Kind: "ended", State: "sent", Text: "Session b has ended."}}})
	})
}

func TestNotices(t *testing.T) {
	t.Parallel()
	b := setup(t)
	o := b.do(t, "", "notice", "show")
	require.Equal(t, "e-mail:  ada@x.org (this cluster sends no e-mail)\n         nothing\nwebhook: none\n         nothing\n", o.out)

	o = b.do(t, "", "notice", "set", "--webhook-url", "https://x.org/hook", "--webhook", "all", "--email", "failed, idle")
	require.Equal(t, frame.ExitOK, o.code, o.err)
	require.Equal(t, "bwhs_told-once\n", o.out, "the secret alone")
	require.Contains(t, o.err, "no e-mail is sent: this cluster sends no e-mail")
	o = b.do(t, "", "notice", "set", "--webhook", "shared")
	require.Equal(t, frame.ExitOK, o.code, o.err)
	require.Empty(t, o.out)
	require.Equal(t, "e-mail:  ada@x.org (this cluster sends no e-mail)\n         failed, idle\n"+
		"webhook: https://x.org/hook\n         shared\n",
		b.do(t, "", "notice", "show").out, "what is not named stays")
	require.Equal(t, "bwhs_told-once\n", b.do(t, "", "notice", "set", "--new-secret").out)
	o = b.do(t, "", "notice", "set", "--webhook-url", "", "--email", "none", "--json")
	require.Contains(t, o.out, `"webhook_url": ""`)
	require.Contains(t, o.out, `"webhook_kinds": []`)

	require.Equal(t, "n1\n", b.do(t, "", "notice", "test", "webhook").out)
	o = b.do(t, "", "notice", "test", "pigeon")
	require.NotEqual(t, frame.ExitOK, o.code)
	require.Contains(t, o.err, "use email or webhook")
	require.Equal(t, frame.ExitUsage, b.do(t, "", "notice", "test").code)

	o = b.do(t, "", "notice", "list")
	require.Regexp(t, `failed +webhook +waiting: the receiver answered 503 +Session a failed\.`, o.out)
	require.Regexp(t, `ended +email +sent +Session b has ended\.`, o.out)
	require.Contains(t, b.do(t, "", "notice", "list", "--json").out, `"id": "n2"`)
}
