package seal_test

import (
	"crypto/rand"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"berth.dev/berth/internal/fault"
	"berth.dev/berth/internal/manager/seal"
)

func TestKeyFileIsMadeOnceAndKeptPrivate(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "master.key")
	a, err := seal.LoadOrCreate(path, rand.Reader)
	require.NoError(t, err)
	st, err := os.Stat(path)
	require.NoError(t, err)
	require.Equal(t, os.FileMode(0o600), st.Mode().Perm())
	b, err := seal.LoadOrCreate(path, rand.Reader)
	require.NoError(t, err)
	require.Equal(t, a.ID(), b.ID())

	sealed, err := a.Seal("s3cret", "keypair A")
	require.NoError(t, err)
	require.NotContains(t, string(sealed), "s3cret")
	open, err := b.Open(sealed, "keypair A")
	require.NoError(t, err)
	require.Equal(t, "s3cret", open.Reveal())

	require.NoError(t, os.Chmod(path, 0o640))
	_, err = seal.LoadOrCreate(path, rand.Reader)
	require.True(t, fault.Is(err, fault.Invalid), "%v", err)
	require.Contains(t, fault.NextOf(err), "chmod 600")
}

func TestSealedTextIsBoundToItsPurposeAndKey(t *testing.T) {
	t.Parallel()
	a, err := seal.New(make([]byte, 32), rand.Reader)
	require.NoError(t, err)
	b, err := seal.New([]byte("0123456789abcdef0123456789abcdef"), rand.Reader)
	require.NoError(t, err)
	sealed, err := a.Seal("x", "keypair A")
	require.NoError(t, err)
	_, err = a.Open(sealed, "keypair B")
	require.Error(t, err)
	_, err = b.Open(sealed, "keypair A")
	require.ErrorContains(t, err, "another master key")
	for i := range sealed {
		bad := append([]byte(nil), sealed...)
		bad[i] ^= 1
		_, err := a.Open(bad, "keypair A")
		require.Error(t, err, "byte %d", i)
		_, err = a.Open(sealed[:i], "keypair A")
		require.Error(t, err, "cut at %d", i)
	}
}

func TestPasswords(t *testing.T) {
	t.Parallel()
	p := seal.NewPasswords(2, seal.Cost{}, rand.Reader)
	ctx := t.Context()
	h, err := p.Hash(ctx, "pässword")
	require.NoError(t, err)
	require.Regexp(t, `^\$argon2id\$v=19\$m=19456,t=2,p=1\$`, h)
	for _, c := range []struct {
		password seal.Secret
		hash     string
		ok       bool
	}{{"pässword", h, true}, {"passwort", h, false}, {"", h, false}, {"pässword", "", false}, {"", "", false}} {
		ok, renew, err := p.Check(ctx, c.password, c.hash)
		require.NoError(t, err)
		require.Equal(t, c.ok, ok)
		require.False(t, renew)
	}
	ok, renew, err := p.Check(ctx, "x", "$argon2id$v=19$m=64,t=1,p=1$AAAAAAAAAAAAAAAAAAAAAA$AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA")
	require.NoError(t, err)
	require.False(t, ok)
	require.False(t, renew)
	cheap, err := seal.NewPasswords(1, seal.Cost{Memory: 64, Time: 1}, rand.Reader).Hash(ctx, "pässword")
	require.NoError(t, err)
	ok, renew, err = p.Check(ctx, "pässword", cheap)
	require.NoError(t, err)
	require.True(t, ok)
	require.True(t, renew, "a hash of another cost is made again")
	for _, bad := range []string{"x", "$argon2id$v=19$m=9999999,t=1,p=1$AA$AA", "$argon2i$v=19$m=64,t=1,p=1$AA$AA"} {
		_, _, err := p.Check(ctx, "x", bad)
		require.Error(t, err)
	}
}

func TestSecretsAreNotPrinted(t *testing.T) {
	t.Parallel()
	s := seal.Secret("hunter2")
	for _, f := range []string{"%v", "%s", "%+v", "%#v", "%q"} {
		require.NotContains(t, fmt.Sprintf(f, s), "hunter2")
		require.NotContains(t, fmt.Sprintf(f, struct{ S seal.Secret }{s}), "hunter2")
	}
}

// TestWhatACrashLeftIsRemoved: a key file that a crash left half-way holds a key; the next start removes it, and nothing else.
func TestWhatACrashLeftIsRemoved(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	path := filepath.Join(dir, "master.key")
	write := func(name string, age time.Duration) {
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte("x"), 0o600))
		then := time.Now().Add(-age)
		require.NoError(t, os.Chtimes(filepath.Join(dir, name), then, then))
	}
	names := func() (out []string) {
		entries, err := os.ReadDir(dir)
		require.NoError(t, err)
		for _, e := range entries {
			out = append(out, e.Name())
		}
		return out
	}
	for range 2 { // a first start, and a later one
		write(".master-key-123", time.Hour)
		write(".master-key-456", time.Second) // another process writes it now
		write("master-key-copy", time.Hour)
		_, err := seal.LoadOrCreate(path, rand.Reader)
		require.NoError(t, err)
		require.Equal(t, []string{".master-key-456", "master-key-copy", "master.key"}, names())
	}
}
