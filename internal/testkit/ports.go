package testkit

import (
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

// The ports of managers lie below those that the kernel gives to outgoing connections and to listeners without a port: a manager that is
// stopped and started finds its own free again.
const (
	firstPort = 20_000
	ports     = 10_000
)

// address chooses an address of this host that stays the test's own until its end, also among other processes of tests.
func address(tb testing.TB) string {
	tb.Helper()
	dir := filepath.Join(os.TempDir(), "berth-testkit-ports")
	if err := os.MkdirAll(dir, 0o777); err != nil {
		tb.Fatal(err)
	}
	start := rand.IntN(ports)
	for i := range ports {
		port := firstPort + (start+i)%ports
		lock, err := os.OpenFile(filepath.Join(dir, fmt.Sprint(port)), os.O_CREATE|os.O_RDWR, 0o666)
		if err != nil {
			continue // another user's
		}
		if unix.Flock(int(lock.Fd()), unix.LOCK_EX|unix.LOCK_NB) == nil {
			addr := fmt.Sprintf("127.0.0.1:%d", port)
			if l, err := net.Listen("tcp", addr); err == nil {
				_ = l.Close()
				tb.Cleanup(func() { _ = lock.Close() })
				return addr
			}
		}
		_ = lock.Close()
	}
	tb.Fatal("no port is free")
	return ""
}
