package cli

import (
	"archive/tar"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"berth.dev/berth/api"
	"berth.dev/berth/internal/cli/frame"
)

const firstID = "00000000-0000-4000-8000-000000000001"

// withLab is a bench with one running session called mylab.
func withLab(t *testing.T) *bench {
	t.Helper()
	b := setup(t)
	o := b.do(t, "", "session", "create", "-q", "python", "--name", "mylab")
	require.Equal(t, outcome{firstID + "\n", "", 0}, o)
	return b
}

func TestSessionCreate(t *testing.T) {
	t.Parallel()
	b := setup(t)

	o := b.do(t, "", "session", "create", "python", "--name", "mylab", "--json")
	require.Equal(t, 0, o.code, o.err)
	var s api.CreatedSession
	require.NoError(t, json.Unmarshal([]byte(o.out), &s))
	require.Equal(t, api.CreatedSession{ID: firstID, Name: "mylab", Status: "RUNNING", Created: true}, s)

	o = b.do(t, "", "session", "create", "python", "--name", "mylab")
	require.Contains(t, o.err, "lives already and is used again")
	require.Equal(t, firstID+"\n", o.out)

	o = b.do(
		t, "", "session", "create", "python", "--batch", "true", "--starts-at", "10m", "--batch-timeout", "2h", "--depends", "mylab",
		"--callback-url", "http://x/y", "-d", "--no-reuse",
	)
	require.Equal(t, 0, o.code, o.err)
	got := b.creates[2]
	require.Equal(
		t, []string{"batch", "true", "10m", "2h", "mylab", "http://x/y"},
		[]string{got.Type, got.StartupCommand, got.StartsAt, got.BatchTimeout, got.Dependencies[0], got.CallbackURL},
	)
	require.False(t, got.ReuseIfExists)
	require.Equal(t, 0, b.called("GET /session/00000000-0000-4000-8000-000000000002"))
}

func TestSessionListAsTable(t *testing.T) {
	t.Parallel()
	b := withLab(t)

	o := b.do(t, "", "session", "list")

	require.Equal(t, ""+
		"ID                                    NAME   TYPE         STATUS   IMAGE   SLOTS               AGE  RESULT  INFO\n"+
		"00000000-0000-4000-8000-000000000001  mylab  interactive  RUNNING  python  cpu 1, mem 512 MiB  5m\n", o.out)
	require.NotContains(t, o.out, "\x1b")
}

func TestSessionListForPrograms(t *testing.T) {
	t.Parallel()
	b := setup(t)

	require.Equal(t, "[]\n", b.do(t, "", "session", "list", "--json").out)
	o := b.do(t, "", "session", "list")
	require.Empty(t, o.out)
	require.Contains(t, o.err, "berth session create")

	b = withLab(t)
	var list []map[string]any
	o = b.do(t, "", "session", "list", "--json")
	require.NoError(t, json.Unmarshal([]byte(o.out), &list))
	require.Equal(t, "mylab", list[0]["name"])
	require.Equal(t, map[string]any{"cpu": "1", "mem": "536870912"}, list[0]["occupying_slots"])
	require.Equal(t, firstID+"\n", b.do(t, "", "session", "list", "-q").out)
	require.Empty(t, b.do(t, "", "session", "list", "-q", "--status", "error").out)
}

func TestSessionListReadsAllPages(t *testing.T) {
	t.Parallel()
	b := setup(t)
	for i := range 250 {
		require.Equal(t, 0, b.do(t, "", "session", "create", "-d", "python", "--name", fmt.Sprintf("mylab-%d", i)).code)
	}

	require.Len(t, strings.Fields(b.do(t, "", "session", "list", "-q").out), 250)
	require.Len(t, strings.Fields(b.do(t, "", "session", "list", "-q", "-n", "120").out), 120)
}

func TestSessionInfo(t *testing.T) {
	t.Parallel()
	b := withLab(t)

	o := b.do(t, "", "session", "info", "mylab")
	require.Contains(t, o.out, "status   RUNNING\n")
	require.Contains(t, o.out, "slots    cpu 1, mem 512 MiB\n")

	o = b.do(t, "", "session", "info", "mylab", "--json")
	var s map[string]any
	require.NoError(t, json.Unmarshal([]byte(o.out), &s))
	require.Equal(t, firstID, s["sessionId"])
	require.Equal(t, map[string]any{"cpu": "1", "mem": "536870912"}, s["occupyingSlots"])
}

