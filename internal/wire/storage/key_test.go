package storage_test

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"berth.dev/berth/internal/wire/storage"
)

const secret = "the secret of all managers"

// TestKeysAreAProxysOwn: what a proxy has opens nothing of another one, and is what the secret stood for before.
func TestKeysAreAProxysOwn(t *testing.T) {
	t.Parallel()
	a, b := storage.KeysOf(secret, "a"), storage.KeysOf(secret, "b")
	seen := map[string]bool{}
	for _, key := range []string{a.Manager, a.Client, a.Tasks, a.Announce, b.Manager, b.Client, b.Tasks, b.Announce} {
		require.Len(t, key, 64)
		require.False(t, seen[key])
		seen[key] = true
	}
	text, err := a.Text()
	require.NoError(t, err)
	require.NotContains(t, text, secret)
	got, own, err := storage.ReadKeys(text, "a")
	require.NoError(t, err)
	require.True(t, own)
	require.Equal(t, a, got)
	shared, own, err := storage.ReadKeys(secret, "a")
	require.NoError(t, err)
	require.False(t, own)
	require.Equal(t, a, shared, "hosts change from one to the other one at a time")
	for _, bad := range []string{text[:len(text)-9], text + "x!", "berth-storage-key-1.", "berth-storage-key-1.e30"} {
		_, _, err := storage.ReadKeys(bad, "a")
		require.ErrorIs(t, err, storage.ErrKeys, bad)
	}
	// Who has the keys of one proxy and takes them for the secret gets nowhere.
	require.NotEqual(t, b.Manager, storage.Key(text, "b", storage.ManagerKey))
}

// TestAnnouncementsAreProven: whoever changes an announcement, or has the keys of another proxy, proves nothing.
func TestAnnouncementsAreProven(t *testing.T) {
	t.Parallel()
	key := storage.Key(secret, "b", storage.AnnounceKey)
	p := storage.Presence{Proxy: "b", Node: "n1", Protocol: storage.Version, ManagerURL: "https://b:6022", ClientURL: "https://b:6021",
		StartedAt: time.Unix(1_800_000_000, 5), Volumes: []storage.Volume{{Name: "v", Backend: "posix", Path: "/mnt/v"}}}
	p.Proof = storage.Prove(key, p)
	require.True(t, storage.Proven(key, p))
	for name, change := range map[string]func(*storage.Presence){
		"address":      func(p *storage.Presence) { p.ManagerURL = "https://evil:6022" },
		"client's":     func(p *storage.Presence) { p.ClientURL = "https://evil:6021" },
		"volume":       func(p *storage.Presence) { p.Volumes = []storage.Volume{{Name: "v", Backend: "posix", Path: "/"}} },
		"node":         func(p *storage.Presence) { p.Node = "n2" },
		"no proof":     func(p *storage.Presence) { p.Proof = "" },
		"another's":    func(p *storage.Presence) { p.Proof = storage.Prove(storage.Key(secret, "a", storage.AnnounceKey), *p) },
		"cut":          func(p *storage.Presence) { p.Proof = p.Proof[:10] },
		"moved border": func(p *storage.Presence) { p.Proxy, p.Node = "bn", strings.TrimPrefix(p.Node, "n") },
	} {
		q := p
		change(&q)
		require.False(t, storage.Proven(key, q), name)
	}
}
