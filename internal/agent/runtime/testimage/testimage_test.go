package testimage_test

import (
	"context"
	"io"
	"log/slog"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"berth.dev/berth/internal/agent/runtime"
	"berth.dev/berth/internal/agent/runtime/docker"
	"berth.dev/berth/internal/agent/runtime/testimage"
	"berth.dev/berth/internal/cluster"
)

func TestTarIsReproducible(t *testing.T) {
	t.Parallel()
	files := map[string]testimage.File{"/a/b/c": {Data: []byte("x")}, "/a/d": {Link: "b/c"}, "/e": {Mode: 0o755}}
	require.Equal(t, testimage.Tar(files), testimage.Tar(files))
}

func TestImagesStart(t *testing.T) {
	t.Parallel()
	api := testimage.Engine(t)
	for name, c := range map[string]struct {
		files   func(t testing.TB) map[string]testimage.File
		changes []string
		entry   []string
		want    string
	}{
		"scratch":    {func(t testing.TB) map[string]testimage.File { return testimage.Scratch(t, nil) }, nil, []string{"/box", "exit", "0"}, ""},
		"distroless": {testimage.Distroless, []string{"USER 65532"}, []string{"/box", "exit", "0"}, ""},
		"musl":       {testimage.Musl, nil, []string{"/bin/sh", "-c", "echo $0 hello"}, "hello\n"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ref, _ := testimage.Import(t, api, name, c.files(t), c.changes...)
			rt, err := docker.New(docker.Config{Host: api.DaemonHost(), Cluster: "test-" + uuid.NewString(), Agent: "i-test"},
				slog.New(slog.DiscardHandler))
			require.NoError(t, err)
			t.Cleanup(func() { _ = rt.Close() })
			k := cluster.KernelID(uuid.NewString())
			t.Cleanup(func() { require.NoError(t, rt.Remove(context.Background(), k)) })
			_, err = rt.Ensure(t.Context(), runtime.Spec{
				Identity: runtime.Identity{Cluster: rt.Cluster(), Agent: "i-test", Kernel: k, Generation: 1, Schema: 1},
				Image:    ref, Entry: c.entry,
			})
			require.NoError(t, err)
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			log, err := rt.Logs(ctx, k, runtime.LogOptions{Follow: true})
			require.NoError(t, err)
			defer log.Close()
			text, err := io.ReadAll(log) // until it ended
			require.NoError(t, err)
			require.Contains(t, string(text), c.want)
			require.NoError(t, rt.Stop(ctx, k, time.Second))
			o, err := rt.Inspect(ctx, k)
			require.NoError(t, err)
			require.Zero(t, o.ExitCode)
		})
	}
}
