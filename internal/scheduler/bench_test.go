package scheduler_test

import (
	"fmt"
	"runtime"
	"slices"
	"syscall"
	"testing"
	"time"

	"berth.dev/berth/internal/alloc"
	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/scheduler"
)

// processor is the time that this process spent computing its own code, in seconds.
func processor() float64 {
	var u syscall.Rusage
	if syscall.Getrusage(syscall.RUSAGE_SELF, &u) != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano()).Seconds()
}

// farm is a group of n agents with 64 cores, 512 GiB and 8 accelerators each.
func farm(b *testing.B, n int, placement string, more ...func(*scheduler.Agent)) *scheduler.Cluster {
	b.Helper()
	c := scheduler.NewCluster()
	if err := c.SetGroup(scheduler.Group{Name: "g", Placement: placement, WholeDevices: true}); err != nil {
		b.Fatal(err)
	}
	for i := range n {
		a := scheduler.Agent{ID: cluster.AgentID(fmt.Sprintf("agent-%05d", i)), Architecture: "x86_64", Schedulable: true, Alive: true}
		for core := range 64 {
			a.Devices = append(a.Devices, alloc.Device{Slot: cluster.SlotCPU, ID: fmt.Sprint(core), NUMA: core / 32, Capacity: 1000, Healthy: true})
		}
		for node := range 2 {
			a.Devices = append(
				a.Devices,
				alloc.Device{Slot: cluster.SlotMem, ID: fmt.Sprint(node), NUMA: node, Capacity: cluster.Whole(256 << 30), Healthy: true},
			)
		}
		for gpu := range 8 {
			a.Devices = append(
				a.Devices,
				alloc.Device{Slot: "cuda.shares", ID: fmt.Sprint(gpu), NUMA: gpu / 4, Model: "H100", Capacity: 1000, Healthy: true},
			)
		}
		for _, add := range more {
			add(&a)
		}
		c.SetAgent("g", a)
	}
	return c
}

// linked gives the accelerators of an agent links, NVLink in pairs and PCIe switches for four, and a second slot for whole cards.
func linked(a *scheduler.Agent) {
	var whole []alloc.Device
	for i := range a.Devices {
		d := &a.Devices[i]
		if d.Slot != "cuda.shares" {
			continue
		}
		d.Links = map[string]int{}
		for other := range 8 {
			own := d.NUMA*4 + i%4
			switch {
			case fmt.Sprint(other) == d.ID:
			case other/4 != d.NUMA:
				d.Links[fmt.Sprint(other)] = alloc.DistanceFar
			case other/2 == own/2:
				d.Links[fmt.Sprint(other)] = alloc.DistanceFast
			default:
				d.Links[fmt.Sprint(other)] = alloc.DistanceSwitch
			}
		}
		card := *d
		card.Slot = "cuda.device"
		whole = append(whole, card)
	}
	a.Devices = append(a.Devices, whole...)
}

// plain asks for cores and memory alone.
func plain(i int) cluster.Slots { return ask(int64(1+i%7), int64(1+i%13)) }

// shared asks for parts of accelerators, some whole ones and sometimes several.
func shared(i int) cluster.Slots {
	s := ask(int64(2+i%5), int64(4+i%9))
	s["cuda.shares"] = []cluster.Amount{200, 300, 500, 500, 750, 1000, 1000, 2000}[i*7%8]
	return s
}

// several asks for shares, or for whole cards in ones to eights.
func several(i int) cluster.Slots {
	s := ask(int64(2+i%5), int64(4+i%9))
	s["cuda.shares"] = []cluster.Amount{500, 1000, 1000, 2000, 2000, 4000, 300, 8000}[i*7%8]
	return s
}

// inTwoSlots is several with whole cards in their own slot.
func inTwoSlots(i int) cluster.Slots {
	s := several(i)
	if v := s["cuda.shares"]; v >= cluster.Milli {
		delete(s, "cuda.shares")
		s["cuda.device"] = v
	}
	return s
}

