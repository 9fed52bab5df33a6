package metric

import (
	"math"
	"strings"
	"time"

	"berth.dev/berth/internal/wire/node"
)

// Minute is the shortest time that history tells apart.
const Minute = time.Minute

// stale is how old a counter's reading may be for the next one to tell a rate.
const stale = 2 * Minute

// Values are what was measured over a span: averages, and rates of counters. What was not measured is nil, and absent in Devices.
type Values struct {
	CPU     *float64 // percent, 100 is one core
	Mem     *float64 // bytes
	IORead  *float64 // bytes a second, as all that follow
	IOWrite *float64
	NetRx   *float64
	NetTx   *float64
	// Devices are other measurements by name, such as cuda_util in percent or cuda_mem in bytes.
	Devices map[string]float64
}

// empty reports whether nothing was measured.
func (v Values) empty() bool {
	return v.CPU == nil && v.Mem == nil && v.IORead == nil && v.IOWrite == nil && v.NetRx == nil && v.NetTx == nil && len(v.Devices) == 0
}

// mean is an average in the making.
type mean struct {
	sum float64
	n   int
}

func (m *mean) add(v float64) { m.sum, m.n = m.sum+v, m.n+1 }

func (m mean) value() *float64 {
	if m.n == 0 {
		return nil
	}
	return new(m.sum / float64(m.n))
}

// reading is a counter at a time.
type reading struct {
	at time.Time
	v  float64
}

// counters are those of which history keeps rates.
var counters = [...]string{node.MetricIORead, node.MetricIOWrite, node.MetricNetRx, node.MetricNetTx}

// span is a minute in the making of one kernel or agent.
type span struct {
	minute   time.Time
	cpu, mem mean
	devices  map[string]*mean
	// before are counters when the minute began, last those that were read last.
	before, last [len(counters)]reading
	told         bool // that it is over
}

// maxDevices bounds the other measurements of one kernel or agent: agents tell what they like.
const maxDevices = 32

// next begins the minute after a span, which may be nil.
func next(old *span, minute time.Time) *span {
	s := &span{minute: minute}
	if old != nil {
		s.before, s.last = old.last, old.last
	}
	return s
}

// add takes a measurement. Values that are no numbers, or negative, were not measured.
func (s *span) add(at time.Time, values map[string]float64) {
	for name, v := range values {
		if math.IsNaN(v) || math.IsInf(v, 0) || v < 0 {
			continue
		}
		switch name {
		case node.MetricCPUUtil:
			s.cpu.add(v)
			continue
		case node.MetricMem:
			s.mem.add(v)
			continue
		}
		if i := counter(name); i >= 0 {
			if s.before[i].at.IsZero() || at.Sub(s.before[i].at) > stale || v < s.last[i].v { // the counter began anew
				s.before[i] = reading{at, v}
			}
			s.last[i] = reading{at, v}
			continue
		}
		if !device(name) || len(s.devices) == maxDevices && s.devices[name] == nil {
			continue
		}
		if s.devices == nil {
			s.devices = map[string]*mean{}
		}
		if s.devices[name] == nil {
			s.devices[name] = &mean{}
		}
		s.devices[name].add(v)
	}
}

func counter(name string) int {
	for i, c := range counters {
		if c == name {
			return i
		}
	}
	return -1
}

// device reports whether a measurement is of devices other than cores and memory, all of them together.
func device(name string) bool {
	if _, _, one := node.SplitDevice(name); one {
		return false
	}
	if strings.HasPrefix(name, "cpu_") || strings.HasPrefix(name, "mem_") || len(name) > 64 {
		return false
	}
	return strings.HasSuffix(name, "_util") || strings.HasSuffix(name, "_mem") || strings.HasSuffix(name, "_power") ||
		strings.HasSuffix(name, "_temperature")
}

// values are what a minute tells when it is over.
func (s *span) values() Values {
	rate := func(i int) *float64 {
		passed := s.last[i].at.Sub(s.before[i].at).Seconds()
		if passed <= 0 || s.last[i].at.Before(s.minute) {
			return nil
		}
		return new((s.last[i].v - s.before[i].v) / passed)
	}
	v := Values{CPU: s.cpu.value(), Mem: s.mem.value(), IORead: rate(0), IOWrite: rate(1), NetRx: rate(2), NetTx: rate(3)}
	for name, m := range s.devices {
		if v.Devices == nil {
			v.Devices = map[string]float64{}
		}
		v.Devices[name] = *m.value()
	}
	return v
}
