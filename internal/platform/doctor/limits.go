package doctor

import (
	"fmt"
	"io/fs"
	"os"
	"strconv"
	"strings"

	"berth.dev/berth/internal/platform"
)

// hostLimits are numbers of the host's kernel that all sessions share with the host, whatever their users: below least, one session can
// take so much that others fail.
var hostLimits = []struct {
	name  string
	least uint64
	what  string
}{
	// A process of a session may have 1,048,576 files open.
	{"fs.file-max", 1 << 21, "open files"},
	{"fs.aio-max-nr", 1 << 20, "requests of asynchronous I/O (io_setup)"},
}

// lowLimits names the limits below a directory like /proc/sys that are too low. What cannot be read is not judged.
func lowLimits(sys fs.FS) []platform.Finding {
	var out []platform.Finding
	for _, l := range hostLimits {
		text, err := fs.ReadFile(sys, strings.ReplaceAll(l.name, ".", "/"))
		if err != nil {
			continue
		}
		have, err := strconv.ParseUint(strings.TrimSpace(string(text)), 10, 64)
		if err != nil || have >= l.least {
			continue
		}
		out = append(out, platform.Finding{Warning: true, Kind: "kernel-limit", Object: l.name,
			Problem: fmt.Sprintf("the host and all its sessions share %d %s; a few sessions can use them up", have, l.what),
			Next:    fmt.Sprintf("sysctl -w %s=%d, and write it to /etc/sysctl.d", l.name, l.least)})
	}
	return out
}

func (c *Checkup) limits() { c.Findings = append(c.Findings, lowLimits(os.DirFS("/proc/sys"))...) }
