package image_test

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/fault"
	"berth.dev/berth/internal/manager/authz"
	"berth.dev/berth/internal/manager/image"
	"berth.dev/berth/internal/manager/managertest"
	"berth.dev/berth/internal/manager/nouns"
	"berth.dev/berth/internal/manager/session/request"
	"berth.dev/berth/internal/manager/store/list"
)

// hosts answers for agents: it commits kernels, describes images and deletes them.
type hosts struct {
	mu      sync.Mutex
	serial  int
	next    string // the digest of the next commit, "" is a new one
	size    int64
	asked   []map[string]any    // bodies of commits
	removed []map[string]string // bodies of removals
	inUse   bool
	silent  map[cluster.AgentID]int // agents that do not answer, and how often they were asked
	held    chan struct{}           // commits wait for it unless it is nil
	details map[string]cluster.NodeImage
}

func (h *hosts) RoundTrip(agent cluster.AgentID, req *http.Request) (*http.Response, error) {
	h.mu.Lock()
	if _, ok := h.silent[agent]; ok {
		h.silent[agent]++
		h.mu.Unlock()
		return nil, context.DeadlineExceeded
	}
	h.mu.Unlock()
	rec := httptest.NewRecorder()
	mux := http.NewServeMux()
	mux.HandleFunc("POST /kernels/{id}/commit", func(w http.ResponseWriter, r *http.Request) {
		body := map[string]any{}
		_ = json.NewDecoder(r.Body).Decode(&body)
		h.mu.Lock()
		h.serial++
		digest, size, held := h.next, h.size, h.held
		if digest == "" {
			digest = managertest.Digest(1000 + h.serial)
		}
		h.asked = append(h.asked, body)
		h.mu.Unlock()
		if held != nil {
			<-held
		}
		// What the agent says besides is absurd and must not matter.
		_, _ = fmt.Fprintf(w, `{"image":{"reference":"berth/python:1.0","id":%q,"size_bytes":%d,"architecture":"pdp11"}}`+"\n", digest, size)
	})
	mux.HandleFunc("GET /images", func(w http.ResponseWriter, r *http.Request) {
		h.mu.Lock()
		defer h.mu.Unlock()
		d, ok := h.details[r.URL.Query().Get("reference")]
		if !ok {
			w.WriteHeader(http.StatusNotFound)
			return
		}
		_ = json.NewEncoder(w).Encode(map[string]any{
			"id": d.Digest, "architecture": d.Architecture, "size_bytes": d.SizeBytes, "labels": d.Labels})
	})
	mux.HandleFunc("POST /images/remove", func(w http.ResponseWriter, r *http.Request) {
		body := map[string]string{}
		_ = json.NewDecoder(r.Body).Decode(&body)
		h.mu.Lock()
		defer h.mu.Unlock()
		if h.inUse {
			w.WriteHeader(http.StatusConflict)
			return
		}
		h.removed = append(h.removed, body)
		w.WriteHeader(http.StatusNoContent)
	})
	mux.ServeHTTP(rec, req)
	return rec.Result(), nil
}

func (h *hosts) set(change func()) { h.mu.Lock(); defer h.mu.Unlock(); change() }

// scene is a cluster with two tenants of different domains who each run a session called work.
type scene struct {
	*managertest.World
	hosts        *hosts
	ada, mallory authz.Actor
}

// streams adds what images do not need.
type streams struct{ *hosts }

func (streams) Upgrade(context.Context, cluster.AgentID, string, http.Header) (io.ReadWriteCloser, error) {
	return nil, fault.Unavailablef("no stream")
}

func newScene(t *testing.T) *scene {
	h := &hosts{size: 10, details: map[string]cluster.NodeImage{}}
	s := &scene{World: managertest.New(t, func(d *nouns.Deps) { d.Streams = streams{h} }), hosts: h}
	s.Agent("a1", 8, 16*managertest.GiB)
	tenant := func(name string) authz.Actor {
		a := s.Stranger(name)
		project := "00000000-0000-4000-9000-" + string(a.UserID)[24:]
		s.Exec(`INSERT INTO projects (id, name, domain_name, resource_policy) VALUES ($1, 'default', $2, 'default')`, project, name)
		s.Exec(`INSERT INTO project_members VALUES ($1, $2)`, project, string(a.UserID))
		s.Exec(`INSERT INTO resource_groups_for_domains VALUES ('default', $1)`, name)
		s.Running("work", "a1", func(r *request.Session) { r.OwnerAccessKey = a.AccessKey })
		a, _, err := s.Tenancy.Authenticate(t.Context(), a.AccessKey)
		require.NoError(t, err)
		return a
	}
	s.ada, s.mallory = tenant("ada"), tenant("mallory")
	return s
}

