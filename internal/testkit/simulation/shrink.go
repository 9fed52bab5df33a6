package simulation

import (
	"strings"
	"testing"
)

// shrinkRuns bounds how many runs a shorter plan is looked for.
const shrinkRuns = 120

// Shrink looks for a plan with fewer events that breaks the same promise, and returns it with its run. What it returns is minimal when no
// single event can be left out, which shrinkRuns may prevent.
func Shrink(t *testing.T, db *Database, p Plan, failed Result) (Plan, Result) {
	t.Helper()
	runs := 0
	breaks := func(q Plan) (Result, bool) {
		if runs++; runs > shrinkRuns {
			return Result{}, false
		}
		r := Run(t, db, q)
		return r, r.Violation != nil && r.Violation.Rule == failed.Violation.Rule
	}
	// What was to happen after the promise was broken does not matter.
	late := map[int]bool{}
	for i, e := range p.Events {
		if e.At > failed.Violation.At {
			late[i] = true
		}
	}
	if r, ok := breaks(p.without(late)); ok {
		p, failed = p.without(late), r
	}
	for size := max(1, len(p.present())/2); ; {
		shorter := false
		for from := 0; from < len(p.present()); {
			drop := map[int]bool{}
			present := p.present()
			for _, i := range present[from:min(from+size, len(present))] {
				drop[i] = true
			}
			if r, ok := breaks(p.without(drop)); ok {
				p, failed, shorter = p.without(drop), r, true
				continue // what follows has moved to this place
			}
			from += size
		}
		switch {
		case size > 1:
			size /= 2
		case !shorter || runs > shrinkRuns:
			return p, failed
		}
	}
}

// present are the numbers of the events that happen.
func (p Plan) present() (out []int) {
	for i, e := range p.Events {
		if e.Kind != "" {
			out = append(out, i)
		}
	}
	return out
}

// Report tells a plan that broke a promise, with everything that happened.
func Report(p Plan, r Result) string {
	return p.String() + "\n" + strings.Join(r.History, "\n") + "\n" + r.Violation.String()
}
