package storage

import (
	"context"
	"encoding/json"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"berth.dev/berth/internal/chassis"
	"berth.dev/berth/internal/embedded"
	"berth.dev/berth/internal/fault"
	"berth.dev/berth/internal/wire/storage"
)

const secret = "a secret that nobody knows"

// still is a clock that shows the same time as long as a test runs.
type still struct {
	chassis.Clock
	now time.Time
}

func (s still) Now() time.Time { return s.now }

func newLink(t *testing.T, nodes ...string) *Link {
	t.Helper()
	l := New(Config{Prefix: "/x", Secret: chassis.NewSecret(secret)}, Deps{Clock: still{chassis.RealClock(), time.Now()},
		Log: slog.New(slog.NewTextHandler(t.Output(), nil))})
	for i, u := range nodes {
		p := storage.Presence{Proxy: "p", Node: string(rune('a' + i)), ManagerURL: u, ClientURL: "http://clients-" + string(rune('a'+i))}
		l.take("p/"+p.Node, p)
	}
	return l
}

func serve(t *testing.T, f http.HandlerFunc) *httptest.Server {
	t.Helper()
	s := httptest.NewServer(f)
	t.Cleanup(s.Close)
	return s
}

func fail(w http.ResponseWriter, status int, p storage.Problem) {
	w.Header().Set("Content-Type", "application/problem+json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(p)
}

func TestDoShowsTheKeyAndDecodes(t *testing.T) {
	t.Parallel()
	s := serve(t, func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get(storage.Auth) != storage.Key(secret, "p", storage.ManagerKey) {
			fail(w, 401, storage.Problem{Kind: "unauthenticated", Msg: "no"})
			return
		}
		var q storage.FolderRequest
		require.NoError(t, json.NewDecoder(r.Body).Decode(&q))
		_ = json.NewEncoder(w).Encode(storage.MountReply{Path: r.Method + " " + r.URL.Path + " " + q.VFID})
	})
	l := newLink(t, s.URL+"/")
	var reply storage.MountReply
	require.NoError(t, l.Do(t.Context(), "p", "GET", storage.PathFolderMount, storage.FolderRequest{VFID: "v"}, &reply))
	require.Equal(t, "GET /folder/mount v", reply.Path)
	require.NoError(t, l.Do(t.Context(), "p", "GET", storage.PathFolderMount, storage.FolderRequest{VFID: "v"}, nil))
	require.True(t, fault.Is(l.Do(t.Context(), "q", "GET", storage.PathFolderMount, nil, nil), fault.Unavailable))

	l.cfg.Secret = chassis.NewSecret("another")
	err := l.Do(t.Context(), "p", "GET", storage.PathFolderMount, storage.FolderRequest{}, nil)
	require.Equal(t, fault.Unavailable, fault.KindOf(err), "the user is not the one who is unknown: %v", err)
}

func TestProblemsKeepKindAndWords(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		answer func(w http.ResponseWriter)
		kind   fault.Kind
		words  string
	}{
		{func(w http.ResponseWriter) {
			fail(w, 507, storage.Problem{Kind: "exhausted", Msg: "the scope is full", Reason: "quota-exceeded", Next: "delete"})
		}, fault.Exhausted, "the scope is full"},
		{func(w http.ResponseWriter) { fail(w, 404, storage.Problem{Kind: "not-found", Msg: "no such file"}) }, fault.NotFound, "no such file"},
		{func(w http.ResponseWriter) {
			fail(w, 404, storage.Problem{Kind: "not-found", Reason: "url-not-found", Msg: "no such path"})
		}, fault.Unavailable, "no such path"},
		{func(w http.ResponseWriter) { w.WriteHeader(404) }, fault.Unavailable, "answered 404"},
		{func(w http.ResponseWriter) { w.WriteHeader(500); _, _ = io.WriteString(w, strings.Repeat("x", 1<<20)) }, fault.Internal,
			"answered 500"},
		{func(w http.ResponseWriter) {
			w.Header().Set("Location", "http://169.254.169.254/")
			w.WriteHeader(302)
		}, fault.Internal, "answered 302"},
		{func(w http.ResponseWriter) { _, _ = io.WriteString(w, "{") }, fault.Unavailable, "does not answer"},
	} {
		s := serve(t, func(w http.ResponseWriter, _ *http.Request) { c.answer(w) })
		err := newLink(t, s.URL).Do(t.Context(), "p", "POST", storage.PathMove, storage.MoveRequest{}, &storage.MountReply{})
		require.Equal(t, c.kind, fault.KindOf(err), "%v", err)
		require.ErrorContains(t, err, c.words)
	}
	s := serve(t, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(422)
		_, _ = io.WriteString(w, `{"failed":[{"item":"a","msg":"b"}]}`)
	})
	var r storage.ResultsReply
	require.NoError(t, newLink(t, s.URL).Do(t.Context(), "p", "POST", storage.PathMkdir, storage.MkdirRequest{}, &r))
	require.Len(t, r.Failed, 1)
}

