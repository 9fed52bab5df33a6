package rule

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"time"

	"berth.dev/berth/internal/cluster"
)

// Operator combines the resources of a check of utilisation.
type Operator string

// The operators; the words are the wire's and say what must be under its threshold for the session to end.
const (
	And Operator = "and" // every resource
	Or  Operator = "or"  // any resource
)

// Use is the rule of a check of utilisation.
type Use struct {
	Window   time.Duration
	Operator Operator
	// Thresholds are the percentages of what is allocated below which a resource counts as not used: cpu_util, mem, and
	// <accelerator>_util and <accelerator>_mem, such as cuda_util.
	Thresholds map[string]float64
}

// Bucket is the time that one Sample stands for.
const Bucket = time.Minute

const (
	// coverage is the part of the window that must be measured.
	coverage = 0.8
	// freshness is how old the newest measurement may be.
	freshness = 4 * Bucket
)

// Sample is the mean of a kernel's measurements in one Bucket. Metrics that were not measured are absent.
type Sample struct {
	Bucket int64 `json:"b"` // number of the bucket since 1970
	// Values: cpu_util and cpu_want in percent of a core, mem in bytes, <x>_util in percent of one device, <x>_mem and <x>_mem_total in
	// bytes.
	Values map[string]float64 `json:"v"`
}

// BucketOf is the number of the bucket that holds an instant.
func BucketOf(t time.Time) int64 { return t.Unix() / int64(Bucket/time.Second) }

// Kernel is a container of the session.
type Kernel struct {
	ID        cluster.KernelID
	Allocated cluster.Slots
	// Samples in any order; of several of one bucket the last counts.
	Samples []Sample
}

// Figure is the use of one resource.
type Figure struct {
	Resource string `json:"resource"`
	// Percent is the mean over the covered part of the window; nil when it is not known.
	Percent   *float64 `json:"percent"`
	Threshold float64  `json:"threshold"`
	// Coverage is the part of the window that was measured, 0 to 1.
	Coverage float64 `json:"coverage"`
}

func (v Verdict) underUse(s Session, now time.Time) Verdict {
	u := v.Checker.Use
	first := s.StartedAt
	if s.Keep != nil && s.Keep.Until.After(first) && !s.Keep.Until.After(now) {
		first = s.Keep.Until // what was not done under a grant is not held against it
	}
	if ready := first.Add(u.Window); now.Before(ready) {
		v.Phase, v.Why, v.Next = Grace, "it runs for less than the window of "+short(u.Window), ready
		return v
	}
	v.Since = now.Add(-u.Window)
	for _, resource := range slices.Sorted(maps.Keys(u.Thresholds)) {
		if f, allocated := measure(s.Kernels, resource, u, now); allocated {
			v.Figures = append(v.Figures, f)
		}
	}
	v.Next = time.Unix((BucketOf(now)+1)*int64(Bucket/time.Second), 0)
	under, known := combine(u.Operator, v.Figures)
	var what []string
	for _, f := range v.Figures {
		if f.Percent == nil {
			what = append(what, f.Resource+" is not known")
		} else {
			what = append(what, fmt.Sprintf("%s %.1f %% (threshold %g %%)", f.Resource, *f.Percent, f.Threshold))
		}
	}
	v.Why = "mean over " + short(u.Window) + ": " + strings.Join(what, ", ")
	switch {
	case len(v.Figures) == 0:
		v.Phase, v.Why = Excluded, "it has none of the resources that are looked at"
	case !known:
		v.Phase = Unknown
	case !under:
		v.Phase = Active
	default:
		next := v.Next
		// There is no instant in the past from which to count: the end follows from the warning. One that is older than the
		// window says nothing about now.
		warned := s.Warned[v.Checker.Name]
		if now.Sub(warned) > v.Checker.Warn+u.Window {
			warned = time.Time{}
		}
		v = v.until(now, now, warned)
		if v.Next.IsZero() || next.Before(v.Next) {
			v.Next = next
		}
	}
	return v
}

