package session_test

import (
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/fault"
	"berth.dev/berth/internal/manager/managertest"
	"berth.dev/berth/internal/manager/node"
	"berth.dev/berth/internal/manager/session"
	"berth.dev/berth/internal/manager/session/request"
	"berth.dev/berth/internal/manager/store/list"
	"berth.dev/berth/internal/manager/tenancy"
)

func TestBadRequestsAreNamedExactly(t *testing.T) {
	t.Parallel()
	w := managertest.New(t)
	w.Agent("a1", 4, 8*managertest.GiB)
	w.Agent("a2", 8, 4*managertest.GiB)
	w.Exec(`INSERT INTO resource_groups (name) VALUES ('private')`)
	stranger := w.Stranger("mallory")
	type change = func(*request.Session)
	res := func(kv ...string) change {
		return func(r *request.Session) {
			r.Resources = map[string]string{}
			for i := 0; i < len(kv); i += 2 {
				r.Resources[kv[i]] = kv[i+1]
			}
		}
	}
	five, hundred := 5, 101
	for name, c := range map[string]struct {
		change change
		kind   fault.Kind
		reason string
		words  string
	}{
		"unknown image":       {func(r *request.Session) { r.Image = "nowhere/image:1" }, fault.NotFound, "", "image reference"},
		"sql in image":        {func(r *request.Session) { r.Image = "%" }, fault.NotFound, "", "image reference"},
		"wrong architecture":  {func(r *request.Session) { r.Architecture = "aarch64" }, fault.NotFound, "", "only for x86_64"},
		"short name":          {func(r *request.Session) { r.Name = "abc" }, fault.Invalid, "", "4 to 64"},
		"name with a slash":   {func(r *request.Session) { r.Name = "ab/cd" }, fault.Invalid, "", "not allowed"},
		"unknown slot":        {res("cuda.device", "1"), fault.Invalid, "", `unknown resource slot "cuda.device"`},
		"bad amount":          {res("cpu", "many"), fault.Invalid, "", "many"},
		"infinite":            {res("mem", "infinity"), fault.Invalid, "", "infinity"},
		"negative":            {res("cpu", "-1"), fault.Invalid, "", "-1"},
		"below the minimum":   {res("mem", "100m"), fault.Invalid, "", "at least 128m"},
		"shmem as a resource": {res("shmem", "1g"), fault.Invalid, "", "shmem is not a resource slot"},
		"shmem over memory": {func(r *request.Session) { res("mem", "1g")(r); r.ResourceOpts = map[string]string{"shmem": "1g"} },
			fault.Invalid, "", "at least 1.06g"},
		"no cpu":           {res("cpu", "0"), fault.Invalid, "", "at least 1"},
		"too many cores":   {res("cpu", "12"), fault.Invalid, "", "cpu: 12 asked for, 4 too much for the largest agent a2"},
		"too much memory":  {res("mem", "9g"), fault.Invalid, "", "mem: 9g asked for, 1g too much for the largest agent a1"},
		"too much of both": {res("cpu", "9", "mem", "8g"), fault.Invalid, "", "no agent could ever run"},
		"batch without command": {func(r *request.Session) { r.Type = cluster.Batch; r.StartupCommand = " " }, fault.Invalid, "",
			"startup command"},
		"type of its own":      {func(r *request.Session) { r.Type = "strange" }, fault.Invalid, "", "strange"},
		"start time":           {func(r *request.Session) { r.StartsAt = "10m" }, fault.Invalid, "", "batch"},
		"bad start time":       {func(r *request.Session) { managertest.Batch("true")(r); r.StartsAt = "soon" }, fault.Invalid, "", "soon"},
		"priority":             {func(r *request.Session) { r.Priority = &hundred }, fault.Invalid, "", "101"},
		"seventeen containers": {func(r *request.Session) { r.ClusterSize = 17 }, fault.Exhausted, "", "16 containers"},
		"cluster mode":         {func(r *request.Session) { r.ClusterMode = "galaxy" }, fault.Invalid, "", "galaxy"},
		"dependency":           {func(r *request.Session) { r.Dependencies = []string{"nobody"} }, fault.NotFound, "", "nobody"},
		"mounts": {func(r *request.Session) { r.Mounts = []string{"data"} }, fault.NotFound, "",
			"virtual folder: data"},
		"project":        {func(r *request.Session) { r.Project = "elsewhere" }, fault.NotFound, "", "elsewhere"},
		"domain":         {func(r *request.Session) { r.Domain = "elsewhere" }, fault.NotFound, "", "elsewhere"},
		"resource group": {func(r *request.Session) { r.ResourceGroup = "private" }, fault.NotFound, "", "private"},
		"reserved port":  {func(r *request.Session) { r.PreopenPorts = []int{7681} }, fault.Invalid, "", "7681"},
		"port of an app": {func(r *request.Session) { r.PreopenPorts = []int{9002} }, fault.Invalid, "", "web"},
		"low port":       {func(r *request.Session) { r.PreopenPorts = []int{80} }, fault.Invalid, "", "80"},
		"environ name":   {func(r *request.Session) { r.Environ = map[string]string{"A=B": "c"} }, fault.Invalid, "", "A=B"},
		"environ NUL":    {func(r *request.Session) { r.Environ = map[string]string{"A": "b\x00"} }, fault.Invalid, "", "A"},
		"environ size": {func(r *request.Session) { r.Environ = map[string]string{"A": strings.Repeat("x", 200_000)} }, fault.Invalid, "",
			"bytes"},
		"callback scheme": {func(r *request.Session) { r.CallbackURL = "file:///etc/passwd" }, fault.Invalid, "", "callback_url"},
		"agents":          {func(r *request.Session) { r.Agents = []string{"a9"} }, fault.NotFound, "", "a9"},
		"two agents":      {func(r *request.Session) { r.Agents = []string{"a1", "a2"} }, fault.Invalid, "", "exactly 1"},
		"owner":           {func(r *request.Session) { r.OwnerAccessKey = "AKIANOBODY" }, fault.Invalid, "", "AKIANOBODY"},
	} {
		r := request.Session{Name: "good-name", Image: "python", FailIfImpossible: true}
		c.change(&r)
		_, err := w.Sessions.Create(t.Context(), w.Admin, r)
		require.True(t, fault.Is(err, c.kind), "%s: %v", name, err)
		require.Equal(t, c.reason, fault.ReasonOf(err), name)
		require.Contains(t, err.Error(), c.words, name)
	}
	list, err := w.Sessions.List(t.Context(), w.Admin, session.Filter{})
	require.NoError(t, err)
	require.Zero(t, list.Total, "a refused request leaves nothing behind")

	_, err = w.Sessions.Create(t.Context(), stranger, request.Session{Name: "good-name", Image: "python", OwnerAccessKey: w.Admin.AccessKey})
	require.True(t, fault.Is(err, fault.Denied), "%v", err)

	w.Exec(`UPDATE keypair_resource_policies SET max_priority = 4, max_pending_session_count = 1, max_containers_per_session = 3`)
	_, err = w.Sessions.Create(t.Context(), w.Admin, request.Session{Name: "good-name", Image: "python", Priority: &five})
	require.True(t, fault.Is(err, fault.Exhausted), "%v", err)
	c := w.Create("good-name", func(r *request.Session) { r.ClusterSize = 3; r.Environ = map[string]string{"A": "b"} })
	v := w.Session(c.ID)
	require.Equal(t, 4, v.Priority)
	require.Equal(t, cluster.Whole(3), v.RequestedSlots[cluster.SlotCPU])
	require.Equal(t, []string{"main1", "sub1", "sub2"},
		[]string{v.Kernels[0].ClusterHostname, v.Kernels[1].ClusterHostname, v.Kernels[2].ClusterHostname})
	require.Equal(t, "sub", v.Kernels[2].ClusterRole)
	require.Equal(t, 2, v.Kernels[2].ClusterIdx)
	_, err = w.Sessions.Create(t.Context(), w.Admin, request.Session{Name: "good-name-2", Image: "python"})
	require.True(t, fault.Is(err, fault.Exhausted), "%v", err)
}

