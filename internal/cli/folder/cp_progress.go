package folder

import (
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/schollz/progressbar/v3"

	"berth.dev/berth/api/transfer"
	"berth.dev/berth/internal/cli/frame"
)

// transferProgress tells people how a copy comes along: by a bar on terminals, and by a line for each path that is
// left out or fails anywhere.
type transferProgress struct {
	mu          sync.Mutex
	w           io.Writer
	quiet       bool
	bar         *progressbar.ProgressBar
	total, done int64
	files       int
	// waits are the reasons for trying again that were told; each is told once.
	waits map[string]bool
}

// maxWaits bounds how many reasons for trying again are told.
const maxWaits = 20

func newTransferProgress(w io.Writer, quiet bool) *transferProgress {
	p := &transferProgress{w: w, quiet: quiet, waits: map[string]bool{}}
	if frame.IsTerminal(w) && !quiet {
		p.bar = progressbar.NewOptions64(
			1, progressbar.OptionSetWriter(w), progressbar.OptionShowBytes(true), progressbar.OptionSetWidth(24),
			progressbar.OptionSetDescription("copy"), progressbar.OptionThrottle(100*time.Millisecond), progressbar.OptionClearOnFinish(),
			progressbar.OptionUseIECUnits(true),
		)
	}
	return p
}

func (p *transferProgress) seen(e transfer.Event) {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch e.Kind {
	case transfer.Found:
		p.total += e.Size
		p.files++
		if p.bar != nil {
			p.bar.ChangeMax64(max(p.total, 1) + 1) // Never full before the end, which takes the bar away.
			p.bar.Describe("copy " + frame.Count(p.files, "file"))
		}
	case transfer.Bytes:
		p.done += e.Size
	case transfer.Skipped:
		if e.Reason != "" {
			p.line("left out %s: %s", visible(e.Path), e.Reason)
		}
		p.done += e.Size
	case transfer.Failed:
		p.line("%s: %s", visible(e.Path), e.Reason)
	case transfer.Waiting:
		if !p.waits[e.Reason] && len(p.waits) < maxWaits {
			p.waits[e.Reason] = true
			p.line("trying again: %s", e.Reason)
		}
	}
	if p.bar != nil {
		_ = p.bar.Set64(min(max(p.done, 0), p.total))
	}
}

// line writes a line without spoiling the bar; the caller holds mu.
func (p *transferProgress) line(format string, args ...any) {
	if p.quiet {
		return
	}
	if p.bar != nil {
		_ = p.bar.Clear()
	}
	fmt.Fprintf(p.w, format+"\n", args...)
}

// clear takes the bar away.
func (p *transferProgress) clear() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.bar != nil {
		_ = p.bar.Clear()
		p.bar = nil
	}
}
