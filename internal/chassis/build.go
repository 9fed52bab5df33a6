package chassis

import (
	"cmp"
	"runtime"
	"runtime/debug"
	"strings"
)

// version is set by the linker: -ldflags "-X berth.dev/berth/internal/chassis.version=v1.2.3".
var version string

// BuildInfo says what this binary was built from.
type BuildInfo struct {
	// Version is the release, or "dev" for a build without one.
	Version string `json:"version"`
	// Revision is the commit, shortened to 12 characters, with "+dirty" when the tree was changed; may be empty.
	Revision string `json:"revision,omitempty"`
	// Time is the commit's time in RFC 3339; may be empty.
	Time string `json:"time,omitempty"`
	Go   string `json:"go"`
	// Platform is GOOS/GOARCH.
	Platform string `json:"platform"`
}

// Build reads the version that the linker or the go command wrote into this binary.
func Build() BuildInfo {
	b := BuildInfo{Version: version, Go: runtime.Version(), Platform: runtime.GOOS + "/" + runtime.GOARCH}
	info, ok := debug.ReadBuildInfo()
	if !ok {
		b.Version = cmp.Or(b.Version, "dev")
		return b
	}
	if v := info.Main.Version; b.Version == "" && v != "(devel)" {
		b.Version = v
	}
	b.Version = cmp.Or(b.Version, "dev")
	dirty := false
	for _, s := range info.Settings {
		switch s.Key {
		case "vcs.revision":
			b.Revision = s.Value[:min(12, len(s.Value))]
		case "vcs.time":
			b.Time = s.Value
		case "vcs.modified":
			dirty = s.Value == "true"
		}
	}
	if dirty && b.Revision != "" {
		b.Revision += "+dirty"
	}
	return b
}

func (b BuildInfo) String() string {
	parts := []string{b.Version}
	if b.Revision != "" {
		parts = append(parts, "("+b.Revision+")")
	}
	return strings.Join(append(parts, b.Go, b.Platform), " ")
}
