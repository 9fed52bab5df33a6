package cluster_test

import (
	"strings"
	"testing"

	"berth.dev/berth/internal/cluster"
)

func TestCheckTarget(t *testing.T) {
	t.Parallel()
	for _, ok := range []string{"/home/work/data", "/home/work/.local", "/home/linuxbrew/.linuxbrew",
		"/home/jovyan/x", "/mnt/a/b", "/opt/tool",
		"/data", "/workspace/x", "/models", "/home/config2"} {
		if err := cluster.CheckTarget(ok); err != nil {
			t.Errorf("%s: %v", ok, err)
		}
	}
	for _, bad := range []string{"", ".", "/", "data", "/home", "/home/work", "/home/config", "/home/config/x",
		"/.berth", "/.berth/runner", "/mnt",
		"/proc/self", "/sys/fs", "/dev/shm", "/etc", "/etc/x", "/usr/local/x", "/bin/x", "/lib/x", "/lib32/x", "/lib64/x", "/sbin", "/run/x",
		"/tmp/x", "/var/x", "/root/x", "/boot", "/opt/kernel", "/opt/kernel/x", "/home/work/../../.berth", "/home/work//x", "/home/work/x/",
		"/home/work/a:b", "/home/work/a\nb", "/home/work/a\x00", "/home/work/" + strings.Repeat("x", 1024), "/databases",
		"/data/" + strings.Repeat("x", 256) + "/y"} {
		if err := cluster.CheckTarget(bad); err == nil {
			t.Errorf("%q is allowed", bad)
		}
	}
}
