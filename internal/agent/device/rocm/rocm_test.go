package rocm_test

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"testing"
	"testing/fstest"
	"time"

	"github.com/stretchr/testify/require"

	"berth.dev/berth/internal/agent/device"
	"berth.dev/berth/internal/agent/device/conformance"
	"berth.dev/berth/internal/agent/device/rocm"
	"berth.dev/berth/internal/agent/runtime"
	"berth.dev/berth/internal/alloc"
	"berth.dev/berth/internal/cluster"
)

// owners are the groups of the device files: video owns /dev/kfd, render the render nodes.
func owners(path string) (int, error) {
	switch path {
	case "/dev/kfd":
		return 44, nil
	case "/dev/dri/renderD128", "/dev/dri/renderD129", "/dev/dri/renderD130":
		return 110, nil
	}
	return 0, errors.New("no such file")
}

// three is a host with two processors and three GPUs: two at the first socket joined by XGMI, one at the second. Its files are as Linux
// writes them.
func three() fstest.MapFS {
	sys := fstest.MapFS{}
	put := func(file, text string) { sys[file] = &fstest.MapFile{Data: []byte(text + "\n")} }
	nodes := "class/kfd/kfd/topology/nodes/"
	for n := range 2 {
		put(fmt.Sprintf("%s%d/gpu_id", nodes, n), "0")
		put(fmt.Sprintf("%s%d/properties", nodes, n), "cpu_cores_count 64\nsimd_count 0")
	}
	for i, bus := range []int{0x03, 0x26, 0xc3} {
		n, root, numa := i+2, "0000:00", 0
		if bus >= 0x80 {
			root, numa = "0000:c0", 1
		}
		addr := fmt.Sprintf("0000:%02x:00.0", bus)
		way := fmt.Sprintf("devices/pci%s/%s:%02x.0/%s", root, root, i+1, addr)
		at := fmt.Sprintf("%s%d/", nodes, n)
		put(at+"gpu_id", fmt.Sprint(1000+i))
		put(at+"properties", fmt.Sprintf("cpu_cores_count 0\nsimd_count 440\ngfx_target_version 90010\nlocation_id %d\ndomain 0\n"+
			"drm_render_minor %d\nunique_id %d\nnum_xcc 1", bus<<8, 128+i, uint64(0xabcdef0000000000)+uint64(i)))
		put(at+"mem_banks/0/properties", "heap_type 1\nsize_in_bytes 68702699520\nflags 0")
		put(at+"io_links/0/properties", fmt.Sprintf("type 2\nnode_from %d\nnode_to %d\nweight 20", n, numa))
		if i < 2 {
			put(at+"io_links/1/properties", fmt.Sprintf("type 11\nnode_from %d\nnode_to %d\nweight 15", n, 3-i))
		}
		put(way+"/numa_node", fmt.Sprint(numa))
		put(way+"/unique_id", fmt.Sprintf("%016x", uint64(0xabcdef0000000000)+uint64(i)))
		put(way+"/product_name", "AMD Instinct MI210")
		put(way+"/gpu_busy_percent", fmt.Sprint(10*(i+1)))
		put(way+"/mem_info_vram_used", "1048576")
		put(way+"/mem_info_vram_total", "68702699520")
		put(way+"/hwmon/hwmon5/power1_average", "41000000")
		put(way+"/hwmon/hwmon5/temp1_input", "35000")
		put(way+"/hwmon/hwmon5/temp2_input", fmt.Sprint(38000+1000*i))
		put(way+"/ras/umc_err_count", "ue: 0\nce: 2")
		sys["bus/pci/devices/"+addr] = &fstest.MapFile{Mode: fs.ModeSymlink, Data: []byte("../../../" + way)}
	}
	return sys
}

const ids = "GPU-abcdef000000000"

func TestConformance(t *testing.T) {
	t.Parallel()
	conformance.Run(t, func(*testing.T) conformance.Fixture {
		sys := three()
		return conformance.Fixture{Driver: rocm.New(rocm.Options{Sys: sys, Owner: owners}), Shared: []string{"/dev/kfd"},
			Break: func() device.Ref {
				sys["devices/pci0000:00/0000:00:02.0/0000:26:00.0/ras/umc_err_count"].Data = []byte("ue: 1\nce: 2\n")
				return device.Ref{Slot: rocm.Slot, ID: ids + "1"}
			},
			Vanish: func() device.Ref {
				sys["class/kfd/kfd/topology/nodes/4/gpu_id"].Data = []byte("0\n")
				return device.Ref{Slot: rocm.Slot, ID: ids + "2"}
			}}
	})
}

