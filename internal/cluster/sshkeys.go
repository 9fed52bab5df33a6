package cluster

import "strings"

// AuthorizedKeys is the dotfile of the owner's SSH keys.
const AuthorizedKeys = ".ssh/authorized_keys"

// maxKeyLines bounds the SSH keys of one session.
const maxKeyLines = 64

// KeyLines are the lines of texts of SSH keys, each once and at most maxKeyLines; never nil.
func KeyLines(texts []string) []string {
	out := []string{}
	seen := map[string]bool{}
	for _, text := range texts {
		for _, line := range strings.FieldsFunc(text, func(r rune) bool { return r == '\n' || r == '\r' }) {
			if line = strings.TrimSpace(line); line != "" && !seen[line] && len(out) < maxKeyLines {
				seen[line] = true
				out = append(out, line)
			}
		}
	}
	return out
}
