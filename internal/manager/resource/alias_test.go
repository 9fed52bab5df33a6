package resource_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/fault"
	"berth.dev/berth/internal/manager/managertest"
	"berth.dev/berth/internal/manager/resource"
)

// offer is a resource group whose agents have those slots besides cpu and mem.
func offer(group string, slots ...cluster.SlotName) resource.Offer {
	o := resource.Offer{Group: group, Slots: map[cluster.SlotName]cluster.SlotKind{"cpu": cluster.SlotCount, "mem": cluster.SlotBytes}}
	for _, slot := range slots {
		o.Slots[slot] = cluster.SlotCount
	}
	return o
}

// amounts reads a=1 b=2.
func amounts(text string) map[string]string {
	out := map[string]string{}
	for _, one := range strings.Fields(text) {
		name, v, _ := strings.Cut(one, "=")
		out[name] = v
	}
	return out
}

func TestAliasesOfSlots(t *testing.T) {
	t.Parallel()
	both := offer("g", "cuda.device", "cuda.shares")
	for _, c := range []struct {
		name string
		asks string
		has  resource.Offer
		want string // or what the error says
		err  []string
	}{
		{"nothing of aliases", "cpu=1 mem=1g", both, "cpu=1 mem=1g", nil},
		{"a whole one", "cpu=1 gpu=2", both, "cpu=1 cuda.device=2 cuda.shares=0", nil},
		{"a part", "gpu=0.5", both, "cuda.shares=0.5 cuda.device=0", nil},
		{"more than one and a part", "gpu=1.5", both, "cuda.shares=1.5 cuda.device=0", nil},
		{"written with a point", "gpu=1.0", both, "cuda.device=1 cuda.shares=0", nil},
		{"a whole one of parts", "gpu=1", offer("g", "cuda.shares"), "cuda.shares=1", nil},
		{"the other family", "gpu=1", offer("g", "rocm.device"), "rocm.device=1", nil},
		{"beside an NPU", "gpu=1", offer("g", "cuda.device", "warboy.device"), "cuda.device=1", nil},
		{"an NPU beside a GPU", "npu=1", offer("g", "cuda.device", "warboy.device"), "warboy.device=1", nil},
		{"an NPU beside a network adapter", "npu=1", offer("g", "gaudi2.device", "rdma.hca"), "gaudi2.device=1", nil},
		{"both", "npu=1 gpu=2", offer("g", "cuda.device", "warboy.device"), "warboy.device=1 cuda.device=2", nil},
		{"none, against a preset", "gpu=0", both, "cuda.device=0 cuda.shares=0", nil},
		{"none of nothing", "gpu=0", offer("g"), "", nil},
		{"a slot of the name", "gpu=1", offer("g", "gpu", "cuda.device"), "gpu=1", nil},
		{"real names stay", "cuda.shares=0.5", both, "cuda.shares=0.5", nil},
		{"another slot of the family by its name", "gpu=1 cuda.shares=0.5", both, "cuda.device=1 cuda.shares=0.5", nil},
		{"twice", "gpu=1 cuda.device=1", both, "", []string{"gpu and cuda.device are the same slot"}},
		{"two families", "gpu=1", offer("g", "cuda.device", "rocm.device", "rocm.shares"), "", []string{
			"gpu is not one thing in resource group g: there are cuda and rocm", "cuda.device, rocm.device, rocm.shares"}},
		{"no accelerators", "gpu=1", offer("g"), "", []string{"there is no gpu in resource group g", "no accelerators"}},
		{"others only", "gpu=1", offer("g", "warboy.device"), "", []string{"there is no gpu in resource group g", "it has warboy.device"}},
		{"anywhere", "gpu=1", offer("", "warboy.device"), "", []string{"there is no gpu in this cluster"}},
		{"a part of whole ones", "gpu=0.5", offer("g", "cuda.device"), "", []string{
			"gpu=0.5 cannot be had in resource group g", "given whole (cuda.device)", "gpu=1"}},
		{"neither", "gpu=1", offer("g", "cuda.mig-10g"), "", []string{"no slot for whole devices", "cuda.mig-10g"}},
		{"no number", "gpu=many", both, "", []string{"resource gpu", "many"}},
		{"below zero", "gpu=-1", both, "", []string{"-1"}},
		{"too fine", "gpu=0.0001", both, "", []string{"0.0001"}},
	} {
		got, err := resource.DefaultAliases().Real(amounts(c.asks), c.has)
		if c.err == nil {
			require.NoError(t, err, c.name)
			require.Equal(t, amounts(c.want), got, c.name)
			continue
		}
		require.True(t, fault.Is(err, fault.Invalid), "%s: %v", c.name, err)
		for _, words := range c.err {
			require.Contains(t, err.Error()+" "+fault.NextOf(err), words, c.name)
		}
	}
}

