package cli

import (
	"encoding/json"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"berth.dev/berth/api"
	"berth.dev/berth/internal/cli/frame"
)

// withData is a bench with a folder called data.
func withData(t *testing.T) (*bench, *fakeFolder) {
	t.Helper()
	b := setup(t)
	return b, b.folders.add("data")
}

func TestFolderLife(t *testing.T) {
	t.Parallel()
	b := setup(t)

	require.Equal(t, outcome{"", "no folders; berth folder create makes one\n", 0}, b.do(t, "", "folder", "list"))
	o := b.do(
		t, "", "folder", "create", "data", "--host", "local:volume1", "--usage-mode", "model", "-p", "ro", "--cloneable", "--project", "p",
	)
	require.Equal(t, outcome{"00000000000000000000000000000001\n", "", 0}, o)
	require.Equal(
		t,
		map[string]any{"name": "data", "host": "local:volume1", "usage_mode": "model", "permission": "ro", "cloneable": true, "group": "p"},
		b.folders.asked[0],
	)
	o = b.do(t, "", "folder", "create", "data")
	require.Equal(t, frame.ExitFailure, o.code)
	require.Contains(t, o.err, "next: berth folder list")

	require.Equal(t, ""+
		"NAME  STATUS  PERMISSION  OWNER              HOST           SIZE  AGE  ID\n"+
		"data  ready   rw          admin@berth.local  local:volume1        5m   00000000000000000000000000000001\n",
		b.do(t, "", "folder", "list").out)
	require.Contains(t, b.do(t, "", "folder", "info", "data").out, "host         local:volume1\n")
	require.Contains(t, b.do(t, "", "folder", "info", "data", "--json").out, `"id": "00000000000000000000000000000001"`)

	require.Equal(t, "folder data is called old now\n", b.do(t, "", "folder", "rename", "data", "old").err)
	require.Equal(t, "folder old is in the trash; berth folder restore old brings it back\n", b.do(t, "", "folder", "rm", "old").err)
	require.Empty(t, b.do(t, "", "folder", "list").out)
	require.Equal(t, "00000000000000000000000000000001\n", b.do(t, "", "folder", "list", "--trash", "-q").out)
	require.Equal(t, frame.ExitNotFound, b.do(t, "", "folder", "rm", "old").code)

	require.Equal(t, "folder old is back\n", b.do(t, "", "folder", "restore", "old").err)
	o = b.do(t, "", "folder", "purge", "old")
	require.Equal(t, frame.ExitFailure, o.code)
	require.Contains(t, o.err, "not in the trash\n  next: berth folder rm old")
	require.Equal(t, 0, b.do(t, "", "folder", "rm", "old").code)
	require.Equal(t, "folder old is being deleted\n", b.do(t, "", "folder", "purge", "old").err)

	// Several of a name are told apart by their ids.
	for range 2 {
		b.folders.add("twin").Status = api.FolderDeletePending
	}
	o = b.do(t, "", "folder", "restore", "twin")
	require.Contains(t, o.err, "2 folders called twin are in the trash: 00000000000000000000000000000002, 00000000000000000000000000000003")
	require.Equal(t, 0, b.do(t, "", "folder", "restore", "00000000000000000000000000000003").code)

	// What could not be deleted is deleted again, and administrators delete what others have by its id.
	b.folders.add("stuck").Status = api.FolderDeleteError
	require.Equal(t, outcome{"", "folder stuck is being deleted\n", 0}, b.do(t, "", "folder", "purge", "stuck", "-y"))
	theirs := b.folders.add("theirs")
	theirs.Status, theirs.others = api.FolderDeletePending, true
	require.Equal(t, frame.ExitNotFound, b.do(t, "", "folder", "purge", "theirs", "-y").code)
	require.Equal(t, outcome{"", "folder theirs is being deleted\n", 0}, b.do(t, "", "folder", "purge", theirs.ID, "-y"))
}

