package cli

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"berth.dev/berth/api"
)

func TestRolesOfTheCommandLine(t *testing.T) {
	t.Parallel()
	role, err := parseRole("worker=3,image=berth/heavy:1.0,cpu=2,cuda.device=1,shmem=1g,architecture=x86_64")
	require.NoError(t, err)
	require.Equal(t, api.SessionRole{Name: "worker", Count: 3, Image: "berth/heavy:1.0", Architecture: "x86_64",
		Resources: map[string]string{"cpu": "2", "cuda.device": "1"}, ResourceOpts: map[string]string{"shmem": "1g"}}, role)
	role, err = parseRole("logger=1")
	require.NoError(t, err)
	require.Equal(t, api.SessionRole{Name: "logger", Count: 1}, role)
	script := filepath.Join(t.TempDir(), "start.sh")
	require.NoError(t, os.WriteFile(script, []byte("dask worker"), 0o600))
	role, err = parseRole("worker=1,env=A=b=c,env=D=,bootstrap=" + script)
	require.NoError(t, err)
	require.Equal(t, api.SessionRole{Name: "worker", Count: 1, Environ: map[string]string{"A": "b=c", "D": ""},
		BootstrapScript: new("dask worker")}, role)
	_, err = parseRole("worker=1,bootstrap=" + script + ".missing")
	require.ErrorContains(t, err, "role worker")
	for _, text := range []string{"worker=1,env=A", "worker=1,env==b", "worker=1,env=", "",
		"worker", "worker=", "=3", "worker=many", "worker=1,cpu", "worker=1,=2", "worker=1,",
		"image=x,worker=1"} {
		_, err := parseRole(text)
		require.Error(t, err, text)
	}
}
