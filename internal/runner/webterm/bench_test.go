package webterm_test

import (
	"strconv"
	"testing"

	"berth.dev/berth/internal/runner/terminal"
)

// BenchmarkFirstByte opens a terminal that is not there yet and waits for what its shell says first.
func BenchmarkFirstByte(b *testing.B) {
	s := start(b, func(c *terminal.Config) { c.Env[2], c.Max = "PS1=ready", 1<<20 })
	n := 0
	for b.Loop() {
		n++
		v := s.tab("?terminal=" + strconv.Itoa(n))
		v.until("ready")
		v.c.CloseNow()
	}
}
