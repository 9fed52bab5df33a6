package manager

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestConnectionsSuitTheMachine(t *testing.T) {
	for cpus, want := range map[int]int32{1: 8, 2: 8, 3: 12, 4: 16, 64: 16} {
		require.Equal(t, want, PostgresConfig{}.conns(cpus), "%d CPUs", cpus)
	}
	require.EqualValues(t, 40, PostgresConfig{MaxConns: 40}.conns(2), "what is configured holds")
}
