package cdi_test

import (
	"testing"

	"berth.dev/berth/internal/agent/device/cdi"
)

// FuzzSpec: whatever a specification says, reading it ends, and what it would give can be checked.
func FuzzSpec(f *testing.F) {
	f.Add([]byte(specification))
	f.Add([]byte(`{"cdiVersion": "1.1.0", "kind": "habana.ai/gaudi", "devices": [{"name": "a", "containerEdits": {"mounts": [null]}}]}`))
	f.Add([]byte("kind: habana.ai/gaudi\ndevices: &a [{name: x, containerEdits: {env: *a}}]\n"))
	f.Fuzz(func(t *testing.T, text []byte) {
		edits, err := cdi.Apply(text, "habana.ai/gaudi")
		if err != nil {
			return
		}
		for name, g := range edits {
			for _, m := range g.Mounts {
				if m.Target == "/" || m.Source == "/" {
					t.Fatalf("%s mounts %+v", name, m)
				}
			}
			for _, gid := range g.Groups {
				if gid <= 0 {
					t.Fatalf("%s is in group %d", name, gid)
				}
			}
		}
	})
}
