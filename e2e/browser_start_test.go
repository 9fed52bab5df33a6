package e2e_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"sync"
	"syscall"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"
	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"
)

// Chromium gives up requests when an address of the host appears or goes (ERR_NETWORK_CHANGED): it may have moved to another network. Here
// each container of each story brings one. So Chromium of a story cannot ask the kernel for the addresses of the host, and believes that
// they stay.

// browserVariable names the Chromium that this test program becomes when it is started as one.
const browserVariable = "BERTH_STORY_BROWSER"

// steadyBrowser is a program that is Chromium and notices no change of networks.
func steadyBrowser(t *testing.T, chromium string) string {
	t.Helper()
	self, err := os.Executable()
	require.NoError(t, err)
	file := filepath.Join(t.TempDir(), "chromium")
	require.NoError(t, os.WriteFile(file, fmt.Appendf(nil, "#!/bin/sh\n%s='%s' exec '%s' \"$@\"\n", browserVariable, chromium, self), 0o755))
	return file
}

// becomeBrowser replaces this process by Chromium, without sockets of netlink(7).
func becomeBrowser(chromium string) error {
	runtime.LockOSThread() // the filter is the thread's until there is another program
	const allow = unix.SECCOMP_RET_ALLOW
	architecture := map[string]uint32{"amd64": unix.AUDIT_ARCH_X86_64, "arm64": unix.AUDIT_ARCH_AARCH64}[runtime.GOARCH]
	// The offsets are those of struct seccomp_data, see seccomp(2): nr at 0, arch at 4, args from 16 on.
	filter, err := bpf.Assemble([]bpf.Instruction{
		bpf.LoadAbsolute{Off: 4, Size: 4},
		bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: architecture, SkipTrue: 5},
		bpf.LoadAbsolute{Off: 0, Size: 4},
		bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: unix.SYS_SOCKET, SkipTrue: 3},
		bpf.LoadAbsolute{Off: 16, Size: 4},
		bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: unix.AF_NETLINK, SkipTrue: 1},
		bpf.RetConstant{Val: unix.SECCOMP_RET_ERRNO | uint32(unix.EAFNOSUPPORT)},
		bpf.RetConstant{Val: allow},
	})
	if err != nil {
		return err
	}
	// A bpf.RawInstruction is a struct sock_filter.
	program := unix.SockFprog{Len: uint16(len(filter)), Filter: (*unix.SockFilter)(unsafe.Pointer(&filter[0]))}
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return fmt.Errorf("give up new privileges: %w", err)
	}
	if err := unix.Prctl(unix.PR_SET_SECCOMP, unix.SECCOMP_MODE_FILTER, uintptr(unsafe.Pointer(&program)), 0, 0); err != nil {
		return fmt.Errorf("filter system calls: %w", err)
	}
	if err := os.Unsetenv(browserVariable); err != nil {
		return err
	}
	return syscall.Exec(chromium, append([]string{chromium}, os.Args[1:]...), os.Environ())
}

// TestBrowserStaysOnItsNetwork loads a page again and again while addresses of the host come and go, as they do beside other stories.
func TestBrowserStaysOnItsNetwork(t *testing.T) {
	t.Parallel()
	needEngine(t)
	if os.Geteuid() != 0 {
		t.Skip("changing the addresses of the host needs root")
	}
	const pages = 60
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "<p id=a>here</p>") }))
	t.Cleanup(server.Close)
	network := fmt.Sprintf("be%d", os.Getpid()%100000)
	ip := func(args ...string) {
		out, err := exec.Command("ip", args...).CombinedOutput()
		require.NoError(t, err, string(out))
	}
	ip("link", "add", network, "type", "bridge")
	t.Cleanup(func() { ip("link", "delete", network) })
	ended := make(chan struct{})
	var changes sync.WaitGroup
	t.Cleanup(changes.Wait)
	t.Cleanup(func() { close(ended) })
	changes.Go(func() {
		for {
			select {
			case <-ended:
				return
			default:
				_ = exec.Command("ip", "address", "add", "198.51.100.1/32", "dev", network).Run()
				_ = exec.Command("ip", "address", "delete", "198.51.100.1/32", "dev", network).Run()
			}
		}
	})
	p := newBrowser(t).page("one", "someone")
	for range pages {
		p.open(server.URL)
		require.Equal(t, "here", p.text("#a"))
	}
}