// commit makes an image of somebody's session and waits for the end of the task.
func (s *scene) commit(a authz.Actor, tag string) (message string, err error) {
	s.T.Helper()
	id, err := s.Sessions.Commit(s.T.Context(), a, "work", "", tag)
	if err != nil {
		return "", err
	}
	managertest.Soon(s.T, "the commit is done", func() bool {
		t, err := s.Operations.Task(s.T.Context(), a, id)
		require.NoError(s.T, err)
		message = t.Message
		if t.Status == "failed" {
			message = "failed: " + message
		}
		return t.Status != "started"
	})
	return message, nil
}

func (s *scene) rows(sql string, args ...any) (n int) {
	s.T.Helper()
	require.NoError(s.T, s.Store.Pool().QueryRow(s.T.Context(), sql, args...).Scan(&n))
	return n
}

// A commit is its owner's: others cannot find it by any name, and answers about it are those about an image that does not exist.
func TestCommitsAreTheirOwners(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	ctx := t.Context()
	ref, err := s.commit(s.ada, "v1")
	require.NoError(t, err)
	require.Equal(t, "local/"+string(s.ada.UserID)+"/work:v1", ref)
	mine, err := s.Images.Get(ctx, s.ada, ref, "")
	require.NoError(t, err)
	require.Equal(t, image.ScopeUser, mine.Scope)
	require.Equal(t, s.ada.UserID, mine.Owner)
	require.Equal(t, "x86_64", mine.Architecture, "what the agent says of it does not matter")
	require.Equal(t, "1", mine.Labels["ai.backend.resource.min.cpu"], "labels are those of the image that the session runs")
	require.Equal(t, "user:"+string(s.ada.UserID), mine.Labels["ai.backend.customized-image.owner"])
	require.Equal(t, string(mine.ID), mine.Labels["ai.backend.customized-image.id"])
	require.Equal(t, "v1", mine.Labels["ai.backend.customized-image.name"])

	// An alias of before this rule, which named images of everybody.
	s.Exec(`INSERT INTO image_aliases VALUES ('adas', $1)`, string(mine.ID))
	for _, name := range []string{ref, string(mine.ID), mine.Digest, "adas", "local/" + string(s.ada.UserID) + "/work", "work", "work:v1",
		"berth/commit-work:v1"} {
		missing := name + "x"
		if _, uuid := cluster.CanonicalUUID(name); uuid {
			missing = "00000000-0000-4000-8000-00000000dead"
		}
		_, err := s.Images.Get(ctx, s.mallory, name, "")
		_, none := s.Images.Get(ctx, s.mallory, missing, "")
		sameRefusal(t, err, none, name, missing)
		_, err = s.Images.Resolve(ctx, s.mallory, name, "x86_64")
		_, none = s.Images.Resolve(ctx, s.mallory, missing, "x86_64")
		sameRefusal(t, err, none, name, missing)
		_, err = s.Images.Forget(ctx, s.mallory, name, "")
		_, none = s.Images.Forget(ctx, s.mallory, missing, "")
		sameRefusal(t, err, none, name, missing)
		_, err = s.Sessions.Create(ctx, s.mallory, request.Session{Name: "steal", Image: name})
		_, none = s.Sessions.Create(ctx, s.mallory, request.Session{Name: "steal", Image: missing})
		sameRefusal(t, err, none, name, missing)
		two := request.Session{Name: "steal", Image: name, ClusterSize: 2, ClusterMode: "multi-node"}
		_, err = s.Sessions.Create(ctx, s.mallory, two)
		require.True(t, fault.Is(err, fault.NotFound), "%s: %v", name, err)
	}
	page, err := s.Images.List(ctx, s.mallory, list.Query{})
	require.NoError(t, err)
	require.Equal(t, 1, page.Total, "not even counted")
	require.Equal(t, managertest.Image, page.Items[0].Reference)
	page, err = s.Images.List(ctx, s.mallory, list.Query{Filter: `digest == "` + mine.Digest + `"`})
	require.NoError(t, err)
	require.Zero(t, page.Total)
	for who, n := range map[*authz.Actor]int{&s.ada: 1, &s.mallory: 0} {
		page, err = s.Images.List(ctx, *who, list.Query{Filter: `alias ilike "%das%"`})
		require.NoError(t, err)
		require.Equal(t, n, page.Total, "by a part of an alias, %s", who.Email)
	}
	page, err = s.Images.Customized(ctx, s.ada, list.Query{})
	require.NoError(t, err)
	require.Equal(t, 1, page.Total)
	page, err = s.Images.Customized(ctx, s.mallory, list.Query{})
	require.NoError(t, err)
	require.Zero(t, page.Total)

	// Superadmins see it; a session of somebody else is not made of it even by them, and nobody gets an alias of it.
	_, err = s.Images.Get(ctx, s.Admin, ref, "")
	require.NoError(t, err)
	_, err = s.Sessions.Create(ctx, s.Admin, request.Session{Name: "steal", Image: ref, OwnerAccessKey: s.mallory.AccessKey})
	require.True(t, fault.Is(err, fault.Denied), "%v", err)
	err = s.Images.Alias(ctx, s.Admin, "python", ref, "")
	require.True(t, fault.Is(err, fault.Invalid), "%v", err)

	_, err = s.Sessions.Create(ctx, s.ada, request.Session{Name: "mine", Image: ref})
	require.NoError(t, err)
	_, err = s.Images.Forget(ctx, s.ada, ref, "")
	require.NoError(t, err)
	_, err = s.Images.Get(ctx, s.ada, ref, "")
	require.True(t, fault.Is(err, fault.NotFound), "%v", err)
}

