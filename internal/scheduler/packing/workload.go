package packing

import (
	"cmp"
	"math"
	"slices"
)

// maxKinds bounds how many kinds of request a workload remembers.
const maxKinds = 1024

// Workload says how often each kind of request arrives. It remembers at most 1,024 kinds; beyond
// that the rarest are forgotten. The zero value is empty and forgets nothing with time.
type Workload struct {
	// HalfLife is the number of arrivals after which an arrival counts half; 0 means for ever.
	HalfLife float64

	weight map[Request]float64
	// unit is what the next arrival weighs: growing it instead of shrinking all others.
	unit  float64
	total float64
}

// kind is a request with its share of the arrivals.
type kind struct {
	Request
	share float64
}

// Add counts one arrival. A request that no node could ever serve is left out.
func (w *Workload) Add(r Request) {
	if !r.valid() {
		return
	}
	if w.weight == nil {
		w.weight, w.unit = map[Request]float64{}, 1
	}
	if r.GPUs == 0 {
		r.Milli, r.Models = 0, 0
	}
	w.weight[r] += w.unit
	w.total += w.unit
	if w.HalfLife > 0 {
		if w.unit *= math.Exp2(1 / w.HalfLife); w.unit > 1e12 {
			w.scale()
		}
	}
	if len(w.weight) > maxKinds {
		w.forget()
	}
}

// Len is the number of kinds known.
func (w *Workload) Len() int { return len(w.weight) }

func (w *Workload) scale() {
	for r, x := range w.weight {
		w.weight[r] = x / w.unit
	}
	w.total /= w.unit
	w.unit = 1
}

// forget drops the rarer half of the kinds.
func (w *Workload) forget() {
	for _, k := range w.kinds()[maxKinds/2:] {
		w.total -= w.weight[k.Request]
		delete(w.weight, k.Request)
	}
}

// kinds lists all kinds, the most frequent first, in an order that depends on nothing else.
func (w *Workload) kinds() []kind {
	out := make([]kind, 0, len(w.weight))
	for r, x := range w.weight {
		out = append(out, kind{r, x / w.total})
	}
	slices.SortFunc(out, func(a, b kind) int {
		return cmp.Or(cmp.Compare(b.share, a.share), cmp.Compare(a.GPUs, b.GPUs), cmp.Compare(a.Milli, b.Milli),
			cmp.Compare(a.CPU, b.CPU), cmp.Compare(a.Mem, b.Mem), cmp.Compare(a.Models, b.Models))
	})
	return out
}
