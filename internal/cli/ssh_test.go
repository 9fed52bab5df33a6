package cli

import (
	"bytes"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"berth.dev/berth/api"
)

func writeFile(path, text string) error { return os.WriteFile(path, []byte(text), 0o600) }

// withHome is a bench with a running session and a home directory of its own.
func withHome(t *testing.T) (*bench, string) {
	t.Helper()
	b := withLab(t)
	home := t.TempDir()
	b.env["HOME"], b.started.have = home, []string{"ssh"}
	return b, home
}

func TestSSH(t *testing.T) {
	t.Parallel()
	b, home := withHome(t)
	dir := filepath.Join(home, ".cache", "berth", "ssh", firstID)
	b.started.run = func(in io.Reader, out, _ io.Writer, _ []string) int {
		_, _ = io.Copy(out, in)
		return 7
	}

	o := b.do(t, "typed", "ssh", "-A", "-L", "1:h:2", "mylab", "ls", "-l")
	require.Equal(t, outcome{"typed", "", 7}, o)
	argv := b.started.runs[0]
	require.Equal(t, "/usr/bin/ssh", argv[0])
	text := strings.Join(argv, " ")
	for _, want := range []string{
		"-o User=work", "-o HostKeyAlias=berth-" + firstID, `-o UserKnownHostsFile="` + dir + `/known_hosts"`,
		"-o StrictHostKeyChecking=accept-new", `-o IdentityFile="` + dir + `/id_container"`, "-o IdentitiesOnly=yes",
		" ssh-proxy " + firstID + " ", " -A -L 1:h:2 -- mylab.berth ls -l",
	} {
		require.Contains(t, text, want)
	}
	key, err := os.ReadFile(dir + "/id_container")
	require.NoError(t, err)
	require.Equal(t, fakeKey, string(key))
	for path, want := range map[string]os.FileMode{dir: 0o700, dir + "/id_container": 0o600} {
		info, err := os.Stat(path)
		require.NoError(t, err)
		require.Equal(t, want, info.Mode().Perm(), path)
	}

	// The key is fetched once, and again after a failure of ssh itself.
	download := "POST /session/" + firstID + "/download"
	b.started.run = func(io.Reader, io.Writer, io.Writer, []string) int { return 255 }
	require.Equal(t, 255, b.do(t, "", "ssh", "mylab").code)
	require.Equal(t, 1, b.called(download))
	require.Equal(t, 255, b.do(t, "", "ssh", "mylab").code)
	require.Equal(t, 2, b.called(download))
}

func TestSSHThatCannotBe(t *testing.T) {
	t.Parallel()
	b, home := withHome(t)
	require.Equal(
		t, outcome{"", "berth: there is no session nolab; running: mylab\n  next: berth session list\n", 3}, b.do(t, "", "ssh", "nolab"),
	)
	b.apps.key = "not a key"
	o := b.do(t, "", "ssh", "mylab")
	require.Contains(t, o.err, "is no private key")
	require.NoFileExists(t, filepath.Join(home, ".cache", "berth", "ssh", firstID, "id_container"))
	b.started.have = nil
	require.Contains(
		t, b.do(t, "", "ssh", "mylab").err,
		"this machine has no ssh program\n  next: install it (apt install openssh-client, for example), or berth session exec "+
			"-it mylab -- bash\n",
	)
	b.mu.Lock()
	b.sessions[firstID].Status = api.StatusPending
	b.mu.Unlock()
	b.started.have = []string{"ssh"}
	require.Contains(t, b.do(t, "", "ssh", "mylab").err, "session mylab does not run: it is PENDING\n  next: berth session wait mylab")
}