func sameRefusal(t *testing.T, err, missing error, name, other string) {
	t.Helper()
	require.True(t, fault.Is(err, fault.NotFound), "%s: %v", name, err)
	require.Equal(t, fault.KindOf(missing), fault.KindOf(err), name)
	require.Equal(t, strings.ReplaceAll(missing.Error(), other, name), err.Error())
	require.Equal(t, fault.NextOf(missing), fault.NextOf(err), name)
}

// A namesake's commit is another image, and a second one of one's own replaces the first, which is then deleted where it lies.
func TestNamesakesDoNotOverwrite(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	ctx := t.Context()
	adas, err := s.commit(s.ada, "v1")
	require.NoError(t, err)
	first, err := s.Images.Get(ctx, s.ada, adas, "")
	require.NoError(t, err)
	mallorys, err := s.commit(s.mallory, "v1")
	require.NoError(t, err)
	require.NotEqual(t, adas, mallorys)
	same, err := s.Images.Get(ctx, s.ada, adas, "")
	require.NoError(t, err)
	require.Equal(t, first, same)

	again, err := s.commit(s.ada, "v1")
	require.NoError(t, err)
	require.Equal(t, adas, again)
	second, err := s.Images.Get(ctx, s.ada, adas, "")
	require.NoError(t, err)
	require.Equal(t, first.ID, second.ID)
	require.NotEqual(t, first.Digest, second.Digest)
	require.Equal(t, 1, s.rows(`SELECT count(*) FROM image_removals WHERE digest = $1`, first.Digest))

	// While it is in use it is kept, and counted; the loop tries again.
	s.hosts.set(func() { s.hosts.inUse = true })
	pass := s.removals()
	pass()
	require.Equal(t, 1, s.rows(`SELECT count(*) FROM image_removals`))
	s.hosts.set(func() { s.hosts.inUse = false })
	pass()
	require.Equal(t, 1, s.rows(`SELECT count(*) FROM image_removals`), "not before its time")
	s.Exec(`UPDATE image_removals SET next_at = now()`)
	pass()
	require.Zero(t, s.rows(`SELECT count(*) FROM image_removals`))
	require.Equal(t, []map[string]string{{"reference": adas, "id": first.Digest}}, s.hosts.removed)
}

// removals returns one pass of the loop that deletes images.
func (s *scene) removals() func() {
	loops := s.Images.Loops()
	require.Len(s.T, loops, 1)
	work := loops[0].Begin(s.Term())
	return func() {
		s.T.Helper()
		_, err := work.Pass(s.T.Context())
		require.NoError(s.T, err)
	}
}

