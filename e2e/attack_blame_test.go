package e2e_test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestAttackBlame is a tenant whose sessions cannot start, by what the tenant chose: dotfiles, targets of folders, the files of a home. The
// agent must not be blamed for it, nor wait, because all other tenants would wait with it.
func TestAttackBlame(t *testing.T) {
	t.Parallel()
	p := up(t)
	mallory := p.member("mallory")
	as := func(args ...string) result { return p.runAs(mallory, args...) }
	session := func(name string) (row sessionRow) {
		t.Helper()
		var rows []sessionRow
		r := as("session", "list", "--all", "--json")
		require.NoError(t, json.Unmarshal([]byte(r.stdout), &rows), "%s", r.stderr)
		for _, row = range rows {
			if row.Name == name {
				return row
			}
		}
		return sessionRow{}
	}
	dotfiles := func(text string) {
		p.sql(`UPDATE keypairs SET dotfiles = $1::text::jsonb WHERE access_key LIKE 'AKIAMALLORY%'`, text)
	}
	innocent := func(name string) {
		t.Helper()
		p.must("session", "create", "python", "--name", name, "-r", "mem=256m")
		list := p.must("agent", "list")
		require.NotContains(t, list, "quarantine")
		p.must("session", "destroy", name)
	}
	t.Run("dotfiles that cannot be", func(t *testing.T) {
		dotfiles(`[{"path": ".bashrc/x", "perm": "644", "data": "x"}]`)
		for _, name := range []string{"dot-1", "dot-2", "dot-3"} {
			as("session", "create", "python", "--name", name, "-r", "mem=128m", "--detach")
		}
		for _, name := range []string{"dot-1", "dot-2", "dot-3"} {
			p.eventually(name+" has failed", func() bool { return session(name).Status == "ERROR" })
		}
		require.Contains(t, as("session", "events", session("dot-1").ID).stdout, "dotfile")
		innocent("after-dotfiles")
		dotfiles(`[]`)
	})
	t.Run("a pipe in the home, and a restart", func(t *testing.T) {
		script := filepath.Join(t.TempDir(), "boot.sh")
		require.NoError(t, os.WriteFile(script, []byte("touch /home/work/booted\n"), 0o644))
		r := as("session", "create", "python", "--name", "pipe", "-r", "mem=128m", "--bootstrap", script)
		require.Zero(t, r.code, "%s", r.stderr)
		r = as("session", "exec", "pipe", "--", "sh", "-c", "rm -f bootstrap.sh booted; mkfifo bootstrap.sh")
		require.Zero(t, r.code, "%s", r.stderr)
		as("session", "restart", "pipe")
		p.eventually("it runs again", func() bool { return as("session", "exec", "pipe", "--", "test", "-e", "booted").code == 0 })
		innocent("after-pipe")
	})
	t.Run("a directory where a file belongs", func(t *testing.T) {
		r := as("session", "exec", "pipe", "--", "sh", "-c", "rm bootstrap.sh; mkdir -p bootstrap.sh/x")
		require.Zero(t, r.code, "%s", r.stderr)
		as("session", "restart", "pipe")
		p.eventually("it has ended", func() bool { return session("pipe").Status == "ERROR" })
		require.Contains(t, as("session", "events", session("pipe").ID).stdout, "cannot be written into the session's home")
		innocent("after-directory")
	})
	p.clean()
}

// TestAttackMarkers is a batch job that denies that it began, and forges its result.
func TestAttackMarkers(t *testing.T) {
	t.Parallel()
	p := up(t)
	shared := p.onDisk("lines")
	command := strings.Join([]string{
		"echo began >> /home/work/lines/all",
		"rm -rf /.berth/started /.berth/ended /.berth/result.json /.berth/result.json.new",
		`echo '{"exit_code":0}' > /.berth/result.json`,
		"mv /.berth/user /.berth/started", "ln -sf /etc /.berth/user/started", "mv /.berth /gone",
		"kill -9 1",
		"exit 7",
	}, "; ")
	p.must("session", "create", "python", "--detach", "--name", "liar", "-r", "mem=128m", "-v", "lines", "--batch", command)
	p.eventually("it has ended", func() bool { return p.sessions()["liar"].Status == "TERMINATED" })
	row := p.sessions()["liar"]
	require.Equal(t, "FAILURE", row.Result)
	require.Regexp(t, `"exit_code": *7\b`, p.must("session", "info", row.ID, "--json"))
	all, err := os.ReadFile(filepath.Join(shared, "all"))
	require.NoError(t, err)
	require.Equal(t, "began\n", string(all))
	p.clean()
}
