package docker

import (
	"context"
	"fmt"
	"net"
	"strings"

	"golang.org/x/sys/unix"

	"berth.dev/berth/internal/agent/runtime"
)

var _ runtime.EngineProcess = (*Runtime)(nil)

// EnginePID asks the socket who listens. An engine that is not on this host is 0, as is one in a process namespace
// that ours does not see.
func (r *Runtime) EnginePID(ctx context.Context) (int, error) {
	path, ok := strings.CutPrefix(r.cfg.Host, "unix://")
	if !ok {
		return 0, nil
	}
	ctx, cancel := context.WithTimeout(ctx, shortCall)
	defer cancel()
	var d net.Dialer
	c, err := d.DialContext(ctx, "unix", path)
	if err != nil {
		return 0, fmt.Errorf("ask who serves %s: %w", path, err)
	}
	defer c.Close()
	raw, err := c.(*net.UnixConn).SyscallConn()
	if err != nil {
		return 0, fmt.Errorf("ask who serves %s: %w", path, err)
	}
	var cred *unix.Ucred
	var credErr error
	if err := raw.Control(func(fd uintptr) { cred, credErr = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED) }); err != nil {
		return 0, fmt.Errorf("ask who serves %s: %w", path, err)
	}
	if credErr != nil {
		return 0, fmt.Errorf("ask who serves %s: %w", path, credErr)
	}
	return int(cred.Pid), nil
}
