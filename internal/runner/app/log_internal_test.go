package app

import (
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// TestNothingIsWrittenAfterTheEnd: a process that was left behind writes on, but no file is made for it when the log has been closed.
func TestNothingIsWrittenAfterTheEnd(t *testing.T) {
	dir := t.TempDir()
	o := newOutput(dir, "web", time.Now)
	o.close()
	o.write([]byte("late\n"))
	left, err := os.ReadDir(dir)
	require.NoError(t, err)
	require.Empty(t, left)
}
