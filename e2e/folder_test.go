package e2e_test

import (
	"crypto/rand"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"berth.dev/berth/internal/embedded"
	"berth.dev/berth/internal/manager/seal"
)

// member adds a user of the domain and the project "default" to the cluster, past its interface, and returns the environment of
// the user's client. There is no command for it yet.
func (p *platform) member(name string) []string {
	p.t.Helper()
	key, err := seal.LoadOrCreate(filepath.Join(p.dir, "manager", "master.key"), rand.Reader)
	require.NoError(p.t, err)
	access := fmt.Sprintf("AKIA%-16.16s", strings.ToUpper(name)+strings.Repeat("X", 16))
	secret := seal.Secret("secret-of-" + name)
	sealed, err := key.Seal(secret, "keypair "+access)
	require.NoError(p.t, err)
	sockets := embedded.SocketDir(p.dir, "pg", ".s.PGSQL.5432")
	db, err := pgx.Connect(p.t.Context(), (&url.URL{Scheme: "postgres", User: url.User("berth"), Path: "/berth",
		RawQuery: url.Values{"host": {sockets}}.Encode()}).String())
	require.NoError(p.t, err)
	defer func() { _ = db.Close(p.t.Context()) }()
	id := uuid.NewString()
	for _, q := range []struct {
		sql  string
		args []any
	}{
		{`INSERT INTO users (id, username, email, domain_name, resource_policy) VALUES ($1, $2, $2 || '@berth.local', 'default', 'default')`,
			[]any{id, name}},
		{`INSERT INTO keypairs (access_key, secret_sealed, user_id, resource_policy) VALUES ($1, $2, $3, 'default')`, []any{access, sealed, id}},
		{`UPDATE users SET main_access_key = $1 WHERE id = $2`, []any{access, id}},
		{`INSERT INTO project_members (project_id, user_id) SELECT id, $1 FROM projects WHERE name = 'default'`, []any{id}},
	} {
		_, err := db.Exec(p.t.Context(), q.sql, q.args...)
		require.NoError(p.t, err, q.sql)
	}
	var env []string
	for _, line := range p.env() {
		switch name, _, _ := strings.Cut(line, "="); name {
		case "BACKEND_ACCESS_KEY":
			line = name + "=" + access
		case "BACKEND_SECRET_KEY":
			line = name + "=" + secret.Reveal()
		}
		env = append(env, line)
	}
	return env
}

func (o *official) read(name string) string {
	o.t.Helper()
	b, err := os.ReadFile(filepath.Join(o.dir, name))
	require.NoError(o.t, err)
	return string(b)
}

// answers runs a command with answers to what it asks; it has to succeed.
func (o *official) answers(stdin string, args ...string) string {
	o.t.Helper()
	r := o.run(stdin, args...)
	require.Zero(o.t, r.code, "backend.ai %s:\n%s%s", strings.Join(args, " "), r.stdout, r.stderr)
	require.NotContains(o.t, r.stderr, "Traceback", "backend.ai %s", strings.Join(args, " "))
	return r.stdout + r.stderr
}

// refused runs a command that has to fail with words for people and returns them.
func (o *official) refused(args ...string) string {
	o.t.Helper()
	r := o.run("", args...)
	require.NotContains(o.t, r.stderr, "Traceback", "backend.ai %s", strings.Join(args, " "))
	require.NotZero(o.t, r.code, "backend.ai %s:\n%s%s", strings.Join(args, " "), r.stdout, r.stderr)
	return r.stdout + r.stderr
}

type officialFolder struct {
	Name       string `json:"name"`
	Host       string `json:"host"`
	Status     string `json:"status"`
	Permission string `json:"permission"`
	Ownership  string `json:"ownership_type"`
	Creator    string `json:"creator"`
}

// folders are those of one of the client's lists by name.
func (o *official) folders(list ...string) map[string]officialFolder {
	o.t.Helper()
	var page struct{ Items []officialFolder }
	o.json(&page, list...)
	out := map[string]officialFolder{}
	for _, f := range page.Items {
		out[f.Name] = f
	}
	return out
}

