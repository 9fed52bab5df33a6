package sshd

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"runtime/debug"

	"github.com/pkg/sftp"
)

// What this program is started as to serve files, as the session's user; see FileServer.
const (
	fileServer = "sftp-server"
	scpServer  = "scp"
)

// maxRead bounds one reply to a reading client, as OpenSSH's server does; most ask for 32 KiB.
const maxRead = 255 << 10

// FileServer serves files on standard input and output when the arguments of this process ask for it; ok is false when they do
// not. It trusts the kernel alone: the process is the session's user.
func FileServer(args []string) (code int, ok bool) {
	if len(args) < 2 {
		return 0, false
	}
	switch args[1] {
	case fileServer:
		return serveSFTP(), true
	case scpServer:
		return serveSCP(args[2:], os.Stdin, os.Stdout, os.Stderr), true
	}
	return 0, false
}

type stdio struct {
	io.Reader
	io.Writer
}

func (stdio) Close() error { return os.Stdin.Close() }

func serveSFTP() int {
	// Packets are reused (the allocator), and the rest that is new for each one lives briefly: collecting as often as a small heap
	// asks for would cost a third of the time.
	debug.SetGCPercent(800)
	debug.SetMemoryLimit(64 << 20)
	// No working directory is named: the library would put it before the targets of symbolic links. The process is in it.
	// Packets have a length and a body: without a buffer every one would take two reads.
	srv, err := sftp.NewServer(stdio{bufio.NewReaderSize(os.Stdin, 512<<10), os.Stdout}, sftp.WithMaxTxPacket(maxRead), sftp.WithAllocator())
	if err == nil {
		err = srv.Serve()
	}
	if err != nil && err != io.EOF {
		fmt.Fprintln(os.Stderr, "sftp-server:", err)
		return 1
	}
	return 0
}
