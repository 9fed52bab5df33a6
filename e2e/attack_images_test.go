package e2e_test

import (
	"context"
	"encoding/json"
	"net/url"
	"strings"
	"testing"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"berth.dev/berth/api"
	"berth.dev/berth/internal/embedded"
)

// imageTenant is a user of the cluster with a client of their own.
type imageTenant struct {
	t    testing.TB
	c    *api.Client
	user string // id
}

func (p *platform) imageTenant(env []string) *imageTenant {
	p.t.Helper()
	cfg, err := api.LoadConfig(api.Lookup{Getenv: func(name string) string {
		for _, line := range env {
			if value, ok := strings.CutPrefix(line, name+"="); ok {
				return value
			}
		}
		return ""
	}})
	require.NoError(p.t, err)
	c, err := api.New(cfg)
	require.NoError(p.t, err)
	p.t.Cleanup(c.Close)
	a := &imageTenant{t: p.t, c: c}
	var me struct {
		Keypair struct {
			User string `json:"user"`
		} `json:"keypair"`
	}
	require.NoError(p.t, c.GraphQL(p.t.Context(), `query{keypair{user}}`, nil, &me))
	a.user = me.Keypair.User
	return a
}

func (a *imageTenant) start(name, image string) error {
	a.t.Helper()
	ctx, cancel := context.WithTimeout(a.t.Context(), patience)
	defer cancel()
	_, err := a.c.CreateSession(ctx, api.CreateSession{Name: name, Image: image, Config: api.SessionConfig{
		Resources: map[string]string{"cpu": "1", "mem": "128m"}}})
	return err
}

// commit makes an image of a session and returns its reference.
func (a *imageTenant) commit(session, tag string) (string, error) {
	a.t.Helper()
	ctx, cancel := context.WithTimeout(a.t.Context(), patience)
	defer cancel()
	task, err := a.c.CommitSession(ctx, session, tag)
	if err != nil {
		return "", err
	}
	return a.c.FollowTask(ctx, task, func(api.TaskEvent) {})
}

func (a *imageTenant) images() map[string]api.Image {
	a.t.Helper()
	list, err := a.c.Images(a.t.Context())
	require.NoError(a.t, err)
	out := map[string]api.Image{}
	for _, i := range list {
		out[i.Reference()] = i
	}
	return out
}

// database opens the cluster's database past its interface.
func (p *platform) database() *pgx.Conn {
	p.t.Helper()
	sockets := embedded.SocketDir(p.dir, "pg", ".s.PGSQL.5432")
	db, err := pgx.Connect(p.t.Context(), (&url.URL{Scheme: "postgres", User: url.User("berth"), Path: "/berth",
		RawQuery: url.Values{"host": {sockets}}.Encode()}).String())
	require.NoError(p.t, err)
	p.t.Cleanup(func() { _ = db.Close(context.Background()) })
	return db
}