func TestEndedSessionsAreFoundByName(t *testing.T) {
	t.Parallel()
	b := withLab(t)
	b.log = "the end\n"
	require.Equal(t, 0, b.do(t, "", "session", "rm", "mylab").code)

	require.Contains(t, b.do(t, "", "session", "info", "mylab").out, "TERMINATED")
	require.Equal(t, "the end\n", b.do(t, "", "session", "logs", "mylab").out)
}

func TestSessionLogs(t *testing.T) {
	t.Parallel()
	b := withLab(t)
	b.log = "a\nb\n"

	require.Equal(t, "a\nb\n", b.do(t, "", "session", "logs", "mylab").out)
	require.Equal(t, "a\nb\n", b.do(t, "", "session", "logs", "-f", "mylab").out)
	require.JSONEq(t, `{"logs":"a\nb\n"}`, b.do(t, "", "session", "logs", "mylab", "--json").out)
}

func TestSessionExec(t *testing.T) {
	t.Parallel()
	b := withLab(t)

	o := b.do(t, "some input", "session", "exec", "-i", "mylab", "--", "cat", "-n")
	require.Equal(t, outcome{"some input", `["cat","-n"]`, 7}, o)

	o = b.do(t, "not passed", "session", "exec", "mylab", "true", "-x")
	require.Equal(t, outcome{"", `["true","-x"]`, 7}, o)

	o = b.do(t, "", "session", "exec", "nope", "--", "true")
	require.Equal(t, frame.ExitNotFound, o.code)
	require.Contains(t, o.err, "session nope does not exist")
}

func TestSessionExecCarriesMuchInput(t *testing.T) {
	t.Parallel()
	b := withLab(t)
	input := strings.Repeat("0123456789abcdef", 1<<14)

	o := b.do(t, input, "session", "exec", "-i", "mylab", "--", "cat")

	require.Equal(t, 7, o.code, o.err)
	require.True(t, input == o.out, "%d bytes came back of %d", len(o.out), len(input))
}

func TestSessionRm(t *testing.T) {
	t.Parallel()
	b := withLab(t)

	o := b.do(t, "", "session", "rm", "nope", "mylab")
	require.Equal(t, frame.ExitNotFound, o.code)
	require.Equal(t, "mylab\n", o.out)
	require.Contains(t, o.err, "end session nope")

	b = setup(t)
	b.stages = []string{api.StatusCreating}
	require.Equal(t, 0, b.do(t, "", "session", "create", "-d", "python", "--name", "mylab").code)
	b.do(t, "", "session", "info", "mylab")
	o = b.do(t, "", "session", "rm", "mylab")
	require.Equal(t, frame.ExitDenied, o.code)
	require.Contains(t, o.err, "next: berth session rm -f mylab")
	require.Equal(t, 0, b.do(t, "", "session", "rm", "-f", "--recursive", "mylab").code)
	require.Equal(t, "mylab forced=true&recursive=true&wait=0", b.destroys[1])
}

func TestSessionRestartAndRename(t *testing.T) {
	t.Parallel()
	b := withLab(t)

	require.Equal(t, 0, b.do(t, "", "session", "restart", "mylab").code)
	require.Equal(t, 0, b.do(t, "", "session", "rename", "mylab", "otherlab").code)
	require.Equal(t, "otherlab", b.sessions[firstID].Name)
	require.Equal(t, frame.ExitNotFound, b.do(t, "", "session", "restart", "mylab").code)
}

func TestSessionCommitFollowsTheTask(t *testing.T) {
	t.Parallel()
	b := withLab(t)

	o := b.do(t, "", "session", "commit", "mylab")

	require.Equal(t, outcome{"task-1\n", "commit mylab: packing (50 %)\n", 0}, o)
}

