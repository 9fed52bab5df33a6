package chassis

import (
	"os"
	"strconv"
)

// timerSlack is how late the kernel may fire a timer of a role.
const timerSlack = 1_000_000 // ns

// RelaxTimers lets the kernel fire this process's timers up to a millisecond late, instead of the usual 50 µs. A role mostly
// waits, and Go's runtime monitor, which polls every 20 µs whenever something has just happened, then costs a quarter of all
// CPU time of a session's life; a millisecond is below every interval that a role keeps. Threads that start later inherit it.
// It is best effort: without the right to do so, or elsewhere than on Linux, timers stay as they are.
func RelaxTimers() {
	threads, err := os.ReadDir("/proc/self/task")
	if err != nil {
		return
	}
	for _, t := range threads {
		_ = os.WriteFile("/proc/"+t.Name()+"/timerslack_ns", []byte(strconv.Itoa(timerSlack)), 0)
	}
}
