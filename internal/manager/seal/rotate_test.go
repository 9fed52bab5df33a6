package seal_test

import (
	"crypto/rand"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"berth.dev/berth/internal/fault"
	"berth.dev/berth/internal/manager/seal"
)

func sealed(t *testing.T, k *seal.Key) []byte {
	t.Helper()
	text, err := k.Seal("s3cret", "keypair A")
	require.NoError(t, err)
	return text
}

func opens(t *testing.T, k *seal.Key, text []byte) {
	t.Helper()
	got, err := k.Open(text, "keypair A")
	require.NoError(t, err)
	require.Equal(t, "s3cret", got.Reveal())
}

// TestRotation goes through the steps with two managers, which share a copied file.
func TestRotation(t *testing.T) {
	t.Parallel()
	file, other := filepath.Join(t.TempDir(), "master.key"), filepath.Join(t.TempDir(), "master.key")
	a, err := seal.LoadOrCreate(file, rand.Reader)
	require.NoError(t, err)
	copied := func() {
		t.Helper()
		text, err := os.ReadFile(file)
		require.NoError(t, err)
		require.NoError(t, os.WriteFile(other+".new", text, 0o600))
		require.NoError(t, os.Rename(other+".new", other))
	}
	copied()
	b, err := seal.Load(other, rand.Reader)
	require.NoError(t, err)
	first := a.ID()
	old := sealed(t, a)

	require.True(t, fault.Is(a.Use(), fault.Conflict), "nothing is prepared")
	next, err := a.Prepare()
	require.NoError(t, err)
	require.NotEqual(t, first, next)
	again, err := a.Prepare()
	require.NoError(t, err)
	require.Equal(t, next, again, "one key waits, however often it is asked for")
	require.Equal(t, first, a.ID(), "a prepared key does not seal")
	require.True(t, fault.Is(a.Forget(a.ID()), fault.Conflict), "the prepared key is not in use")
	copied()

	require.NoError(t, a.Use())
	require.NoError(t, a.Use())
	require.Equal(t, next, a.ID())
	opens(t, a, old)
	opens(t, b, sealed(t, a)) // it read the file again, because it did not know the key
	require.Equal(t, first, b.ID())
	opens(t, a, sealed(t, b))
	fresh, changed, err := a.Reseal(old, "keypair A")
	require.NoError(t, err)
	require.True(t, changed)
	same, changed, err := a.Reseal(fresh, "keypair A")
	require.NoError(t, err)
	require.False(t, changed)
	require.Equal(t, fresh, same)
	_, err = a.Prepare()
	require.True(t, fault.Is(err, fault.Conflict), "finish first: %v", err)
	copied()
	require.Equal(t, next, b.ID(), "a manager that runs follows its file")

	require.True(t, fault.Is(a.Forget(first), fault.Conflict), "another key is in use than the one that everything was sealed with")
	opens(t, a, old)
	require.NoError(t, a.Forget(next))
	require.NoError(t, a.Forget(next))
	_, err = a.Open(old, "keypair A")
	require.ErrorContains(t, err, "another master key")
	opens(t, a, fresh)
	opens(t, b, fresh)
	text, err := os.ReadFile(file)
	require.NoError(t, err)
	require.Len(t, strings.Fields(string(text)), 1)
	st, err := os.Stat(file)
	require.NoError(t, err)
	require.Equal(t, os.FileMode(0o600), st.Mode().Perm())
}

// TestADamagedFileChangesNothing says that a manager keeps its keys while its file cannot be read, and does not start with such a file.
func TestADamagedFileChangesNothing(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "master.key")
	k, err := seal.LoadOrCreate(file, rand.Reader)
	require.NoError(t, err)
	was, err := os.ReadFile(file)
	require.NoError(t, err)
	text := sealed(t, k)
	line := strings.TrimSpace(string(was))
	for _, bad := range []string{"", "x", line + " other", line + "\n" + line, line + " old", line + "\n" + line + " old\n" + line + " next",
		line[2:]} {
		require.NoError(t, os.WriteFile(file, []byte(bad), 0o600))
		_, err := seal.Load(file, rand.Reader)
		require.True(t, fault.Is(err, fault.Invalid), "%q: %v", bad, err)
		opens(t, k, text)
		opens(t, k, sealed(t, k))
		_, err = k.Prepare()
		require.Error(t, err)
	}
}
