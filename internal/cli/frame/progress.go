package frame

import (
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/schollz/progressbar/v3"

	"berth.dev/berth/api"
)

// Progress tells people how a session comes along. On terminals one line is rewritten;
// elsewhere each change is a line.
type Progress struct {
	Out   io.Writer
	Name  string
	TTY   bool
	Quiet bool
	last  string
	bar   *progressbar.ProgressBar
}

// show tells about the state of a session; it says nothing when nothing changed.
func (p *Progress) show(info api.SessionInfo) {
	if p.Quiet {
		return
	}
	if pull, ok := info.Pull(); ok && p.TTY && pull.Total > 0 && info.Status == api.StatusPulling {
		if p.bar == nil {
			p.Clear()
			p.bar = progressbar.NewOptions64(pull.Total, progressbar.OptionSetWriter(p.Out), progressbar.OptionShowBytes(true),
				progressbar.OptionSetDescription(p.Name+": pulling "+pull.Image), progressbar.OptionSetWidth(24),
				progressbar.OptionClearOnFinish(), progressbar.OptionThrottle(100*time.Millisecond))
		}
		_ = p.bar.Set64(min(pull.Current, pull.Total))
		return
	}
	p.Say(stage(info))
}

// Say tells a text that differs from the last one.
func (p *Progress) Say(text string) {
	if p.Quiet || text == "" || text == p.last {
		return
	}
	if p.bar != nil {
		_ = p.bar.Clear()
		p.bar = nil
	}
	p.last = text
	if p.TTY {
		fmt.Fprintf(p.Out, "\r\x1b[K%s: %s", p.Name, text)
		return
	}
	fmt.Fprintf(p.Out, "%s: %s\n", p.Name, text)
}

// Clear takes the rewritten line away.
func (p *Progress) Clear() {
	if p.bar != nil {
		_ = p.bar.Clear()
		p.bar = nil
	}
	if p.TTY && !p.Quiet && p.last != "" {
		fmt.Fprint(p.Out, "\r\x1b[K")
	}
	p.last = ""
}

// stage words what a session is doing. It is "" for sessions that run or have ended.
func stage(info api.SessionInfo) string {
	var text string
	switch info.Status {
	case api.StatusPending:
		text = "queued"
	case api.StatusScheduled, api.StatusPreparing, api.StatusPrepared:
		text = "preparing"
	case api.StatusPulling:
		text = "pulling the image"
		if pull, ok := info.Pull(); ok {
			text = "pulling " + pull.Image
		}
	case api.StatusCreating:
		text = "starting"
	case api.StatusRestarting:
		text = "restarting"
	case api.StatusTerminating:
		text = "ending"
	default:
		return ""
	}
	if reason := strings.TrimSpace(info.Reason()); reason != "" {
		text += " (" + reason + ")"
	}
	return text
}
