package terminal

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"berth.dev/berth/internal/runner/proc"
	"berth.dev/berth/internal/testkit/await"
)

// TestTheLastOutputIsShown: what a shell wrote before its end is passed on however late the terminal is read, also when another program
// keeps the terminal open.
func TestTheLastOutputIsShown(t *testing.T) {
	t.Parallel()
	table := proc.NewTable()
	t.Cleanup(table.Close)
	set := NewSet(Config{Shell: "/bin/sh", Dir: "/", Env: []string{"PATH=/usr/bin:/bin", "PS1="}, Table: table, Scrollback: 64 << 10, Max: 1})
	t.Cleanup(set.Hangup)
	term, w, err := set.Attach("one", 0, 0, false)
	require.NoError(t, err)
	_, err = term.Write([]byte("stty -echo; (trap '' HUP; exec sleep 600) & echo be$((1+1))gun\n"))
	require.NoError(t, err)
	var shown strings.Builder
	for !strings.Contains(shown.String(), "be2gun") {
		shown.Write(await.Value(t, w.Output()))
	}
	term.mu.Lock() // whoever reads the terminal waits
	_, err = term.Write([]byte("echo last words; exit 3\n"))
	require.NoError(t, err)
	await.Value(t, term.process.Done())
	term.mu.Unlock()
	for {
		b := await.Value(t, w.Output())
		if b == nil {
			break
		}
		shown.Write(b)
	}
	require.Contains(t, shown.String(), "last words")
	require.Equal(t, 3, term.Status().Code)
}