func TestNamesAreReused(t *testing.T) {
	t.Parallel()
	w := managertest.New(t)
	w.Agent("a1", 64, 64*managertest.GiB)
	ctx := t.Context()

	// Many at once make one session.
	var all sync.WaitGroup
	var mu sync.Mutex
	ids, created := map[cluster.SessionID]bool{}, 0
	for range 8 {
		all.Go(func() {
			out, err := w.Sessions.Create(ctx, w.Admin, request.Session{Name: "shared", Image: managertest.Image})
			mu.Lock()
			defer mu.Unlock()
			require.NoError(t, err)
			ids[out.ID] = true
			if out.Created {
				created++
			}
		})
	}
	all.Wait()
	require.Len(t, ids, 1)
	require.Equal(t, 1, created)

	_, err := w.Sessions.Create(ctx, w.Admin, request.Session{Name: "shared", Image: "python", NoReuse: true})
	require.Equal(t, "session-already-exists", fault.ReasonOf(err))
	require.Equal(t, fault.Conflict, fault.KindOf(err))
	for id := range ids {
		var f *fault.Error
		require.ErrorAs(t, err, &f)
		require.Equal(t, map[string]any{"existingSessionId": string(id)}, f.Data)
		_, err = w.Sessions.Destroy(ctx, w.Admin, "shared", session.DestroyOptions{})
		require.NoError(t, err)
	}
	again := w.Create("shared")
	require.True(t, again.Created)

	// Dashed, hex and upper case ids all mean the session; names find live ones only.
	for _, ref := range []string{string(again.ID), strings.ReplaceAll(string(again.ID), "-", ""), strings.ToUpper(string(again.ID)),
		"shared"} {
		v, err := w.Sessions.Find(ctx, w.Admin, ref, "")
		require.NoError(t, err)
		require.Equal(t, again.ID, v.ID)
	}
	m, err := w.Sessions.Match(ctx, w.Admin, "sha")
	require.NoError(t, err)
	require.Len(t, m, 1)
	m, err = w.Sessions.Match(ctx, w.Admin, string(again.ID)[:8])
	require.NoError(t, err)
	require.Len(t, m, 1)
	m, err = w.Sessions.Match(ctx, w.Admin, "%")
	require.NoError(t, err)
	require.Empty(t, m)
}