func TestSessionUpload(t *testing.T) {
	t.Parallel()
	b := withLab(t)
	dir := t.TempDir()
	require.NoError(t, os.MkdirAll(dir+"/tree/sub", 0o700))
	for i := range 25 {
		require.NoError(t, os.WriteFile(fmt.Sprintf("%s/tree/sub/%02d", dir, i), []byte("x"), 0o600))
	}

	o := b.do(t, "", "session", "upload", "mylab", dir+"/tree")
	require.Equal(t, 0, o.code, o.err)
	require.Contains(t, o.err, "25 files")
	require.Len(t, b.uploads, 25)
	require.Contains(t, b.uploads, "tree/sub/07")
	require.Equal(t, 2, b.called("POST /session/mylab/upload"))

	require.NoError(t, os.WriteFile(dir+"/big", make([]byte, 1<<20), 0o600))
	o = b.do(t, "", "session", "upload", "mylab", dir+"/big")
	require.Equal(t, frame.ExitFailure, o.code)
	require.Contains(t, o.err, "only files below 1 MiB")
	require.Contains(t, o.err, "next: ")

	o = b.do(t, "", "session", "upload", "mylab", dir+"/missing")
	require.Equal(t, frame.ExitFailure, o.code)
	require.Contains(t, o.err, "no such file")
}

func TestSessionDownload(t *testing.T) {
	t.Parallel()
	b := withLab(t)
	dest := filepath.Join(t.TempDir(), "out")

	names := []string{"a", "b", "c", "d", "e", "sub/f"}
	o := b.do(t, "", append([]string{"session", "download", "mylab", "--dest", dest}, names...)...)

	require.Equal(t, 0, o.code, o.err)
	require.Equal(t, 2, b.called("POST /session/mylab/download"))
	for _, n := range names {
		got, err := os.ReadFile(filepath.Join(dest, n))
		require.NoError(t, err)
		require.Equal(t, "content of "+n, string(got))
		require.Contains(t, o.out, filepath.Join(dest, n)+"\n")
	}
}

func TestSessionDownloadRefusesEscapes(t *testing.T) {
	t.Parallel()

	for name, headers := range map[string][]tar.Header{
		"parent":                  {{Name: "../evil", Typeflag: tar.TypeReg, Mode: 0o644}},
		"absolute":                {{Name: "/tmp/evil", Typeflag: tar.TypeReg, Mode: 0o644}},
		"parent inside":           {{Name: "a/../../evil", Typeflag: tar.TypeReg, Mode: 0o644}},
		"link out":                {{Name: "l", Linkname: "../evil", Typeflag: tar.TypeSymlink}},
		"absolute link":           {{Name: "l", Linkname: "/etc", Typeflag: tar.TypeSymlink}},
		"link out of a directory": {{Name: "d/l", Linkname: "../../evil", Typeflag: tar.TypeSymlink}},
		"hard link":               {{Name: "h", Linkname: "/etc/passwd", Typeflag: tar.TypeLink}},
		"device":                  {{Name: "dev", Typeflag: tar.TypeBlock}},
		"fifo":                    {{Name: "fifo", Typeflag: tar.TypeFifo}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := withLab(t)
			b.tarFiles = headers
			parent := t.TempDir()

			o := b.do(t, "", "session", "download", "mylab", "x", "--dest", filepath.Join(parent, "in"))

			require.Equal(t, frame.ExitFailure, o.code, o.err)
			require.Contains(t, o.err, "refuse")
			entries, err := os.ReadDir(parent)
			require.NoError(t, err)
			require.Len(t, entries, 1)
			inside, err := os.ReadDir(filepath.Join(parent, "in"))
			require.NoError(t, err)
			for _, e := range inside {
				require.True(t, e.IsDir(), e.Name())
			}
		})
	}
}

func TestSessionDownloadDoesNotWriteThroughLinks(t *testing.T) {
	t.Parallel()
	b := withLab(t)
	parent := t.TempDir()
	victim := filepath.Join(parent, "victim")
	require.NoError(t, os.WriteFile(victim, []byte("mine"), 0o600))
	dest := filepath.Join(parent, "in")
	require.NoError(t, os.Mkdir(dest, 0o700))
	require.NoError(t, os.Symlink(victim, filepath.Join(dest, "x")))
	require.NoError(t, os.Symlink(parent, filepath.Join(dest, "d")))

	o := b.do(t, "", "session", "download", "mylab", "x", "--dest", dest)
	require.Equal(t, 0, o.code, o.err)
	o = b.do(t, "", "session", "download", "mylab", "d/victim", "--dest", dest)
	require.Equal(t, frame.ExitFailure, o.code)

	got, err := os.ReadFile(victim)
	require.NoError(t, err)
	require.Equal(t, "mine", string(got))
}

