package runner

import (
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"berth.dev/berth/internal/fault"
	"berth.dev/berth/internal/runner/proc"
	"berth.dev/berth/internal/wire/run"
)

const (
	// terminalsDir holds the terminals of a container, whoever opened them: shells, SSH logins, multiplexers.
	terminalsDir = "/dev/pts"
	// maxNoticed bounds how many terminals a notice goes to.
	maxNoticed = 256
)

// serveNotice shows a text on all terminals of the session.
func (r *Runner) serveNotice(q *http.Request) (run.NoticeResult, error) {
	var req run.NoticeRequest
	if err := readJSON(q, &req); err != nil {
		return run.NoticeResult{}, err
	}
	if len(req.Text) > run.MaxNotice {
		return run.NoticeResult{}, fault.Invalidf("the notice has more than %d bytes", run.MaxNotice)
	}
	if os.Getpid() != 1 { // the terminals of this directory are those of the host
		return run.NoticeResult{}, nil
	}
	var res run.NoticeResult
	err := proc.AsUser(r.user, func() error { // terminals belong to who opened them
		res.Terminals = notify(terminalsDir, req.Text)
		return nil
	})
	return res, err
}

// notify writes a line to every terminal of a directory and returns to how many. A terminal that takes nothing now is left out.
func notify(dir, text string) (n int) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return 0 // an image without terminals
	}
	// Control characters would do more than show.
	text = strings.Map(func(c rune) rune {
		if c < ' ' || c == 0x7f {
			return ' '
		}
		return c
	}, text)
	line := []byte("\r\n\a*** " + text + " ***\r\n")
	for _, e := range entries[:min(len(entries), maxNoticed)] {
		if _, err := strconv.Atoi(e.Name()); err != nil {
			continue
		}
		const flags = syscall.O_WRONLY | syscall.O_NOCTTY | syscall.O_NONBLOCK | syscall.O_CLOEXEC
		fd, err := syscall.Open(filepath.Join(dir, e.Name()), flags, 0)
		if err != nil {
			continue
		}
		if _, err := syscall.Write(fd, line); err == nil {
			n++
		}
		_ = syscall.Close(fd)
	}
	return n
}
