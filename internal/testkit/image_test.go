package testkit_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"berth.dev/berth/api"
	"berth.dev/berth/internal/agent/runtime"
	"berth.dev/berth/internal/fault"
	"berth.dev/berth/internal/manager/session/request"
	"berth.dev/berth/internal/testkit"
)

// TestImagesOfAgentsElsewhere: an agent whose engine means something else by a name runs nothing by that name, and what it alone has is
// usable when an administrator has imported it.
func TestImagesOfAgentsElsewhere(t *testing.T) {
	t.Parallel()
	c := testkit.New(t, testkit.Options{Agents: 2, Strangers: true})
	own, other := c.Agents[0], c.Agents[1]
	other.Stop()
	other.Engine.RemoveImage(testkit.Image) // the content that the catalogue means would run, whatever its name
	other.Engine.AddImage(runtime.Image{References: []string{testkit.Image, "lab/tool:1"}, Architecture: "x86_64",
		Labels: map[string]string{"ai.backend.resource.min.mem": "64m"}}, map[string][]byte{"/etc/passwd": nil, "/etc/group": nil})
	other.Start()
	var unknown []api.UnknownImage
	c.Until("the images of the other agent are known", func() bool {
		var err error
		unknown, err = c.Client().UnknownImages(t.Context())
		require.NoError(t, err)
		return len(unknown) == 2
	})
	require.Equal(t, []string{testkit.Image, "lab/tool:1"}, []string{unknown[0].Reference, unknown[1].Reference})
	require.NotEmpty(t, unknown[0].CatalogueDigest)
	require.NotEqual(t, unknown[0].CatalogueDigest, unknown[0].Digest)

	id := c.Create(request.Session{Name: "elsewhere", Agents: []string{string(other.ID())}})
	c.Until("it waits, with words", func() bool {
		var text string
		require.NoError(t, c.Store.Pool().QueryRow(t.Context(), `SELECT coalesce(status_data::text, '') FROM sessions
			WHERE id = $1 AND status = 'PENDING'`, string(id)).Scan(&text))
		return strings.Contains(text, "without the image") && strings.Contains(text, "which no registry has")
	})
	c.Destroy(id, true)
	s := c.Ended(id)
	require.Zero(t, other.Starts(s.MainKernel().ID), "%s %v", s.StatusInfo, s.StatusData)
	id = c.Create(request.Session{Name: "anywhere"})
	s = c.Running(id)
	require.Equal(t, own.ID(), s.MainKernel().Agent)

	_, err := c.Nouns().Sessions.Create(t.Context(), c.Admin(), request.Session{Name: "tool", Image: "lab/tool:1"})
	require.True(t, fault.Is(err, fault.NotFound), "%v", err)
	got, err := c.Client().ImportImage(t.Context(), api.ImageImport{Reference: "lab/tool:1", Agent: string(other.ID())})
	require.NoError(t, err)
	require.Equal(t, unknown[1].Digest, got.Digest)
	id = c.Create(request.Session{Name: "tool", Image: "lab/tool:1"})
	s = c.Running(id)
	require.Equal(t, other.ID(), s.MainKernel().Agent)
}

// TestCommittedImagesAreDeleted: an image of a session is started by its owner, and gone from the engine when it is taken away.
func TestCommittedImagesAreDeleted(t *testing.T) {
	t.Parallel()
	c := testkit.New(t, testkit.Options{})
	id := c.Create(request.Session{Name: "work"})
	c.Running(id)
	task, err := c.Client().CommitSession(t.Context(), "work", "v1")
	require.NoError(t, err)
	ref, err := c.Client().FollowTask(t.Context(), task, func(api.TaskEvent) {})
	require.NoError(t, err)
	engine := c.Agents[0].Engine.Runtime("x", "y")
	mine, err := engine.Image(t.Context(), ref)
	require.NoError(t, err)
	again := c.Create(request.Session{Name: "again", Image: ref})
	c.Running(again)
	c.Destroy(again, true)
	c.Ended(again)
	i, err := c.Client().FindImage(t.Context(), ref)
	require.NoError(t, err)
	require.Equal(t, mine.ID, *i.Digest)
	require.NoError(t, c.Client().ForgetImage(t.Context(), i.ID))
	c.Until("the image is deleted", func() bool {
		_, err := engine.Image(t.Context(), mine.ID)
		return fault.Is(err, fault.NotFound)
	})
	c.Until("nothing is left to be deleted", func() bool {
		var n int
		require.NoError(t, c.Store.Pool().QueryRow(t.Context(), `SELECT count(*) FROM image_removals`).Scan(&n))
		return n == 0
	})
}