func TestFolderUpdate(t *testing.T) {
	t.Parallel()
	b, _ := withData(t)
	require.Equal(
		t, outcome{"", "folder data is changed\n", 0}, b.do(t, "", "folder", "update", "data", "--permission", "ro", "--cloneable=false"),
	)
	require.Equal(
		t, map[string]any{"route": "POST /folders/data/update-options", "permission": "ro", "cloneable": false}, b.folders.asked[0],
	)
	require.Equal(t, 0, b.do(t, "", "folder", "update", "data", "-p", "rw").code)
	require.Equal(t, map[string]any{"route": "POST /folders/data/update-options", "permission": "rw"}, b.folders.asked[1])
	o := b.do(t, "", "folder", "update", "data")
	require.Equal(t, frame.ExitUsage, o.code)
	require.Contains(t, o.err, "next: ")
}

// Next steps that anything of ours names are verbs that there are, with the flags that they have.
func TestNextStepsAboutFoldersExist(t *testing.T) {
	t.Parallel()
	b := setup(t)
	step := regexp.MustCompile("berth folder ([a-z]+)((?: (?:--?[a-z-]+|%s|[A-Z:]+))*)")
	checked := 0
	for _, top := range []string{"..", "../../api", "../../cmd"} {
		err := filepath.WalkDir(top, func(p string, e fs.DirEntry, err error) error {
			if err != nil || e.IsDir() || !strings.HasSuffix(p, ".go") || strings.HasSuffix(p, "_test.go") {
				return err
			}
			text, err := os.ReadFile(p)
			for _, m := range step.FindAllStringSubmatch(string(text), -1) {
				checked++
				o := b.do(t, "", "folder", m[1], "--help")
				if o.code != 0 || !strings.Contains(o.out, "berth folder "+m[1]) {
					t.Errorf("%s: there is no verb folder %s", p, m[1])
				}
				for _, flag := range strings.Fields(m[2]) {
					if strings.HasPrefix(flag, "-") && !strings.Contains(o.out, flag) {
						t.Errorf("%s: folder %s has no flag %s", p, m[1], flag)
					}
				}
			}
			return err
		})
		require.NoError(t, err)
	}
	require.Greater(t, checked, 50)
}

func TestFolderClone(t *testing.T) {
	t.Parallel()
	b, _ := withData(t)

	o := b.do(t, "", "folder", "clone", "data", "copy")
	require.Equal(t, "00000000000000000000000000000002\n", o.out)
	require.Equal(t, "clone data: packing (50 %)\n", o.err)
	require.Equal(t, 1, b.called("GET /events/background-task"))
	o = b.do(t, "", "folder", "clone", "data", "other", "-d", "--json")
	require.Contains(t, o.out, `"bgtask_id": "task-1"`)
	require.Equal(t, 1, b.called("GET /events/background-task"))
}

func TestFoldersAreShared(t *testing.T) {
	t.Parallel()
	b, _ := withData(t)
	asked := func(key string) any { return b.folders.asked[len(b.folders.asked)-1][key] }

	require.Equal(t, "invited ada@example.org to folder data\n", b.do(t, "", "folder", "invite", "data", "ada@example.org", "-p", "ro").err)
	require.Equal(t, "ro", asked("perm"))
	require.Equal(t, []any{"ada@example.org"}, asked("emails"))
	require.Contains(t, b.do(t, "", "folder", "invitations").out, "maps    ada@example.org  admin@berth.local  ro          5m   inv-1\n")
	require.Contains(t, b.do(t, "", "folder", "invitations", "--json").out, `"vfolder_name": "maps"`)
	require.Equal(t, "the invitation to folder maps is accepted\n", b.do(t, "", "folder", "invitations", "accept", "maps").err)
	require.Equal(t, "inv-1", asked("inv_id"))
	require.Equal(t, "the invitation to folder twice is rejected\n", b.do(t, "", "folder", "invitations", "reject", "inv-3").err)
	require.Equal(t, "DELETE /folders/invitations/delete", asked("route"))
	o := b.do(t, "", "folder", "invitations", "accept", "twice")
	require.Contains(t, o.err, "2 invitations to folders called twice; use the id")
	require.Contains(
		t, b.do(t, "", "folder", "invitations", "cancel", "nope").err, "no open invitation nope\n  next: berth folder invitations",
	)

	require.Equal(t, "ada@example.org may use folder data now: rw\n", b.do(t, "", "folder", "share", "data", "ada@example.org").err)
	require.Equal(t, "USER             PERMISSION\nada@example.org  ro\n", b.do(t, "", "folder", "share", "data").out)
	require.Equal(t, "took access to folder data from ada@example.org\n", b.do(t, "", "folder", "unshare", "data", "ada@example.org").err)
	require.Equal(t, "folder data is no longer shared with you\n", b.do(t, "", "folder", "leave", "data").err)
	require.Equal(t, frame.ExitNotFound, b.do(t, "", "folder", "leave", "nope").code)
}

