package sshd_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"berth.dev/berth/internal/runner/sshd"
)

// BenchmarkConnect logs in, runs a command and leaves.
func BenchmarkConnect(b *testing.B) {
	box := start(b)
	for b.Loop() {
		c, err := box.dial("work", box.key)
		require.NoError(b, err)
		s, err := c.NewSession()
		require.NoError(b, err)
		require.NoError(b, s.Run(":"))
		c.Close()
	}
}

// BenchmarkExec runs a command on an open connection.
func BenchmarkExec(b *testing.B) {
	box := start(b)
	c := box.client()
	for b.Loop() {
		s, err := c.NewSession()
		require.NoError(b, err)
		require.NoError(b, s.Run(":"))
	}
}

// BenchmarkCopy copies a file with OpenSSH's scp to the session and from it. BERTH_COPY_MB sets its size; BERTH_COPY_OPTIONS
// names a file with scp options, one a line, that lead to another server, to compare with.
func BenchmarkCopy(b *testing.B) {
	size := int64(256 << 20)
	if n := os.Getenv("BERTH_COPY_MB"); n != "" {
		_, err := fmt.Sscan(n, &size)
		require.NoError(b, err)
		size <<= 20
	}
	box := start(b)
	file := filepath.Join(b.TempDir(), "file")
	f, err := os.Create(file)
	require.NoError(b, err)
	require.NoError(b, f.Truncate(size))
	require.NoError(b, f.Close())
	servers := map[string][]string{"ours": append(box.openSSH(), "work@session:copy")}
	if name := os.Getenv("BERTH_COPY_OPTIONS"); name != "" {
		text, err := os.ReadFile(name)
		require.NoError(b, err)
		servers["theirs"] = strings.Split(strings.TrimSpace(string(text)), "\n")
	}
	for _, how := range []string{"-s", "-O"} {
		for _, to := range []bool{true, false} {
			for name, options := range servers {
				b.Run(fmt.Sprintf("scp%s/up=%v/%s", how, to, name), func(b *testing.B) {
					inner := *box
					inner.t = b
					options, place := options[:len(options)-1], options[len(options)-1]
					argv := append([]string{"scp", "-q", how}, options...)
					if to {
						argv = append(argv, file, place)
					} else {
						argv = append(argv, place, filepath.Join(b.TempDir(), "back"))
					}
					b.SetBytes(size)
					for b.Loop() {
						r := inner.program("", argv...)
						require.Equal(b, 0, r.code, r.err)
					}
				})
			}
		}
	}
}

// BenchmarkSessionKey is what the session's key adds to the start of a container.
func BenchmarkSessionKey(b *testing.B) {
	box := start(b)
	for b.Loop() {
		require.NoError(b, sshd.EnsureSessionKey(box.home, box.cfg.User))
		require.NoError(b, os.Remove(filepath.Join(box.home, sshd.SessionKey)))
	}
}