// TestOfficialClientFolders walks the unmodified official client along the life of folders, as their owner and as the one with
// whom they are shared.
func TestOfficialClientFolders(t *testing.T) {
	t.Parallel()
	p := up(t)
	owner, guest := newOfficial(t, p.env()), newOfficial(t, p.member("guest"))
	const host = "local:volume1"
	big := make([]byte, 18<<20) // two chunks of the client
	_, err := rand.Read(big)
	require.NoError(t, err)

	t.Run("hosts", func(t *testing.T) {
		p.eventually("the storage proxy is known", func() bool { return strings.Contains(owner.must("vfolder", "list-hosts"), host) })
		require.Contains(t, guest.must("vfolder", "list-hosts"), host)
		require.Contains(t, owner.must("admin", "vfolder", "list-hosts"), host)
		require.Contains(t, owner.must("vfolder", "list-allowed-types"), "user")
		var volumes struct {
			Items []struct{ ID, Backend string }
		}
		owner.json(&volumes, "admin", "storage", "list")
		require.Equal(t, host, volumes.Items[0].ID)
		owner.must("admin", "storage", "info", host)
	})
	t.Run("create, info, list", func(t *testing.T) {
		require.Contains(t, owner.must("vfolder", "create", "--cloneable", "data", host), `"data" is created`)
		require.Contains(t, owner.must("vfolder", "info", "data"), "Status: ready")
		require.Contains(t, owner.refused("vfolder", "create", "data", host), "data")
		require.Contains(t, owner.refused("vfolder", "info", "nothing"), "nothing")
		f := owner.folders("vfolder", "list")["data"]
		require.Equal(t, officialFolder{"data", host, "ready", "rw", "user", "admin@berth.local"}, f)
		require.Contains(t, owner.folders("vfolder", "list-own"), "data")
		require.NotContains(t, guest.folders("vfolder", "list"), "data")
		require.Contains(t, guest.refused("vfolder", "info", "data"), "data")
	})
	t.Run("upload, list files, download", func(t *testing.T) {
		owner.write("small.txt", "hello\n")
		owner.write("empty", "")
		owner.write("big.bin", string(big))
		owner.write("tree/one.txt", "1")
		owner.write("tree/sub/two.txt", "2")
		owner.must("vfolder", "upload", "data", "small.txt", "empty", "big.bin")
		owner.must("vfolder", "upload", "-r", "data", "tree")
		listed := owner.must("vfolder", "ls", "data")
		for _, name := range []string{"small.txt", "empty", "big.bin", "tree"} {
			require.Contains(t, listed, name)
		}
		require.Contains(t, owner.must("vfolder", "ls", "data", "tree/sub"), "two.txt")
		r := owner.run("", "vfolder", "ls", "data", "nowhere") // the client ends with 0 all the same
		require.Contains(t, r.stdout+r.stderr, "404 Not Found")
		require.NoError(t, os.MkdirAll(filepath.Join(owner.dir, "back", "tree", "sub"), 0o755))
		owner.must("vfolder", "download", "-b", "back", "data", "small.txt", "empty", "big.bin", "tree/sub/two.txt")
		require.Equal(t, "hello\n", owner.read("back/small.txt"))
		require.Empty(t, owner.read("back/empty"))
		require.Equal(t, "2", owner.read("back/tree/sub/two.txt"))
		require.True(t, owner.read("back/big.bin") == string(big), "what was downloaded is what was uploaded")
	})
	t.Run("mkdir, rename, move, remove", func(t *testing.T) {
		owner.must("vfolder", "mkdir", "-p", "data", "a/b")
		require.NotZero(t, owner.run("", "vfolder", "mkdir", "data", "a/b").code, "it exists")
		owner.must("vfolder", "mkdir", "-e", "data", "a/b")
		owner.must("vfolder", "rename-file", "data", "small.txt", "renamed.txt")
		owner.must("vfolder", "mv", "data", "renamed.txt", "a/b/moved.txt")
		require.Contains(t, owner.must("vfolder", "ls", "data", "a/b"), "moved.txt")
		require.NotContains(t, owner.must("vfolder", "ls", "data"), "renamed.txt")
		owner.answers("y\n", "vfolder", "rm", "data", "empty")
		require.NotZero(t, owner.run("y\n", "vfolder", "rm", "data", "tree").code, "directories need -r")
		owner.answers("y\n", "vfolder", "rm", "-r", "data", "tree")
		listed := owner.must("vfolder", "ls", "data")
		require.NotContains(t, listed, "empty")
		require.NotContains(t, listed, "tree")
		owner.refused("vfolder", "mkdir", "data", "../../escape")
		owner.refused("vfolder", "mv", "data", "a/b/moved.txt", "../../escape")
	})
	t.Run("mounted in a session", func(t *testing.T) {
		out := owner.must("run", "--rm", "-v", "data=/home/work/data", "python", "-c",
			`import os; print(open("/home/work/data/a/b/moved.txt").read()); open("/home/work/data/made.txt","w").write("by a session"); `+
				`print("uid", os.stat("/home/work/data/made.txt").st_uid == os.getuid())`)
		require.Contains(t, out, "hello")
		require.Contains(t, out, "uid True")
		owner.must("vfolder", "download", "-b", "back", "data", "made.txt")
		require.Equal(t, "by a session", owner.read("back/made.txt"))
		require.Contains(t, owner.must("run", "--rm", "-v", "data", "python", "-c", `print(open("/home/work/data/made.txt").read())`),
			"by a session")
		r := owner.run("", "run", "--rm", "-v", "no-such-folder", "python", "-c", "1")
		require.Contains(t, r.stdout+r.stderr, "no-such-folder")
	})
	t.Run("invite", func(t *testing.T) {
		require.Contains(t, owner.must("vfolder", "invite", "-p", "ro", "data", "guest@berth.local"), "guest@berth.local")
		require.Contains(t, guest.answers("1\na\n", "vfolder", "invitations"), "You can now access")
		require.Contains(t, guest.must("vfolder", "invitations"), "No invitations")
		require.Contains(t, guest.folders("vfolder", "list-invited"), "data")
		require.Contains(t, guest.must("vfolder", "info", "data"), "Permission: ro")
		guest.must("vfolder", "download", "data", "made.txt")
		require.Equal(t, "by a session", guest.read("made.txt"))
		guest.write("mine.txt", "no")
		require.Contains(t, guest.refused("vfolder", "upload", "data", "mine.txt"), "ro")
		guest.refused("vfolder", "mkdir", "data", "mine")
		guest.refused("vfolder", "delete", "data")
		require.NotZero(t, guest.run("y\n", "vfolder", "rm", "data", "made.txt").code)
		out := guest.must("run", "--rm", "-v", "data=/home/work/data", "python", "-c", `
print(open("/home/work/data/made.txt").read())
try:
    open("/home/work/data/made.txt", "a").write("changed")
except OSError as e:
    print("refused", e.errno)
try:
    open("/home/work/data/new.txt", "w")
except OSError as e:
    print("refused", e.errno)
`)
		require.Contains(t, out, "by a session")
		require.Equal(t, 2, strings.Count(out, "refused 30"), "a read-only mount refuses writes: %s", out)
		shared := owner.must("admin", "vfolder", "list-shared-vfolders")
		require.Contains(t, shared, "guest@berth.local")
		guest.must("vfolder", "leave", "data")
		require.NotContains(t, guest.folders("vfolder", "list"), "data")
	})
	t.Run("share", func(t *testing.T) {
		owner.must("vfolder", "create", "-g", "default", "-p", "ro", "team", host)
		require.Equal(t, "ro", guest.folders("vfolder", "list-project")["team"].Permission)
		guest.refused("vfolder", "upload", "team", "mine.txt")
		require.Contains(t, owner.must("vfolder", "share", "-p", "rw", "team", "guest@berth.local"), "guest@berth.local")
		guest.must("vfolder", "upload", "team", "mine.txt")
		require.Contains(t, owner.must("vfolder", "ls", "team"), "mine.txt")
		require.Contains(t, owner.must("vfolder", "unshare", "team", "guest@berth.local"), "guest@berth.local")
		guest.refused("vfolder", "mkdir", "team", "x")
	})
	t.Run("clone", func(t *testing.T) {
		owner.must("vfolder", "clone", "data", "copy", host)
		p.eventually("the copy is ready", func() bool { return owner.folders("vfolder", "list")["copy"].Status == "ready" })
		require.NoError(t, os.MkdirAll(filepath.Join(owner.dir, "copy"), 0o755))
		owner.must("vfolder", "download", "-b", "copy", "copy", "big.bin", "made.txt")
		require.True(t, owner.read("copy/big.bin") == string(big), "the copy has the same bytes")
		owner.must("vfolder", "update-options", "-p", "ro", "copy")
		require.Contains(t, owner.must("vfolder", "info", "copy"), "Permission: ro")
		owner.must("vfolder", "rename", "copy", "copied")
	})
	t.Run("delete", func(t *testing.T) {
		owner.must("vfolder", "delete", "copied")
		// This client knows no trash bin; ours brings folders back and deletes them for good.
		require.NotContains(t, owner.folders("vfolder", "list"), "copied")
		require.Contains(t, p.must("folder", "list", "--trash"), "copied")
		owner.refused("vfolder", "mkdir", "copied", "x")
		p.must("folder", "restore", "copied")
		require.Contains(t, owner.must("vfolder", "ls", "copied"), "big.bin")
		owner.must("vfolder", "delete", "copied")
		disk := func() (dirs []string) {
			dirs, err := filepath.Glob(filepath.Join(p.dir, "volumes", "volume1", "*", "??", "??", "????????????????????????????"))
			require.NoError(t, err)
			return dirs
		}
		before := len(disk())
		p.must("folder", "purge", "--yes", "copied")
		p.eventually("the files of the folder are gone", func() bool { return len(disk()) == before-1 })
		p.eventually("the folder is forgotten", func() bool { return !strings.Contains(p.must("folder", "list", "--trash"), "copied") })
		owner.must("session", "create", "--name", "holds-data", "-v", "data", "python")
		refused := owner.refused("vfolder", "delete", "data")
		require.Contains(t, refused, "holds-data", "a folder that a session mounts is not deleted")
		owner.must("session", "destroy", "holds-data")
		p.eventually("the session has ended", func() bool {
			s, found := owner.session("holds-data")
			return found && s.Status == "TERMINATED"
		})
		owner.must("vfolder", "delete", "data")
		owner.must("vfolder", "delete", "team")
	})
	p.clean()
}
