package simulation

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// Each promise about folders is broken once, and no other one fires.
func TestPromisesOfFoldersNoticeTheirBreach(t *testing.T) {
	t.Parallel()
	const scope = "user:11111111-2222-3333-4444-555555555555"
	good := func() (rows map[string]folderRow, known map[string]*knownFolder, stored map[string]string) {
		rows, known, stored = map[string]folderRow{}, map[string]*knownFolder{}, map[string]string{}
		for id, status := range map[string]string{"a": "ready", "b": "delete-pending", "c": "cloning", "d": "delete-complete"} {
			r := folderRow{ID: id + "aaaaaaa-bbbb-cccc-dddd-eeeeeeeeeeee", Owner: "owner-of-all", Status: status, Scope: scope,
				Shares: map[string]string{}}
			rows[id] = r
			if status != "delete-complete" {
				known[id] = &knownFolder{content: "x", copied: id == "c", trashed: id == "b", shares: map[string]string{}}
			}
			if status == "ready" || status == "delete-pending" {
				stored[vfid(r)] = "x"
			}
		}
		rows["a"].Shares["ada"], known["a"].shares["ada"] = "rw", "rw"
		return rows, known, stored
	}
	change := func(rows map[string]folderRow, id, status string) {
		r := rows[id]
		r.Status = status
		rows[id] = r
	}
	rows, known, stored := good()
	require.Empty(t, judgeFolders(rows, known, stored, nil))
	for name, c := range map[string]struct {
		spoil func(rows map[string]folderRow, known map[string]*knownFolder, stored map[string]string)
		want  string
	}{
		"a row is lost": {func(rows map[string]folderRow, _ map[string]*knownFolder, _ map[string]string) { delete(rows, "a") }, "durable"},
		"a living folder is removed": {func(rows map[string]folderRow, _ map[string]*knownFolder, _ map[string]string) {
			change(rows, "a", "delete-ongoing")
		}, "durable"},
		"the trash is emptied": {func(rows map[string]folderRow, _ map[string]*knownFolder, _ map[string]string) {
			change(rows, "b", "delete-ongoing")
		}, "durable"},
		"a copy fails": {func(rows map[string]folderRow, _ map[string]*knownFolder, _ map[string]string) {
			change(rows, "c", "error")
		}, "durable"},
		"bytes are gone": {func(_ map[string]folderRow, _ map[string]*knownFolder, stored map[string]string) { clear(stored) }, "durable"},
		"a share stays": {func(_ map[string]folderRow, known map[string]*knownFolder, _ map[string]string) {
			delete(known["a"].shares, "ada")
		}, "shares hold"},
		"a share is lost": {func(_ map[string]folderRow, known map[string]*knownFolder, _ map[string]string) {
			known["a"].shares["bob"] = "ro"
		}, "shares hold"},
		"too many": {func(rows map[string]folderRow, _ map[string]*knownFolder, _ map[string]string) {
			for _, id := range []string{"e", "f"} {
				rows[id] = folderRow{ID: id, Owner: "owner-of-all", Status: "performing", Scope: scope}
			}
		}, "quotas hold"},
	} {
		rows, known, stored := good()
		c.spoil(rows, known, stored)
		got := judgeFolders(rows, known, stored, nil)
		require.True(t, strings.Contains(got, c.want), "%s: %q", name, got)
	}
}