func TestImagesAreResolved(t *testing.T) {
	t.Parallel()
	w := managertest.New(t)
	w.Agent("a1", 4, 8*managertest.GiB)
	ctx := t.Context()
	add := func(revision int64, images ...cluster.NodeImage) {
		require.NoError(t, w.Reports.UpdateFacts(ctx, "a1", w.Epoch("a1"), cluster.NodeFacts{Revision: revision, Architecture: "x86_64",
			Capacity: cluster.Slots{"cpu": cluster.Whole(4), "mem": cluster.Whole(8 * managertest.GiB)}, Images: images}))
		require.NoError(t, w.Images.ImportOwn(ctx, images))
	}
	img := func(ref string, digest int) cluster.NodeImage {
		return cluster.NodeImage{Reference: ref, Digest: managertest.Digest(digest), Architecture: "x86_64"}
	}
	add(2, img(managertest.Image, 1))
	add(3, img(managertest.Image, 1), img("lab/tool:1", 2), img("registry.example.org:5000/team/tool:v2", 3))
	w.Exec(`UPDATE images SET created_at = now() - interval '1 hour' WHERE reference = 'lab/tool:1'`)
	add(4, img(managertest.Image, 1), img("lab/tool:1", 2), img("lab/tool:2", 4))
	add(3) // an old revision changes nothing
	for ref, want := range map[string]string{"python": managertest.Image, managertest.Image: managertest.Image, "lab/tool": "lab/tool:2",
		"lab/tool:1": "lab/tool:1", "berth/python": managertest.Image} {
		i, err := w.Images.Get(ctx, w.Admin, ref, "")
		require.NoError(t, err, ref)
		require.Equal(t, want, i.Reference)
	}
	require.NoError(t, w.Images.Alias(ctx, w.Admin, "tool", "lab/tool:1", ""))
	i, err := w.Images.Get(ctx, w.Admin, "tool", "x86_64")
	require.NoError(t, err)
	require.Equal(t, "lab/tool:1", i.Reference)
	require.Equal(t, []string{"tool"}, i.Aliases)
	require.Equal(t, []cluster.AgentID{"a1"}, i.Agents)
	require.Equal(t, []string{"lab", "tool", "1", "local"}, []string{i.Project, i.Name, i.Tag, i.Registry})
	list, err := w.Images.List(ctx, w.Admin, list.Query{Filter: `registry == "registry.example.org:5000" & tag like "v%"`})
	require.NoError(t, err)
	require.Equal(t, 1, list.Total)
	require.Equal(t, "team", list.Items[0].Project)
	require.NoError(t, w.Images.Dealias(ctx, w.Admin, "tool"))
	require.True(t, fault.Is(w.Images.Dealias(ctx, w.Admin, "tool"), fault.NotFound))
	_, err = w.Images.Forget(ctx, w.Admin, "lab/tool:2", "")
	require.NoError(t, err)
	i, err = w.Images.Get(ctx, w.Admin, "lab/tool", "")
	require.NoError(t, err)
	require.Equal(t, "lab/tool:1", i.Reference)
}

