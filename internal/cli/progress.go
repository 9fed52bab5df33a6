package cli

import (
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/schollz/progressbar/v3"

	"berth.dev/berth/api"
)

// progress tells people how a session comes along. On terminals one line is rewritten;
// elsewhere each change is a line.
type progress struct {
	w     io.Writer
	name  string
	tty   bool
	quiet bool
	last  string
	bar   *progressbar.ProgressBar
}

// show tells about the state of a session; it says nothing when nothing changed.
func (p *progress) show(info api.SessionInfo) {
	if p.quiet {
		return
	}
	if pull, ok := info.Pull(); ok && p.tty && pull.Total > 0 && info.Status == api.StatusPulling {
		if p.bar == nil {
			p.clear()
			p.bar = progressbar.NewOptions64(pull.Total, progressbar.OptionSetWriter(p.w), progressbar.OptionShowBytes(true),
				progressbar.OptionSetDescription(p.name+": pulling "+pull.Image), progressbar.OptionSetWidth(24),
				progressbar.OptionClearOnFinish(), progressbar.OptionThrottle(100*time.Millisecond))
		}
		_ = p.bar.Set64(min(pull.Current, pull.Total))
		return
	}
	p.say(stage(info))
}

func (p *progress) say(text string) {
	if p.quiet || text == "" || text == p.last {
		return
	}
	if p.bar != nil {
		_ = p.bar.Clear()
		p.bar = nil
	}
	p.last = text
	if p.tty {
		fmt.Fprintf(p.w, "\r\x1b[K%s: %s", p.name, text)
		return
	}
	fmt.Fprintf(p.w, "%s: %s\n", p.name, text)
}

// clear takes the rewritten line away.
func (p *progress) clear() {
	if p.bar != nil {
		_ = p.bar.Clear()
		p.bar = nil
	}
	if p.tty && !p.quiet && p.last != "" {
		fmt.Fprint(p.w, "\r\x1b[K")
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