func TestFolderHostsAndQuota(t *testing.T) {
	t.Parallel()
	b, _ := withData(t)

	require.Equal(t, ""+
		"HOST           DEFAULT  BACKEND  USED  CAPABILITIES  PROBLEM\n"+
		"local:volume1  yes      posix    14 %  vfolder\n"+
		"nas:a                   xfs                          it does not answer\n", b.do(t, "", "folder", "hosts").out)
	require.Equal(t, "scope  user:u\nhost   local:volume1\nused   2 KiB\nlimit  none\n", b.do(t, "", "folder", "quota", "data").out)
	require.Contains(t, b.do(t, "", "folder", "quota", "data", "--limit", "1.5g").out, "limit  1.5 GiB\n")
	require.Equal(t, int64(3<<29), *b.folders.limit)
	var shown api.Quota
	require.NoError(t, json.Unmarshal([]byte(b.do(t, "", "folder", "quota", "data", "--json").out), &shown))
	require.Equal(t, api.Quota{UsedBytes: new(int64(2048)), LimitBytes: new(int64(1610612736))}, shown)
	for _, bad := range []string{"much", "-1g", "1e30t", "g", "NaN"} {
		require.Equal(t, frame.ExitUsage, b.do(t, "", "folder", "quota", "data", "--limit", bad).code, bad)
	}
}

func TestFolderFiles(t *testing.T) {
	t.Parallel()
	b, d := withData(t)
	for i := range 5 {
		d.put(fmt.Sprintf("f%d", i), strings.Repeat("x", i))
	}
	d.put("dir/a", "content of a")
	d.put("dir/evil\x1b[2J", "")

	o := b.do(t, "", "folder", "ls", "data")
	require.Equal(
		t, "MODE  SIZE  MODIFIED          NAME\n755         2026-11-20 08:00  dir/\n644   0     2026-11-20 08:00  f0\n",
		firstLines(o.out, 3),
	)
	require.Len(t, strings.Split(o.out, "\n"), 8)
	o = b.do(t, "", "folder", "ls", "data", "-n", "3")
	require.Equal(t, "there is more than these 3 entries: --limit 0 shows all\n", o.err)
	require.NotContains(t, b.do(t, "", "folder", "ls", "data:dir").out, "\x1b")
	require.Equal(t, frame.ExitNotFound, b.do(t, "", "folder", "ls", "data:nope").code)
	require.Equal(t, frame.ExitNotFound, b.do(t, "", "folder", "ls", "nope").code)
	require.Equal(t, frame.ExitUsage, b.do(t, "", "folder", "ls", "data:../x").code)

	require.Equal(t, "content of axx", b.do(t, "", "folder", "cat", "data:dir/a", "data:f2").out)
	require.Equal(t, frame.ExitUsage, b.do(t, "", "folder", "cat", "data").code)
	require.Equal(t, frame.ExitNotFound, b.do(t, "", "folder", "cat", "data:nope").code)

	require.Equal(t, 0, b.do(t, "", "folder", "mkdir", "data:new").code)
	require.Contains(
		t, b.do(t, "", "folder", "mkdir", "data:new").err, "make directory data:new: it exists\n  next: berth folder ls data, or mkdir -p",
	)
	require.Equal(t, 0, b.do(t, "", "folder", "mkdir", "-p", "data:new").code)

	require.Equal(t, 0, b.do(t, "", "folder", "mv", "data:f1", "data:g1").code)
	require.Equal(t, 0, b.do(t, "", "folder", "mv", "data:g1", "data:f2", "data:new").code)
	require.Equal(t, 0, b.do(t, "", "folder", "mv", "data:f3", "data:new").code)
	require.Equal(t, 0, b.do(t, "", "folder", "mv", "data:new/f3", "data:").code)
	require.Equal(t, []string{"x", "xx", "xxx"}, []string{d.files["new/g1"], d.files["new/f2"], d.files["f3"]})
	require.Contains(
		t, b.do(t, "", "folder", "mv", "data:f3", "other:").err, "next: berth folder cp -r data:f3 other:, then berth folder rm -r data:f3",
	)

	require.Equal(
		t, "SIZE  FILES  PATH\n12 B  2      data:dir\n4 B   1      data:f4\n", b.do(t, "", "folder", "du", "data:dir", "data:f4").out,
	)
	d.UsedBytes, d.Files, d.Complete = new(int64(4096)), new(int64(9)), new(false)
	require.JSONEq(t, `[{"path":"data","bytes":4096,"files":9,"complete":false}]`, b.do(t, "", "folder", "du", "data", "--json").out)

	o = b.do(t, "", "folder", "rm", "data:dir")
	require.Contains(t, o.err, "next: berth folder ls data; -r deletes directories with all they hold")
	require.Equal(t, 0, b.do(t, "", "folder", "rm", "-r", "data:dir", "data:f4").code)
	require.NotContains(t, d.files, "dir/a")
	require.Contains(t, b.do(t, "", "folder", "rm", "data:").err, "next: berth folder rm data moves it into the trash")
	require.Equal(t, api.FolderReady, d.Status)
}

