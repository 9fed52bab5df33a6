package service_test

import (
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/fault"
	"berth.dev/berth/internal/manager/service"
)

func TestBadRequestsAreNamedExactly(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.agent("a1", 4, 8*gib)
	w.agent("a2", 8, 4*gib)
	w.exec(`INSERT INTO resource_groups (name) VALUES ('private')`)
	stranger := w.stranger("mallory")
	type change = func(*service.CreateSession)
	res := func(kv ...string) change {
		return func(r *service.CreateSession) {
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
		"unknown image":         {func(r *service.CreateSession) { r.Image = "nowhere/image:1" }, fault.NotFound, "object-not-found", "image reference"},
		"sql in image":          {func(r *service.CreateSession) { r.Image = "%" }, fault.NotFound, "object-not-found", "image reference"},
		"wrong architecture":    {func(r *service.CreateSession) { r.Architecture = "aarch64" }, fault.NotFound, "object-not-found", "only for x86_64"},
		"short name":            {func(r *service.CreateSession) { r.Name = "abc" }, fault.Invalid, "invalid-api-params", "4 to 64"},
		"name with a slash":     {func(r *service.CreateSession) { r.Name = "ab/cd" }, fault.Invalid, "invalid-api-params", "not allowed"},
		"unknown slot":          {res("cuda.device", "1"), fault.Invalid, "invalid-api-params", `unknown resource slot "cuda.device"`},
		"bad amount":            {res("cpu", "many"), fault.Invalid, "invalid-api-params", "many"},
		"infinite":              {res("mem", "infinity"), fault.Invalid, "invalid-api-params", "infinity"},
		"negative":              {res("cpu", "-1"), fault.Invalid, "invalid-api-params", "-1"},
		"below the minimum":     {res("mem", "100m"), fault.Invalid, "invalid-api-params", "at least 128m"},
		"shmem as a resource":   {res("shmem", "1g"), fault.Invalid, "invalid-api-params", "shmem is not a resource slot"},
		"shmem over memory":     {func(r *service.CreateSession) { res("mem", "1g")(r); r.ResourceOpts = map[string]string{"shmem": "1g"} }, fault.Invalid, "invalid-api-params", "at least 1.06g"},
		"no cpu":                {res("cpu", "0"), fault.Invalid, "invalid-api-params", "at least 1"},
		"too many cores":        {res("cpu", "12"), fault.Invalid, "invalid-api-params", "cpu: 12 asked for, 4 too much for the largest agent a2"},
		"too much memory":       {res("mem", "9g"), fault.Invalid, "invalid-api-params", "mem: 9g asked for, 1g too much for the largest agent a1"},
		"too much of both":      {res("cpu", "9", "mem", "8g"), fault.Invalid, "invalid-api-params", "no agent could ever run"},
		"batch without command": {func(r *service.CreateSession) { r.Type = cluster.Batch; r.StartupCommand = " " }, fault.Invalid, "invalid-api-params", "startup command"},
		"type of its own":       {func(r *service.CreateSession) { r.Type = "strange" }, fault.Invalid, "invalid-api-params", "strange"},
		"start time":            {func(r *service.CreateSession) { r.StartsAt = "10m" }, fault.Invalid, "invalid-api-params", "batch"},
		"bad start time":        {func(r *service.CreateSession) { batch("true")(r); r.StartsAt = "soon" }, fault.Invalid, "invalid-api-params", "soon"},
		"priority":              {func(r *service.CreateSession) { r.Priority = &hundred }, fault.Invalid, "invalid-api-params", "101"},
		"two containers":        {func(r *service.CreateSession) { r.ClusterSize = 2 }, fault.Exhausted, "quota-exceeded", "1 containers"},
		"cluster mode":          {func(r *service.CreateSession) { r.ClusterMode = "galaxy" }, fault.Invalid, "invalid-api-params", "galaxy"},
		"dependency":            {func(r *service.CreateSession) { r.Dependencies = []string{"nobody"} }, fault.NotFound, "object-not-found", "nobody"},
		"mounts":                {func(r *service.CreateSession) { r.Mounts = []string{"data"} }, fault.NotFound, "object-not-found", "virtual folder: data"},
		"project":               {func(r *service.CreateSession) { r.Project = "elsewhere" }, fault.NotFound, "object-not-found", "elsewhere"},
		"domain":                {func(r *service.CreateSession) { r.Domain = "elsewhere" }, fault.NotFound, "object-not-found", "elsewhere"},
		"resource group":        {func(r *service.CreateSession) { r.ResourceGroup = "private" }, fault.NotFound, "object-not-found", "private"},
		"reserved port":         {func(r *service.CreateSession) { r.PreopenPorts = []int{7681} }, fault.Invalid, "invalid-api-params", "7681"},
		"port of an app":        {func(r *service.CreateSession) { r.PreopenPorts = []int{9002} }, fault.Invalid, "invalid-api-params", "web"},
		"low port":              {func(r *service.CreateSession) { r.PreopenPorts = []int{80} }, fault.Invalid, "invalid-api-params", "80"},
		"environ name":          {func(r *service.CreateSession) { r.Environ = map[string]string{"A=B": "c"} }, fault.Invalid, "invalid-api-params", "A=B"},
		"environ NUL":           {func(r *service.CreateSession) { r.Environ = map[string]string{"A": "b\x00"} }, fault.Invalid, "invalid-api-params", "A"},
		"environ size":          {func(r *service.CreateSession) { r.Environ = map[string]string{"A": strings.Repeat("x", 200_000)} }, fault.Invalid, "invalid-api-params", "bytes"},
		"callback scheme":       {func(r *service.CreateSession) { r.CallbackURL = "file:///etc/passwd" }, fault.Invalid, "invalid-api-params", "callback_url"},
		"agents":                {func(r *service.CreateSession) { r.Agents = []string{"a9"} }, fault.NotFound, "object-not-found", "a9"},
		"two agents":            {func(r *service.CreateSession) { r.Agents = []string{"a1", "a2"} }, fault.Invalid, "invalid-api-params", "exactly 1"},
		"owner":                 {func(r *service.CreateSession) { r.OwnerAccessKey = "AKIANOBODY" }, fault.Invalid, "invalid-api-params", "AKIANOBODY"},
	} {
		r := service.CreateSession{Name: "good-name", Image: "python"}
		c.change(&r)
		_, err := w.svc.CreateSession(t.Context(), w.admin, r)
		require.True(t, fault.Is(err, c.kind), "%s: %v", name, err)
		require.Equal(t, c.reason, fault.ReasonOf(err), name)
		require.Contains(t, err.Error(), c.words, name)
	}
	list, err := w.svc.ListSessions(t.Context(), w.admin, service.SessionFilter{})
	require.NoError(t, err)
	require.Zero(t, list.Total, "a refused request leaves nothing behind")

	_, err = w.svc.CreateSession(t.Context(), stranger, service.CreateSession{Name: "good-name", Image: "python", OwnerAccessKey: w.admin.AccessKey})
	require.True(t, fault.Is(err, fault.Denied), "%v", err)

	w.exec(`UPDATE keypair_resource_policies SET max_priority = 4, max_pending_session_count = 1, max_containers_per_session = 3`)
	_, err = w.svc.CreateSession(t.Context(), w.admin, service.CreateSession{Name: "good-name", Image: "python", Priority: &five})
	require.Equal(t, "quota-exceeded", fault.ReasonOf(err))
	c := w.create("good-name", func(r *service.CreateSession) { r.ClusterSize = 3; r.Environ = map[string]string{"A": "b"} })
	v := w.session(c.ID)
	require.Equal(t, 4, v.Priority)
	require.Equal(t, cluster.Whole(3), v.RequestedSlots[cluster.SlotCPU])
	require.Equal(t, []string{"main1", "sub1", "sub2"}, []string{v.Kernels[0].ClusterHostname, v.Kernels[1].ClusterHostname, v.Kernels[2].ClusterHostname})
	require.Equal(t, "sub", v.Kernels[2].ClusterRole)
	require.Equal(t, 2, v.Kernels[2].ClusterIdx)
	_, err = w.svc.CreateSession(t.Context(), w.admin, service.CreateSession{Name: "good-name-2", Image: "python"})
	require.Equal(t, "quota-exceeded", fault.ReasonOf(err))
}

func TestNamesAreReused(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.agent("a1", 64, 64*gib)
	ctx := t.Context()

	// Many at once make one session.
	var all sync.WaitGroup
	var mu sync.Mutex
	ids, created := map[cluster.SessionID]bool{}, 0
	for range 8 {
		all.Go(func() {
			out, err := w.svc.CreateSession(ctx, w.admin, service.CreateSession{Name: "shared", Image: testImage})
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

	_, err := w.svc.CreateSession(ctx, w.admin, service.CreateSession{Name: "shared", Image: "python", NoReuse: true})
	require.Equal(t, "session-already-exists", fault.ReasonOf(err))
	require.Equal(t, fault.Conflict, fault.KindOf(err))
	for id := range ids {
		var f *fault.Error
		require.ErrorAs(t, err, &f)
		require.Equal(t, map[string]any{"existingSessionId": string(id)}, f.Data)
		_, err = w.svc.DestroySession(ctx, w.admin, "shared", service.DestroyOptions{})
		require.NoError(t, err)
	}
	again := w.create("shared")
	require.True(t, again.Created)

	// Dashed, hex and upper case ids all mean the session; names find live ones only.
	for _, ref := range []string{string(again.ID), strings.ReplaceAll(string(again.ID), "-", ""), strings.ToUpper(string(again.ID)), "shared"} {
		v, err := w.svc.FindSession(ctx, w.admin, ref, "")
		require.NoError(t, err)
		require.Equal(t, again.ID, v.ID)
	}
	m, err := w.svc.MatchSessions(ctx, w.admin, "sha")
	require.NoError(t, err)
	require.Len(t, m, 1)
	m, err = w.svc.MatchSessions(ctx, w.admin, string(again.ID)[:8])
	require.NoError(t, err)
	require.Len(t, m, 1)
	m, err = w.svc.MatchSessions(ctx, w.admin, "%")
	require.NoError(t, err)
	require.Empty(t, m)
}

func TestImagesAreResolved(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.agent("a1", 4, 8*gib)
	ctx := t.Context()
	add := func(revision int64, images ...cluster.NodeImage) {
		require.NoError(t, w.nodes.UpdateFacts(ctx, "a1", w.epoch["a1"], cluster.NodeFacts{Revision: revision, Architecture: "x86_64",
			Capacity: cluster.Slots{"cpu": cluster.Whole(4), "mem": cluster.Whole(8 * gib)}, Images: images}))
	}
	img := func(ref, digest string) cluster.NodeImage {
		return cluster.NodeImage{Reference: ref, Digest: digest, Architecture: "x86_64"}
	}
	add(2, img(testImage, "sha256:1"))
	add(3, img(testImage, "sha256:1"), img("lab/tool:1", "sha256:2"), img("registry.example.org:5000/team/tool:v2", "sha256:3"))
	w.exec(`UPDATE images SET created_at = now() - interval '1 hour' WHERE reference = 'lab/tool:1'`)
	add(4, img(testImage, "sha256:1"), img("lab/tool:1", "sha256:2"), img("lab/tool:2", "sha256:4"))
	add(3) // an old revision changes nothing
	for ref, want := range map[string]string{"python": testImage, testImage: testImage, "lab/tool": "lab/tool:2", "lab/tool:1": "lab/tool:1", "berth/python": testImage} {
		i, err := w.svc.GetImage(ctx, w.admin, ref, "")
		require.NoError(t, err, ref)
		require.Equal(t, want, i.Reference)
	}
	require.NoError(t, w.svc.AliasImage(ctx, w.admin, "tool", "lab/tool:1", ""))
	i, err := w.svc.GetImage(ctx, w.admin, "tool", "x86_64")
	require.NoError(t, err)
	require.Equal(t, "lab/tool:1", i.Reference)
	require.Equal(t, []string{"tool"}, i.Aliases)
	require.Equal(t, []cluster.AgentID{"a1"}, i.Agents)
	require.Equal(t, []string{"lab", "tool", "1", "local"}, []string{i.Project, i.Name, i.Tag, i.Registry})
	list, err := w.svc.ListImages(ctx, w.admin, service.ListQuery{Filter: `registry == "registry.example.org:5000" & tag like "v%"`})
	require.NoError(t, err)
	require.Equal(t, 1, list.Total)
	require.Equal(t, "team", list.Items[0].Project)
	require.NoError(t, w.svc.DealiasImage(ctx, w.admin, "tool"))
	require.True(t, fault.Is(w.svc.DealiasImage(ctx, w.admin, "tool"), fault.NotFound))
	_, err = w.svc.ForgetImage(ctx, w.admin, "lab/tool:2", "")
	require.NoError(t, err)
	i, err = w.svc.GetImage(ctx, w.admin, "lab/tool", "")
	require.NoError(t, err)
	require.Equal(t, "lab/tool:1", i.Reference)
}

func TestListsAreFilteredOrderedAndPaged(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.agent("a1", 64, 640*gib)
	ctx := t.Context()
	for i := range 7 {
		w.create(fmt.Sprintf("list-%d", i), func(r *service.CreateSession) { p := i * 10; r.Priority = &p })
	}
	w.running("list-9", "a1")
	list := func(q service.ListQuery) (names []string, total int, err error) {
		p, err := w.svc.ListSessions(ctx, w.admin, service.SessionFilter{ListQuery: q})
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
		names, total, err := list(service.ListQuery{Filter: filter, Order: "name"})
		require.NoError(t, err, filter)
		require.Equal(t, want, strings.Join(names, " "), filter)
		require.Equal(t, len(names), total)
	}
	for _, bad := range []string{`secret == 1`, `name ==`, `name == 1`, `name "x"`, `(name == "x"`, `name == "x" extra`, `priority like "1"`, `created_at > "yesterday"`,
		`name == [1]`, `name == "x`, strings.Repeat("(", 100), strings.Repeat("!", 5000), `name like "x\`, `; drop table sessions`, `priority == 1e`, `name in "x"`, "name == \"\x00\""} {
		_, _, err := list(service.ListQuery{Filter: bad})
		require.True(t, fault.Is(err, fault.Invalid), "%s: %v", bad, err)
	}
	names, total, err := list(service.ListQuery{Order: "-priority,+name", Limit: 3, Offset: 1})
	require.NoError(t, err)
	require.Equal(t, []string{"list-5", "list-4", "list-3"}, names)
	require.Equal(t, 8, total)
	_, total, err = list(service.ListQuery{Offset: 100})
	require.NoError(t, err)
	require.Equal(t, 8, total)
	for _, q := range []service.ListQuery{{Limit: 101}, {Limit: -1}, {Offset: -1}, {Order: "secret"}, {Order: "name; drop"}} {
		_, _, err := list(q)
		require.True(t, fault.Is(err, fault.Invalid), "%+v: %v", q, err)
	}
	k, err := w.svc.ListKernels(ctx, w.admin, service.KernelsFilter{Agent: "a1"})
	require.NoError(t, err)
	require.Equal(t, 1, k.Total)
	a, err := w.svc.ListAgents(ctx, w.admin, service.AgentFilter{Status: "ALIVE", ListQuery: service.ListQuery{Order: "-occupied_slots"}})
	require.NoError(t, err)
	require.Equal(t, cluster.Whole(1), a.Items[0].Occupied[cluster.SlotCPU])
	keys, err := w.svc.ListKeypairs(ctx, w.admin, service.KeypairFilter{ListQuery: service.ListQuery{Filter: `projects contains "default"`}})
	require.NoError(t, err)
	require.Equal(t, 1, keys.Total)
	require.Equal(t, 1, keys.Items[0].ConcurrencyUsed)
	require.Equal(t, w.creds.SecretKey, keys.Items[0].SecretKey)
	users, err := w.svc.ListUsers(ctx, w.admin, service.UserFilter{ListQuery: service.ListQuery{Filter: `is_active == true & role == "superadmin"`}})
	require.NoError(t, err)
	require.Equal(t, "default", users.Items[0].Projects[0].Name)
	check, err := w.svc.CheckPresets(ctx, w.admin, "default", "")
	require.NoError(t, err)
	require.Equal(t, cluster.Whole(1), check.KeypairUsing[cluster.SlotCPU])
	require.Equal(t, cluster.Whole(63), check.ResourceGroups["default"].Remaining[cluster.SlotCPU])
	require.Len(t, check.Presets, 3)
	require.True(t, check.Presets[0].Allocatable)
}

func TestStartTimesUseTheClockOfTheDatabase(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.agent("a1", 64, 64*gib)
	now, err := w.store.SessionNow(t.Context())
	require.NoError(t, err)
	for text, want := range map[string]time.Duration{"10m": 10 * time.Minute, "1d2h": 26 * time.Hour, "90": 90 * time.Second,
		now.Add(time.Hour).UTC().Format("2006-01-02T15:04:05"): time.Hour, now.Add(time.Hour).Format(time.RFC3339): time.Hour} {
		c := w.create(fmt.Sprintf("at-%d-%d", len(text), int(want.Seconds())), batch("true"), func(r *service.CreateSession) { r.StartsAt = text })
		require.WithinDuration(t, now.Add(want), *w.session(c.ID).StartsAt, 30*time.Second, text)
	}
}
