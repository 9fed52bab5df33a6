package agent

import (
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"berth.dev/berth/internal/agent/kernellog"
	"berth.dev/berth/internal/cluster"
)

func TestConditionsOfAHost(t *testing.T) {
	type short struct {
		kind   cluster.ConditionType
		reason string
		blocks bool
	}
	for name, c := range map[string]struct {
		h    health
		want []short
	}{
		"well":    {health{}, nil},
		"engine":  {health{engine: errors.New("gone")}, []short{{cluster.ConditionEngine, "engine-unavailable", true}}},
		"network": {health{network: errors.New("no bridge")}, []short{{cluster.ConditionNetwork, "network-broken", true}}},
		"not guarded": {health{unguarded: []string{"no nftables", "no counts"}},
			[]short{{cluster.ConditionNetwork, "network-not-guarded", false}, {cluster.ConditionNetwork, "network-not-guarded", false}}},
		"disk": {health{disk: "full"}, []short{{cluster.ConditionDisk, "disk-low", true}}},
		"volumes": {health{hung: []string{"nas:a", "nas:b"}},
			[]short{{cluster.ConditionVolume, "hung:nas:a", false}, {cluster.ConditionVolume, "hung:nas:b", false}}},
		"clock ahead":     {health{skew: time.Minute, known: true}, []short{{cluster.ConditionClock, "clock-differs", false}}},
		"clock behind":    {health{skew: -time.Minute, known: true}, []short{{cluster.ConditionClock, "clock-differs", false}}},
		"clock near":      {health{skew: 9 * time.Second, known: true}, nil},
		"clock not heard": {health{skew: time.Hour}, nil},
		"the kernel's log": {health{log: []kernellog.Event{{Kind: "disk-error", Text: "I/O error"}}},
			[]short{{cluster.ConditionKernelLog, "disk-error", false}}},
	} {
		var got []short
		for _, x := range conditionsOf(c.h) {
			require.NotEmpty(t, x.Message, name)
			got = append(got, short{x.Type, x.Reason, x.Blocks})
		}
		require.Equal(t, c.want, got, name)
	}
}

func TestALateHeartbeatIsNoWrongClock(t *testing.T) {
	var s skews
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	for i := range 4 {
		s.heard(now.Add(-time.Duration(i)*time.Minute), now) // they waited while this process was stopped
		_, known := s.now()
		require.False(t, known)
	}
	s.heard(now.Add(-time.Hour), now)
	skew, known := s.now()
	require.True(t, known)
	require.Zero(t, skew)
	for range 5 {
		s.heard(now.Add(time.Minute), now)
	}
	skew, _ = s.now()
	require.Equal(t, -time.Minute, skew)
}
