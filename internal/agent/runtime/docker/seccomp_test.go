package docker

import (
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestSystemCalls keeps the profile what it says it is.
func TestSystemCalls(t *testing.T) {
	t.Parallel()
	var p struct {
		DefaultAction string
		Syscalls      []struct {
			Names    []string
			Action   string
			ErrnoRet int
			Args     []struct{ Index int }
		}
	}
	require.NoError(t, json.Unmarshal([]byte(systemCalls), &p))
	require.Equal(t, "SCMP_ACT_ERRNO", p.DefaultAction)
	answers := map[string]string{}
	for _, r := range p.Syscalls {
		for _, name := range r.Names {
			answer := r.Action
			if len(r.Args) > 0 {
				answer += " if"
				require.Contains(t, []string{"", answer}, answers[name], "%s: libraries refuse rules that contradict one another", name)
			} else {
				require.Empty(t, answers[name], "%s is named twice", name)
			}
			answers[name] = answer
		}
	}
	for _, name := range []string{"bpf", "io_uring_setup", "io_uring_enter", "keyctl", "add_key", "request_key", "userfaultfd",
		"perf_event_open", "mount", "umount2", "pivot_root", "move_mount", "open_tree", "fsopen", "unshare", "setns", "clone3",
		"open_by_handle_at", "kexec_load",
		"init_module", "finit_module", "chroot", "reboot", "swapon", "quotactl", "pidfd_getfd", "kcmp", "syslog"} {
		require.Equal(t, "SCMP_ACT_ERRNO", answers[name], name)
	}
	for _, name := range []string{"socket", "clone", "personality"} {
		require.Equal(t, "SCMP_ACT_ALLOW if", answers[name], name)
	}
	for _, name := range []string{"ptrace", "read", "openat2", "faccessat2", "futex", "seccomp", "landlock_create_ruleset", "epoll_pwait2"} {
		require.Equal(t, "SCMP_ACT_ALLOW", answers[name], name)
	}
}
