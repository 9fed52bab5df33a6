package graphapi

import "testing"

// Digits of a UUID without dashes are valid base64, and some of them decode to a text with a colon.
func TestBareIDsAreNoGlobalIDs(t *testing.T) {
	t.Parallel()
	const bare = "00060000000000000000000000000000"
	if kind, id := fromGlobalID(bare); kind != "" || id != bare {
		t.Errorf("%q was read as %q %q", bare, kind, id)
	}
	if kind, id := fromGlobalID(globalID("VFolder", bare)); kind != "VFolder" || id != bare {
		t.Errorf("global id was read as %q %q", kind, id)
	}
}
