package session_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/fault"
	"berth.dev/berth/internal/manager/managertest"
	"berth.dev/berth/internal/manager/session/request"
)

// withHeavy adds an image with more needs than Image, "heavy".
func withHeavy(t *testing.T, w *managertest.World) {
	t.Helper()
	heavy := managertest.PythonImage()
	heavy.Reference, heavy.Digest = "berth/heavy:1.0", managertest.Digest(2)
	heavy.Labels = map[string]string{"ai.backend.resource.min.cpu": "2", "ai.backend.resource.min.mem": "1g",
		"ai.backend.service-ports": "board:http:6006", "ai.backend.runtime-type": "python"}
	require.NoError(t, w.Images.ImportOwn(t.Context(), []cluster.NodeImage{heavy}))
}

// TestKernelsHaveRoles: each role has its image, slots and label; hosts are named as ever, and agents are told of each kernel's own.
func TestKernelsHaveRoles(t *testing.T) {
	t.Parallel()
	w := managertest.New(t)
	w.Agent("a1", 16, 32*managertest.GiB)
	withHeavy(t, w)
	c := w.Create("mixed", func(r *request.Session) {
		r.ClusterSize, r.ClusterMode = 2, "multi-node"
		r.Resources = map[string]string{"cpu": "1", "mem": "512m"}
		r.Roles = []request.Role{
			{Name: "worker", Count: 2, Image: "berth/heavy:1.0", Resources: map[string]string{"cpu": "3", "mem": "2g"},
				ResourceOpts: map[string]string{"shmem": "256m"}},
			{Name: "logger", Count: 1},
		}
	})
	v := w.Session(c.ID)
	require.Equal(t, 5, v.ClusterSize)
	require.Equal(t, cluster.Slots{cluster.SlotCPU: cluster.Whole(9), cluster.SlotMem: cluster.Whole(3*(512<<20) + 2*2*managertest.GiB)},
		v.RequestedSlots, "the session asks for what its kernels ask for together")
	type row struct {
		host, role string
		idx        int
		image      string
		cpu        cluster.Amount
		app        string
	}
	var rows []row
	for _, k := range v.Kernels {
		rows = append(rows, row{k.ClusterHostname, k.ClusterRole, k.ClusterIdx, k.Image, k.RequestedSlots[cluster.SlotCPU],
			k.ServicePorts[0].Name})
	}
	one, three := cluster.Whole(1), cluster.Whole(3)
	require.Equal(t, []row{
		{"main1", "main", 1, managertest.Image, one, "jupyter"},
		{"sub1", "sub", 1, managertest.Image, one, "jupyter"},
		{"sub2", "worker", 1, "berth/heavy:1.0", three, "board"},
		{"sub3", "worker", 2, "berth/heavy:1.0", three, "board"},
		{"sub4", "logger", 1, managertest.Image, one, "jupyter"},
	}, rows)

	w.Place(c.ID, "a1")
	list, err := w.Reports.Desired(t.Context(), "a1", nil)
	require.NoError(t, err)
	specs := map[string]*cluster.KernelSpec{}
	for _, d := range list {
		specs[d.Spec.Hostname] = d.Spec
	}
	require.Len(t, specs, 5)
	worker, logger := specs["sub3"], specs["sub4"]
	require.Equal(t, []string{"berth/heavy:1.0", managertest.Digest(2), "board:http:6006"},
		[]string{worker.Image, worker.ImageDigest, worker.ServicePorts})
	require.Equal(t, []string{managertest.Image, managertest.Digest(1)}, []string{logger.Image, logger.ImageDigest})
	require.EqualValues(t, 256<<20, worker.ShmBytes)
	require.EqualValues(t, cluster.DefaultShmem, logger.ShmBytes)
	require.Equal(t, cluster.Whole(2*managertest.GiB), worker.Slots[cluster.SlotMem])
	for name, want := range map[string]string{
		"BACKENDAI_CLUSTER_ROLE": "worker", "BACKENDAI_CLUSTER_IDX": "2", "BACKENDAI_CLUSTER_HOST": "sub3",
		"BACKENDAI_CLUSTER_SIZE": "5", "BACKENDAI_CLUSTER_REPLICAS": "main:1,sub:1,worker:2,logger:1",
		"BACKENDAI_CLUSTER_HOSTS": "main1,sub1,sub2,sub3,sub4", "BACKENDAI_KERNEL_IMAGE": "berth/heavy:1.0",
	} {
		require.Equal(t, want, worker.Env[name], name)
	}

	// A network's addresses follow the ranks, whatever the roles are called.
	var members []string
	require.NoError(t, w.Store.Pool().QueryRow(t.Context(), `SELECT array_agg(m->>'name' ORDER BY n)
		FROM jsonb_array_elements(members_of_session($1)) WITH ORDINALITY AS x(m, n)`, string(c.ID)).Scan(&members))
	require.Equal(t, []string{"main1", "sub1", "sub2", "sub3", "sub4"}, members)
	// The usage ledger knows each kernel's own.
	var held int
	require.NoError(t, w.Store.Pool().QueryRow(t.Context(), `SELECT count(*) FROM usage_intervals WHERE session_id = $1
		AND image = 'berth/heavy:1.0' AND slots->>'cpu' = '3000'`, string(c.ID)).Scan(&held))
	require.Equal(t, 2, held)
}