func TestSSHProxy(t *testing.T) {
	t.Parallel()
	b, home := withHome(t)
	o := b.do(t, "ssh-2.0-x", "ssh-proxy", firstID)
	require.Equal(t, outcome{"SSH-2.0-X", "", 0}, o)
	require.FileExists(
		t, filepath.Join(home, ".cache", "berth", "ssh", firstID, "id_container"),
		"programs that know the configuration alone find the key",
	)

	// A key that was fetched long ago is fetched anew beside the connection.
	key := filepath.Join(home, ".cache", "berth", "ssh", firstID, "id_container")
	b.apps.key = strings.Replace(fakeKey, "bm90", "YmV0", 1)
	for _, age := range []time.Duration{time.Minute, 2 * time.Hour} {
		require.NoError(t, os.Chtimes(key, b.app.Now(), b.app.Now().Add(-age)))
		require.Equal(t, 0, b.do(t, "x", "ssh-proxy", firstID).code)
	}
	require.Equal(t, 2, b.called("POST /session/"+firstID+"/download"))

	b.apps.noProxy = true
	o = b.do(t, "through", "ssh-proxy", "mylab")
	require.Equal(t, outcome{"manager THROUGH", "", 0}, o)

	require.Equal(t, 0, b.do(t, "", "session", "rm", "mylab").code)
	o = b.do(t, "x", "ssh-proxy", "mylab")
	require.Contains(t, o.err, "session mylab has ended: it is TERMINATED")
	require.Empty(t, o.out)
}

func TestSSHConfig(t *testing.T) {
	t.Parallel()
	b, home := withHome(t)
	b.env["XDG_CACHE_HOME"] = filepath.Join(home, "my 100% cache")
	require.Equal(t, 0, b.do(t, "", "session", "create", "-q", "python", "--name", "other").code)
	b.mu.Lock()
	for _, s := range b.sessions {
		if s.Name == "other" {
			s.Name = "other\n  ProxyCommand evil" // what a manager sends is not written unseen
		}
	}
	b.mu.Unlock()
	self, err := os.Executable()
	require.NoError(t, err)
	dir := strings.ReplaceAll(filepath.Join(home, "my 100% cache", "berth", "ssh", firstID), "%", "%%")
	want := "# Sessions at " + b.URL + ", written by berth ssh-config, which replaces this file as a whole.\n" + `
Host mylab.berth
    User work
    HostKeyAlias berth-` + firstID + `
    UserKnownHostsFile "` + dir + `/known_hosts"
    StrictHostKeyChecking accept-new
    IdentityFile "` + dir + `/id_container"
    IdentitiesOnly yes
    PreferredAuthentications publickey
    ProxyCommand ` + self + ` ssh-proxy --endpoint ` + b.URL + ` ` + firstID + "\n"

	o := b.do(t, "", "ssh-config", "--endpoint", b.URL)
	require.Equal(t, want, o.out)
	require.Contains(t, o.err, "left out: session \"other\\n  ProxyCommand evil\"")
	require.NoDirExists(t, filepath.Join(home, ".ssh"))

	o = b.do(t, "", "ssh-config", "--write", "--endpoint", b.URL)
	require.Equal(t, 0, o.code, o.err)
	require.Contains(t, o.err, ".ssh/berth_config knows 1 session\n")
	require.Contains(t, o.err, "Include berth_config\n")
	text, err := os.ReadFile(filepath.Join(home, ".ssh", "berth_config"))
	require.NoError(t, err)
	require.Equal(t, want, string(text))
	require.NoFileExists(t, filepath.Join(home, ".ssh", "config"), "the user's own file is not touched unasked")

	// What was kept of a session that is long gone goes.
	for id, age := range map[string]time.Duration{"aaaaaaaa-0000": 24 * time.Hour, "bbbbbbbb-0000": 31 * 24 * time.Hour} {
		old := filepath.Join(home, "my 100% cache", "berth", "ssh", id)
		require.NoError(t, os.Mkdir(old, 0o700))
		require.NoError(t, os.Chtimes(old, b.app.Now(), b.app.Now().Add(-age)))
	}
	config := filepath.Join(home, ".ssh", "config")
	require.NoError(t, os.WriteFile(config, []byte("Host x\n  User y\n"), 0o640))
	require.Equal(t, 0, b.do(t, "", "ssh-config", "--write", "--include").code)
	for range 2 {
		text, err = os.ReadFile(config)
		require.NoError(t, err)
		require.Equal(t, "Include berth_config\n\nHost x\n  User y\n", string(text))
		info, err := os.Stat(config)
		require.NoError(t, err)
		require.Equal(t, os.FileMode(0o640), info.Mode().Perm())
		require.NotContains(t, b.do(t, "", "ssh-config", "--write").err, "Include", "it is there")
	}
	require.DirExists(t, filepath.Join(home, "my 100% cache", "berth", "ssh", "aaaaaaaa-0000"))
	require.NoDirExists(t, filepath.Join(home, "my 100% cache", "berth", "ssh", "bbbbbbbb-0000"))
	require.Equal(t, 2, b.do(t, "", "ssh-config", "--include").code)
}

