package admin_test

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/stretchr/testify/require"

	"berth.dev/berth/api"
	"berth.dev/berth/api/admin"
)

const page = `{"items":[{"id":7,"at":"2026-01-31T08:00:00Z","action":"user.rename","object":"ada@x","result":"denied",` +
	`"reason":"no","user_id":"u","email":"bob@x","role":"user","domain_name":"d","access_key":"AKIA","acting_for":"AKIB",` +
	`"token":"t","address":"10.0.0.7","request_id":"r","means":"password","attempts":3,` +
	`"changes":[{"table":"users","key":"u","before":{"full_name":"A"},"after":{"full_name":"B"}}],"change_count":1}],"total_count":1}`

// The members of an answer keep their names, and a query goes out as the manager reads it.
func TestAuditLog(t *testing.T) {
	t.Parallel()
	var asked string
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked = r.URL.Path + "?" + r.URL.Query().Encode()
		w.Header().Set("Content-Type", "application/json")
		_, _ = w.Write([]byte(page))
	}))
	t.Cleanup(server.Close)
	c, err := api.New(api.Config{Endpoint: server.URL, AccessKey: "AKIA", SecretKey: "s"})
	require.NoError(t, err)
	got, err := admin.AuditLog(t.Context(), c, admin.AuditQuery{Filter: `email == "a"`, Limit: 5, After: new(int64(6))})
	require.NoError(t, err)
	require.Equal(t, `/audit?after=6&filter=email+%3D%3D+%22a%22&limit=5`, asked)
	text, err := json.Marshal(got)
	require.NoError(t, err)
	require.JSONEq(t, page, string(text))
}
