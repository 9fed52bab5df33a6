package agent

import (
	"testing"

	"github.com/stretchr/testify/require"

	"berth.dev/berth/internal/agent/keeper"
	"berth.dev/berth/internal/agent/runtime"
	"berth.dev/berth/internal/cluster"
)

func TestKernelOf(t *testing.T) {
	t.Parallel()
	const a, b = "0123456789abcdef0123456789abcdef", "fedcba9876543210fedcba9876543210"
	running := []keeper.Kernel{{ID: "none"}, {ID: "ka", Container: runtime.Observed{ID: a}}, {ID: "kb", Container: runtime.Observed{ID: b}}}
	for text, want := range map[string]cluster.KernelID{
		"0::/system.slice/docker-" + a + ".scope\n":              "ka",
		"0::/docker/" + b + "/session\n":                         "kb",
		"5:memory:/docker/" + b + "\n4:pids:/docker/" + b + "\n": "kb",
		"0::/system.slice/ssh.service\n":                         "",
		"":                                                       "",
	} {
		got, ok := kernelOf(text, running)
		require.Equal(t, want, got, text)
		require.Equal(t, want != "", ok)
	}
	_, ok := (&Agent{}).ownerOf(1)
	require.False(t, ok)
}
