package embedded

import (
	"bytes"
	"log/slog"
	"testing"

	"github.com/stretchr/testify/require"

	"berth.dev/berth/internal/testkit/await"
)

// TestTheLastLineOfAChild: it is logged and quoted also when the child ended before the end of the line.
func TestTheLastLineOfAChild(t *testing.T) {
	t.Parallel()
	var log bytes.Buffer
	c := child{name: "test", path: "/bin/sh", args: []string{"-c", "echo one; printf two >&2; exit 3"}, dir: "/",
		level: func(string) slog.Level { return slog.LevelInfo }, log: slog.New(slog.NewTextHandler(&log, nil))}
	p, err := c.spawn()
	require.NoError(t, err)
	await.Value(t, p.exited)
	require.ErrorContains(t, p.err, "exit status 3")
	require.Equal(t, "; it said: one | two", p.tail.quote())
	require.Contains(t, log.String(), "msg=two")
}