// TestRolesThatCannotBe: each mistake has words of its own, and nothing is left behind.
func TestRolesThatCannotBe(t *testing.T) {
	t.Parallel()
	w := managertest.New(t)
	w.Agent("a1", 8, 8*managertest.GiB)
	withHeavy(t, w)
	foreign := managertest.PythonImage()
	foreign.Reference, foreign.Digest, foreign.Architecture = "berth/arm:1.0", managertest.Digest(3), "aarch64"
	require.NoError(t, w.Images.ImportOwn(t.Context(), []cluster.NodeImage{foreign}))
	w.Exec(`UPDATE keypair_resource_policies SET max_containers_per_session = 4`)
	cpu := func(n string) map[string]string { return map[string]string{"cpu": n} }
	for name, c := range map[string]struct {
		roles []request.Role
		kind  fault.Kind
		words string
	}{
		"twice": {[]request.Role{{Name: "worker", Count: 1}, {Name: "worker", Count: 1}}, fault.Invalid,
			"role worker is named twice"},
		"none of it":       {[]request.Role{{Name: "worker"}}, fault.Invalid, "role worker has 0 kernels"},
		"fewer than none":  {[]request.Role{{Name: "worker", Count: -1}}, fault.Invalid, "role worker has -1 kernels"},
		"main":             {[]request.Role{{Name: "main", Count: 1}}, fault.Invalid, "every session has"},
		"two kinds of sub": {[]request.Role{{Name: "sub", Count: 1}}, fault.Invalid, "role sub is that of the kernels"},
		"no variable": {[]request.Role{{Name: "worker", Count: 1, Environ: map[string]string{"A=B": "1"}}}, fault.Invalid,
			"role worker: environment variable"},
		"NUL in a variable": {[]request.Role{{Name: "worker", Count: 1, Environ: map[string]string{"A": "\x00"}}}, fault.Invalid,
			"role worker: environment variable"},
		"variables beyond the bound": {[]request.Role{{Name: "worker", Count: 1, Environ: map[string]string{"A": strings.Repeat("x", 128<<10)}}},
			fault.Invalid, "role worker: environ has"},
		"a long script": {[]request.Role{{Name: "worker", Count: 1, BootstrapScript: new(strings.Repeat("x", request.MaxScript+1))}},
			fault.Invalid, "the bootstrap script of role worker"},
		"NUL in a script": {[]request.Role{{Name: "worker", Count: 1, BootstrapScript: new("a\x00")}}, fault.Invalid,
			"the bootstrap script of role worker"},
		"a name that is none": {[]request.Role{{Name: "Worker 1", Count: 1}}, fault.Invalid, "not the name of a role"},
		"over the policy": {[]request.Role{{Name: "worker", Count: 2}, {Name: "logger", Count: 2}}, fault.Exhausted,
			"4 containers"},
		"over all":         {[]request.Role{{Name: "worker", Count: 300}}, fault.Invalid, "256"},
		"an unknown image": {[]request.Role{{Name: "worker", Count: 1, Image: "nowhere/image:1"}}, fault.NotFound, "role worker"},
		"an isolation of its own": {[]request.Role{{Name: "worker", Count: 1, ResourceOpts: map[string]string{"isolation": "hard"}}},
			fault.Invalid, "isolation"},
		"an unknown slot": {[]request.Role{{Name: "worker", Count: 1, Resources: map[string]string{"toy": "1"}}}, fault.Invalid,
			"role worker"},
		"less than the image": {[]request.Role{{Name: "worker", Count: 1, Image: "berth/heavy:1.0", Resources: cpu("1")}},
			fault.Invalid, "at least 2"},
		"too much": {[]request.Role{{Name: "worker", Count: 1, Resources: cpu("9")}}, fault.Invalid, "role worker"},
		"of another processor": {[]request.Role{{Name: "worker", Count: 1, Image: "berth/arm:1.0"}}, fault.Invalid,
			"needs an agent of architecture aarch64"},
	} {
		r := request.Session{Name: "mixed", Image: "python", Resources: cpu("1"), Roles: c.roles, FailIfImpossible: true,
			ClusterMode: map[bool]string{true: "multi-node", false: "single-node"}[name == "too much"]}
		if name == "two kinds of sub" {
			r.ClusterSize = 2
		}
		_, err := w.Sessions.Create(t.Context(), w.Admin, r)
		require.True(t, fault.Is(err, c.kind), "%s: %v", name, err)
		require.ErrorContains(t, err, c.words, name)
	}
	var n int
	require.NoError(t, w.Store.Pool().QueryRow(t.Context(), `SELECT count(*) FROM sessions`).Scan(&n))
	require.Zero(t, n)
}

