// Package cluster holds the nouns of Berth: identifiers, slot arithmetic, session
// and kernel states with their table of moves, and the rules of names.
//
// It is pure: no store, no network, no clock, no randomness, no third-party imports.
// Everything else may import it; it imports only fault.
package cluster

import (
	"encoding/hex"
	"strings"

	"berth.dev/berth/internal/fault"
)

// The identifiers. UUIDs are kept in their canonical dashed lower-case text.
type (
	SessionID string
	KernelID  string
	UserID    string
	ProjectID string
	ImageID   string
	// AgentID is chosen by the agent's configuration, for example "i-host1"; at most 64 bytes.
	AgentID string
	// AccessKey names a keypair.
	AccessKey string
)

// CanonicalUUID turns a dashed or 32-hex UUID into dashed lower case; ok is false for anything else.
func CanonicalUUID(s string) (canonical string, ok bool) {
	s = strings.ToLower(s)
	h := s
	if len(s) == 36 {
		if s[8] != '-' || s[13] != '-' || s[18] != '-' || s[23] != '-' {
			return "", false
		}
		h = s[0:8] + s[9:13] + s[14:18] + s[19:23] + s[24:36]
	}
	if len(h) != 32 {
		return "", false
	}
	if _, err := hex.DecodeString(h); err != nil {
		return "", false
	}
	return h[0:8] + "-" + h[8:12] + "-" + h[12:16] + "-" + h[16:20] + "-" + h[20:32], true
}

// CheckSessionName enforces 4 to 64 ASCII characters: word characters, dots and
// dashes inside, a word character at both ends (the wire's ^\w[\w.-]*\w$).
func CheckSessionName(name string) error {
	bad := func(why string) error {
		return fault.Invalidf("session name %q is not allowed: %s", name, why).
			WithNext("use 4 to 64 letters, digits, '_', '-' or '.', beginning and ending with a letter, digit or '_'")
	}
	if len(name) < 4 || len(name) > 64 {
		return bad("it must be 4 to 64 characters long")
	}
	for i := range len(name) {
		c := name[i]
		word := c == '_' || c >= '0' && c <= '9' || c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z'
		if word {
			continue
		}
		if (c == '-' || c == '.') && i > 0 && i < len(name)-1 {
			continue
		}
		return bad("character " + string(rune(c)) + " is not allowed there")
	}
	return nil
}