// An agent that does not answer keeps a pass waiting once, however many images it should delete: those of others are deleted.
func TestASilentAgentIsAskedOnce(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	s.Agent("a2", 8, 16*managertest.GiB)
	s.hosts.set(func() { s.hosts.silent = map[cluster.AgentID]int{"a2": 0} })
	for i := range 20 {
		s.Exec(`INSERT INTO image_removals (agent_id, digest, reference, size_bytes, next_at)
			VALUES ('a2', $1, 'local/x/y:1', 1, now() - interval '1 hour')`,
			managertest.Digest(i))
	}
	s.Exec(`INSERT INTO image_removals (agent_id, digest, reference, size_bytes) VALUES ('a1', $1, 'local/x/z:1', 1)`, managertest.Digest(99))
	s.removals()()
	require.Equal(t, 1, s.hosts.silent["a2"])
	require.Len(t, s.hosts.removed, 1)
	require.Equal(t, 20, s.rows(`SELECT count(*) FROM image_removals`))
	require.Zero(t, s.rows(`SELECT count(*) FROM image_removals WHERE next_at <= now()`), "later again")
}

// An agent that says that a commit has the digest of another image gets nothing into the catalogue, nor does one without a digest.
func TestCommitsWithAnotherImagesDigest(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	ctx := t.Context()
	adas, err := s.commit(s.ada, "v1")
	require.NoError(t, err)
	victim, err := s.Images.Get(ctx, s.ada, adas, "")
	require.NoError(t, err)
	for _, digest := range []string{victim.Digest, managertest.Digest(1), "latest", "sha256:1", "sha256:" + victim.Digest} {
		s.hosts.set(func() { s.hosts.next = digest })
		message, err := s.commit(s.mallory, "v1")
		require.NoError(t, err)
		require.Contains(t, message, "failed: ", digest)
	}
	page, err := s.Images.Customized(ctx, s.mallory, list.Query{})
	require.NoError(t, err)
	require.Zero(t, page.Total)
}

// Commits that begin at the same moment never exceed the limit together, and one that turns out too large is not kept.
func TestCommitsAtTheSameMoment(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	ctx := t.Context()
	names := []string{"work"}
	for i := range 5 {
		name := fmt.Sprintf("more-%d", i)
		s.Running(name, "a1", func(r *request.Session) { r.OwnerAccessKey = s.ada.AccessKey })
		names = append(names, name)
	}
	held := make(chan struct{})
	s.hosts.set(func() { s.hosts.held = held })
	var all sync.WaitGroup
	var mu sync.Mutex
	began, refused := 0, 0
	for _, name := range names {
		all.Go(func() {
			_, err := s.Sessions.Commit(ctx, s.ada, name, "", "v")
			mu.Lock()
			defer mu.Unlock()
			switch {
			case err == nil:
				began++
			case fault.Is(err, fault.Exhausted):
				refused++
			default:
				t.Errorf("commit of %s: %v", name, err)
			}
		})
	}
	all.Wait()
	require.Equal(t, 3, began, "the policy allows 3")
	require.Equal(t, 3, refused)
	close(held)
	managertest.Soon(t, "all are kept", func() bool { return s.rows(`SELECT count(*) FROM images WHERE origin = 'commit'`) == 3 })
	s.hosts.set(func() { s.hosts.held = nil })

	s.Exec(`UPDATE user_resource_policies SET max_customized_image_count = 0, max_customized_image_bytes = 50`)
	s.hosts.set(func() { s.hosts.size = 21 }) // beside 30 that are there
	managertest.Soon(t, "no commit is going on", func() bool {
		return s.rows(`SELECT count(*) FROM background_tasks WHERE status = 'started'`) == 0
	})
	message, err := s.commit(s.ada, "big")
	require.NoError(t, err)
	require.Contains(t, message, "failed: ")
	require.Contains(t, message, "51 bytes")
	require.Equal(t, float64(20), s.hosts.asked[len(s.hosts.asked)-1]["max_bytes"], "the agent is told how much room there is")
	require.Equal(t, 1, s.rows(`SELECT count(*) FROM image_removals`), "what it made is deleted")
	s.hosts.set(func() { s.hosts.size = 19 })
	_, err = s.commit(s.ada, "small")
	require.True(t, fault.Is(err, fault.Exhausted), "bytes that wait to be deleted count: %v", err)
	s.removals()()
	message, err = s.commit(s.ada, "small")
	require.NoError(t, err)
	require.NotContains(t, message, "failed")
}

