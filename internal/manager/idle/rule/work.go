package rule

import (
	"strings"
	"time"
)

// What a kernel does that counts as use of its session, although nobody types anything: more than this, averaged over the time between
// two measurements. An interpreter or a web server that waits for somebody stays far below.
//
// On an agent that promised more processor time than it has, a program that computes all the time may get less than workCPU. What it
// wanted tells it from one that waits for somebody: it is always ready to run, while the other one is ready for moments, which a full host
// makes longer but not long (0 to 3 % were seen where programs that compute waited for two thirds of the time).
const (
	workCPU         = 10.0              // percent of one core
	workWanted      = 50.0              // percent of one core, used or waited for
	workAccelerator = 5.0               // percent of what is allocated
	workDisk        = float64(64 << 10) // bytes a second, read and written
	workNetwork     = float64(16 << 10) // bytes a second, received and sent
)

// Reading is one measurement of a kernel: cpu_util and cpu_want in percent of a core, <x>_util of accelerators, and the totals io_read,
// io_write, net_rx and net_tx in bytes. What was not measured is absent.
type Reading struct {
	At     time.Time
	Values map[string]float64
}

// Works reports whether a kernel worked between two measurements of it. The first may be empty: then only what is a rate already counts.
func Works(before, now Reading) bool {
	for name, v := range now.Values {
		switch {
		case name == "cpu_util":
			if v >= workCPU {
				return true
			}
		case name == "cpu_want":
			if v >= workWanted {
				return true
			}
		case strings.HasSuffix(name, "_util"):
			if v >= workAccelerator {
				return true
			}
		}
	}
	return rate(before, now, "io_read", "io_write") >= workDisk || rate(before, now, "net_rx", "net_tx") >= workNetwork
}

// rate is by how much totals grew together, by the second; 0 where that is not known.
func rate(before, now Reading, names ...string) float64 {
	passed := now.At.Sub(before.At).Seconds()
	if before.At.IsZero() || passed <= 0 {
		return 0
	}
	grown := 0.0
	for _, name := range names {
		old, was := before.Values[name]
		v, is := now.Values[name]
		if was && is && v > old { // a total that fell began anew
			grown += v - old
		}
	}
	return grown / passed
}