// TestRolesBringVariablesAndScripts: what a role says comes over the session's, in its kernels alone, and what names a kernel stays ours.
func TestRolesBringVariablesAndScripts(t *testing.T) {
	t.Parallel()
	w := managertest.New(t)
	w.Agent("a1", 16, 32*managertest.GiB)
	c := w.Create("mixed", func(r *request.Session) {
		r.Resources = map[string]string{"cpu": "1", "mem": "512m"}
		r.Environ = map[string]string{"MODE": "plain", "ALL": "1"}
		r.BootstrapScript = new("echo session")
		r.Roles = []request.Role{
			{Name: "worker", Count: 2, Environ: map[string]string{"MODE": "fast", "BACKENDAI_CLUSTER_ROLE": "main", "BACKENDAI_KERNEL_ID": "x"},
				BootstrapScript: new("echo worker")},
			{Name: "alone", Count: 1, Environ: map[string]string{"OWN": "1"}, Alone: true, BootstrapScript: new("")},
			{Name: "bare", Count: 1, Alone: true},
			{Name: "logger", Count: 1},
		}
	})
	w.Place(c.ID, "a1")
	list, err := w.Reports.Desired(t.Context(), "a1", nil)
	require.NoError(t, err)
	require.Len(t, list, 6)
	type seen struct{ mode, all, own, role, script string }
	got := map[string]seen{}
	for _, d := range list {
		e := d.Spec.Env
		got[d.Spec.Hostname] = seen{e["MODE"], e["ALL"], e["OWN"], e["BACKENDAI_CLUSTER_ROLE"], d.Spec.BootstrapScript}
		require.Equal(t, string(d.Kernel), e["BACKENDAI_KERNEL_ID"])
	}
	require.Equal(t, map[string]seen{
		"main1": {"plain", "1", "", "main", "echo session"},
		"sub1":  {"fast", "1", "", "worker", "echo worker"},
		"sub2":  {"fast", "1", "", "worker", "echo worker"},
		"sub3":  {"", "", "1", "alone", ""},
		"sub4":  {"", "", "", "bare", "echo session"},
		"sub5":  {"plain", "1", "", "logger", "echo session"},
	}, got)
	var rows int
	require.NoError(t, w.Store.Pool().QueryRow(t.Context(), `SELECT count(*) FROM session_roles WHERE session_id = $1`,
		string(c.ID)).Scan(&rows))
	require.Equal(t, 3, rows, "a role is stored once, one that says nothing not at all")
}
