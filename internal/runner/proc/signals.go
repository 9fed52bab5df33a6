package proc

import (
	"bytes"
	"os"
	"strconv"
	"sync"
	"syscall"
)

// inherited are the signals that this process was started to ignore, read once, before anything changes it.
//
// exec keeps an ignored signal ignored, and nothing between fork and exec of Go's runtime changes that. A signal that has a
// handler gets its default disposition in the child, so a Table handles these signals and drops them: this process ignores
// them as before, its children do not.
var inherited = sync.OnceValue(func() []os.Signal {
	status, err := os.ReadFile("/proc/self/status")
	if err != nil {
		status = nil // a container without /proc: take all that Go leaves as they were
	}
	ignored := ignoredSignals(status)
	var out []os.Signal
	for _, sig := range []syscall.Signal{syscall.SIGHUP, syscall.SIGINT, syscall.SIGTSTP, syscall.SIGTTIN, syscall.SIGTTOU} {
		if ignored&(1<<(sig-1)) != 0 {
			out = append(out, sig)
		}
	}
	return out
})

// ignoredSignals reads the mask of ignored signals from the text of /proc/PID/status. It is all ones when the text has none.
func ignoredSignals(status []byte) uint64 {
	for line := range bytes.Lines(status) {
		if text, ok := bytes.CutPrefix(line, []byte("SigIgn:")); ok {
			if mask, err := strconv.ParseUint(string(bytes.TrimSpace(text)), 16, 64); err == nil {
				return mask
			}
		}
	}
	return ^uint64(0)
}
