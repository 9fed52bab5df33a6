package conformance

import (
	"maps"
	"slices"
	"strings"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"berth.dev/berth/internal/agent/runtime"
	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/fault"
)

// CommitReference is what the suite names the image that it commits; the fixture may remove it.
func CommitReference(fix Fixture) string { return "berth-test/commit-" + fix.Cluster + ":1" }

func commit(w *world) {
	spec := w.spec(w.kernel(), "write", "/data/new", "fresh")
	spec.Env = []string{"SECRET=hush"}
	o, err := w.rt.Ensure(w.ctx, spec)
	require.NoError(w, err)
	w.untilLine(o.Identity.Kernel, "written")
	ref := CommitReference(w.fix)
	before, err := w.rt.Image(w.ctx, w.fix.Image)
	require.NoError(w, err)
	img, err := w.rt.Commit(w.ctx, o.Identity.Kernel, runtime.Commit{Reference: ref, Labels: map[string]string{"owner": "ada"},
		User: runtime.LayerUser{Session: 54_321, Image: 54_322}})
	require.NoError(w, err)
	require.Equal(w, cluster.NoSessionFiles, img.Labels[cluster.LabelSessionFiles], "nothing here is of that user")
	require.NotEqual(w, before.ID, img.ID)
	require.Contains(w, img.References, ref)
	require.Equal(w, "ada", img.Labels["owner"])
	for k, v := range ImageLabels {
		require.Equal(w, v, img.Labels[k])
	}
	for k := range img.Labels {
		require.False(w, strings.HasPrefix(k, "berth."), "label %s is the session's", k)
	}
	require.Equal(w, before.Entrypoint, img.Entrypoint)
	require.Equal(w, before.Cmd, img.Cmd)
	require.NotContains(w, strings.Join(img.Env, "\n"), "hush")
	found, err := w.rt.Image(w.ctx, ref)
	require.NoError(w, err)
	require.Equal(w, img, found)
	b, err := w.rt.ReadImageFile(w.ctx, ref, "/data/new", 1<<10)
	require.NoError(w, err)
	require.Equal(w, "fresh", string(b))
	still, err := w.rt.Inspect(w.ctx, o.Identity.Kernel)
	require.NoError(w, err)
	require.Equal(w, o, still, "the session goes on")

	_, err = w.rt.Commit(w.ctx, o.Identity.Kernel, runtime.Commit{Reference: "Not A Name"})
	require.Equal(w, fault.Invalid, fault.KindOf(err), "%v", err)
}

// commitMoves makes two images of one name one after the other: the content of a digest is what runs, whatever the name means, and
// images are removed by name and id.
func commitMoves(w *world) {
	spec := w.spec(w.kernel(), "write", "/data/new", "first")
	o, err := w.rt.Ensure(w.ctx, spec)
	require.NoError(w, err)
	w.untilLine(o.Identity.Kernel, "written")
	ref := CommitReference(w.fix)
	_, err = w.rt.Commit(w.ctx, o.Identity.Kernel, runtime.Commit{Reference: ref, MaxBytes: 1})
	require.Equal(w, fault.Exhausted, fault.KindOf(err), "%v", err)
	require.Equal(w, runtime.ReasonImageSize, fault.ReasonOf(err))
	first, err := w.rt.Commit(w.ctx, o.Identity.Kernel, runtime.Commit{Reference: ref, MaxBytes: 1 << 40, Labels: map[string]string{"n": "1"}})
	require.NoError(w, err)
	second, err := w.rt.Commit(w.ctx, o.Identity.Kernel, runtime.Commit{Reference: ref, Labels: map[string]string{"n": "2"}})
	require.NoError(w, err)
	require.NotEqual(w, first.ID, second.ID)
	now, err := w.rt.Image(w.ctx, ref)
	require.NoError(w, err)
	require.Equal(w, second.ID, now.ID, "the name means the newer one")
	old, err := w.rt.Image(w.ctx, first.ID)
	require.NoError(w, err)
	require.Equal(w, "1", old.Labels["n"])
	require.NotContains(w, old.References, ref)

	again := w.spec(w.kernel(), "wait")
	again.Image, again.Digest = ref, first.ID
	_, err = w.rt.Ensure(w.ctx, again)
	require.NoError(w, err, "what the name meant before runs")
	err = w.rt.RemoveImage(w.ctx, ref, first.ID)
	require.Equal(w, fault.Conflict, fault.KindOf(err), "%v", err)
	require.NoError(w, w.rt.Remove(w.ctx, again.Identity.Kernel))
	require.NoError(w, w.rt.RemoveImage(w.ctx, ref, first.ID))
	_, err = w.rt.Image(w.ctx, first.ID)
	require.Equal(w, fault.NotFound, fault.KindOf(err), "%v", err)
	require.NoError(w, w.rt.RemoveImage(w.ctx, ref, first.ID), "it is gone")
	now, err = w.rt.Image(w.ctx, ref)
	require.NoError(w, err)
	require.Equal(w, second.ID, now.ID)
	require.NoError(w, w.rt.RemoveImage(w.ctx, ref, second.ID))
	_, err = w.rt.Image(w.ctx, ref)
	require.Equal(w, fault.NotFound, fault.KindOf(err), "%v", err)
}

func commitAbsent(w *world) {
	_, err := w.rt.Commit(w.ctx, cluster.KernelID(uuid.NewString()), runtime.Commit{Reference: "berth-test/none:1"})
	require.Equal(w, fault.NotFound, fault.KindOf(err), "%v", err)
}

