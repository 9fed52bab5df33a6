package chassis

import (
	"crypto/subtle"
	"encoding/json"
	"fmt"
	"log/slog"
)

const redacted = "[redacted]"

// Secret is a text that never prints itself: every formatting, JSON, TOML and log path
// yields "[redacted]", or "" when it is empty. Only Reveal hands out the text.
//
// The text sits behind a pointer so that even fmt, which skips methods on unexported
// fields, can only print an address.
type Secret struct{ text *string }

// NewSecret wraps a text.
func NewSecret(text string) Secret {
	if text == "" {
		return Secret{}
	}
	return Secret{&text}
}

// Reveal returns the text itself. Call it as late as possible.
func (s Secret) Reveal() string {
	if s.text == nil {
		return ""
	}
	return *s.text
}

// IsZero reports whether there is no text.
func (s Secret) IsZero() bool { return s.text == nil }

// Equal compares in constant time for texts of equal length.
func (s Secret) Equal(other Secret) bool {
	return subtle.ConstantTimeCompare([]byte(s.Reveal()), []byte(other.Reveal())) == 1
}

func (s Secret) String() string {
	if s.text == nil {
		return ""
	}
	return redacted
}

// GoString keeps %#v from printing the text.
func (s Secret) GoString() string { return fmt.Sprintf("chassis.Secret(%q)", s.String()) }

// Format covers every verb, also those that do not ask for String.
func (s Secret) Format(f fmt.State, verb rune) {
	if verb == 'q' {
		fmt.Fprintf(f, "%q", s.String())
		return
	}
	fmt.Fprint(f, s.String())
}

// LogValue redacts in slog.
func (s Secret) LogValue() slog.Value { return slog.StringValue(s.String()) }

// MarshalText redacts in TOML and other text encodings.
func (s Secret) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// MarshalJSON redacts in JSON.
func (s Secret) MarshalJSON() ([]byte, error) { return json.Marshal(s.String()) }

// UnmarshalText reads the text as it is.
func (s *Secret) UnmarshalText(b []byte) error {
	*s = NewSecret(string(b))
	return nil
}
