package profile_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"berth.dev/berth/api/profile"
)

func TestProfilesAreKept(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	s := profile.StoreOf(func(name string) string { return map[string]string{"XDG_CONFIG_HOME": dir}[name] }, "/nowhere")
	names, err := s.List()
	require.NoError(t, err)
	require.Empty(t, names)
	current, err := s.Current()
	require.NoError(t, err)
	require.Empty(t, current)
	_, err = s.Get("lab")
	require.ErrorIs(t, err, profile.ErrNone)
	require.ErrorIs(t, s.Use("lab"), profile.ErrNone)

	want := profile.Values{"A": "one two", "B": `x"y`, "EMPTY": ""}
	require.NoError(t, s.Put("lab", want))
	require.NoError(t, s.Put("10.0.0.1", profile.Values{"A": "b"}))
	got, err := s.Get("lab")
	require.NoError(t, err)
	require.Equal(t, profile.Values{"A": "one two", "B": `x"y`}, got)
	names, err = s.List()
	require.NoError(t, err)
	require.Equal(t, []string{"10.0.0.1", "lab"}, names)

	info, err := os.Stat(s.Path("lab"))
	require.NoError(t, err)
	require.Equal(t, os.FileMode(0o600), info.Mode().Perm(), "others can read the secrets")
	info, err = os.Stat(s.Dir)
	require.NoError(t, err)
	require.Equal(t, os.FileMode(0o700), info.Mode().Perm())

	require.NoError(t, s.Use("lab"))
	current, err = s.Current()
	require.NoError(t, err)
	require.Equal(t, "lab", current)
	require.NoError(t, s.Remove("lab"))
	current, err = s.Current()
	require.NoError(t, err)
	require.Empty(t, current, "a profile that is gone is in use")
	require.NoError(t, s.Remove("lab"), "removing twice")
	left, err := os.ReadDir(s.Dir)
	require.NoError(t, err)
	require.Len(t, left, 1, "something else was left behind")
}

func TestNamesCannotLeaveTheDirectory(t *testing.T) {
	t.Parallel()
	s := profile.Store{Dir: t.TempDir()}
	for _, bad := range []string{"", ".", "..", "../x", "a/b", "A", ".env", "-x", "a b", strings.Repeat("x", 65), "x\n"} {
		require.Error(t, s.Put(bad, profile.Values{"A": "b"}), "%q", bad)
		_, err := s.Get(bad)
		require.Error(t, err, "%q", bad)
		require.NotErrorIs(t, err, profile.ErrNone, "%q", bad)
		require.Error(t, s.Remove(bad), "%q", bad)
	}
	for _, bad := range []string{"a'b", "a\nB=c", "a\rb", "a\x00"} {
		require.Error(t, s.Put("lab", profile.Values{"A": bad}), "%q", bad)
	}
	require.NoError(t, os.WriteFile(filepath.Join(s.Dir, "current"), []byte("../../etc/passwd\n"), 0o600))
	_, err := s.Current()
	require.Error(t, err)
}

func TestWithoutAHomeNothingIsKept(t *testing.T) {
	t.Parallel()
	s := profile.StoreOf(func(string) string { return "" }, "")
	names, err := s.List()
	require.NoError(t, err)
	require.Empty(t, names)
	_, err = s.Get("lab")
	require.ErrorIs(t, err, profile.ErrNone)
	require.ErrorContains(t, s.Put("lab", profile.Values{"A": "b"}), "set HOME")
}
