package keeper

import (
	"testing"

	"github.com/stretchr/testify/require"

	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/wire/run"
)

func TestTheRunnerIsToldTheApps(t *testing.T) {
	t.Parallel()
	require.Empty(t, appsOf(&cluster.KernelSpec{}))
	require.Equal(t, []run.AppPort{
		{Name: "jupyter", Protocol: run.AppHTTP, Ports: []int{8070}},
		{Name: "board", Protocol: run.AppTCP, Ports: []int{9001, 9002}},
		{Name: "5000", Protocol: run.AppPreopen, Ports: []int{5000}},
	}, appsOf(&cluster.KernelSpec{ServicePorts: "jupyter:http:8070,bad:http:22,board:tcp:[9001,9002]", PreopenPorts: []int{5000}}))
}

func TestTheRunnerIsToldTheOwnersKeys(t *testing.T) {
	t.Parallel()
	require.Empty(t, keysOf(&cluster.KernelSpec{Dotfiles: []cluster.Dotfile{{Path: ".bashrc", Data: "x"}}}))
	require.Equal(t, []string{"ssh-ed25519 AAAA me", "ssh-rsa BBBB"},
		keysOf(&cluster.KernelSpec{Dotfiles: []cluster.Dotfile{{Path: ".ssh/authorized_keys", Data: "ssh-ed25519 AAAA me\r\n\nssh-rsa BBBB\n"}}}))
}
