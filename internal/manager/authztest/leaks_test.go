package authztest

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/fault"
	"berth.dev/berth/internal/manager/authz"
	"berth.dev/berth/internal/manager/managertest"
	"berth.dev/berth/internal/manager/nouns"
	"berth.dev/berth/internal/manager/session/request"
	"berth.dev/berth/internal/manager/store/list"
	"berth.dev/berth/internal/manager/tenancy"
)

// The idle report shows an administrator of a domain the sessions of its users, but nothing of superadmins.
func TestIdleReportHidesSuperadmins(t *testing.T) {
	t.Parallel()
	w := managertest.New(t)
	ctx := t.Context()
	w.Agent("a1", 8, 16*managertest.GiB)
	roots := w.Running("secret", "a1")
	user, admin := w.Stranger("user"), w.Stranger("boss")
	w.Exec(
		`UPDATE users SET domain_name = 'default', role = CASE WHEN id = $1 THEN 'admin' ELSE role END WHERE id IN ($1, $2)`,
		string(admin.UserID),
		string(user.UserID),
	)
	admin.Role, admin.Domain, user.Domain = authz.RoleAdmin, "default", "default"
	w.Exec(`INSERT INTO project_members SELECT id, $1 FROM projects WHERE name = 'default'`, string(user.UserID))
	users := w.Running("plain", "a1", func(r *request.Session) { r.OwnerAccessKey = user.AccessKey })

	shown := func(a authz.Actor) (out []cluster.SessionID, total int) {
		t.Helper()
		list, total, err := w.Idle.Report(ctx, a)
		require.NoError(t, err)
		for _, r := range list {
			out = append(out, r.Session)
		}
		return out, total
	}
	got, total := shown(admin)
	require.Equal(t, []cluster.SessionID{users}, got)
	require.Equal(t, 1, total, "the number tells nothing of others either")
	got, _ = shown(user)
	require.Equal(t, []cluster.SessionID{users}, got)
	got, total = shown(w.Admin)
	require.ElementsMatch(t, []cluster.SessionID{roots, users}, got)
	require.Equal(t, 2, total)
	monitor := w.Stranger("monitor")
	monitor.Role = authz.RoleMonitor
	got, _ = shown(monitor)
	require.Len(t, got, 2)
	got, total = shown(w.Stranger("nothing"))
	require.Empty(t, got)
	require.Zero(t, total)
}

// Access keys of users and domains that are not active, and such keys, open nothing.
func TestWhoIsRefusedAtTheDoor(t *testing.T) {
	t.Parallel()
	w := managertest.New(t)
	ctx := t.Context()
	user := w.Stranger("user")
	for change, back := range map[string]string{
		`UPDATE users SET status = 'inactive'`:            `UPDATE users SET status = 'active'`,
		`UPDATE users SET status = 'deleted'`:             `UPDATE users SET status = 'active'`,
		`UPDATE users SET status = 'before-verification'`: `UPDATE users SET status = 'active'`,
		`UPDATE domains SET is_active = false`:            `UPDATE domains SET is_active = true`,
		`UPDATE keypairs SET is_active = false`:           `UPDATE keypairs SET is_active = true`,
		`UPDATE keypairs SET access_key = 'AKIAOTHER00000' WHERE user_id = '` + string(user.UserID) + `'`: `UPDATE keypairs SET access_key = '` +
			string(user.AccessKey) + `' WHERE access_key = 'AKIAOTHER00000'`,
	} {
		_, _, err := w.Tenancy.Authenticate(ctx, user.AccessKey)
		require.NoError(t, err, "before %s", change)
		w.Exec(change)
		_, _, err = w.Tenancy.Authenticate(ctx, user.AccessKey)
		require.True(t, fault.Is(err, fault.Unauthenticated), "%s: %v", change, err)
		w.Exec(back)
	}
}

