package wireguard_test

import (
	"bytes"
	"crypto/rand"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"berth.dev/berth/internal/agent/wireguard"
)

func stateDir(t *testing.T) *os.Root {
	t.Helper()
	r, err := os.OpenRoot(t.TempDir())
	require.NoError(t, err)
	t.Cleanup(func() { _ = r.Close() })
	return r
}

func TestKeysStayWithTheirInstallation(t *testing.T) {
	t.Parallel()
	state := stateDir(t)
	require.NoError(t, state.WriteFile("tunnel.key.new", []byte("half"), 0o644)) // of a process that died
	key, err := wireguard.LoadKey(state, rand.Reader)
	require.NoError(t, err)
	info, err := state.Stat("tunnel.key")
	require.NoError(t, err)
	require.Equal(t, os.FileMode(0o600), info.Mode().Perm())
	again, err := wireguard.LoadKey(state, strings.NewReader(""))
	require.NoError(t, err)
	require.Equal(t, key.Public(), again.Public())
	other, err := wireguard.LoadKey(stateDir(t), rand.Reader)
	require.NoError(t, err)
	require.NotEqual(t, key.Public(), other.Public(), "installed anew")
	require.NotEqual(t, key.Public().Inner(), other.Public().Inner())
	require.True(t, netip.MustParsePrefix("fd00::/8").Contains(key.Public().Inner()))

	secret, err := state.ReadFile("tunnel.key")
	require.NoError(t, err)
	for _, format := range []string{"%v", "%+v", "%#v", "%s"} {
		text := fmt.Sprintf(format, key)
		require.Equal(t, "[private key]", text)
		require.NotContains(t, text, fmt.Sprintf("%x", secret))
	}
	parsed, err := wireguard.ParsePublicKey(key.Public().String())
	require.NoError(t, err)
	require.Equal(t, key.Public(), parsed)
}

func TestBadKeysAreRefused(t *testing.T) {
	t.Parallel()
	for name, prepare := range map[string]func(*os.Root) error{
		"others can read it": func(r *os.Root) error { return r.WriteFile("tunnel.key", bytes.Repeat([]byte{7}, 32), 0o644) },
		"too short":          func(r *os.Root) error { return r.WriteFile("tunnel.key", []byte("short"), 0o600) },
		"too long":           func(r *os.Root) error { return r.WriteFile("tunnel.key", bytes.Repeat([]byte{7}, 64), 0o600) },
		"a link": func(r *os.Root) error {
			if err := r.WriteFile("real", bytes.Repeat([]byte{7}, 32), 0o600); err != nil {
				return err
			}
			return os.Symlink(filepath.Join(r.Name(), "real"), filepath.Join(r.Name(), "tunnel.key"))
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			state := stateDir(t)
			require.NoError(t, prepare(state))
			_, err := wireguard.LoadKey(state, rand.Reader)
			require.ErrorContains(t, err, "tunnel.key")
		})
	}
	_, err := wireguard.LoadKey(stateDir(t), strings.NewReader("no randomness"))
	require.Error(t, err)
	for _, text := range []string{"", "x", strings.Repeat("A", 43) + "=", strings.Repeat("A", 44), strings.Repeat("B", 64)} {
		_, err := wireguard.ParsePublicKey(text)
		require.Error(t, err, text)
	}
}