func TestSessionLs(t *testing.T) {
	t.Parallel()
	b := withLab(t)

	require.Equal(
		t, "MODE        SIZE  MODIFIED          NAME\n-rw-r--r--  5     1970-01-02 00:00  a.txt\n",
		b.do(t, "", "session", "ls", "mylab").out,
	)
	require.JSONEq(
		t, `{"abspath":"/home/work","files":[{"filename":"a.txt","mode":"-rw-r--r--","size":5,"ctime":1,"mtime":86400,"atime":1}]}`,
		b.do(t, "", "session", "ls", "mylab", "--json").out,
	)
}

func TestSessionEvents(t *testing.T) {
	t.Parallel()
	b := withLab(t)

	o := b.do(t, "", "session", "events", "mylab")
	require.Equal(
		t, outcome{"2026-11-20T08:00:00Z  mylab  session_enqueued  user-requested\n2026-11-20T08:00:01Z  mylab  session_started\n", "", 0},
		o,
	)

	lines := strings.Split(strings.TrimSpace(b.do(t, "", "session", "events", "mylab", "--json").out), "\n")
	require.Len(t, lines, 2)
	require.Equal(t, frame.ExitNotFound, b.do(t, "", "session", "events", "gone").code)
}

func TestSessionWait(t *testing.T) {
	t.Parallel()
	b := setup(t)
	require.Equal(t, 0, b.do(t, "", "session", "create", "-d", "python", "--name", "mylab").code)

	require.Equal(t, "RUNNING\n", b.do(t, "", "session", "wait", "-q", "mylab").out)
	o := b.do(t, "", "session", "wait", "-q", "mylab", "--for", "ended", "--timeout", "20ms")
	require.Equal(t, frame.ExitUnavailable, o.code, o.err)

	b.exit, b.stages = 9, []string{api.StatusRunning, api.StatusTerminating, api.StatusTerminated}
	require.Equal(t, 0, b.do(t, "", "session", "create", "-d", "python", "--name", "job1", "--batch", "x").code)
	o = b.do(t, "", "session", "wait", "-q", "job1", "--for", "ended")
	require.Equal(t, outcome{"TERMINATED\n", "", 9}, o)
}

func TestAgents(t *testing.T) {
	t.Parallel()
	b := setup(t)

	require.Equal(t, ""+
		"ID         STATUS  ARCH    RESOURCE GROUP  HAS                TAKEN               CPU   VERSION\n"+
		"i-worker1  ALIVE   x86_64  default         cpu 8, mem 16 GiB  cpu 1, mem 512 MiB  12 %  0.1.0\n", b.do(t, "", "agent", "list").out)
	require.Contains(t, b.do(t, "", "agent", "info", "i-worker1").out, "memory use      1 GiB\n")
	var a map[string]any
	require.NoError(t, json.Unmarshal([]byte(b.do(t, "", "agent", "info", "i-worker1", "--json").out), &a))
	require.Equal(t, map[string]any{"cpu": "8", "mem": "17179869184"}, a["available_slots"])
	b.agents = 0
	require.Contains(t, b.do(t, "", "agent", "list").err, "berth status")
	require.Equal(t, "[]\n", b.do(t, "", "agent", "list", "--json").out)
}

func TestImages(t *testing.T) {
	t.Parallel()
	b := setup(t)

	require.Equal(t, ""+
		"IMAGE                ALIASES  ARCH    SIZE     DIGEST\n"+
		"berth/python:latest  python   x86_64  350 MiB  sha256:0123456789ab\n", b.do(t, "", "image", "list").out)
	require.Contains(t, b.do(t, "", "image", "inspect", "python").out, "ai.backend.runtime-type  python\n")
	require.Equal(t, 0, b.do(t, "", "image", "alias", "py", "berth/python:latest").code)
	require.Equal(t, "berth/python:latest", b.aliases["py"])
	require.Equal(t, 0, b.do(t, "", "image", "alias", "--remove", "py").code)
}

func TestWhoamiNeverShowsTheSecret(t *testing.T) {
	t.Parallel()
	b := setup(t)

	for _, line := range [][]string{{"whoami"}, {"whoami", "--json"}} {
		o := b.do(t, "", line...)
		require.Equal(t, 0, o.code, o.err)
		require.Contains(t, o.out, fakeAccess)
		require.Contains(t, o.out, "admin@berth.local")
		require.Contains(t, o.out, "superadmin")
		require.NotContains(t, o.out, fakeSecret)
	}
}