func TestDevices(t *testing.T) {
	t.Parallel()
	d := rocm.New(rocm.Options{Sys: three(), Owner: owners})
	found, err := d.Discover(t.Context())
	require.NoError(t, err)
	require.Len(t, found, 3)
	require.Equal(t, device.Device{Memory: 68702699520, Device: alloc.Device{Slot: rocm.Slot, ID: ids + "0", NUMA: 0, PCI: "0000:03:00.0",
		Model: "AMD Instinct MI210", Capacity: cluster.Whole(1), Healthy: true,
		Links: map[string]int{ids + "1": alloc.DistanceFast, ids + "2": alloc.DistanceFar}}}, found[0])
	require.Equal(t, "0000:c3:00.0", found[2].PCI)
	require.Equal(t, 1, found[2].NUMA)
}

func TestGrant(t *testing.T) {
	t.Parallel()
	d := rocm.New(rocm.Options{Sys: three(), Owner: owners})
	_, err := d.Discover(t.Context())
	require.NoError(t, err)
	g, err := d.Grant(alloc.Allocation{rocm.Slot: {ids + "2": cluster.Whole(1), ids + "0": cluster.Whole(1)}})
	require.NoError(t, err)
	node := func(p string) runtime.DeviceNode { return runtime.DeviceNode{Source: p, Target: p, Permissions: "rw"} }
	require.Equal(t, device.Grant{Nodes: []runtime.DeviceNode{node("/dev/kfd"), node("/dev/dri/renderD128"), node("/dev/dri/renderD130")},
		Groups: []int{44, 110}}, g)
	_, err = d.Grant(alloc.Allocation{rocm.Slot: {ids + "0": cluster.Whole(2)}})
	require.Error(t, err)
}

func TestSample(t *testing.T) {
	t.Parallel()
	sys := three()
	d := rocm.New(rocm.Options{Sys: sys, Owner: owners})
	_, err := d.Discover(t.Context())
	require.NoError(t, err)
	held := map[cluster.KernelID]alloc.Allocation{"k": {rocm.Slot: {ids + "0": cluster.Whole(1), ids + "1": cluster.Whole(1)}}}
	u, err := d.Sample(t.Context(), held)
	require.NoError(t, err)
	require.Equal(t, map[string]float64{"rocm_util": 10, "rocm_mem": 1 << 20, "rocm_mem_total": 68702699520, "rocm_power": 41,
		"rocm_temperature": 38}, u.Devices[device.Ref{Slot: rocm.Slot, ID: ids + "0"}])
	require.Equal(t, map[string]float64{"rocm_util": 30, "rocm_mem": 2 << 20, "rocm_mem_total": 2 * 68702699520, "rocm_power": 82,
		"rocm_temperature": 39}, u.Kernels["k"], "amounts are sums, a temperature is that of the hottest")
	at := "devices/pci0000:00/0000:00:01.0/0000:03:00.0/"
	for _, file := range []string{"gpu_busy_percent", "hwmon/hwmon5/power1_average", "hwmon/hwmon5/temp2_input"} {
		delete(sys, at+file)
	}
	sys[at+"hwmon/hwmon5/power1_input"] = &fstest.MapFile{Data: []byte("42000000\n")}
	sys[at+"mem_info_vram_used"].Data = []byte("-5\n")
	u, err = d.Sample(t.Context(), nil)
	require.NoError(t, err)
	require.Equal(t, map[string]float64{"rocm_mem_total": 68702699520, "rocm_power": 42, "rocm_temperature": 35},
		u.Devices[device.Ref{Slot: rocm.Slot, ID: ids + "0"}], "unknown is not zero")
}

// TestProblems: what a card needs to work is named when it is not there.
func TestProblems(t *testing.T) {
	t.Parallel()
	for want, damage := range map[string]func(sys fstest.MapFS){
		"it is not on the PCI bus any more": func(sys fstest.MapFS) { delete(sys, "bus/pci/devices/0000:03:00.0") },
		"it counts 7 errors that could not be corrected (ras/umc_err_count): reset the card or start the host anew": func(sys fstest.MapFS) {
			sys["devices/pci0000:00/0000:00:01.0/0000:03:00.0/ras/umc_err_count"].Data = []byte("ue: 7\nce: 0\n")
		},
		"its unique number cannot be read, so the card does not answer": func(sys fstest.MapFS) {
			at := "devices/pci0000:00/0000:00:01.0/0000:03:00.0/unique_id"
			delete(sys, at)
			sys[at+"/x"] = &fstest.MapFile{} // a directory: it is there and cannot be read
		},
		"the device file /dev/dri/renderD140 is not on this host": func(sys fstest.MapFS) {
			p := sys["class/kfd/kfd/topology/nodes/2/properties"]
			p.Data = append(p.Data, "drm_render_minor 140\n"...)
		},
		"it has no render node": func(sys fstest.MapFS) {
			p := sys["class/kfd/kfd/topology/nodes/2/properties"]
			p.Data = append(p.Data, "drm_render_minor 0\n"...)
		},
	} {
		sys := three()
		damage(sys)
		found, err := rocm.New(rocm.Options{Sys: sys, Owner: owners}).Discover(t.Context())
		require.NoError(t, err)
		require.Len(t, found, 3)
		require.Equal(t, want, found[0].Problem)
		require.False(t, found[0].Healthy)
		require.Empty(t, found[1].Problem, want)
	}
}