// What a compromised agent reports changes nothing of the catalogue and nothing for other agents.
func TestReportsChangeNothingOfTheCatalogue(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	ctx := t.Context()
	ref, err := s.commit(s.ada, "v1")
	require.NoError(t, err)
	s.Agent("evil", 8, 16*managertest.GiB)
	catalogue := func() (text string) {
		t.Helper()
		require.NoError(t, s.Store.Pool().QueryRow(ctx, `SELECT json_agg(i ORDER BY i.reference)::text FROM images i`).Scan(&text))
		return text
	}
	before := catalogue()
	absurd := map[string]string{"ai.backend.resource.min.cpu": "100000", "ai.backend.resource.min.mem": "1e"}
	require.NoError(t, s.Reports.UpdateFacts(ctx, "evil", s.Epoch("evil"), cluster.NodeFacts{
		Revision: 2, Architecture: "x86_64", EngineOK: true,
		Images: []cluster.NodeImage{
			{Reference: managertest.Image, Digest: managertest.Digest(666), Architecture: "x86_64", SizeBytes: 1 << 60, Labels: absurd},
			{Reference: ref, Digest: managertest.Digest(667), Architecture: "x86_64", Labels: absurd},
			{Reference: "evil/tool:1", Digest: managertest.Digest(668), Architecture: "x86_64", Labels: absurd},
			{Reference: "evil/tool:1", Digest: managertest.Digest(669), Architecture: "x86_64", SizeBytes: -1},
			{Reference: "berth/berth:1", Digest: "", Architecture: "x86_64"},
			{Reference: "bad\x00name", Digest: "x", Architecture: "x86_64"},
		}}))
	require.Equal(t, before, catalogue())
	python, err := s.Images.Get(ctx, s.ada, "python", "")
	require.NoError(t, err)
	require.Equal(t, []cluster.AgentID{"a1"}, python.Agents, "the agent does not offer it")
	_, err = s.Images.Get(ctx, s.Admin, "evil/tool:1", "")
	require.True(t, fault.Is(err, fault.NotFound), "%v", err)
	_, err = s.Sessions.Create(ctx, s.mallory, request.Session{Name: "tool", Image: "evil/tool:1"})
	require.True(t, fault.Is(err, fault.NotFound), "%v", err)
	c, err := s.Sessions.Create(ctx, s.ada, request.Session{Name: "still", Image: "python"})
	require.NoError(t, err)
	s.Place(c.ID, "evil")
	wants, err := s.Reports.Desired(ctx, "evil", nil)
	require.NoError(t, err)
	require.Len(t, wants, 1)
	require.Equal(t, managertest.Digest(1), wants[0].Spec.ImageDigest, "even there only the catalogue's content runs")

	unknown, err := s.Images.Unknown(ctx, s.Admin)
	require.NoError(t, err)
	var names []string
	for _, u := range unknown {
		names = append(names, string(u.Agent)+" "+u.Reference)
	}
	require.Equal(t, []string{"evil " + managertest.Image, "evil evil/tool:1", "evil " + ref}, names)
	require.Equal(t, managertest.Digest(1), unknown[0].CatalogueDigest)
	_, err = s.Images.Unknown(ctx, s.mallory)
	require.True(t, fault.Is(err, fault.Denied), "%v", err)
	found, err := s.Operations.Doctor(ctx, s.Admin)
	require.NoError(t, err)
	require.Len(t, found, 1)
	require.Equal(t, "image-differs", found[0].Kind)
	require.Contains(t, found[0].Detail, "evil")
}