// TestAttackImages: a tenant's committed image is nobody else's. Another tenant knows its reference, digest, id and alias, has a
// session of the same name, and gets the answers about an image that does not exist. A tag that is moved on the host between the
// check and the start of a session brings no other content into it. Limits hold.
func TestAttackImages(t *testing.T) {
	t.Parallel()
	needEngine(t)
	ref := "berth-e2e/moved-" + uuid.NewString()[:8] + ":1"
	_, err := docker("tag", "berth/python:3.11", ref)
	require.NoError(t, err)
	t.Cleanup(func() { _, _ = docker("rmi", ref) })
	p := up(t)
	db := p.database()
	ada, mallory, root := p.imageTenant(p.member("ada")), p.imageTenant(p.member("mallory")), p.imageTenant(p.env())
	const name = "work"
	for _, a := range []*imageTenant{ada, mallory} {
		require.NoError(t, a.start(name, "python"))
	}
	adas, err := ada.commit(name, "secret")
	require.NoError(t, err)
	require.Equal(t, "local/"+ada.user+"/work:secret", adas)
	p.forgetCommits(ada.user, mallory.user)
	image, ok := ada.images()[adas]
	require.True(t, ok, "the owner sees it")
	digest := *image.Digest

	t.Run("the owner starts it", func(t *testing.T) {
		require.NoError(t, ada.start("mine", adas))
		require.Equal(t, []string{digest}, p.contentOf("mine"))
		_, err := ada.c.DestroySession(t.Context(), "mine", api.DestroyOptions{Forced: true, NoWait: true})
		require.NoError(t, err)
	})
	t.Run("another tenant finds it by no name", func(t *testing.T) {
		_, err := db.Exec(t.Context(), `INSERT INTO image_aliases VALUES ('adas-image', $1)`, image.ID)
		require.NoError(t, err)
		require.NotContains(t, mallory.images(), adas)
		for _, guess := range []string{adas, digest, "adas-image", image.ID, "local/" + ada.user + "/work", "work:secret", "work",
			"berth/commit-work:secret", adas + "@" + digest} {
			err := mallory.start("steal", guess)
			none := mallory.start("steal", "no-such-image")
			require.True(t, api.IsNotFound(err), "%s: %v", guess, err)
			require.Equal(t, strings.ReplaceAll(none.Error(), "no-such-image", guess), err.Error(), "as missing")
			var out struct {
				Image *api.Image `json:"image"`
			}
			require.NoError(t, mallory.c.GraphQL(t.Context(), `query($r:String){image(reference:$r){id}}`, map[string]any{"r": guess}, &out))
			require.Nil(t, out.Image, guess)
		}
		var out struct {
			Image *api.Image `json:"image"`
		}
		require.NoError(t, mallory.c.GraphQL(t.Context(), `query($i:String){image(id:$i){id}}`, map[string]any{"i": image.ID}, &out))
		require.Nil(t, out.Image)
		err = mallory.c.ForgetImage(t.Context(), image.ID)
		none := mallory.c.ForgetImage(t.Context(), uuid.NewString())
		require.Error(t, err)
		require.Error(t, none)
		require.Equal(t, strings.Contains(none.Error(), "No such"), strings.Contains(err.Error(), "No such"))
		require.Contains(t, ada.images(), adas)
	})
	t.Run("a namesake overwrites nothing", func(t *testing.T) {
		mallorys, err := mallory.commit(name, "secret")
		require.NoError(t, err)
		require.NotEqual(t, adas, mallorys)
		require.Equal(t, digest, *ada.images()[adas].Digest)
		require.NotContains(t, ada.images(), mallorys)
	})
	t.Run("a tag that moves brings no other content", func(t *testing.T) {
		require.Contains(t, mallory.images(), ref, "images of the own engine are imported by themselves")
		was := *mallory.images()[ref].Digest
		agent, _ := p.node()
		p.must("agent", "cordon", agent)
		_, err = mallory.c.CreateSession(t.Context(), api.CreateSession{Name: "moved", Image: ref, EnqueueOnly: true,
			Config: api.SessionConfig{Resources: map[string]string{"cpu": "1", "mem": "128m"}}})
		require.NoError(t, err)
		_, err = docker("tag", adas, ref) // the attacker's host now means the victim's image by that name
		require.NoError(t, err)
		p.must("agent", "uncordon", agent)
		p.eventually("the session runs", func() bool { return len(p.contentOf("moved")) == 1 })
		require.Equal(t, []string{was}, p.contentOf("moved"))
		// What the tag means now is a tenant's image: nobody imports it by itself.
		i, ok := mallory.images()[ref]
		require.True(t, !ok || *i.Digest == was)
	})
	t.Run("limits", func(t *testing.T) {
		set := func(sql string) {
			t.Helper()
			_, err := db.Exec(t.Context(), sql)
			require.NoError(t, err)
		}
		set(`UPDATE user_resource_policies SET max_customized_image_bytes = 1000`)
		_, err := ada.commit(name, "one-more")
		require.Error(t, err)
		require.Contains(t, err.Error(), "bytes")
		set(`UPDATE user_resource_policies SET max_customized_image_bytes = 0, max_customized_image_count = 1`)
		_, err = ada.commit(name, "one-more")
		require.Error(t, err)
		again, err := ada.commit(name, "secret")
		require.NoError(t, err, "one that is there is replaced")
		require.Equal(t, adas, again)
		require.NotEqual(t, digest, *ada.images()[adas].Digest)
	})
	t.Run("what is taken away is deleted", func(t *testing.T) {
		now := ada.images()[adas]
		require.NoError(t, ada.c.ForgetImage(t.Context(), now.ID))
		require.NotContains(t, ada.images(), adas)
		p.eventually("the engine has it no more", func() bool {
			out, err := docker("images", "-q", "--no-trunc", adas)
			return err == nil && strings.TrimSpace(out) == ""
		})
		require.NotContains(t, root.images(), adas)
	})
}

// contentOf is what the containers of a session run, by content id.
func (p *platform) contentOf(session string) []string {
	p.t.Helper()
	var rows []struct {
		ID string `json:"id"`
	}
	db := p.database()
	defer func() { _ = db.Close(context.Background()) }() // it is asked again and again, and the database has connections for so many
	var text string
	require.NoError(p.t, db.QueryRow(p.t.Context(), `SELECT coalesce(json_agg(json_build_object('id', k.container_id))::text, '[]')
FROM kernels k JOIN sessions s ON s.id = k.session_id WHERE s.name = $1 AND k.ended_at IS NULL AND k.status = 'RUNNING'`,
		session).Scan(&text))
	require.NoError(p.t, json.Unmarshal([]byte(text), &rows))
	out := []string{}
	for _, r := range rows {
		image, err := docker("inspect", "--format", "{{.Image}}", r.ID)
		require.NoError(p.t, err)
		out = append(out, strings.TrimSpace(image))
	}
	return out
}
