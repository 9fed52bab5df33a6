// Package kernellog finds in the log of the host's kernel what its operator should know: broken hardware, broken file systems, stuck
// tasks. It reads /dev/kmsg without waiting.
package kernellog

import (
	"errors"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// Event is one kind of trouble, as of its newest message.
type Event struct {
	// Kind is a stable word.
	Kind string
	// Text is the kernel's message.
	Text string
	At   time.Time
}

// keep is how long an event is told after its newest message.
const keep = time.Hour

// The beginnings of messages, by kind. Messages that programs can shape carry their names first (a segmentation fault: "NAME[PID]"),
// so only the beginning is looked at.
var beginnings = []struct{ kind, begins string }{
	{"hardware-error", "mce: [Hardware Error]"},
	{"hardware-error", "{1}[Hardware Error]"},
	{"hardware-error", "EDAC "},
	{"gpu-error", "NVRM: Xid"},
	{"disk-error", "blk_update_request: I/O error"},
	{"disk-error", "Buffer I/O error on dev"},
	{"disk-error", "I/O error, dev "},
	{"disk-error", "critical medium error"},
	{"filesystem-error", "EXT4-fs error"},
	{"filesystem-error", "EXT4-fs ("},
	{"filesystem-error", "XFS ("},
	{"filesystem-error", "BTRFS error"},
	{"stuck-task", "INFO: task "},
	{"stuck-processor", "watchdog: BUG: soft lockup"},
	{"stuck-processor", "rcu: INFO: rcu_sched detected stalls"},
	{"kernel-bug", "BUG: "},
	{"kernel-bug", "kernel BUG at"},
	{"kernel-bug", "general protection fault"},
}

// Classify says what a message of the kernel tells; "" is nothing of interest. Disks in files are left out: they belong to sessions,
// and a full one says nothing about the host.
func Classify(message string) (kind string) {
	if strings.Contains(message, "(loop") || strings.Contains(message, "dev loop") || strings.Contains(message, "device loop") {
		return ""
	}
	for _, b := range beginnings {
		if !strings.HasPrefix(message, b.begins) {
			continue
		}
		switch b.begins {
		case "EXT4-fs (":
			if !strings.Contains(message, "Remounting filesystem read-only") && !strings.Contains(message, ": error") {
				continue
			}
		case "XFS (":
			if !strings.Contains(message, "Shutting down filesystem") && !strings.Contains(message, "orruption") {
				continue
			}
		case "EDAC ":
			if !strings.Contains(message, " UE ") {
				continue // corrected errors are counted, not told
			}
		case "INFO: task ":
			if !strings.Contains(message, " blocked for more than ") {
				continue
			}
		}
		return b.kind
	}
	return ""
}

// Parse reads a record of /dev/kmsg: "PRIORITY,SEQUENCE,MICROSECONDS,FLAGS;MESSAGE". ok is false for records that user space wrote
// and for what cannot be read.
func Parse(record string) (sinceBoot time.Duration, message string, ok bool) {
	head, rest, found := strings.Cut(record, ";")
	fields := strings.Split(head, ",")
	if !found || len(fields) < 3 {
		return 0, "", false
	}
	priority, err := strconv.Atoi(fields[0])
	if err != nil || priority>>3 != 0 { // the facility of the kernel is 0
		return 0, "", false
	}
	us, err := strconv.ParseInt(fields[2], 10, 64)
	if err != nil || us < 0 {
		return 0, "", false
	}
	message, _, _ = strings.Cut(rest, "\n")
	return time.Duration(us) * time.Microsecond, message, true
}

// Log follows the kernel's log. The zero value reads /dev/kmsg.
type Log struct {
	// Path is that of the log; "" means /dev/kmsg.
	Path string

	mu     sync.Mutex
	fd     int
	state  state
	events map[string]Event
}

type state int

const (
	unopened state = iota
	opened
	unreadable
)

// maxRecords bounds what one look reads.
const maxRecords = 20_000

// Look reads what is new and returns what should be known now, the newest of each kind. Where the log cannot be read it knows nothing.
func (l *Log) Look(now time.Time) []Event {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.state == unopened {
		path := l.Path
		if path == "" {
			path = "/dev/kmsg"
		}
		fd, err := unix.Open(path, unix.O_RDONLY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
		if l.fd, l.state, l.events = fd, opened, map[string]Event{}; err != nil {
			l.state = unreadable
		}
	}
	if l.state == unreadable {
		return nil
	}
	boot, known := sinceBoot()
	buf := make([]byte, 16<<10)
	for range maxRecords {
		n, err := unix.Read(l.fd, buf)
		if errors.Is(err, unix.EPIPE) || errors.Is(err, unix.EINTR) {
			continue // older records were overwritten
		}
		if err != nil || n <= 0 {
			break
		}
		at, message, ok := Parse(string(buf[:n]))
		if !ok || !known {
			continue
		}
		if kind := Classify(message); kind != "" {
			l.events[kind] = Event{Kind: kind, Text: clip(message), At: now.Add(at - boot)}
		}
	}
	var out []Event
	for _, b := range beginnings {
		e, ok := l.events[b.kind]
		if !ok {
			continue
		}
		if now.Sub(e.At) >= keep {
			delete(l.events, b.kind)
			continue
		}
		if len(out) == 0 || out[len(out)-1].Kind != e.Kind {
			out = append(out, e)
		}
	}
	return out
}

// Close ends the reading.
func (l *Log) Close() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.state != opened {
		return nil
	}
	l.state = unreadable
	return unix.Close(l.fd)
}

func sinceBoot() (time.Duration, bool) {
	var t unix.Timespec
	if unix.ClockGettime(unix.CLOCK_MONOTONIC, &t) != nil {
		return 0, false
	}
	return time.Duration(t.Nano()), true
}

const maxMessage = 200

func clip(s string) string { return strings.ToValidUTF8(s[:min(len(s), maxMessage)], "") }