func arrival(i int, slots cluster.Slots) scheduler.Session {
	user := fmt.Sprintf("user-%d", i%200)
	id := fmt.Sprintf("%08d-0000-4000-8000-000000000000", i)
	return scheduler.Session{
		ID: cluster.SessionID(id), Name: "job", Type: cluster.Batch, Priority: 10, EnqueuedAt: now.Add(time.Duration(i) * time.Millisecond),
		Owner: scheduler.Owner{
			AccessKey: cluster.AccessKey(user),
			User:      cluster.UserID(user),
			Project:   cluster.ProjectID(user[:6]),
			Domain:    "default",
		},
		Kernels: []scheduler.Kernel{{ID: cluster.KernelID(id), Slots: slots, Architecture: "x86_64"}},
	}
}

// BenchmarkPlacements places sessions of a long queue on 5,000 agents as long as there is room.
// A pass is bounded as the leader bounds it.
func BenchmarkPlacements(b *testing.B) {
	for _, c := range []struct {
		name, placement string
		slots           func(int) cluster.Slots
		more            []func(*scheduler.Agent)
	}{
		{"plain/pack", "pack", plain, nil}, {"plain/spread", "spread", plain, nil}, {"shared/pack", "pack", shared, nil},
		{"shared/least-fragmentation", "least-fragmentation", shared, nil},
		// The last is to take at most 1.5 times of the one before it.
		{"several/pack", "pack", several, nil},
		{"linked/pack", "pack", inTwoSlots, []func(*scheduler.Agent){linked}},
	} {
		b.Run(c.name, func(b *testing.B) {
			for b.Loop() {
				b.StopTimer()
				farm := farm(b, 5000, c.placement, c.more...)
				for i := range 100_000 {
					farm.Enqueue("g", arrival(i, c.slots(i)))
				}
				runtime.GC()
				used := processor()
				var before, after runtime.MemStats
				runtime.ReadMemStats(&before)
				var passes []float64
				placed := 0
				b.StartTimer()
				for placed < 20_000 {
					began := processor()
					r, err := farm.Pass("g", now.Add(time.Hour), scheduler.Work{Placements: 256, Steps: 60_000})
					if err != nil {
						b.Fatal(err)
					}
					passes = append(passes, processor()-began)
					placed += len(r.Decisions)
					if !r.More {
						break
					}
				}
				b.StopTimer()
				runtime.ReadMemStats(&after)
				used = processor() - used
				slices.Sort(passes)
				b.ReportMetric(float64(placed)/used, "placements/cpu-s")
				b.ReportMetric(float64(after.Mallocs-before.Mallocs)/float64(placed), "allocs/placement")
				b.ReportMetric(passes[len(passes)*99/100]*1000, "cpu-ms-p99-pass")
				b.ReportMetric(float64(placed), "placed")
				b.StartTimer()
			}
		})
	}
}

// BenchmarkArrivals measures a pass of 100 arrivals behind queues of different length on a full
// group, and what the queue takes of memory.
func BenchmarkArrivals(b *testing.B) {
	for _, queued := range []int{1000, 1_000_000} {
		b.Run(fmt.Sprint(queued), func(b *testing.B) {
			farm := farm(b, 500, "pack")
			var before, after runtime.MemStats
			runtime.GC()
			runtime.ReadMemStats(&before)
			for i := range 1000 { // fill it
				farm.Enqueue("g", arrival(i, ask(32, 200)))
			}
			for i := range queued {
				farm.Enqueue("g", arrival(1000+i, plain(i+i/7)))
			}
			pass := func() {
				for {
					r, err := farm.Pass("g", now.Add(24*time.Hour), scheduler.Work{})
					if err != nil {
						b.Fatal(err)
					}
					if !r.More {
						return
					}
				}
			}
			pass()
			runtime.GC()
			runtime.ReadMemStats(&after)
			next := 10_000_000
			for b.Loop() {
				for range 100 {
					farm.Enqueue("g", arrival(next, plain(next)))
					next++
				}
				pass()
			}
			b.ReportMetric(float64(after.HeapAlloc-before.HeapAlloc)/(1<<20), "MiB")
		})
	}
}
