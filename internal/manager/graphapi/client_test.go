package graphapi_test

import (
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"berth.dev/berth/api"
)

// transport hands requests to a handler.
type transport struct{ http.Handler }

func (h transport) RoundTrip(r *http.Request) (*http.Response, error) {
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w.Result(), nil
}

// TestTheClientAsksForWhatThereIs runs the queries of the Go client, which are made of the members of its types: a member
// that the schema does not know is an error.
func TestTheClientAsksForWhatThereIs(t *testing.T) {
	t.Parallel()
	d := newDesk(t)
	id := uuid.NewString()
	_, err := d.store.Pool().Exec(t.Context(), `INSERT INTO sessions (id, name, type, domain_name, project_id, user_id, access_key,
			resource_group, image, status, requested_slots, tag)
		SELECT $1, 'lab', 'interactive', 'default', p.id, k.user_id, k.access_key, 'default', 'img', 'RUNNING', '{"cpu":1000}', 'blue'
			FROM keypairs k, projects p LIMIT 1`, id)
	require.NoError(t, err)
	_, err = d.store.Pool().Exec(t.Context(), `INSERT INTO agents (id, status, resource_group) VALUES ('a1', 'ALIVE', 'default')`)
	require.NoError(t, err)
	c, err := api.New(api.Config{Endpoint: "http://manager", AccessKey: "k", SecretKey: "s"}, api.WithTransport(transport{d.handler}))
	require.NoError(t, err)

	sessions, err := c.Sessions(t.Context(), api.SessionFilter{Name: "lab"})
	require.NoError(t, err)
	require.Len(t, sessions, 1)
	require.Equal(
		t, []string{id, "lab", "blue", "default"}, []string{sessions[0].ID, sessions[0].Name, *sessions[0].Tag, sessions[0].ResourceGroup},
	)
	details, err := c.Session(t.Context(), id)
	require.NoError(t, err)
	require.Equal(t, sessions[0], details.Session)
	agents, err := c.Agents(t.Context(), "")
	require.NoError(t, err)
	require.Len(t, agents, 1)
	agent, err := c.Agent(t.Context(), "a1")
	require.NoError(t, err)
	require.Equal(t, "a1", agent.ID)
	_, err = c.Images(t.Context())
	require.NoError(t, err)
	_, err = c.ResourceGroups(t.Context())
	require.NoError(t, err)
	k, err := c.Keypair(t.Context())
	require.NoError(t, err)
	require.Equal(t, string(d.admin.AccessKey), k.AccessKey)
}