func TestCode(t *testing.T) {
	t.Parallel()
	b, home := withHome(t)
	o := b.do(t, "", "code", "mylab", "my project")
	require.Equal(t, "vscode://vscode-remote/ssh-remote+mylab.berth/home/work/my%20project/\n", o.out)
	require.Contains(t, o.err, "Remote - SSH")
	require.FileExists(t, filepath.Join(home, ".ssh", "berth_config"))
	require.Empty(t, b.started.runs)

	b.started.have = append(b.started.have, "code")
	require.Equal(t, 0, b.do(t, "", "code", "mylab").code)
	require.Equal(t, [][]string{{"/usr/bin/code", "--folder-uri", "vscode-remote://ssh-remote+mylab.berth/home/work"}}, b.started.runs)

	// Without one here, the session's own is opened.
	b.started.have = []string{"ssh"}
	b.apps.mu.Lock()
	b.apps.list[2].State = api.AppStopped
	b.apps.mu.Unlock()
	o = b.doWith(t, strings.NewReader(""), &bytes.Buffer{}, "code", "mylab")
	require.Equal(t, b.apps.proxy.URL+"/setup?token=once\n", o.out)
}

// TestSSHIntoOneKernel: a kernel has a host name, a key and a host key of its own.
func TestSSHIntoOneKernel(t *testing.T) {
	t.Parallel()
	b, home := withHome(t)
	dir := filepath.Join(home, ".cache", "berth", "ssh", firstID, "sub1")
	b.started.run = func(io.Reader, io.Writer, io.Writer, []string) int { return 0 }
	require.Equal(t, 0, b.do(t, "", "ssh", "--kernel", "sub1", "mylab", "hostname").code)
	text := strings.Join(b.started.runs[0], " ")
	for _, want := range []string{
		"-o HostKeyAlias=berth-" + firstID + "-sub1 ", `-o IdentityFile="` + dir + `/id_container"`, " ssh-proxy " + firstID + ":sub1 ",
		" -- sub1.mylab.berth hostname",
	} {
		require.Contains(t, text, want)
	}
	require.FileExists(t, filepath.Join(dir, "id_container"))
	require.Equal(t, 1, b.called("POST /session/"+firstID+":sub1/download"))
	require.Equal(t, outcome{"SSH-2.0-X", "", 0}, b.do(t, "ssh-2.0-x", "ssh-proxy", firstID+":sub1"))
	require.Equal(t, 1, b.called("POST /session/"+firstID+":sub1/tickets"))
	o := b.do(t, "", "ssh", "--kernel", "../x", "mylab")
	require.Equal(t, 2, o.code)
	require.Contains(t, o.err, "is not the name of a kernel")

	require.NotContains(t, b.do(t, "", "ssh-config").out, "sub1")
	b.mu.Lock()
	b.sessions[firstID].ClusterSize = 3
	b.mu.Unlock()
	config := b.do(t, "", "ssh-config").out
	for _, host := range []string{"mylab.berth", "main1.mylab.berth", "sub1.mylab.berth", "sub2.mylab.berth"} {
		require.Contains(t, config, "\nHost "+host+"\n")
	}
	require.NotContains(t, config, "sub3")
	require.Contains(t, config, "ssh-proxy "+firstID+":sub2\n")
}
