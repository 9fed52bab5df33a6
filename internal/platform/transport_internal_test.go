package platform

import (
	"testing"

	"github.com/stretchr/testify/require"

	"berth.dev/berth/internal/fault"
	"berth.dev/berth/internal/manager"
)

// The master key is not replaced at once where another manager would not have the new one.
func TestRotationAtOnceIsForASingleManager(t *testing.T) {
	t.Parallel()
	for key, want := range map[string]bool{
		"/berth/c1/managers/m1": true, "/berth/c1/storage/local/n1": false, "/berth/c1/managers": false, "/berth/leader/managers/m1/x": false,
		"/other/c1/managers/m1": false,
	} {
		require.Equal(t, want, announcesManager("/berth", key), key)
	}
	require.NoError(t, manager.MayRotate(manager.RotateAll, 1))
	require.NoError(t, manager.MayRotate(manager.RotateAll, 0), "it is not running")
	err := manager.MayRotate(manager.RotateAll, 2)
	require.True(t, fault.Is(err, fault.Conflict))
	require.Contains(t, fault.NextOf(err), "--step prepare")
	for _, step := range []manager.RotationStep{manager.RotatePrepare, manager.RotateUse, manager.RotateFinish} {
		require.NoError(t, manager.MayRotate(step, 3))
	}
}

// HSTS of the API is off by default, and warned about where it shuts browsers out of apps of the same process.
func TestAppsThatHSTSShutsOut(t *testing.T) {
	t.Parallel()
	require.False(t, manager.DefaultConfig().HSTS)
	s := DefaultSettings()
	s.Manager.HSTS, s.Manager.URL = true, "https://berth.example.org:8081"
	s.Manager.TLS.Cert, s.Manager.TLS.Key = "/cert", "/key"
	s.AppProxy.Ports.Host = "Berth.Example.org"
	require.Len(t, plainAppsFindings(s), 1)
	for name, change := range map[string]func(*Settings){
		"off":                     func(s *Settings) { s.Manager.HSTS = false },
		"a generated certificate": func(s *Settings) { s.Manager.TLS.Cert, s.Manager.TLS.Generated = "", true },
		"another name":            func(s *Settings) { s.AppProxy.Ports.Host = "apps.example.org" },
		"an address":              func(s *Settings) { s.Manager.URL, s.AppProxy.Ports.Host = "https://192.0.2.1", "192.0.2.1" },
		"TLS on ports":            func(s *Settings) { s.AppProxy.Ports.TLS = true },
		"no ports":                func(s *Settings) { s.AppProxy.Ports.From, s.AppProxy.Ports.To = 0, 0 },
		"no app proxy":            func(s *Settings) { s.AppProxy.Listen = "" },
	} {
		other := s
		change(&other)
		require.Empty(t, plainAppsFindings(other), name)
	}
	s.Manager.URL, s.Manager.TLS.Names = "", []string{"other.example.org", "berth.example.org"}
	require.Len(t, plainAppsFindings(s), 1)
}
