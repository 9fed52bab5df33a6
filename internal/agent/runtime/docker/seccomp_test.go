package docker

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/moby/moby/api/types/system"
	"github.com/moby/profiles/seccomp"
	"github.com/stretchr/testify/require"
)

// TestProfile compares the profile with the engine's: it differs in ioctl alone.
func TestProfile(t *testing.T) {
	t.Parallel()
	text, err := profile()
	require.NoError(t, err)
	require.Less(t, len(text), 32<<10, "every container carries it")
	var ours seccomp.Seccomp
	require.NoError(t, json.Unmarshal([]byte(text), &ours))
	// allowed applies the rules for ioctl as the kernel would.
	allowed := func(cmd uint64) bool {
		for _, call := range ours.Syscalls {
			for _, name := range call.Names {
				if name == "ioctl" && cmd&call.Args[0].Value == call.Args[0].ValueTwo {
					return true
				}
			}
		}
		return false
	}
	for i := range 32 {
		require.True(t, allowed(setProject^1<<i), "bit %d", i)
		require.False(t, allowed(setProject^1<<(32+i)), "bit %d", 32+i)
	}
	rules := ours.Syscalls[len(ours.Syscalls)-32:]
	for _, call := range rules {
		require.Equal(t, []string{"ioctl"}, call.Names)
		require.Len(t, call.Args, 1, "engines take several conditions on one argument differently")
		require.EqualValues(t, 1, call.Args[0].Index)
	}
	ours.Syscalls = ours.Syscalls[:len(ours.Syscalls)-32]
	theirs, err := json.Marshal(seccomp.DefaultProfile())
	require.NoError(t, err)
	rest, err := json.Marshal(&ours)
	require.NoError(t, err)
	require.Equal(t, strings.Replace(string(theirs), `"ioctl",`, "", 1), string(rest))
	require.NotContains(t, text, "file_setattr")
}

func TestFilterOf(t *testing.T) {
	t.Parallel()
	const warning = "only the runner keeps sessions from leaving quotas of folders"
	for _, c := range []struct {
		options []string
		want    filter
		warned  bool
	}{
		{[]string{"name=apparmor", "name=seccomp,profile=default"}, filterBuiltin, false},
		{[]string{"name=seccomp,profile=builtin", "name=cgroupns"}, filterBuiltin, false},
		{[]string{"name=seccomp,profile=/etc/docker/own.json"}, filterOther, true},
		{[]string{"name=seccomp,profile=/etc/docker/default"}, filterOther, true},
		{[]string{"name=seccomp,profile=unconfined"}, filterOther, true},
		{[]string{"name=seccomp,profile=unconfined", "name=userns"}, filterOther, false},
		{[]string{"name=rootless"}, filterOther, false},
		{nil, filterOther, true},
	} {
		require.Equal(t, c.want, filterOf(c.options), "%v", c.options)
		warned := strings.Contains(strings.Join(missingFeatures(system.Info{SecurityOptions: c.options}), "\n"), warning)
		require.Equal(t, c.warned, warned, "%v", c.options)
	}
}
