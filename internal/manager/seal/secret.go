package seal

import "log/slog"

// Secret is text that must not be printed: every formatter and logger shows asterisks.
type Secret string

const hidden = "********"

// String hides the text.
func (Secret) String() string { return hidden }

// GoString hides the text.
func (Secret) GoString() string { return hidden }

// LogValue hides the text.
func (Secret) LogValue() slog.Value { return slog.StringValue(hidden) }

// MarshalText hides the text.
func (Secret) MarshalText() ([]byte, error) { return []byte(hidden), nil }

// Reveal returns the text. Call it only where the secret leaves for its rightful reader.
func (s Secret) Reveal() string { return string(s) }