// TestPartitions: parts of one card have ids of their own, are siblings, and share what is measured of the card, so it is told of none.
func TestPartitions(t *testing.T) {
	t.Parallel()
	sys := three()
	p := sys["class/kfd/kfd/topology/nodes/3/properties"]
	p.Data = append(p.Data, fmt.Sprintf("location_id %d\nunique_id %d\n", 0x03<<8, uint64(0xabcdef0000000000))...)
	d := rocm.New(rocm.Options{Sys: sys, Owner: owners})
	found, err := d.Discover(t.Context())
	require.NoError(t, err)
	require.Equal(t, ids+"0:128", found[0].ID)
	require.Equal(t, ids+"0:129", found[1].ID)
	require.Equal(t, alloc.DistanceSibling, found[0].Links[ids+"0:129"])
	u, err := d.Sample(t.Context(), nil)
	require.NoError(t, err)
	require.Equal(t, map[string]float64{"rocm_mem_total": 68702699520}, u.Devices[device.Ref{Slot: rocm.Slot, ID: ids + "0:128"}])
	require.Len(t, u.Devices[device.Ref{Slot: rocm.Slot, ID: ids + "2"}], 5)
}

func TestCardsWithoutNumbersAndNames(t *testing.T) {
	t.Parallel()
	sys := three()
	at := "devices/pci0000:00/0000:00:01.0/0000:03:00.0/"
	delete(sys, at+"unique_id")
	delete(sys, at+"product_name")
	p := sys["class/kfd/kfd/topology/nodes/2/properties"]
	p.Data = append(p.Data, "unique_id 0\n"...)
	found, err := rocm.New(rocm.Options{Sys: sys, Owner: owners}).Discover(t.Context())
	require.NoError(t, err)
	require.Equal(t, "0000:03:00.0", found[0].ID)
	require.Equal(t, "gfx90a", found[0].Model)
	require.Equal(t, alloc.DistanceFast, found[1].Links["0000:03:00.0"])
}

func TestPresent(t *testing.T) {
	t.Parallel()
	require.True(t, rocm.Present(three()))
	require.False(t, rocm.Present(fstest.MapFS{}))
	sys := three()
	for _, n := range []string{"2", "3", "4"} {
		sys["class/kfd/kfd/topology/nodes/"+n+"/gpu_id"].Data = []byte("0\n")
	}
	require.False(t, rocm.Present(sys), "processors alone")
	_, err := rocm.New(rocm.Options{Sys: fstest.MapFS{}, Owner: owners}).Discover(t.Context())
	require.ErrorContains(t, err, "the GPUs of AMD cannot be listed")
}

// hung is a host one of whose files is never read to its end.
type hung struct {
	fstest.MapFS
	release chan struct{}
}

func (h hung) ReadFile(name string) ([]byte, error) {
	if path.Base(name) == "gpu_busy_percent" {
		<-h.release
	}
	return h.MapFS.ReadFile(name)
}

// TestACardThatHangs: a sample ends with its context although the card's driver does not answer, and looks go on.
func TestACardThatHangs(t *testing.T) {
	t.Parallel()
	sys := hung{three(), make(chan struct{})}
	d := rocm.New(rocm.Options{Sys: sys, Owner: owners})
	_, err := d.Discover(t.Context())
	require.NoError(t, err)
	for range 2 {
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
		_, err = d.Sample(ctx, nil)
		cancel()
		require.ErrorContains(t, err, "the host's kernel does not answer")
	}
	found, err := d.Discover(t.Context())
	require.NoError(t, err)
	require.Len(t, found, 3)
	close(sys.release)
	u, err := d.Sample(t.Context(), nil)
	require.NoError(t, err)
	require.Equal(t, 10.0, u.Devices[device.Ref{Slot: rocm.Slot, ID: ids + "0"}]["rocm_util"])
}
