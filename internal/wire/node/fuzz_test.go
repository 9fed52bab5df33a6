package node_test

import (
	"strings"
	"testing"

	"berth.dev/berth/internal/wire/node"
)

// FuzzJoinToken: what can be read is written back as it was, and a refusal does not repeat what may be a secret.
func FuzzJoinToken(f *testing.F) {
	f.Add(node.JoinToken{CA: [32]byte{1}, Secret: strings.Repeat("Ab-_", 11)}.String())
	f.Add("berth-join-1..")
	f.Add(" berth-join-1.AQID.x\n")
	f.Fuzz(func(t *testing.T, text string) {
		token, err := node.ParseJoinToken(text)
		if err != nil {
			if _, secret, ok := strings.Cut(text, "."); ok && len(secret) > 20 && strings.Contains(err.Error(), secret) {
				t.Fatalf("%v repeats what it refuses", err)
			}
			return
		}
		again, err := node.ParseJoinToken(token.String())
		if err != nil || again != token {
			t.Fatalf("%q became %q, %v", text, again.String(), err)
		}
	})
}
