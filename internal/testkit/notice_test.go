package testkit_test

import (
	"io"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"berth.dev/berth/api/notice"
	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/manager"
	"berth.dev/berth/internal/testkit"
	"berth.dev/berth/internal/testkit/await"
)

// TestNotices: what happens to a session reaches its user's webhook by the manager's own loop, and the package for receivers finds it
// genuine.
func TestNotices(t *testing.T) {
	t.Parallel()
	type received struct {
		signature string
		body      []byte
	}
	got := make(chan received, 10)
	receiver := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(io.LimitReader(r.Body, 1<<20))
		got <- received{r.Header.Get(notice.HeaderSignature), body}
	}))
	t.Cleanup(receiver.Close)
	c := testkit.New(t, testkit.Options{Manager: func(m *manager.Config) { m.Callbacks.AllowPrivate = true }})
	set, err := notice.Set(t.Context(), c.Client(), notice.PreferenceChange{WebhookURL: receiver.URL,
		WebhookKinds: []string{"ended", "failed"}})
	require.NoError(t, err)

	id := c.Batch("nightly", `print("fine")`)
	require.Equal(t, cluster.ResultSuccess, c.Ended(id).Result)
	r := await.Value(t, got)
	m, err := notice.Verify(set.WebhookSecret, r.signature, r.body, time.Now())
	require.NoError(t, err)
	require.Equal(t, "ended", m.Kind)
	require.Equal(t, &notice.Subject{Kind: "session", ID: string(id), Name: "nightly"}, m.Subject)
	require.Equal(t, string(cluster.ReasonTaskFinished), m.Reason)
	c.Until("the manager knows that it arrived", func() bool {
		list, err := notice.List(t.Context(), c.Client())
		require.NoError(t, err)
		return len(list.Items) == 1 && list.Items[0].State == "sent" && list.Items[0].ID == m.ID
	})
	_, err = notice.Try(t.Context(), c.Client(), "webhook")
	require.NoError(t, err)
	r = await.Value(t, got)
	m, err = notice.Verify(set.WebhookSecret, r.signature, r.body, time.Now())
	require.NoError(t, err)
	require.Equal(t, "test", m.Kind)
	require.Nil(t, m.Subject)
}
