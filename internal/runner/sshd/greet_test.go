package sshd_test

import (
	"bufio"
	"net"
	"regexp"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// TestClientsKnowTheDialect: these are the patterns by which libraries decide whether they may use OpenSSH's extensions (ssh2 of
// npm), and in which order OpenSSH takes the paths of a link (the same library, for SFTP).
func TestClientsKnowTheDialect(t *testing.T) {
	t.Parallel()
	b := start(t)
	conn, err := net.Dial("unix", b.socket)
	require.NoError(t, err)
	defer conn.Close()
	require.NoError(t, conn.SetDeadline(time.Now().Add(time.Minute)))
	line, err := bufio.NewReader(conn).ReadString('\n')
	require.NoError(t, err)
	require.Regexp(t, regexp.MustCompile(`^SSH-2\.0-OpenSSH_[5-9][^ ]* Berth\r\n$`), line)
}
