package sshd_test

import (
	"bytes"
	"crypto/rand"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"berth.dev/berth/internal/runner/sshd"
)

// These tests use the programs that people have.

func need(t *testing.T, programs ...string) {
	for _, p := range programs {
		if _, err := exec.LookPath(p); err != nil {
			t.Skipf("%s is not installed here", p)
		}
	}
}

func TestOpenSSH(t *testing.T) {
	t.Parallel()
	need(t, "ssh")
	b := start(t)
	r := b.ssh("input", "work@session", "cat; echo; echo err >&2; exit 9")
	require.Equal(t, result{out: "input\n", err: "err\n", code: 9}, r)
	r = b.ssh("", "-tt", "work@session", "test -t 0 && echo terminal")
	require.Contains(t, r.out, "terminal")
	r = b.program("", append(append([]string{"ssh", "-o", "LogLevel=INFO"}, b.openSSH()...), "someone@session", "true")...)
	require.Equal(t, 255, r.code)
	require.Contains(t, r.err, "log in as work")
	// AES-GCM although OpenSSH's list begins with chacha20; and whoever insists gets that.
	r = b.ssh("", "-vv", "-o", "LogLevel=DEBUG2", "work@session", "true")
	require.Equal(t, 0, r.code, r.err)
	require.Regexp(t, `cipher: (aes128-gcm|aes256-gcm|chacha20-poly1305)@openssh.com`, r.err)
	for _, cipher := range []string{"chacha20-poly1305@openssh.com", "aes256-ctr", "aes128-gcm@openssh.com"} {
		require.Equal(t, 0, b.ssh("", "-c", cipher, "work@session", "true").code, cipher)
	}
	// One connection for several commands, and SOCKS through it, as editors do.
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer l.Close()
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			fmt.Fprint(conn, "welcome\n")
			conn.Close()
		}
	}()
	r = b.ssh("", "-W", l.Addr().String(), "work@session")
	require.Equal(t, "welcome\n", r.out)
}

func tree(t *testing.T, dir string) {
	require.NoError(t, os.MkdirAll(filepath.Join(dir, "sub/deeper"), 0o755))
	big := make([]byte, 2<<20)
	_, _ = rand.Read(big)
	for name, content := range map[string][]byte{"empty": nil, "with space": []byte("a"), "sub/big": big, "sub/deeper/-dash": []byte("d"),
		"sub/run.sh": []byte("#!/bin/sh\n")} {
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), content, 0o644))
	}
	require.NoError(t, os.Chmod(filepath.Join(dir, "sub/run.sh"), 0o755))
	old := time.Unix(1_600_000_000, 0)
	require.NoError(t, os.Chtimes(filepath.Join(dir, "sub/big"), old, old))
}

// same compares two trees, with modes and times.
func same(t *testing.T, a, b string) {
	t.Helper()
	require.NoError(t, filepath.Walk(a, func(p string, fi os.FileInfo, err error) error {
		require.NoError(t, err)
		rel, err := filepath.Rel(a, p)
		require.NoError(t, err)
		other, err := os.Lstat(filepath.Join(b, rel))
		require.NoError(t, err)
		require.Equal(t, fi.Mode(), other.Mode(), rel)
		if fi.Mode().IsRegular() {
			require.Equal(t, fi.ModTime().Unix(), other.ModTime().Unix(), rel)
			one, err := os.ReadFile(p)
			require.NoError(t, err)
			two, err := os.ReadFile(filepath.Join(b, rel))
			require.NoError(t, err)
			require.True(t, bytes.Equal(one, two), rel)
		}
		return nil
	}))
}

func TestCopyPrograms(t *testing.T) {
	t.Parallel()
	need(t, "ssh", "scp")
	// Without scp in the image the runner is the other end of an older scp.
	lacking := start(t, func(c *sshd.Config) { c.Env[0] = "PATH=/nowhere" })
	bare := start(t, func(c *sshd.Config) { c.Env[0], c.Shell = "PATH=/nowhere", "" })
	full := start(t)
	for name, c := range map[string]struct {
		b    *box
		argv []string
	}{"sftp": {full, []string{"scp", "-rp"}}, "older": {full, []string{"scp", "-O", "-rp"}},
		"older without scp": {lacking, []string{"scp", "-O", "-rp"}}, "older without shell": {bare, []string{"scp", "-O", "-rp"}}} {
		t.Run(name, func(t *testing.T) {
			b := *c.b
			b.t = t
			from, back := t.TempDir(), t.TempDir()
			tree(t, filepath.Join(from, "tree"))
			argv := append(append([]string{}, c.argv...), b.openSSH()...)
			r := b.program("", append(argv, filepath.Join(from, "tree"), "work@session:")...)
			require.Equal(t, 0, r.code, r.err)
			same(t, filepath.Join(from, "tree"), filepath.Join(b.home, "tree"))
			uid, _ := uids()
			fi, err := os.Stat(filepath.Join(b.home, "tree/sub/big"))
			require.NoError(t, err)
			require.EqualValues(t, uid, fi.Sys().(*syscall.Stat_t).Uid)
			r = b.program("", append(argv, "work@session:tree", back)...)
			require.Equal(t, 0, r.code, r.err)
			same(t, filepath.Join(from, "tree"), filepath.Join(back, "tree"))
			// Over a file that is longer; to a place that cannot be written; from one that is not there.
			require.NoError(t, os.WriteFile(filepath.Join(from, "short"), []byte("s"), 0o644))
			r = b.program("", append(argv, filepath.Join(from, "short"), "work@session:tree/sub/big")...)
			require.Equal(t, 0, r.code, r.err)
			got, err := os.ReadFile(filepath.Join(b.home, "tree/sub/big"))
			require.NoError(t, err)
			require.Equal(t, "s", string(got))
			if os.Getuid() == 0 {
				r = b.program("", append(argv, filepath.Join(from, "short"), "work@session:/etc/berth-test")...)
				require.NotEqual(t, 0, r.code)
				require.Contains(t, strings.ToLower(r.err), "permission denied")
			}
			r = b.program("", append(argv, "work@session:missing", back)...)
			require.NotEqual(t, 0, r.code)
			require.Contains(t, strings.ToLower(r.err), "no such file")
		})
	}
	r := lacking.program("", append(append([]string{"scp", "-O"}, lacking.openSSH()...), "work@session:tree/sub/*.sh", t.TempDir())...)
	require.Equal(t, 0, r.code, r.err) // the shell expands names
}

