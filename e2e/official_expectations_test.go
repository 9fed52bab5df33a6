package e2e_test

import (
	"fmt"
	"os"
	"os/exec"
	"runtime"
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
	needEngine(t)
	broken := madeImage(t, "broken", runtime.GOARCH, []string{"home"}) // no session's home can be mounted
	p := up(t)
	o := newOfficial(t, p.env())
	tag := fmt.Sprintf("%x", time.Now().UnixNano()&0xffffff)
	t.Run("client 23.9", func(t *testing.T) { expectations(t, o, tag) })
	t.Run("failed sessions", func(t *testing.T) { failedSessions(t, p, o, broken, tag) })
	t.Run("containers of one session", func(t *testing.T) { peers(t, p, o, tag) })
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
		name := "cells-" + tag
		o.must("session", "create", "--name", name, "python")
		for code, want := range map[string]string{"6*7": `[["stdout", "42"]]`, "print(6*7)": `[["stdout", "42\n"]]`, "x = 6*7": `[]`} {
			require.Equal(t, want, o.console(name, code), code)
		}
		o.must("session", "destroy", name)
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

// failedSessions: a session that could not start holds nothing, is not listed among those that are there, and can be destroyed.
func failedSessions(t *testing.T, p *platform, o *official, image, tag string) {
	t.Helper()
	name := "failed-" + tag
	r := o.run("", "session", "create", "--name", name, "-r", "cpu=1", "-r", "mem=128m", image)
	require.NotContains(t, r.stderr, "Traceback")
	p.reaches(name, "ERROR")
	require.NotContains(t, o.run("", "ps").stdout, name)
	_, there := o.pending(name)
	require.False(t, there)
	s, found := o.session(name)
	require.True(t, found, "it is listed among the ended ones")
	require.Equal(t, "ERROR", s.Status)
	o.must("session", "destroy", "--forced", s.ID)
	o.must("session", "destroy", "--forced", s.ID) // nobody has to know that it was done
	o.must("session", "create", "--name", name, "-r", "cpu=1", "-r", "mem=256m", "python")
	o.must("session", "destroy", name)
}

// peers: the containers of a session know each other by name, and the session and its kernels are read as nodes.
func peers(t *testing.T, p *platform, o *official, tag string) {
	t.Helper()
	name := "peers-" + tag
	o.must("admin", "keypair-resource-policy", "update", "--max-containers-per-session", "2", "default")
	o.must("session", "create", "--name", name, "--cluster-size", "2", "--cluster-mode", "single-node", "-r", "cpu=1", "-r", "mem=256m",
		"python")
	s, there := o.session(name)
	require.True(t, there)
	both := containers(t, "label=berth.session="+s.ID)
	require.Len(t, both, 2)
	known := map[string]bool{}
	for _, id := range both {
		out, err := docker("exec", id, "getent", "hosts", "main1", "sub1")
		require.NoError(t, err, "the containers of a session resolve each other's names")
		known[out] = true
	}
	require.Len(t, known, 1, "all of them know the same addresses: %v", known)

	type node struct {
		ID      string
		RowID   string `json:"row_id"`
		Name    string
		Status  string
		Kernels struct {
			Count int
			Edges []struct{ Node struct{ Status string } }
		} `json:"kernel_nodes"`
	}
	var list struct {
		Nodes struct {
			Count int
			Edges []struct{ Node node }
		} `json:"compute_session_nodes"`
	}
	const fields = "id row_id name status kernel_nodes{count edges{node{status}}}"
	p.graphql(`query($f:String){compute_session_nodes(filter:$f, first:10){count edges{node{`+fields+`}}}}`,
		map[string]any{"f": `name == "` + name + `"`}, &list)
	require.Equal(t, 1, list.Nodes.Count)
	found := list.Nodes.Edges[0].Node
	require.Equal(t, "RUNNING", found.Status)
	require.Equal(t, 2, found.Kernels.Count)
	for _, id := range []string{found.ID, found.RowID} {
		var one struct {
			Node *node `json:"compute_session_node"`
		}
		p.graphql(`query($id:GlobalIDField!){compute_session_node(id:$id){`+fields+`}}`, map[string]any{"id": id}, &one)
		require.NotNil(t, one.Node, id)
		require.Equal(t, name, one.Node.Name)
		require.Len(t, one.Node.Kernels.Edges, 2)
	}
	o.must("session", "destroy", name)
}

// console runs a cell through the SDK and returns its merged output as the client got it.
func (o *official) console(session, code string) string {
	o.t.Helper()
	return strings.TrimSpace(o.python(`
import json, sys
from ai.backend.client.session import Session
console = []
with Session() as api:
    session = api.ComputeSession(sys.argv[1])
    result = session.execute(code=sys.argv[2], mode="query")
    while True:
        for stream, text in result["console"]:
            if console and console[-1][0] == stream:
                console[-1][1] += text
            else:
                console.append([stream, text])
        if result["status"] == "finished":
            break
        result = session.execute(run_id=result["runId"], code="", mode="continue")
print(json.dumps(console))`, session, code))
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
