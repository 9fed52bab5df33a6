package cluster

import (
	"slices"

	"berth.dev/berth/internal/fault"
)

// Isolation says how well those who hold parts of one accelerator are kept apart. The levels in order, weakest first: nothing
// keeps them apart; their own programs are asked to keep limits (cooperative); the driver of the device holds them to limits; the
// hardware does, or nobody else has a part. The empty level is unknown, and as a demand it is none.
type Isolation string

// The levels.
const (
	IsolationNone        Isolation = "none"
	IsolationCooperative Isolation = "cooperative"
	IsolationDriver      Isolation = "driver"
	IsolationHard        Isolation = "hard"
)

var isolations = []Isolation{IsolationNone, IsolationCooperative, IsolationDriver, IsolationHard}

// ParseIsolation reads a level; "" stays "".
func ParseIsolation(text string) (Isolation, error) {
	if i := Isolation(text); text == "" || slices.Contains(isolations, i) {
		return i, nil
	}
	return "", fault.Invalidf("%.40q is no level of isolation", text).WithNext("use hard, driver, cooperative or none")
}

// AtLeast reports whether this level meets a demand. What is unknown meets no demand but "" and none.
func (i Isolation) AtLeast(demand Isolation) bool {
	return slices.Index(isolations, i) >= slices.Index(isolations, demand) || demand == IsolationNone
}