func pull(w *world) {
	var last runtime.PullProgress
	steps := 0
	img, err := w.rt.Pull(w.ctx, w.fix.Remote, "", func(p runtime.PullProgress) {
		require.LessOrEqual(w, p.Current, p.Total)
		last = p
		steps++
	})
	require.NoError(w, err)
	require.Positive(w, steps)
	require.Equal(w, last.Total, last.Current)
	require.Equal(w, w.fix.RemoteID, img.ID)
	require.Contains(w, img.References, w.fix.Remote)
	have, err := w.rt.Image(w.ctx, w.fix.Remote)
	require.NoError(w, err)
	require.Equal(w, img, have)
	again, err := w.rt.Pull(w.ctx, w.fix.Remote, w.fix.RemoteID, nil)
	require.NoError(w, err)
	require.Equal(w, img, again)
}

func pullDigest(w *world) {
	_, err := w.rt.Pull(w.ctx, w.fix.Remote, "sha256:"+strings.Repeat("0123456789abcdef", 4), nil)
	require.Equal(w, fault.Conflict, fault.KindOf(err), "%v", err)
	require.Equal(w, runtime.ReasonDigest, fault.ReasonOf(err))
	require.Contains(w, err.Error(), w.fix.Remote)
}

func pullFails(w *world) {
	for _, ref := range []string{w.fix.Missing, w.fix.Broken} {
		_, err := w.rt.Pull(w.ctx, ref, "", nil)
		require.Error(w, err, ref)
		require.Contains(w, err.Error(), ref, "it says which image")
		require.Equal(w, runtime.ReasonPull, fault.ReasonOf(err), "%v", err)
		_, err = w.rt.Image(w.ctx, ref)
		require.Equal(w, fault.NotFound, fault.KindOf(err), "%v", err)
	}
	_, err := w.rt.Pull(w.ctx, w.fix.Missing, "", nil)
	require.Equal(w, fault.NotFound, fault.KindOf(err), "%v", err)
	require.NotEmpty(w, fault.NextOf(err))
	_, err = w.rt.Pull(w.ctx, "../x y", "", nil)
	require.Equal(w, fault.Invalid, fault.KindOf(err), "%v", err)
}

func images(w *world) {
	one, err := w.rt.Image(w.ctx, w.fix.Image)
	require.NoError(w, err)
	require.Equal(w, w.fix.ImageID, one.ID)
	for k, v := range ImageLabels {
		require.Equal(w, v, one.Labels[k])
	}
	require.Contains(w, []string{"x86_64", "aarch64"}, one.Architecture)
	require.Positive(w, one.SizeBytes)
	byID, err := w.rt.Image(w.ctx, one.ID)
	require.NoError(w, err)
	require.Equal(w, one, byID)
	for range 2 { // the second time from what is remembered
		all, err := w.rt.Images(w.ctx)
		require.NoError(w, err)
		i := slices.IndexFunc(all, func(img runtime.Image) bool { return img.ID == one.ID })
		require.GreaterOrEqual(w, i, 0)
		require.Equal(w, one.Labels, all[i].Labels)
		require.Equal(w, one.Architecture, all[i].Architecture)
		require.Subset(w, all[i].References, one.References)
	}
	_, err = w.rt.Image(w.ctx, "berth-test/not-there:1")
	require.Equal(w, fault.NotFound, fault.KindOf(err), "%v", err)
	require.Equal(w, runtime.ReasonImage, fault.ReasonOf(err))
	_, err = w.rt.Image(w.ctx, "../containers/json?x=")
	require.Equal(w, fault.Invalid, fault.KindOf(err), "%v", err)
}

func imageLinks(w *world) {
	want := map[string]string{
		"/link": "/link", "/link/colour": "/link", "/link/none": "/link", "/data": "", "/data/colour": "", "/none/x": "", "/data/colour/x": "",
	}
	paths := slices.Collect(maps.Keys(want))
	for _, ref := range []string{w.fix.Image, w.fix.ImageID, w.fix.Image} { // later ones from what is remembered
		got, err := w.rt.LinksInImage(w.ctx, ref, paths)
		require.NoError(w, err)
		require.Equal(w, want, got)
	}
	_, err := w.rt.LinksInImage(w.ctx, "berth-test/not-there:1", paths)
	require.Equal(w, fault.NotFound, fault.KindOf(err), "%v", err)
	all, err := w.rt.List(w.ctx)
	require.NoError(w, err)
	require.Empty(w, all, "no container is left behind")
}

func imageFiles(w *world) {
	for range 2 { // the second time from what is remembered
		for name, text := range ImageFiles {
			b, err := w.rt.ReadImageFile(w.ctx, w.fix.Image, name, 1<<20)
			require.NoError(w, err)
			require.Equal(w, text, string(b), name)
		}
		for _, name := range []string{"/etc/shadow", "/etc", "/data/colour/x"} {
			_, err := w.rt.ReadImageFile(w.ctx, w.fix.Image, name, 1<<20)
			require.Equal(w, fault.NotFound, fault.KindOf(err), "%s: %v", name, err)
		}
		_, err := w.rt.ReadImageFile(w.ctx, w.fix.Image, "/data/colour", 3)
		require.Equal(w, fault.Exhausted, fault.KindOf(err), "%v", err)
	}
	_, err := w.rt.ReadImageFile(w.ctx, "berth-test/not-there:1", "/etc/passwd", 1<<20)
	require.Equal(w, fault.NotFound, fault.KindOf(err), "%v", err)
	all, err := w.rt.List(w.ctx)
	require.NoError(w, err)
	require.Empty(w, all, "no container is left behind")
}
