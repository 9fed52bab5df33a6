// Package await receives from channels with a deadline, so that a test whose other side never comes fails at that line
// instead of hanging until the timeout of the whole run. It is for the goroutine of a test alone; tests call it.
package await

import (
	"testing"
	"time"
)

// patience is far more than anything in a test takes, also on a busy machine; a test that works never waits for it.
const patience = time.Minute

// Value receives from a channel, or fails the test when nothing comes in time. Of a closed channel it returns the zero value.
func Value[T any](t testing.TB, from <-chan T) T {
	t.Helper()
	late := time.NewTimer(patience)
	defer late.Stop()
	select {
	case v := <-from:
		return v
	case <-late.C:
		t.Fatalf("nothing came within %v", patience)
		panic("not reached: Fatalf ends the goroutine")
	}
}

// Return waits until a function that can block has returned, or fails the test. The function goes on if it is late.
func Return(t testing.TB, call func()) {
	t.Helper()
	done := make(chan struct{})
	go func() {
		defer close(done)
		call()
	}()
	Value(t, done)
}