func TestLongAnswersAreCut(t *testing.T) {
	t.Parallel()
	s := serve(t, func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, `"`)
		chunk := strings.Repeat("x", 1<<20)
		for range 40 {
			if _, err := io.WriteString(w, chunk); err != nil {
				return
			}
		}
	})
	var text string
	require.Error(t, newLink(t, s.URL).Do(t.Context(), "p", "POST", storage.PathMove, nil, &text))
}

func TestAnotherNodeIsAskedWhenThatDoesNoHarm(t *testing.T) {
	t.Parallel()
	var broken, fine atomic.Int32
	bad := serve(t, func(w http.ResponseWriter, _ *http.Request) {
		broken.Add(1)
		fail(w, 503, storage.Problem{Kind: "unavailable", Msg: "the disk hangs"})
	})
	good := serve(t, func(w http.ResponseWriter, _ *http.Request) { fine.Add(1); w.WriteHeader(204) })
	l := newLink(t, bad.URL, good.URL)
	// Whichever comes first: a request that may be repeated always succeeds.
	for range 4 {
		require.NoError(t, l.Do(t.Context(), "p", "POST", storage.PathFolderCreate, storage.FolderRequest{}, nil))
	}
	require.EqualValues(t, 4, fine.Load())
	require.EqualValues(t, 1, broken.Load(), "a node that failed just now is asked last")

	// One that may not is never sent twice when it may have been acted on.
	broken.Store(0)
	fine.Store(0)
	l = newLink(t, bad.URL)
	l.take("p/b", storage.Presence{Proxy: "p", Node: "b", ManagerURL: bad.URL})
	err := l.Do(t.Context(), "p", "POST", storage.PathMove, storage.MoveRequest{}, nil)
	require.ErrorContains(t, err, "the disk hangs")
	require.EqualValues(t, 1, broken.Load())

	// A node that nobody answers for was not reached.
	const dead = "http://127.0.0.1:1" // a port that no program here has
	l = newLink(t, dead, good.URL)
	for range 4 {
		require.NoError(t, l.Do(t.Context(), "p", "POST", storage.PathMove, storage.MoveRequest{}, nil))
	}
	url, err := l.ClientURL("p")
	require.NoError(t, err)
	require.Equal(t, "http://clients-b", url, "clients go where somebody answers")
}

func TestACallerWhoLeavesIsNoFailureOfTheNode(t *testing.T) {
	t.Parallel()
	began := make(chan struct{})
	var once sync.Once
	s := serve(t, func(_ http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		once.Do(func() { close(began) })
		<-r.Context().Done()
	})
	l := newLink(t, s.URL)
	ctx, cancel := context.WithCancel(t.Context())
	go func() { <-began; cancel() }()
	require.Error(t, l.Do(ctx, "p", "POST", storage.PathList, storage.ListRequest{}, nil))
	require.Empty(t, l.failed)
}