func TestListsAreFilteredOrderedAndPaged(t *testing.T) {
	t.Parallel()
	w := managertest.New(t)
	w.Agent("a1", 64, 640*managertest.GiB)
	ctx := t.Context()
	for i := range 7 {
		w.Create(fmt.Sprintf("list-%d", i), func(r *request.Session) { p := i * 10; r.Priority = &p })
	}
	w.Running("list-9", "a1")
	search := func(q list.Query) (names []string, total int, err error) {
		p, err := w.Sessions.List(ctx, w.Admin, session.Filter{Query: q})
		for _, s := range p.Items {
			names = append(names, s.Name)
		}
		return names, p.Total, err
	}
	for filter, want := range map[string]string{
		`priority >= 50 & status == "PENDING"`:                    "list-5 list-6",
		`name in ["list-1", "list-2", "nobody"]`:                  "list-1 list-2",
		`!(status == "PENDING")`:                                  "list-9",
		`agent_ids contains "a1"`:                                 "list-9",
		`name like "list-_" & (priority < 10 | name == "list-3")`: "list-0 list-3",
		`name ilike "LIST-4" && result == 'UNDEFINED'`:            "list-4",
		`terminated_at is null & scheduled_at isnot null`:         "list-9",
		`created_at > "2001-01-01" & priority == 20`:              "list-2",
		`name contains "st-6"`:                                    "list-6",
		`name == "x' OR true --"`:                                 "",
		`user_email == "admin@berth.local" & priority == 0`:       "list-0",
	} {
		names, total, err := search(list.Query{Filter: filter, Order: "name"})
		require.NoError(t, err, filter)
		require.Equal(t, want, strings.Join(names, " "), filter)
		require.Equal(t, len(names), total)
	}
	for _, bad := range []string{`secret == 1`, `name ==`, `name == 1`, `name "x"`, `(name == "x"`, `name == "x" extra`, `priority like "1"`,
		`created_at > "yesterday"`,
		`name == [1]`, `name == "x`, strings.Repeat("(", 100), strings.Repeat("!", 5000), `name like "x\`, `; drop table sessions`,
		`priority == 1e`, `name in "x"`, "name == \"\x00\""} {
		_, _, err := search(list.Query{Filter: bad})
		require.True(t, fault.Is(err, fault.Invalid), "%s: %v", bad, err)
	}
	names, total, err := search(list.Query{Order: "-priority,+name", Limit: 3, Offset: 1})
	require.NoError(t, err)
	require.Equal(t, []string{"list-5", "list-4", "list-3"}, names)
	require.Equal(t, 8, total)
	_, total, err = search(list.Query{Offset: 100})
	require.NoError(t, err)
	require.Equal(t, 8, total)
	for _, q := range []list.Query{{Limit: 101}, {Limit: -1}, {Offset: -1}, {Order: "secret"}, {Order: "name; drop"}} {
		_, _, err := search(q)
		require.True(t, fault.Is(err, fault.Invalid), "%+v: %v", q, err)
	}
	k, err := w.Sessions.ListKernels(ctx, w.Admin, session.KernelFilter{Agent: "a1"})
	require.NoError(t, err)
	require.Equal(t, 1, k.Total)
	a, err := w.Nodes.List(ctx, w.Admin, node.Filter{Status: "ALIVE", Query: list.Query{Order: "-occupied_slots"}})
	require.NoError(t, err)
	require.Equal(t, cluster.Whole(1), a.Items[0].Occupied[cluster.SlotCPU])
	keys, err := w.Tenancy.ListKeypairs(ctx, w.Admin, tenancy.KeypairFilter{Query: list.Query{Filter: `projects contains "default"`}})
	require.NoError(t, err)
	require.Equal(t, 1, keys.Total)
	require.Equal(t, 1, keys.Items[0].ConcurrencyUsed)
	require.Equal(t, w.Creds.SecretKey, keys.Items[0].SecretKey)
	users, err := w.Tenancy.ListUsers(ctx, w.Admin, tenancy.UserFilter{Query: list.Query{Filter: `is_active == true & role == "superadmin"`}})
	require.NoError(t, err)
	require.Equal(t, "default", users.Items[0].Projects[0].Name)
	check, err := w.Resources.CheckPresets(ctx, w.Admin, "default", "")
	require.NoError(t, err)
	require.Equal(t, cluster.Whole(1), check.KeypairUsing[cluster.SlotCPU])
	require.Equal(t, cluster.Whole(63), check.ResourceGroups["default"].Remaining[cluster.SlotCPU])
	require.Len(t, check.Presets, 4)
	require.True(t, check.Presets[0].Allocatable)
}

func TestStartTimesUseTheClockOfTheDatabase(t *testing.T) {
	t.Parallel()
	w := managertest.New(t)
	w.Agent("a1", 64, 64*managertest.GiB)
	now, err := w.Store.SessionNow(t.Context())
	require.NoError(t, err)
	for text, want := range map[string]time.Duration{"10m": 10 * time.Minute, "1d2h": 26 * time.Hour, "90": 90 * time.Second,
		now.Add(time.Hour).UTC().Format("2006-01-02T15:04:05"): time.Hour, now.Add(time.Hour).Format(time.RFC3339): time.Hour} {
		c := w.Create(fmt.Sprintf("at-%d-%d", len(text), int(want.Seconds())), managertest.Batch("true"),
			func(r *request.Session) { r.StartsAt = text })
		require.WithinDuration(t, now.Add(want), *w.Session(c.ID).StartsAt, 30*time.Second, text)
	}
}