// Owners keep their sessions alive for as long as their policy allows, administrators for longer.
func TestOwnersKeepSessionsAliveAsLongAsTheirPolicyAllows(t *testing.T) {
	t.Parallel()
	w := managertest.New(t)
	ctx := t.Context()
	w.Agent("a1", 8, 16*managertest.GiB)
	user := w.Stranger("user")
	w.Exec(`UPDATE users SET domain_name = 'default' WHERE id = $1`, string(user.UserID))
	w.Exec(`INSERT INTO project_members SELECT id, $1 FROM projects WHERE name = 'default'`, string(user.UserID))
	id := string(w.Running("work", "a1", func(r *request.Session) { r.OwnerAccessKey = user.AccessKey }))
	user, _, err := w.Tenancy.Authenticate(ctx, user.AccessKey)
	require.NoError(t, err)
	w.Exec(`UPDATE keypair_resource_policies SET max_keep_alive = 3600`)
	_, err = w.Idle.KeepAlive(ctx, user, id, "", time.Hour, "")
	require.NoError(t, err)
	_, err = w.Idle.KeepAlive(ctx, user, id, "", time.Hour+time.Second, "")
	require.True(t, fault.Is(err, fault.Denied), "%v", err)
	_, err = w.Idle.KeepAlive(ctx, w.Admin, id, "", 100*time.Hour, "")
	require.NoError(t, err)
}

// A user makes as many images of sessions as the policy of users allows; one that is replaced is not counted twice.
func TestCustomizedImagesAreLimited(t *testing.T) {
	t.Parallel()
	var made atomic.Int64
	mux := http.NewServeMux()
	mux.HandleFunc("POST /kernels/{id}/commit", func(w http.ResponseWriter, _ *http.Request) {
		n := made.Add(1)
		_, _ = fmt.Fprintf(w, `{"image":{"reference":"x","id":%q,"size_bytes":10}}`+"\n", managertest.Digest(int(1000+n)))
	})
	w := managertest.New(t, func(d *nouns.Deps) { d.Streams = streams{mux} })
	ctx := t.Context()
	w.Agent("a1", 8, 16*managertest.GiB)
	w.Running("work", "a1")
	ready := func() {
		managertest.Soon(t, "the commit before is done", func() bool {
			status, _, err := w.Sessions.CommitStatus(ctx, w.Admin, "work", "")
			return err == nil && status == "ready"
		})
	}
	commit := func(name string) error {
		ready()
		_, err := w.Sessions.Commit(ctx, w.Admin, "work", "", name)
		return err
	}
	have := func(n int) {
		ready()
		w.Exec(`DELETE FROM images WHERE origin = 'commit'`)
		w.Exec(`INSERT INTO images (id, reference, name, tag, architecture, digest, size_bytes, scope, owner_id, origin)
SELECT gen_random_uuid(), 'local/' || $2::text || '/work:' || n, 'work', n::text, 'x86_64', 'sha256:' || n, 100, 'user', $2::uuid, 'commit'
FROM generate_series(1, $1) n`,
			n, string(w.Admin.UserID))
	}
	have(2)
	require.NoError(t, commit("new"))
	have(3)
	err := commit("new")
	require.True(t, fault.Is(err, fault.Exhausted), "%v", err)
	require.NoError(t, commit("2"), "an image that is there is replaced")
	ready()
	w.Exec(`UPDATE images SET status = 'DELETED' WHERE tag = '1'`)
	require.NoError(t, commit("new"))
	have(5)
	w.Exec(`UPDATE user_resource_policies SET max_customized_image_count = 0`)
	require.NoError(t, commit("new"), "0 is no limit")

	have(2)
	w.Exec(`UPDATE user_resource_policies SET max_customized_image_bytes = 200`)
	err = commit("new")
	require.True(t, fault.Is(err, fault.Exhausted), "%v", err)
	require.NoError(t, commit("2"), "an image that is there is replaced")
	w.Exec(`UPDATE user_resource_policies SET max_customized_image_bytes = 0`)
	require.NoError(t, commit("new"), "0 is no limit")
}

