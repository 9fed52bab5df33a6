package app_test

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"berth.dev/berth/internal/fault"
	"berth.dev/berth/internal/wire/run"
)

// TestInstalledAppsNeedNoDeclaration: who installs a well-known app in a session opens it by its name.
func TestInstalledAppsNeedNoDeclaration(t *testing.T) {
	free := freePort(t)
	var lower []int // the usual ports of well-known apps, and all up to a free one, belong to another app
	for p := 6006; p < free; p++ {
		lower = append(lower, p)
	}
	r := newRig(t, run.AppPort{Name: "other", Protocol: run.AppHTTP, Ports: lower},
		run.AppPort{Name: "notebook", Protocol: run.AppHTTP, Ports: []int{free}})
	bin := t.TempDir()
	r.c.Env = []string{"PATH=" + bin, "HOME=" + r.c.Home, asApp + "=serves"}
	r.open()
	require.Empty(t, r.state("tensorboard").Name)
	_, err := r.Start(within(t), "tensorboard", run.AppStartRequest{})
	require.Equal(t, "app-missing", fault.ReasonOf(err))
	require.Contains(t, fault.NextOf(err), "pip install --user tensorboard")
	_, err = r.Start(within(t), "unheard-of", run.AppStartRequest{})
	require.Equal(t, "no-such-app", fault.ReasonOf(err))
	require.NotContains(t, fault.NextOf(err), "vscode", "what is neither declared nor installed is not offered")

	for _, program := range []string{"tensorboard", "jupyter-lab", "jupyter-notebook"} {
		require.NoError(t, os.WriteFile(filepath.Join(bin, program), fmt.Appendf(nil, "#!/bin/sh\nexec %s \"$4\" \"$@\"\n", os.Args[0]), 0o755))
	}
	a := r.state("tensorboard")
	require.Equal(t, run.AppInstalled, a.Origin)
	require.Equal(t, run.AppStopped, a.State)
	port := a.Ports[0]
	require.GreaterOrEqual(t, port, free, "beside the ports of what is declared")
	noticed := fmt.Sprintf("port-%d", port)
	require.Contains(t, a.AllowedArguments, "--logdir")
	require.Empty(t, r.state("jupyter").Name, "it is declared under another of its names")
	require.Equal(t, run.AppInstalled, r.state("jupyterlab").Origin)

	res, err := r.Start(within(t), "tensorboard", run.AppStartRequest{Arguments: map[string]any{"--logdir": "runs"}})
	require.NoError(t, err)
	require.Equal(t, run.AppReady, res.App.State)
	require.Equal(t, port, res.Port)
	body, err := get(port, "/")
	require.NoError(t, err)
	require.Equal(t, fmt.Sprintf("%d --host 127.0.0.1 --port %d --logdir runs", port, port), body)
	require.Empty(t, r.state(noticed).Name)
	// It stays, as what it is, while it runs.
	require.NoError(t, os.Remove(filepath.Join(bin, "tensorboard")))
	require.Equal(t, run.AppReady, r.state("tensorboard").State)
	_, err = r.Stop(within(t), "tensorboard")
	require.NoError(t, err)
	require.Empty(t, r.state("tensorboard").Name)
	// Somebody else at the port of what is not installed is not it.
	l, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", port))
	require.NoError(t, err)
	_, err = r.Start(within(t), "tensorboard", run.AppStartRequest{})
	require.Equal(t, "app-missing", fault.ReasonOf(err))
	require.Empty(t, r.state("tensorboard").Name)
	require.Equal(t, run.AppReady, r.state(noticed).State)
	require.NoError(t, l.Close())
}
