package jupyter

import (
	"encoding/json"
	"strconv"
	"strings"

	"berth.dev/berth/internal/runner/cell"
	"berth.dev/berth/internal/runner/output"
)

// onIOPub takes what a kernel broadcasts. It must never wait: the kernel throws messages away
// when its subscriber is slow.
func (k *Kernel) onIOPub(m message) {
	k.mu.Lock()
	e := k.current
	k.mu.Unlock()
	if e != nil && e.sink == nil { // waiting for a sign of life
		e.once.Do(func() { close(e.idle) })
		return
	}
	text := k.stray
	var sink cell.Sink
	if e != nil && m.parent == e.id {
		sink = e.sink
		text = sink.TextNow
	}
	if m.truncated {
		text(cell.Log, "An output of more than 128 MiB was left out.\n")
		return
	}
	switch m.header.MsgType {
	case "status":
		var c struct {
			State string `json:"execution_state"`
		}
		if json.Unmarshal(m.content, &c) == nil && c.State == "idle" && sink != nil {
			e.once.Do(func() { close(e.idle) })
		}
	case "stream":
		var c struct{ Name, Text string }
		if json.Unmarshal(m.content, &c) != nil {
			return
		}
		stream := cell.Stdout
		if c.Name == "stderr" {
			stream = cell.Stderr
		}
		text(stream, c.Text)
	case "error":
		var c struct {
			Ename     string
			Traceback []string
		}
		if json.Unmarshal(m.content, &c) == nil && c.Ename != "SystemExit" {
			text(cell.Stderr, output.StripANSI(strings.Join(c.Traceback, "\n"))+"\n")
		}
	case "display_data", "execute_result", "update_display_data":
		var c struct {
			Data map[string]json.RawMessage `json:"data"`
		}
		if json.Unmarshal(m.content, &c) != nil || sink == nil {
			return
		}
		if _, fence := c.Data[Fence]; fence {
			select {
			case e.fences <- struct{}{}:
			default: // nobody asks so many questions at a time
			}
		} else {
			Show(c.Data, m.header.MsgType == "execute_result", sink)
		}
	}
}

// pictures are the types shown as media, the best first.
var pictures = []string{"image/png", "image/jpeg", "image/gif", "image/webp", "image/svg+xml", "application/pdf"}

// Show writes one MIME bundle: a picture as media, HTML as html, and its plain text
// unless that only names an object whose picture or HTML is shown. The text of a cell's result ends without a line break of its own.
func Show(data map[string]json.RawMessage, result bool, sink cell.Sink) {
	shown := false
	for _, mime := range pictures {
		if s := plain(data[mime]); s != "" {
			sink.MediaNow(mime, s)
			shown = true
			break
		}
	}
	if s := plain(data["text/html"]); s != "" && !shown {
		sink.TextNow(cell.HTML, s)
		shown = true
	}
	s := plain(data["text/plain"])
	if s != "" && !(shown && strings.HasPrefix(s, "<")) {
		end := "\n"
		if result {
			end = ""
		}
		sink.TextNow(cell.Stdout, output.StripANSI(s)+end)
	}
}

// plain reads a string, or a list of lines.
func plain(raw json.RawMessage) string {
	var s string
	if len(raw) == 0 || json.Unmarshal(raw, &s) == nil {
		return s
	}
	var lines []string
	if json.Unmarshal(raw, &lines) == nil {
		return strings.Join(lines, "")
	}
	return ""
}

// ExitCode reads the argument of SystemExit as Python does: nothing or None is 0, a
// number is the code, anything else is a message and the code 1.
func ExitCode(value string) (code int, message string) {
	switch value {
	case "", "None", "False":
		return 0, ""
	case "True":
		return 1, ""
	}
	n, err := strconv.ParseInt(value, 10, 64)
	if err != nil {
		return 1, value
	}
	return int(n & 0xff), ""
}
