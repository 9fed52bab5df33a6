package sshd_test

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
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

// BenchmarkCopy copies a file with OpenSSH's scp to the session and from it. BERTH_SSHD names a file of ssh options (one a
// line) of another server to compare with, BERTH_COPY_MB the size.
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
	for _, how := range []string{"", "-O"} {
		for _, to := range []bool{true, false} {
			b.Run(fmt.Sprintf("older=%v/up=%v", how != "", to), func(b *testing.B) {
				inner := *box
				inner.t = b
				argv := append([]string{"scp", "-q"}, box.openSSH()...)
				if how != "" {
					argv = append(argv, how)
				}
				if to {
					argv = append(argv, file, "work@session:copy")
				} else {
					argv = append(argv, "work@session:copy", filepath.Join(b.TempDir(), "back"))
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