// An administrator imports what an agent has, by its word about this one image; nothing of the names of commits.
func TestImport(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	ctx := t.Context()
	tool := cluster.NodeImage{Reference: "lab/tool:1", Digest: managertest.Digest(7), Architecture: "x86_64", SizeBytes: 5,
		Labels: map[string]string{"ai.backend.resource.min.cpu": "2", "ai.backend.customized-image.owner": "user:somebody"}}
	s.hosts.set(func() { s.hosts.details[tool.Reference] = tool })
	report := func(revision int64, images ...cluster.NodeImage) {
		require.NoError(t, s.Reports.UpdateFacts(ctx, "a1", s.Epoch("a1"), cluster.NodeFacts{Revision: revision, Architecture: "x86_64",
			EngineOK: true, Images: append(images, managertest.PythonImage())}))
	}
	ask := image.Import{Reference: tool.Reference, Agent: "a1"}
	_, err := s.Images.Import(ctx, s.Admin, ask)
	require.True(t, fault.Is(err, fault.NotFound), "nobody has it: %v", err)
	report(2, tool)
	_, err = s.Images.Get(ctx, s.ada, tool.Reference, "")
	require.True(t, fault.Is(err, fault.NotFound), "%v", err)
	_, err = s.Images.Import(ctx, s.ada, ask)
	require.True(t, fault.Is(err, fault.Denied), "%v", err)
	_, err = s.Images.Import(ctx, s.Admin, image.Import{Reference: tool.Reference, Agent: "a1", Digest: managertest.Digest(8)})
	require.True(t, fault.Is(err, fault.Conflict), "another content was expected: %v", err)
	got, err := s.Images.Import(ctx, s.Admin, ask)
	require.NoError(t, err)
	require.Equal(t, image.ScopeGlobal, got.Scope)
	require.Equal(t, map[string]string{"ai.backend.resource.min.cpu": "2"}, got.Labels, "it is nobody's commit")
	require.Equal(t, []cluster.AgentID{"a1"}, got.Agents)
	_, err = s.Images.Get(ctx, s.ada, tool.Reference, "")
	require.NoError(t, err)

	// For a project: other tenants do not see it any more.
	var project string
	require.NoError(t, s.Store.Pool().QueryRow(ctx, `SELECT id::text FROM projects WHERE domain_name = 'ada'`).Scan(&project))
	ask.Project = cluster.ProjectID(project)
	got, err = s.Images.Import(ctx, s.Admin, ask)
	require.NoError(t, err)
	require.Equal(t, image.ScopeProject, got.Scope)
	_, err = s.Images.Get(ctx, s.ada, tool.Reference, "")
	require.NoError(t, err)
	_, err = s.Images.Get(ctx, s.mallory, tool.Reference, "")
	require.True(t, fault.Is(err, fault.NotFound), "%v", err)
	ask.Project = "00000000-0000-4000-8000-00000000dead"
	_, err = s.Images.Import(ctx, s.Admin, ask)
	require.True(t, fault.Is(err, fault.NotFound), "%v", err)

	// The automatic import of the own engine leaves the scope alone, and what was forgotten, until the content changes.
	plain := cluster.NodeImage{Reference: tool.Reference, Digest: tool.Digest, Architecture: "x86_64"}
	require.NoError(t, s.Images.ImportOwn(ctx, []cluster.NodeImage{plain}))
	_, err = s.Images.Get(ctx, s.mallory, tool.Reference, "")
	require.True(t, fault.Is(err, fault.NotFound), "%v", err)
	_, err = s.Images.Forget(ctx, s.Admin, managertest.Image, "")
	require.NoError(t, err)
	require.NoError(t, s.Images.ImportOwn(ctx, []cluster.NodeImage{managertest.PythonImage()}))
	_, err = s.Images.Get(ctx, s.ada, "python", "")
	require.True(t, fault.Is(err, fault.NotFound), "%v", err)
	newer := managertest.PythonImage()
	newer.Digest = managertest.Digest(2)
	require.NoError(t, s.Images.ImportOwn(ctx, []cluster.NodeImage{newer}))
	_, err = s.Images.Get(ctx, s.ada, "python", "")
	require.NoError(t, err)

	// Names and contents of commits are never imported, whoever has them.
	ref, err := s.commit(s.ada, "v1")
	require.NoError(t, err)
	mine, err := s.Images.Get(ctx, s.ada, ref, "")
	require.NoError(t, err)
	stolen := []cluster.NodeImage{{Reference: ref, Digest: managertest.Digest(9), Architecture: "x86_64"},
		{Reference: "local/other:1", Digest: managertest.Digest(9), Architecture: "x86_64"},
		{Reference: "berth/commit-x:1", Digest: managertest.Digest(9), Architecture: "x86_64", Labels: mine.Labels}}
	require.NoError(t, s.Images.ImportOwn(ctx, stolen))
	report(3, stolen[0])
	s.hosts.set(func() { s.hosts.details[ref] = stolen[0] })
	_, err = s.Images.Import(ctx, s.Admin, image.Import{Reference: ref, Agent: "a1"})
	require.True(t, fault.Is(err, fault.Invalid), "%v", err)
	same, err := s.Images.Get(ctx, s.ada, ref, "")
	require.NoError(t, err)
	require.Equal(t, mine.Digest, same.Digest)
	require.Equal(t, 1, s.rows(`SELECT count(*) FROM images WHERE reference LIKE 'local/%' OR reference LIKE 'berth/commit-%'`))
}