func firstLines(s string, n int) string { return strings.Join(strings.SplitAfter(s, "\n")[:n], "") }

func TestFolderObjects(t *testing.T) {
	t.Parallel()
	b, _ := withData(t)

	o := b.do(t, "", "folder", "import", "s3://bucket/a/b", "data:in")
	require.Equal(t, frame.ExitUsage, o.code)
	require.Contains(t, o.err, "next: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY")
	old := b.app.Getenv
	b.app.Getenv = func(k string) string {
		if v := map[string]string{"AWS_ACCESS_KEY_ID": "ak", "AWS_SECRET_ACCESS_KEY": "sk", "AWS_REGION": "eu"}[k]; v != "" {
			return v
		}
		return old(k)
	}
	o = b.do(t, "", "folder", "import", "s3://bucket/a/b", "data:in", "--endpoint-url", "http://minio")
	require.Equal(t, outcome{"task-1\n", "import data:in: packing (50 %)\n", 0}, o)
	require.Equal(t, map[string]any{"route": "POST /folders/data/import", "path": "in", "prefix": "a/b", "store": map[string]any{
		"endpoint": "http://minio", "region": "eu", "bucket": "bucket", "access_key": "ak", "secret_key": "sk",
	}}, b.folders.asked[0])
	o = b.do(t, "", "folder", "export", "data", "s3://bucket", "-d")
	require.Equal(t, outcome{"task-1\n", "", 0}, o)
	require.Equal(t, frame.ExitUsage, b.do(t, "", "folder", "export", "data", "http://bucket").code)
}

