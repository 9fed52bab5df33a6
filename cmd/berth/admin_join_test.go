package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"berth.dev/berth/internal/platform"
)

// tokens are those that `berth admin join-token list` knows.
func tokens(t *testing.T, dir string) (list []platform.JoinToken) {
	t.Helper()
	r := berth(t, dir, "admin", "join-token", "list", "--json")
	require.Zero(t, r.code, r.stderr)
	require.NoError(t, json.Unmarshal([]byte(r.stdout), &list))
	return list
}

// checkJoinTokens walks through what an administrator does about joining, on a running cluster that was started twice.
func checkJoinTokens(t *testing.T, dir string) {
	t.Helper()
	// The cluster's own agent and app proxy joined without any manual step, once, and left no token on the disk.
	require.Eventually(t, func() bool {
		used := 0
		for _, token := range tokens(t, dir) {
			if token.Status(time.Now()) == "used" {
				used++
			}
		}
		return used == 2
	}, time.Minute, 50*time.Millisecond)
	require.Len(t, tokens(t, dir), 2)
	require.NoFileExists(t, filepath.Join(dir, "agent", "join.token"))

	made := berth(t, dir, "admin", "join-token", "create", "--role", "agent", "--name", "i-77", "--expires", "15m")
	require.Zero(t, made.code, made.stderr)
	text := strings.TrimSpace(made.stdout)
	require.True(t, strings.HasPrefix(text, "berth-join-1."), "standard output is the token alone")
	require.Contains(t, made.stderr, "agent i-77, to be used once before")
	file := filepath.Join(dir, "token")
	require.Zero(t, berth(t, dir, "admin", "join-token", "create", "--role", "appproxy", "--name", "eu1", "--out", file).code)
	info, err := os.Stat(file)
	require.NoError(t, err)
	require.Equal(t, os.FileMode(0o600), info.Mode())
	secret, err := os.ReadFile(file)
	require.NoError(t, err)

	table := berth(t, dir, "admin", "join-token", "list").stdout
	list := tokens(t, dir)
	require.Len(t, list, 4)
	for _, want := range []string{"i-77", "eu1", "unused", list[2].ID, list[3].ID} {
		require.Contains(t, table, want)
	}
	require.WithinDuration(t, list[2].At.Add(15*time.Minute), list[2].Expires, time.Second)
	require.NotEmpty(t, list[2].By)
	require.NotContains(t, table, text[len(text)-20:])
	require.Zero(t, berth(t, dir, "admin", "join-token", "revoke", list[2].ID).code)
	require.Len(t, tokens(t, dir), 3)
	again := berth(t, dir, "admin", "join-token", "revoke", list[2].ID)
	require.Equal(t, 3, again.code)
	require.Contains(t, again.stderr, "next: berth admin join-token list")

	for _, bad := range [][]string{
		{"--role", "king", "--name", "x"}, {"--role", "agent", "--name", "../x"}, {"--role", "agent", "--name", "x", "--expires", "200h"},
		{"--role", "agent"},
	} {
		r := berth(t, dir, append([]string{"admin", "join-token", "create"}, bad...)...)
		require.Equal(t, 2, r.code, "%v: %s", bad, r.stderr)
	}
	own := map[string]string{string(list[0].Role): list[0].Name, string(list[1].Role): list[1].Name}
	known := berth(t, dir, "admin", "join-token", "create", "--role", "agent", "--name", own["agent"])
	require.Equal(t, 1, known.code)
	require.Contains(t, known.stderr, "--replace")
	nobody := berth(t, dir, "admin", "certificate", "revoke", "--role", "agent", "--name", "nobody")
	require.Equal(t, 3, nobody.code)
	require.Zero(t, berth(t, dir, "admin", "certificate", "revoke", "--role", "appproxy", "--name", own["appproxy"]).code)

	log, err := os.ReadFile(filepath.Join(dir, "berth.log"))
	require.NoError(t, err)
	for _, s := range []string{text, string(secret)} {
		s = strings.TrimSpace(s)
		require.NotContains(t, string(log), s[len(s)-30:])
	}
}
