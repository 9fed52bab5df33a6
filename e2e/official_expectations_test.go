package e2e_test

import (
	"fmt"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// newestVenv makes the environment of the newer official client once per run; BERTH_OFFICIAL26_VENV names a ready one.
var newestVenv = sync.OnceValues(func() (string, error) {
	if dir := os.Getenv("BERTH_OFFICIAL26_VENV"); dir != "" {
		return dir, nil
	}
	cmd := exec.Command("../scripts/official-client-26.sh")
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	return strings.TrimSpace(string(out)), err
})

// TestOfficialExpectations: what the official clients expect where the description of the wire is silent, with both generations of
// them, on one cluster.
func TestOfficialExpectations(t *testing.T) {
	t.Parallel()
	p := up(t)
	o := newOfficial(t, p.env())
	tag := fmt.Sprintf("%x", time.Now().UnixNano()&0xffffff)
	t.Run("client 23.9", func(t *testing.T) { expectations(t, o, tag) })
	t.Run("client 26.4", func(t *testing.T) {
		dir, err := newestVenv()
		if err != nil {
			t.Skipf("the newer official client cannot be made here (scripts/official-client-26.sh): %v", err)
		}
		newest(t, officialOf(t, dir, p.env()), tag)
	})
	p.clean()
}

// hostOf is the folder host of a cluster on one machine.
const hostOf = "local:volume1"

func expectations(t *testing.T, o *official, tag string) {
	t.Helper()
	t.Run("the value of a cell has no line break of its own", func(t *testing.T) {
		r := o.run("", "run", "--rm", "-q", "python", "-c", "6*7")
		require.Contains(t, r.stdout, "42")
		require.NotContains(t, r.stdout, "42\n\n")
	})
	t.Run("sys.exit says so", func(t *testing.T) {
		r := o.run("", "run", "--rm", "python", "-c", "import sys; sys.exit(2)")
		require.Contains(t, r.stdout+r.stderr, "SystemExit: 2")
	})
	t.Run("events of a session that comes later", func(t *testing.T) {
		name := "later-" + tag
		ended := o.followEvents(t, name)
		o.must("session", "create", "--name", name, "python")
		o.must("session", "destroy", name)
		text := ended()
		require.Contains(t, text, "session_enqueued")
		require.Contains(t, text, "session_terminated")
	})
	for _, force := range []string{"", "--forced"} {
		t.Run("a folder is deleted right after the end of its session "+force, func(t *testing.T) {
			data, name := "data-"+tag+force, "user-"+tag+force
			o.must("vfolder", "create", data, hostOf)
			o.must("session", "create", "--name", name, "-v", data, "local/berth/python:3.11")
			end := []string{"session", "destroy", "--stats", name}
			if force != "" {
				end = append(end, force)
			}
			o.must(end...)
			o.must("vfolder", "delete", data)
			require.NotContains(t, o.run("", "vfolder", "list").stdout, data, "this client knows no trash bin")
			o.must("vfolder", "create", data, hostOf) // its name is free
			require.Contains(t, o.must("vfolder", "info", data), data)
		})
	}
	t.Run("owners write into their read-only folders, and move files into directories", func(t *testing.T) {
		folder := "kept-" + tag
		o.must("vfolder", "create", "-p", "ro", folder, hostOf)
		o.write("a.txt", "a")
		o.must("vfolder", "upload", folder, "a.txt")
		o.must("vfolder", "mkdir", folder, "dir")
		o.must("vfolder", "mv", folder, "a.txt", "dir")
		require.Contains(t, o.must("vfolder", "ls", folder, "dir"), "a.txt")
	})
	t.Run("a session that no agent is large enough for waits", func(t *testing.T) {
		name := "giant-" + tag
		o.must("session", "create", "--name", name, "--enqueue-only", "-r", "cpu=4096", "-r", "mem=512m", "python")
		s, found := o.pending(name)
		require.True(t, found)
		require.Equal(t, "PENDING", s)
		o.must("session", "destroy", name)
	})
	t.Run("a batch session that is waited for has ended", func(t *testing.T) {
		name := "batch-" + tag
		o.run("", "session", "create", "--name", name, "--type", "batch", "-c", "echo done", "python")
		s, found := o.session(name)
		require.True(t, found)
		require.Contains(t, []string{"TERMINATED", "TERMINATING"}, s.Status)
	})
	t.Run("options of resource groups have their defaults", func(t *testing.T) {
		require.Contains(t, o.must("admin", "scaling-group", "info", "default"), "allowed_session_types")
	})
}

// pending is the status of a session in the client's plain list.
func (o *official) pending(name string) (string, bool) {
	o.t.Helper()
	var list struct {
		Items []struct{ Name, Status string }
	}
	o.json(&list, "session", "list")
	for _, i := range list.Items {
		if i.Name == name {
			return i.Status, true
		}
	}
	return "", false
}

// newest walks through what the newer client does differently. Where it runs in a root file system of its own it has no files of the story.
func newest(t *testing.T, o *official, tag string) {
	t.Helper()
	t.Run("run -c", func(t *testing.T) {
		require.Contains(t, o.must("run", "--rm", "python", "-c", "print(6*7)"), "42")
	})
	t.Run("sessions and folders", func(t *testing.T) {
		data, name := "new-data-"+tag, "new-"+tag
		o.must("vfolder", "create", data, hostOf)
		o.must("session", "create", "--name", name, "-v", data, "local/berth/python:3.11")
		require.Contains(t, o.must("ps"), name)
		o.must("session", "status-history", name)
		o.must("session", "destroy", name)
		o.must("vfolder", "delete", data)
	})
	t.Run("refusals are readable", func(t *testing.T) {
		r := o.run("", "session", "create", "--name", "refused-"+tag, "no-such-image-"+tag)
		require.NotZero(t, r.code)
		require.Contains(t, r.stdout+r.stderr, "No such image reference: no-such-image-"+tag)
	})
}
