// Package cudatest makes up hosts with NVIDIA GPUs for tests: a source that tells of them, and the files that their driver shows.
package cudatest

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"berth.dev/berth/internal/agent/device/cuda/nvmlwire"
	"berth.dev/berth/internal/alloc"
)

// Source is a host that tests change. Its zero value has no GPU.
type Source struct {
	mu     sync.Mutex
	facts  nvmlwire.Facts
	sample nvmlwire.Sample
	err    error
	events chan nvmlwire.Event
}

// UUID is that of the card with that number.
func UUID(n int) string { return fmt.Sprintf("GPU-00000000-0000-0000-0000-%012d", n) }

// Eight returns a host with eight A100: two sockets of four, each joined by NVLink with all others.
func Eight() *Source {
	s := &Source{events: make(chan nvmlwire.Event, 16)}
	s.facts = nvmlwire.Facts{Driver: "580.65.06", CUDA: "13.0"}
	for i := range 8 {
		g := nvmlwire.GPU{UUID: UUID(i), Model: "NVIDIA A100-SXM4-80GB", PCI: fmt.Sprintf("0000:%02x:00.0", 7+8*i), NUMA: i / 4, Minor: i,
			Memory: 80 << 30, Capability: "8.0", Links: map[string]int{}}
		for j := range 8 {
			if i != j {
				g.Links[UUID(j)] = alloc.DistanceFast
			}
		}
		s.facts.GPUs = append(s.facts.GPUs, g)
		util, mem, power, temperature := float64(10*i), int64(i)<<30, float64(60+i), float64(30+i)
		s.sample.Uses = append(s.sample.Uses, nvmlwire.Use{UUID: g.UUID, Utilisation: &util, MemoryUsed: &mem, Power: &power,
			Temperature: &temperature})
	}
	return s
}

// Cut cuts a card into instances of those profiles.
func (s *Source) Cut(n int, profiles ...string) {
	s.Change(func(f *nvmlwire.Facts) {
		g := &f.GPUs[n]
		g.MIG, g.Instances = true, nil
		for i, p := range profiles {
			g.Instances = append(g.Instances, nvmlwire.Instance{UUID: Instance(n, i), Profile: p, Memory: 10 << 30, GPUInstance: 7 + i})
		}
	})
	s.Measure(func(m *nvmlwire.Sample) {
		for i := range profiles {
			used := int64(i+1) << 30
			m.Uses = append(m.Uses, nvmlwire.Use{UUID: Instance(n, i), MemoryUsed: &used})
		}
	})
}

// Instance is the UUID of an instance of a card.
func Instance(card, n int) string { return fmt.Sprintf("MIG-00000000-0000-0000-%04d-%012d", card, n) }

// Change changes what is on the host, Measure what is measured, Fail what a look answers.
func (s *Source) Change(f func(*nvmlwire.Facts)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.facts.GPUs = slices.Clone(s.facts.GPUs)
	f(&s.facts)
}

// Measure changes what is measured.
func (s *Source) Measure(f func(*nvmlwire.Sample)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.sample.Uses = slices.Clone(s.sample.Uses)
	f(&s.sample)
}

// Fail makes looks and samples fail until it is called with nil.
func (s *Source) Fail(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.err = err
}

// Tell sends an event.
func (s *Source) Tell(e nvmlwire.Event) { s.events <- e }

// Look tells of the GPUs.
func (s *Source) Look(ctx context.Context) (nvmlwire.Facts, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.err != nil {
		return nvmlwire.Facts{}, s.err
	}
	return s.facts, ctx.Err()
}

// Sample measures them.
func (s *Source) Sample(ctx context.Context) (nvmlwire.Sample, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.err != nil {
		return nvmlwire.Sample{}, s.err
	}
	return s.sample, ctx.Err()
}

// Events is where Tell sends.
func (s *Source) Events() <-chan nvmlwire.Event { return s.events }

// Host makes a directory with the files that the driver and NVIDIA's libraries show on the host of s, and returns it.
func (s *Source) Host(t testing.TB) string {
	t.Helper()
	root := t.TempDir()
	put := func(file, text string) {
		file = filepath.Join(root, file)
		require.NoError(t, os.MkdirAll(filepath.Dir(file), 0o755))
		require.NoError(t, os.WriteFile(file, []byte(text), 0o644))
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, n := range []string{"nvidiactl", "nvidia-uvm", "nvidia-uvm-tools"} {
		put("/dev/"+n, "")
	}
	lib := "/usr/lib/x86_64-linux-gnu/"
	for _, name := range []string{"libcuda", "libnvidia-ml", "libnvidia-ptxjitcompiler", "libnvidia-glcore"} {
		put(lib+name+".so."+s.facts.Driver, name)
		require.NoError(t, os.Symlink(name+".so."+s.facts.Driver, filepath.Join(root, lib, name+".so.1")))
		require.NoError(t, os.Symlink(name+".so.1", filepath.Join(root, lib, name+".so")))
	}
	put("/usr/bin/nvidia-smi", "")
	number := 30
	for _, g := range s.facts.GPUs {
		put(fmt.Sprintf("/dev/nvidia%d", g.Minor), "")
		for _, i := range g.Instances {
			gi := fmt.Sprintf("/proc/driver/nvidia/capabilities/gpu%d/mig/gi%d", g.Minor, i.GPUInstance)
			put(gi+"/access", fmt.Sprintf("DeviceFileMinor: %d\nDeviceFileMode: 292\nDeviceFileModify: 1\n", number))
			put(fmt.Sprintf("%s/ci%d/access", gi, i.ComputeInstance), fmt.Sprintf("DeviceFileMinor: %d\nDeviceFileMode: 292\n", number+1))
			number += 2
		}
	}
	return root
}
