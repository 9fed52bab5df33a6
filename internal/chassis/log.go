package chassis

import (
	"io"
	"log/slog"
	"strings"

	"berth.dev/berth/internal/fault"
)

// LogConfig selects how a process logs.
type LogConfig struct {
	// Format is "text" or "json".
	Format string
	// Level is "debug", "info", "warn" or "error".
	Level string
}

// DefaultLogConfig is text at level info.
func DefaultLogConfig() LogConfig { return LogConfig{Format: "text", Level: "info"} }

// Validate reports the first field that cannot be used.
func (c LogConfig) Validate() error {
	if c.Format != "text" && c.Format != "json" {
		return fault.Invalidf("log.format is %q", c.Format).WithNext("use \"text\" or \"json\"")
	}
	_, err := c.level()
	return err
}

func (c LogConfig) level() (slog.Level, error) {
	switch strings.ToLower(c.Level) {
	case "debug":
		return slog.LevelDebug, nil
	case "info":
		return slog.LevelInfo, nil
	case "warn":
		return slog.LevelWarn, nil
	case "error":
		return slog.LevelError, nil
	}
	return 0, fault.Invalidf("log.level is %q", c.Level).WithNext("use \"debug\", \"info\", \"warn\" or \"error\"")
}

// NewLogger makes the process's logger, writing to w.
func NewLogger(c LogConfig, w io.Writer) (*slog.Logger, error) {
	if err := c.Validate(); err != nil {
		return nil, err
	}
	level, err := c.level()
	if err != nil {
		return nil, err
	}
	opts := &slog.HandlerOptions{Level: level}
	if c.Format == "json" {
		return slog.New(slog.NewJSONHandler(w, opts)), nil
	}
	return slog.New(slog.NewTextHandler(w, opts)), nil
}
