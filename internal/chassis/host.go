package chassis

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
)

// maxSocketPath is how long the path of a unix socket may be.
const maxSocketPath = 107

// ListenUnix listens on a socket of mode 0600 however long its path is. Until the mode is set others may connect: the directory
// must keep them out. Closing the listener leaves the file.
func ListenUnix(path string) (net.Listener, error) {
	short, done, err := shorten(path)
	if err != nil {
		return nil, err
	}
	defer done()
	l, err := net.Listen("unix", short)
	if err != nil {
		return nil, err
	}
	if u, ok := l.(*net.UnixListener); ok {
		u.SetUnlinkOnClose(false) // the short name means nothing later
	}
	if err := os.Chmod(path, 0o600); err != nil {
		_ = l.Close()
		return nil, err
	}
	return l, nil
}

// DialUnix connects to a socket however long its path is.
func DialUnix(ctx context.Context, path string) (net.Conn, error) {
	short, done, err := shorten(path)
	if err != nil {
		return nil, err
	}
	defer done()
	var d net.Dialer
	return d.DialContext(ctx, "unix", short)
}

// shorten gives a path that names the same file through its open directory when the real
// one is too long for a socket. done releases it.
func shorten(path string) (short string, done func(), err error) {
	if len(path) <= maxSocketPath {
		return path, func() {}, nil
	}
	dir, err := os.Open(filepath.Dir(path))
	if err != nil {
		return "", nil, err
	}
	return fmt.Sprintf("/proc/self/fd/%d/%s", dir.Fd(), filepath.Base(path)), func() { _ = dir.Close() }, nil
}

// BootID tells one start of this host from the next, and this host from others; "" when the kernel does not say.
func BootID() string {
	b, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(b))
}
