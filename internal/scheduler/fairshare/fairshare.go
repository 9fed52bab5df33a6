// Package fairshare turns what owners used in the past into the shares by which the order fair-share prefers them.
package fairshare

import (
	"math"
	"time"

	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/scheduler/option"
)

// Decay says how fair-share turns past use into a share.
type Decay struct {
	HalfLife time.Duration // after which use counts half
	Lookback time.Duration // beyond which it does not count
	Unit     time.Duration // the length of a bucket
	Weight   float64       // of owners that have none of their own
	// Resources weighs slots against each other; a slot without an entry has its default:
	// cpu 1, mem 0.001, accelerators 10.
	Resources map[cluster.SlotName]float64
}

// Parse reads the options of the fair-share order: half_life_days (7), lookback_days (28),
// decay_unit_days (1), default_weight (1), resource_weights. The error is Invalid.
func Parse(options map[string]any) (Decay, error) {
	o := &option.Reader{Of: "the scheduler fair-share", Values: options}
	o.Number("ageing_seconds", 0, 0, 1e9)
	d := Read(o)
	return d, o.Done()
}

// Read leaves the error to o.
func Read(o *option.Reader) Decay {
	day := float64(24 * time.Hour)
	d := Decay{
		HalfLife:  time.Duration(o.Number("half_life_days", 7, 0.001, 3650) * day),
		Lookback:  time.Duration(o.Number("lookback_days", 28, 0.001, 3650) * day),
		Unit:      time.Duration(o.Number("decay_unit_days", 1, 0.001, 365) * day),
		Weight:    o.Number("default_weight", 1, 0.001, 1e6),
		Resources: map[cluster.SlotName]float64{},
	}
	for slot, w := range o.Weights("resource_weights", 1e6) {
		d.Resources[cluster.SlotName(slot)] = w
	}
	return d
}

// Bucket is what an owner used in one unit of time: slot-seconds, in amounts times seconds.
type Bucket struct {
	Start time.Time
	Used  map[cluster.SlotName]float64
}

// Share is an owner's decayed use as a part of what the capacity could give in the lookback,
// averaged over slots by their weights, divided by the owner's weight (0: the default one).
// Smaller goes first. It is what SetShare wants.
func (d Decay) Share(now time.Time, capacity cluster.Slots, buckets []Bucket, weight float64) float64 {
	if weight <= 0 {
		weight = d.Weight
	}
	used := map[cluster.SlotName]float64{}
	for _, b := range buckets {
		age := max(0, now.Sub(b.Start))
		if age > d.Lookback+d.Unit {
			continue
		}
		// Use of one bucket decays together.
		steps := math.Floor(float64(age) / float64(d.Unit))
		f := math.Exp2(-steps * float64(d.Unit) / float64(d.HalfLife))
		for slot, v := range b.Used {
			used[slot] += f * v
		}
	}
	sum, weights := 0.0, 0.0
	for _, slot := range capacity.Names() {
		if capacity[slot] <= 0 {
			continue
		}
		w := d.resource(slot)
		weights += w
		sum += w * used[slot] / (float64(capacity[slot]) * d.Lookback.Seconds())
	}
	if weights == 0 {
		return 0
	}
	return sum / weights / weight
}

func (d Decay) resource(slot cluster.SlotName) float64 {
	if w, ok := d.Resources[slot]; ok {
		return w
	}
	switch slot {
	case cluster.SlotCPU:
		return 1
	case cluster.SlotMem:
		return 0.001
	}
	return 10
}