func TestSFTPProgram(t *testing.T) {
	t.Parallel()
	need(t, "ssh", "sftp")
	b := start(t)
	from := t.TempDir()
	tree(t, filepath.Join(from, "tree"))
	argv := append(append([]string{"sftp", "-b", "-"}, b.openSSH()...), "work@session")
	r := b.program("put -Rp "+from+"/tree\nls -l tree\nrename tree/empty tree/moved\nln -s moved tree/link\nchmod 700 tree/moved\n"+
		"get -Rp tree "+from+"/back\ndf\n", argv...)
	require.Equal(t, 0, r.code, r.err)
	same(t, filepath.Join(from, "tree/sub"), filepath.Join(b.home, "tree/sub"))
	same(t, filepath.Join(from, "tree/sub"), filepath.Join(from, "back/sub"))
	target, err := os.Readlink(filepath.Join(b.home, "tree/link"))
	require.NoError(t, err)
	require.Equal(t, "moved", target)
	// Larger packets than the usual ones.
	argv = append(append([]string{"sftp", "-B", "131072", "-b", "-"}, b.openSSH()...), "work@session")
	r = b.program("put "+from+"/tree/sub/big large\nget large "+from+"/large\n", argv...)
	require.Equal(t, 0, r.code, r.err)
	one, err := os.ReadFile(from + "/tree/sub/big")
	require.NoError(t, err)
	two, err := os.ReadFile(from + "/large")
	require.NoError(t, err)
	require.True(t, bytes.Equal(one, two))
}

func TestRsync(t *testing.T) {
	t.Parallel()
	need(t, "ssh", "rsync")
	b := start(t)
	from, back := t.TempDir(), t.TempDir()
	tree(t, filepath.Join(from, "tree"))
	remote := "ssh"
	for _, o := range b.openSSH() {
		remote += " '" + o + "'"
	}
	r := b.program("", "rsync", "-a", "--no-o", "--no-g", "-e", remote, from+"/tree", "work@session:")
	require.Equal(t, 0, r.code, r.err)
	same(t, filepath.Join(from, "tree"), filepath.Join(b.home, "tree"))
	r = b.program("", "rsync", "-a", "--no-o", "--no-g", "--checksum", "-e", remote, "work@session:tree", back)
	require.Equal(t, 0, r.code, r.err)
	same(t, filepath.Join(from, "tree"), filepath.Join(back, "tree"))
	r = b.program("", "rsync", "-ain", "--no-o", "--no-g", "-e", remote, from+"/tree", "work@session:")
	require.Equal(t, 0, r.code, r.err)
	require.Empty(t, r.out, "nothing is left to do")
}

// TestHostileSources: what an older scp's source sends is held to the directory that the user named.
func TestHostileSources(t *testing.T) {
	t.Parallel()
	b := start(t, func(c *sshd.Config) { c.Env[0] = "PATH=/nowhere" })
	into := filepath.Join(b.home, "into")
	uid, gid := uids()
	require.NoError(t, os.Mkdir(into, 0o755))
	require.NoError(t, os.Chown(into, uid, gid))
	c := b.client()
	for _, sent := range []string{
		"C0644 5 ../evil\nhello\x00", "C0644 5 /tmp/evil\nhello\x00", "D0755 0 ..\nC0644 5 evil\nhello\x00E\n", "C0644 5 ..\nhello\x00",
		"C0644 5 \nhello\x00",
		"C0644 -5 evil\nhello\x00", "C9999 5 evil\nhello\x00", "C0644 99999999999999999999 evil\n", "E\n", "T1 2 3\n", "Xrubbish\n",
		strings.Repeat("x", 20<<10), "C0644 500 evil\nshort", "\x02fatal\n",
	} {
		s := b.session(c)
		s.Stdin = strings.NewReader(sent)
		require.Error(t, s.Run("scp -r -t into"), "%.30q", sent)
	}
	left, err := filepath.Glob(filepath.Join(b.home, "*"))
	require.NoError(t, err)
	require.Equal(t, []string{into}, left)
	s := b.session(c)
	s.Stdin = strings.NewReader("D0755 0 d\nC0600 5 fine\nhello\x00E\n")
	require.NoError(t, s.Run("scp -r -t into"))
	got, err := os.ReadFile(filepath.Join(into, "d/fine"))
	require.NoError(t, err)
	require.Equal(t, "hello", string(got))
}
