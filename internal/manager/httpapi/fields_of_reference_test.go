package httpapi_test

import (
	"encoding/json"
	"net/http"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/pquerna/otp/totp"
	"github.com/stretchr/testify/require"

	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/manager/httpapi"
	"berth.dev/berth/internal/manager/nouns"
	"berth.dev/berth/internal/manager/seal"
	"berth.dev/berth/internal/manager/tenancy"
	"berth.dev/berth/internal/testkit/shape"
)

// TestFieldsOfReference makes each request that testdata/fields_of_reference.txt names, in its order, and looks for each member that
// official clients read of the answer, and for its JSON type. An answer may have more members.
func TestFieldsOfReference(t *testing.T) {
	t.Parallel()
	s := newSite(t, func(n *nouns.Deps, _ *httpapi.Deps) {
		n.SignUp = tenancy.SignUpPolicy{Domains: []string{"default"}, Active: true}
		n.LoginPolicy.PasswordMaxAge = 24 * time.Hour
	})
	s.held(uuid.NewString())
	users := map[string]*site{"superadmin": s, "domain-admin": s.user("dora", "admin", true), "user": s.user("adam", "user", true),
		"stranger": s.user("mallory", "user", false)}
	raw, err := os.ReadFile("testdata/fields_of_reference.txt")
	require.NoError(t, err)
	kept, before := "", ""
	for _, line := range strings.Split(strings.TrimSpace(string(raw)), "\n") {
		if strings.HasPrefix(line, "#") {
			continue
		}
		part := strings.SplitN(line, " | ", 6)
		require.Len(t, part, 6, line)
		fill := strings.NewReplacer("$kept", kept, "$before", before)
		if strings.Contains(part[3], "$otp") {
			code, err := totp.GenerateCode(kept, time.Now())
			require.NoError(t, err, line)
			fill = strings.NewReplacer("$otp", code)
		}
		method, target, ok := strings.Cut(fill.Replace(part[2]), " ")
		require.True(t, ok, line)
		body := fill.Replace(strings.TrimPrefix(part[3], "-"))
		var a answer
		if part[1] == "nobody" {
			a = s.send(s.request(method, target, "application/json", body))
		} else {
			who, ok := users[part[1]]
			require.True(t, ok, "%s: nobody is called %s", line, part[1])
			a = who.call(method, target, body)
		}
		if part[4] != strconv.Itoa(a.status) {
			t.Errorf("%s\nanswers %d %s", line, a.status, a.body)
			continue
		}
		if part[5] == "-" {
			continue
		}
		if wrong := shape.Differences(part[5], a.body); len(wrong) > 0 {
			t.Errorf("%s\n%s", line, wrong[0])
		}
		var is any
		require.NoError(t, json.Unmarshal([]byte(a.body), &is), line)
		if id := keptID(is); id != "" && id != kept {
			kept, before = id, kept
		}
		if k, ok := is.(map[string]any); ok && a.status == http.StatusCreated && k["secret_key"] != nil {
			own := *s
			own.admin = tenancy.Credentials{AccessKey: cluster.AccessKey(k["access_key"].(string)),
				SecretKey: seal.Secret(k["secret_key"].(string))}
			users["signed-up"] = &own
		}
	}
}

// held notes in the ledger that a kernel of a session held something in January 2020.
func (s *site) held(session string) {
	s.t.Helper()
	_, err := s.store.Pool().Exec(s.t.Context(), `INSERT INTO usage_intervals (kernel_id, session_id, session_name, session_type, domain_name,
			project_id, project_name, user_id, email, access_key, resource_group, agent_id, image, slots, from_at, to_at)
		SELECT gen_random_uuid(), $2::uuid, 'lab', 'interactive', 'default', p.id, p.name, u.id, u.email, 'k', 'default', 'a1', 'python',
			'{"cpu": 2000, "mem": 1073741824000, "cuda.device": 1000}', '2020-01-31T22:00:00Z', '2020-02-01T01:30:00.5Z'
		FROM users u, projects p WHERE u.email = $1 AND p.name = 'default'`, s.admin.Email, session)
	require.NoError(s.t, err)
}

// keptID is the id in an answer, which later lines of the table call $kept.
func keptID(is any) string {
	switch is := is.(type) {
	case []any:
		if len(is) > 0 {
			return keptID(is[0])
		}
	case map[string]any:
		for _, name := range []string{"id", "log_id", "totp_key"} {
			if id, ok := is[name].(string); ok {
				return id
			}
		}
		if logs, ok := is["logs"]; ok {
			return keptID(logs)
		}
	}
	return ""
}