func TestAliasesChooseAmongResourceGroups(t *testing.T) {
	t.Parallel()
	table := resource.DefaultAliases()
	a, b, c, d := offer("a"), offer("b", "cuda.device"), offer("c", "rocm.device"), offer("d", "cuda.device", "cuda.shares")
	got, groups, err := table.RealIn(amounts("gpu=1"), []resource.Offer{a, b, c, d})
	require.NoError(t, err)
	require.Equal(t, amounts("cuda.device=1 cuda.shares=0"), got)
	require.Equal(t, []string{"b", "d"}, groups, "where the same is meant")
	got, groups, err = table.RealIn(amounts("gpu=0.5"), []resource.Offer{a, b, c, d})
	require.NoError(t, err)
	require.Equal(t, amounts("cuda.shares=0.5 cuda.device=0"), got)
	require.Equal(t, []string{"d"}, groups)
	_, _, err = table.RealIn(amounts("gpu=0.5"), []resource.Offer{b, c})
	require.ErrorContains(t, err, "resource group b")
	_, groups, err = table.RealIn(amounts("cpu=1"), []resource.Offer{a, b, c, d})
	require.NoError(t, err)
	require.Equal(t, []string{"a", "b", "c", "d"}, groups)

	// A table of one's own.
	own, err := resource.ParseAliases(`{"accelerator": ["*"], "amd": ["rocm"]}`)
	require.NoError(t, err)
	got, _, err = own.RealIn(amounts("accelerator=1 amd=2"), []resource.Offer{offer("g", "cuda.device", "rocm.device")})
	require.NoError(t, err)
	require.Equal(t, amounts("cuda.device=1 rocm.device=2"), got)
}

func TestPresetsTakeAliases(t *testing.T) {
	t.Parallel()
	w := managertest.New(t)
	w.Agent("a1", 4, 16*managertest.GiB)
	create := func(name, group, slots string) (resource.Preset, error) {
		in := resource.PresetInput{Name: &name, Slots: amounts(slots)}
		if group != "" {
			in.ResourceGroup = &group
		}
		return w.Resources.CreatePreset(t.Context(), w.Admin, in)
	}
	_, err := create("gpu-small", "", "cpu=1 mem=1g gpu=0.5")
	require.ErrorContains(t, err, "there is no gpu in this cluster")
	w.Exec(`UPDATE agents SET slot_kinds = slot_kinds || '{"cuda.device": "count", "cuda.shares": "count"}'`)
	p, err := create("gpu-small", "", "cpu=1 mem=1g gpu=0.5")
	require.NoError(t, err)
	require.Equal(t, cluster.Slots{"cpu": 1000, "mem": cluster.Whole(1 << 30), "cuda.shares": 500}, p.Slots, "what is stored are slots")
	w.Exec(`INSERT INTO resource_groups (name) VALUES ('empty')`)
	_, err = create("gpu-elsewhere", "empty", "cpu=1 mem=1g gpu=1")
	require.ErrorContains(t, err, "there is no gpu in resource group empty")
	p, err = create("gpu-large", "default", "cpu=1 mem=1g gpu=1")
	require.NoError(t, err)
	require.Equal(t, cluster.Amount(1000), p.Slots["cuda.device"])

	require.NoError(t, w.Resources.SetSlotAliases(t.Context(), w.Admin, resource.Aliases{"card": {"cuda"}}))
	p, err = create("by another name", "", "cpu=1 mem=1g card=1")
	require.NoError(t, err)
	require.Equal(t, cluster.Amount(1000), p.Slots["cuda.device"])
	_, err = create("gpu", "", "cpu=1 mem=1g gpu=1")
	require.ErrorContains(t, err, "no agent has a slot called")
}