func TestCopies(t *testing.T) {
	t.Parallel()
	b, d := withData(t)
	dir := t.TempDir()
	here := func(p string) string { return filepath.Join(dir, p) }
	require.NoError(t, os.MkdirAll(here("tree/sub"), 0o755))
	require.NoError(t, os.WriteFile(here("tree/a"), []byte("aaa"), 0o644))
	require.NoError(t, os.WriteFile(here("tree/sub/b"), []byte("bb"), 0o644))
	require.NoError(t, os.WriteFile(here("tree/zero"), nil, 0o644))
	cp := func(args ...string) outcome { return b.do(t, "", append([]string{"cp"}, args...)...) }

	require.Equal(t, outcome{"", "copied 1 file, 3 B\n", 0}, cp(here("tree/a"), "data:x/y"))
	require.Equal(t, "aaa", d.files["x/y"], "%v", d.files)
	require.Equal(t, 0, cp(here("tree/a"), "data:").code)
	require.Equal(t, 0, cp(here("tree/a"), "data:x").code)
	require.Equal(t, 0, cp(here("tree/a"), here("tree/sub/b"), "data:both").code)
	require.Equal(t, []string{"aaa", "aaa", "aaa", "bb"}, []string{d.files["a"], d.files["x/a"], d.files["both/a"], d.files["both/b"]})

	o := cp(here("tree"), "data:t")
	require.Equal(t, frame.ExitUsage, o.code)
	require.Contains(t, o.err, "tree is a directory\n  next: berth cp -r")
	require.Equal(t, "copied 3 files, 5 B\n", cp("-r", here("tree"), "data:t").err)
	require.Equal(t, []string{"aaa", "bb"}, []string{d.files["t/a"], d.files["t/sub/b"]})
	require.Contains(t, d.files, "t/zero")
	require.Equal(t, "copied 3 files, 5 B\n", cp("-r", here("tree"), "data:t/").err)
	require.Equal(t, "aaa", d.files["t/tree/a"])
	require.Equal(t, "copied 3 files, 5 B\n", cp("-r", here("tree")+"/.", "data:u/").err)
	require.Equal(t, "aaa", d.files["u/a"])

	out := cp("-r", "data:u", here("out"), "--json", "-q")
	require.JSONEq(t, `{"files":3,"bytes":5,"unchanged":0,"left_out":0,"failed":0}`, out.out, out.err)
	require.Equal(t, "copied 0 files, 0 B; 3 there already\n", cp("-r", "data:u", here("out"), "--verify").err)
	require.Equal(t, "copied 3 files, 5 B\n", cp("-r", "data:u", here("out"), "--force").err)
	require.Equal(t, 0, cp("-r", "data:u", here("out")+"/").code)
	require.Equal(t, 0, cp("-r", "data:u/.", here("flat")+"/").code)
	for _, p := range []string{"out/a", "out/sub/b", "out/u/zero", "flat/a"} {
		require.FileExists(t, here(p))
	}
	b.folders.add("other")
	require.Equal(t, "copied 3 files, 5 B\n", cp("-r", "data:u", "other:").err)
	require.Equal(t, "aaa", b.folders.list[1].files["u/a"])
	require.Equal(t, 0, cp("data:a", "data:b").code)
	require.Equal(t, "aaa", d.files["b"])
}

func TestCopiesThatCannotBe(t *testing.T) {
	t.Parallel()
	b, d := withData(t)
	d.put("a", "aaa")
	dir := t.TempDir()

	for want, args := range map[string][]string{
		"neither end is in a folder":      {"a", "b"},
		"some sources are here":           {"data:a", "b", "data:c"},
		"copied into itself":              {"-r", "data:", "data:x"},
		`the path contains ".."`:          {dir, "data:../x"},
		"--parallel 33 is not from 1 to":  {"-j", "33", "data:a", dir},
		"is a directory":                  {dir, "data:x"},
		"it takes: berth cp":              {"data:a"},
		"data:a would be copied into its": {"data:a", "data:a"},
	} {
		o := b.do(t, "", append([]string{"cp"}, args...)...)
		require.Equal(t, frame.ExitUsage, o.code, o.err)
		require.Contains(t, o.err, want)
		require.Contains(t, o.err, "next: ")
	}
	require.Equal(t, frame.ExitNotFound, b.do(t, "", "cp", "data:nope", dir).code)

	require.NoError(t, os.WriteFile(filepath.Join(dir, "plain"), nil, 0o644))
	d.put("sub0/a", "a")
	o := b.do(t, "", "cp", "-r", "data:sub0", filepath.Join(dir, "plain"))
	require.Equal(t, frame.ExitFailure, o.code)
	require.Contains(t, o.err, "next: copy to another place")

	// Two of one name would end as either.
	one, two := filepath.Join(dir, "one"), filepath.Join(dir, "two")
	for _, d := range []string{one, two} {
		require.NoError(t, os.MkdirAll(filepath.Join(d, "x"), 0o755))
		require.NoError(t, os.WriteFile(filepath.Join(d, "x", "same"), []byte(d), 0o644))
	}
	d.put("q/same", "q")
	d.put("r/same", "r")
	for _, args := range [][]string{{
		one + "/x/same", two + "/x/same", "data:w",
	}, {
		"-r", one + "/x", two + "/x", "data:",
	}, {
		"data:q/same", "data:r/same", dir,
	}} {
		o := b.do(t, "", append([]string{"cp"}, args...)...)
		require.Equal(t, frame.ExitUsage, o.code, o.err)
		require.Contains(t, o.err, "would both be copied to")
	}
	require.Equal(t, 0, b.do(t, "", "cp", "-r", one+"/.", two+"/.", "data:merged").code, "what is inside is merged")
	o = b.do(t, "", "cp", filepath.Join(dir, "nope"), "data:")
	require.Equal(t, frame.ExitFailure, o.code)
	require.Contains(t, o.err, "a place in a folder is written FOLDER:PATH")

	// A file here keeps a directory from being written; the rest arrives.
	d.put("sub/b", "b")
	out := filepath.Join(dir, "out")
	require.NoError(t, os.MkdirAll(out, 0o755))
	require.NoError(t, os.WriteFile(filepath.Join(out, "sub"), nil, 0o644))
	o = b.do(t, "", "cp", "-r", "data:", out)
	require.Equal(t, frame.ExitFailure, o.code)
	require.Contains(t, o.err, "berth: 1 path could not be copied, as told above\n  next: run the same command again")
	require.FileExists(t, filepath.Join(out, "a"))
}