// combine says whether the figures together are under their thresholds, as far as it can be known: an unknown figure decides nothing,
// so one that is not under settles "and", one that is under settles "or".
func combine(op Operator, figures []Figure) (under, known bool) {
	unknown := false
	for _, f := range figures {
		switch {
		case f.Percent == nil:
			unknown = true
		case op == Or && *f.Percent < f.Threshold:
			return true, true
		case op != Or && *f.Percent >= f.Threshold:
			return false, true
		}
	}
	if unknown || len(figures) == 0 {
		return false, false
	}
	return op != Or, true
}

// measure is the use of one resource over the window; allocated is false when no kernel has any of it.
func measure(kernels []Kernel, resource string, u Use, now time.Time) (f Figure, allocated bool) {
	f = Figure{Resource: resource, Threshold: u.Threshold(resource)}
	end := BucketOf(now) // still open, so it does not count
	length := max(int64(u.Window/Bucket), 1)
	type sum struct {
		used, of float64
		kernels  int
	}
	sums := map[int64]sum{}
	holders := 0
	for _, k := range kernels {
		if !holds(k.Allocated, resource) {
			continue
		}
		holders++
		last := map[int64]sum{}
		for _, m := range k.Samples {
			if m.Bucket >= end || m.Bucket < end-length {
				continue
			}
			if used, of, ok := ratio(k.Allocated, resource, m.Values); ok {
				last[m.Bucket] = sum{used: used, of: of}
			}
		}
		for b, one := range last {
			t := sums[b]
			sums[b] = sum{t.used + one.used, t.of + one.of, t.kernels + 1}
		}
	}
	if holders == 0 {
		return f, false
	}
	covered, total, newest := 0, 0.0, int64(0)
	for b, t := range sums {
		if t.kernels < holders {
			continue // a kernel of which nothing is known may be the busy one
		}
		covered++
		total += t.used / t.of * 100
		newest = max(newest, b)
	}
	f.Coverage = float64(covered) / float64(length)
	if f.Coverage >= coverage && end-newest <= int64(freshness/Bucket) {
		mean := total / float64(covered)
		f.Percent = &mean
	}
	return f, true
}

// Threshold is that of a resource.
func (u Use) Threshold(resource string) float64 { return u.Thresholds[resource] }

// accelerator splits "cuda_util" into "cuda" and "util".
func accelerator(resource string) (name, of string, ok bool) {
	i := strings.LastIndexByte(resource, '_')
	if i <= 0 {
		return "", "", false
	}
	name, of = resource[:i], resource[i+1:]
	return name, of, name != "cpu" && (of == "util" || of == "mem")
}

// Measurable reports whether a resource of this name can be looked at.
func Measurable(resource string) bool {
	_, _, ok := accelerator(resource)
	return ok || resource == "cpu_util" || resource == "mem"
}

func holds(s cluster.Slots, resource string) bool {
	switch resource {
	case "cpu_util":
		return s[cluster.SlotCPU] > 0
	case "mem":
		return s[cluster.SlotMem] > 0
	}
	name, _, ok := accelerator(resource)
	if !ok {
		return false
	}
	for slot, amount := range s {
		if amount > 0 && (string(slot) == name || strings.HasPrefix(string(slot), name+".")) {
			return true
		}
	}
	return false
}

// devices is how many devices of a family are held, parts of devices as parts. Who holds something else of it counts as one.
func devices(s cluster.Slots, family string) float64 {
	if held := s[cluster.SlotName(family+".device")] + s[cluster.SlotName(family+".shares")]; held > 0 {
		return float64(held) / cluster.Milli
	}
	return 1
}

// ratio is how much of how much a kernel used.
func ratio(s cluster.Slots, resource string, values map[string]float64) (used, of float64, ok bool) {
	used, ok = values[resource]
	switch resource {
	case "cpu_util":
		// What computes all the time on a full host is not idle because others leave it little.
		if want := values["cpu_want"]; want >= workWanted {
			used = max(used, want)
		}
		of = float64(s[cluster.SlotCPU]) / cluster.Milli * 100
	case "mem":
		of = float64(s[cluster.SlotMem]) / cluster.Milli
	default:
		name, what, _ := accelerator(resource)
		if of = 100 * devices(s, name); what == "mem" {
			of = values[resource+"_total"]
		}
	}
	sane := ok && of > 0 && used >= 0 && !math.IsNaN(used) && !math.IsInf(used, 0) && !math.IsInf(of, 0)
	return used, of, sane
}