func TestAnnouncements(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "etcd")
	require.NoError(t, os.MkdirAll(filepath.Join(dir, "run"), 0o700))
	etcd := embedded.NewEtcd(dir, slog.New(slog.DiscardHandler))
	require.NoError(t, etcd.Service().Start(t.Context()))
	stop := sync.OnceFunc(func() { _ = etcd.Service().Stop(context.Background()) })
	t.Cleanup(stop)
	client := etcd.Client()
	put := func(p storage.Presence) {
		raw, err := json.Marshal(p)
		require.NoError(t, err)
		_, err = client.Put(t.Context(), storage.PresencePath("/x", p.Proxy, p.Node), string(raw))
		require.NoError(t, err)
	}
	node := func(proxy, name string) storage.Presence {
		return storage.Presence{Proxy: proxy, Node: name, ManagerURL: "http://127.0.0.1:1", ClientURL: "http://" + name,
			Volumes: []storage.Volume{{Name: "v"}}}
	}
	put(node("p", "a"))
	_, err := client.Put(t.Context(), "/x/storage/p/evil", `{"proxy":"q","node":"n","manager_url":"http://h","client_url":"http://h"}`)
	require.NoError(t, err)
	_, err = client.Put(t.Context(), "/x/storage/p/junk", `{`)
	require.NoError(t, err)

	l := New(Config{Prefix: "/x", Secret: chassis.NewSecret(secret)}, Deps{Etcd: client, Log: slog.New(slog.DiscardHandler)})
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { defer close(done); _ = l.Run(ctx) }()
	t.Cleanup(func() { cancel(); <-done })
	view := func() string {
		live, gone := l.View()
		var words []string
		for _, p := range live {
			words = append(words, p.Proxy+"/"+p.Node)
		}
		for _, p := range gone {
			words = append(words, "("+p.Proxy+"/"+p.Node+")")
		}
		return strings.Join(words, " ")
	}
	wait := func(want string) {
		t.Helper()
		require.Eventually(t, func() bool { return view() == want }, time.Minute, 5*time.Millisecond, "want %q, have %q", want, view())
	}
	<-l.Heard()
	wait("p/a")
	put(node("p", "b"))
	put(node("q", "c"))
	wait("p/a p/b q/c")
	_, err = client.Delete(t.Context(), storage.PresencePath("/x", "p", "a"))
	require.NoError(t, err)
	wait("p/b q/c")
	_, err = client.Delete(t.Context(), storage.PresencePath("/x", "q", "c"))
	require.NoError(t, err)
	wait("p/b (q/c)")
	_, err = l.ClientURL("q")
	require.True(t, fault.Is(err, fault.Unavailable))
	put(node("q", "c"))
	wait("p/b q/c")
	// While etcd is away everything stays as it was.
	stop()
	require.Equal(t, "p/b q/c", view())
	url, err := l.ClientURL("q")
	require.NoError(t, err)
	require.Equal(t, "http://c", url)
}

// Whoever may write to etcd is not believed to be a proxy whose key it does not have: managers show that key to the address that is
// announced.
func TestAnnouncementsMustBeProven(t *testing.T) {
	t.Parallel()
	l := newLink(t)
	heard := func(p storage.Presence) bool {
		raw, err := json.Marshal(p)
		require.NoError(t, err)
		_, ok := l.read(p.Proxy+"/"+p.Node, raw)
		return ok
	}
	keys := func(name string) string { return storage.Key(secret, name, storage.AnnounceKey) }
	p := storage.Presence{Proxy: "b", Node: "n1", Protocol: storage.Version, ManagerURL: "http://b:1", ClientURL: "http://b:2"}
	evil := p
	evil.ManagerURL = "http://evil:1"
	require.False(t, heard(evil), "no proof")
	evil.Proof = storage.Prove(keys("a"), evil)
	require.False(t, heard(evil), "the key of another proxy")
	old := p
	old.Protocol = 2
	require.True(t, heard(old), "a node of the release before")
	p.Proof = storage.Prove(keys("b"), p)
	require.True(t, heard(p))
	evil.Protocol, evil.Proof = 2, ""
	require.False(t, heard(evil), "it says that it is older than the proxy is known to be")
	other := old
	other.Proxy = "c"
	require.True(t, heard(other))
}