func TestCopiesAreTriedAgain(t *testing.T) {
	t.Parallel()
	b, d := withData(t)
	d.put("a", "aaa")
	b.folders.drop = 2
	o := b.do(t, "", "cp", "data:a", t.TempDir())
	require.Equal(t, 0, o.code, o.err)
	require.Contains(t, o.err, "trying again: reach the storage proxy at "+b.URL)
	require.NotContains(t, o.err, "token-")
	require.Equal(t, 1, strings.Count(o.err, "trying again"))
}

func TestCopyIsInterrupted(t *testing.T) {
	t.Parallel()
	b, d := withData(t)
	d.put("a", "aaa")
	b.folders.drop = 1000
	b.signals <- os.Interrupt
	o := b.do(t, "", "cp", "-r", "data:", t.TempDir())
	require.Equal(t, frame.ExitInterrupted, o.code, o.err)
	require.Contains(t, o.err, "next: run the same command again; it goes on where it was")
}

func TestRunMountsFolders(t *testing.T) {
	t.Parallel()
	b := setup(t)

	o := b.do(
		t, "", "run", "-q", "python", "-c", "print:1", "-v", "data", "-v", "maps:/mnt/maps:ro", "-v",
		"type=bind,source=logs/2025,target=l,perm=readonly", "-v", "w=x", "-v", `a\:b:t`,
	)
	require.Equal(t, 0, o.code, o.err)
	c := b.creates[0].Config
	require.Equal(t, []string{"data", "maps", "logs/2025", "w", "a:b"}, c.Mounts)
	require.Equal(t, map[string]string{"maps": "/mnt/maps", "logs/2025": "l", "w": "x", "a:b": "t"}, c.MountMap)
	require.Equal(
		t, map[string]api.MountOption{"maps": {Type: "bind", Permission: "ro"}, "logs/2025": {Type: "bind", Permission: "ro"}},
		c.MountOptions,
	)
	text, err := json.Marshal(c)
	require.NoError(t, err)
	require.Contains(t, string(text), `"mount_options":{"logs/2025":{"type":"bind","permission":"ro"}`)

	require.Equal(t, 0, b.do(t, "", "session", "create", "-d", "python", "-v", "data:/home/work/data").code)
	require.Equal(t, map[string]string{"data": "/home/work/data"}, b.creates[1].Config.MountMap)
	for _, bad := range []string{
		"", "/home/me:/data", "./x", "data:ro", "data:/a:b:c", "type=tmpfs,source=x", "type=bind,target=x", "data:", "source=x,size=1",
		"type=bind,source=x,perm=all",
	} {
		o := b.do(t, "", "session", "create", "-d", "python", "-v", bad)
		require.Equal(t, frame.ExitUsage, o.code, bad)
		require.Contains(t, o.err, "next: ")
	}
	require.Equal(t, frame.ExitUsage, b.do(t, "", "session", "create", "-d", "python", "-v", "data:a", "-v", "data:b").code)
}

func TestFolderNamesComplete(t *testing.T) {
	t.Parallel()
	b, _ := withData(t)
	b.folders.add("dates")
	o := b.do(t, "", "__complete", "folder", "info", "dat")
	require.Equal(t, "data\ndates\n:4\n", o.out)
	o = b.do(t, "", "__complete", "cp", "dat")
	require.Equal(t, "data:\ndates:\n:2\n", o.out)
	o = b.do(t, "", "__complete", "cp", "./d")
	require.Equal(t, ":0\n", o.out)
}