// Sessions run images of registries that the owner's domain allows, and of none; lists show no others, except to superadmins
// and monitors.
func TestDomainsAllowRegistries(t *testing.T) {
	t.Parallel()
	w := managertest.New(t)
	ctx := t.Context()
	w.Agent("a1", 8, 16*managertest.GiB)
	w.Exec(`INSERT INTO images (id, reference, registry, name, tag, architecture, digest, labels, scope)
SELECT '00000000-0000-4000-8000-000000000001', 'r.example/team/tool:1', 'r.example', 'tool', '1', architecture, 'sha256:7', labels, 'global'
FROM images LIMIT 1`)
	user := w.Stranger("user")
	w.Exec(`UPDATE users SET domain_name = 'default' WHERE id = $1`, string(user.UserID))
	w.Exec(`INSERT INTO project_members SELECT id, $1 FROM projects WHERE name = 'default'`, string(user.UserID))
	const image = "r.example/team/tool:1"
	now := func(a authz.Actor) authz.Actor {
		t.Helper()
		a, _, err := w.Tenancy.Authenticate(ctx, a.AccessKey)
		require.NoError(t, err)
		return a
	}
	listed := func(a authz.Actor) (out []string) {
		t.Helper()
		page, err := w.Images.List(ctx, now(a), list.Query{})
		require.NoError(t, err)
		require.Equal(t, len(page.Items), page.Total)
		for _, i := range page.Items {
			out = append(out, i.Reference)
		}
		return out
	}
	create := func(a, owner authz.Actor, name string) error {
		_, err := w.Sessions.Create(ctx, now(a), request.Session{Name: name, Image: image, OwnerAccessKey: owner.AccessKey})
		return err
	}
	require.Equal(t, []string{managertest.Image}, listed(user))
	require.ElementsMatch(t, []string{managertest.Image, image}, listed(w.Admin))
	_, err := w.Images.Get(ctx, now(user), image, "")
	require.True(t, fault.Is(err, fault.NotFound), "%v", err)
	err = create(user, user, "sessa")
	require.True(t, fault.Is(err, fault.NotFound), "%v", err)
	err = create(w.Admin, user, "sessb")
	require.True(t, fault.Is(err, fault.Denied), "acting for somebody lifts nothing: %v", err)
	err = create(w.Admin, w.Admin, "sessc")
	require.True(t, fault.Is(err, fault.Denied), "%v", err)
	require.ErrorContains(t, err, "r.example")

	// This writes domains.allowed_docker_registries.
	require.NoError(t, w.Tenancy.ModifyDomain(ctx, w.Admin, "default", tenancy.DomainProps{AllowedRegistries: &[]string{"r.example"}}))
	for _, bad := range []string{"", "r.example/team", "a b"} {
		err := w.Tenancy.ModifyDomain(ctx, w.Admin, "default", tenancy.DomainProps{AllowedRegistries: &[]string{bad}})
		require.True(t, fault.Is(err, fault.Invalid), "%q: %v", bad, err)
	}
	require.ElementsMatch(t, []string{managertest.Image, image}, listed(user))
	_, err = w.Images.Get(ctx, now(user), image, "")
	require.NoError(t, err)
	require.NoError(t, create(user, user, "sessd"))
	require.NoError(t, create(w.Admin, user, "sesse"))
	_, err = w.Images.Get(ctx, now(user), "tool", "")
	require.True(t, fault.Is(err, fault.NotFound))
}

// streams are agents that a handler answers for.
type streams struct{ handler http.Handler }

func (s streams) RoundTrip(_ cluster.AgentID, req *http.Request) (*http.Response, error) {
	rec := httptest.NewRecorder()
	s.handler.ServeHTTP(rec, req)
	return rec.Result(), nil
}

func (s streams) Upgrade(context.Context, cluster.AgentID, string, http.Header) (io.ReadWriteCloser, error) {
	return nil, errors.New("no streams here")
}
