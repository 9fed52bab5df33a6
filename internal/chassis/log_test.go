package chassis_test

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"berth.dev/berth/internal/chassis"
)

// TestLog: both formats put one entry on one line with a time that has a zone, whatever its values are.
func TestLog(t *testing.T) {
	t.Parallel()
	const evil = "x\ntime=2026-01-01T00:00:00Z level=ERROR msg=forged\r\n\x1b[31m"
	var text, object bytes.Buffer
	for format, out := range map[string]*bytes.Buffer{"text": &text, "json": &object} {
		log, err := chassis.NewLogger(chassis.LogConfig{Format: format, Level: "info"}, out)
		require.NoError(t, err)
		log.Debug("not at this level")
		log.Info("a message "+evil, "key", evil, evil, 1)
		require.Equal(t, 1, strings.Count(out.String(), "\n"), out.String())
		require.NotContains(t, out.String(), "\r")
		require.NotContains(t, out.String(), "\x1b")
	}
	stamp, _, _ := strings.Cut(strings.TrimPrefix(text.String(), "time="), " ")
	_, err := time.Parse(time.RFC3339Nano, stamp)
	require.NoError(t, err)
	var entry struct {
		Time       time.Time
		Level, Msg string
		Key        string
	}
	require.NoError(t, json.Unmarshal(object.Bytes(), &entry))
	require.WithinDuration(t, time.Now(), entry.Time, time.Hour)
	require.Equal(t, []string{"INFO", "a message " + evil, evil}, []string{entry.Level, entry.Msg, entry.Key})
	for _, bad := range []chassis.LogConfig{{Format: "xml", Level: "info"}, {Format: "text", Level: "loud"}, {}} {
		_, err := chassis.NewLogger(bad, &text)
		require.Error(t, err)
	}
}
