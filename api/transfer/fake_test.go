package transfer_test

import (
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"path"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"berth.dev/berth/api"
	"berth.dev/berth/api/transfer"
	"berth.dev/berth/internal/testkit/address"
)

// stored is a file of the fake.
type stored struct {
	body []byte
	at   time.Time
}

// session is an unfinished or finished upload.
type session struct {
	path string
	size int64
	body []byte
	done bool
}

// trouble is what happens to one request to the storage proxy.
type trouble struct {
	// cut ends the connection after that many bytes of the body, when it is not negative.
	cut int64
	// status answers instead, when it is not 0.
	status int
	// hold stops sending after cut bytes and waits for the client to leave, instead of ending the connection.
	hold bool
	// lose does the work and ends the connection instead of answering.
	lose bool
	// expire makes the token invalid before the request.
	expire bool
}

var fine = trouble{cut: -1}

// fakeStore is a manager and a storage proxy with one folder, data, from memory.
type fakeStore struct {
	*httptest.Server
	mu       sync.Mutex
	now      time.Time
	files    map[string]stored
	dirs     map[string]bool
	links    map[string]bool
	sessions map[string]*session
	reads    map[string]string // token -> path
	troubles []trouble
	requests []string
	// page cuts listings; 0 = never.
	page int
	etag bool
	// taken are paths at which no directory can be made.
	taken map[string]bool
	// away answers everything that the storage proxy is asked through the manager.
	away int
	// evil names are listed in every directory.
	evil []api.FolderEntry
	// busy counts requests to the proxy at one time, most the highest.
	busy, most int
	// meet makes that many uploads wait for each other.
	meet int
	here chan struct{}
}

func newStore(t *testing.T) (*fakeStore, *api.Client) {
	t.Helper()
	s := &fakeStore{
		now: time.Now().UTC().Truncate(time.Second).Add(time.Hour + 500*time.Millisecond), etag: true,
		files: map[string]stored{}, dirs: map[string]bool{".": true}, links: map[string]bool{},
		sessions: map[string]*session{}, reads: map[string]string{},
	}
	mux := http.NewServeMux()
	handle := func(pattern string, h http.HandlerFunc) {
		mux.HandleFunc(pattern, func(w http.ResponseWriter, r *http.Request) {
			s.mu.Lock()
			defer s.mu.Unlock()
			s.requests = append(s.requests, r.Method+" "+r.URL.Path)
			if r.PathValue("v") != "" && r.PathValue("v") != "data" {
				refuse(w, 404, "object-not-found", "there is no such folder")
				return
			}
			if s.away != 0 {
				refuse(w, s.away, "service-unavailable", "the storage proxy does not answer")
				return
			}
			h(w, r)
		})
	}
	handle("POST /folders/{v}/request-upload", s.requestUpload)
	handle("POST /folders/{v}/request-download", s.requestDownload)
	handle("POST /folders/{v}/mkdir", s.mkdir)
	handle("GET /folders/{v}/files", s.list)
	mux.HandleFunc("/upload", s.trouble(s.upload))
	mux.HandleFunc("/download", s.trouble(s.download))
	s.Server = address.Serve(t, mux)
	c, err := api.New(
		api.Config{
			Endpoint: s.URL, AccessKey: "AKIAFAKEFAKEFAKEFAKE", SecretKey: "fake-secret-0123456789abcdefghijklmnopqr", Domain: "default",
			Group: "default",
		},
	)
	require.NoError(t, err)
	t.Cleanup(c.Close)
	return s, c
}

func refuse(w http.ResponseWriter, status int, slug, msg string) {
	w.Header().Set("Content-Type", "application/problem+json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(api.Problem{Type: api.ProblemPrefix + "storage/" + slug, Title: "It failed", Msg: msg})
}

func answer(w http.ResponseWriter, status int, v any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(v)
}

// count tells how many requests began with text.
func (s *fakeStore) count(text string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := 0
	for _, r := range s.requests {
		if strings.HasPrefix(r, text) {
			n++
		}
	}
	return n
}

func (s *fakeStore) put(name string, body []byte) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.write(name, body)
}

// holdNext makes the next request to the proxy send that many bytes of a file and then wait for the client to leave: a
// download that the test means to interrupt cannot end before.
func (s *fakeStore) holdNext(after int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.troubles = append(s.troubles, trouble{cut: after, hold: true})
}

// write stores a file with its directories; the caller holds mu.
func (s *fakeStore) write(name string, body []byte) {
	s.files[name] = stored{body, s.now}
	for dir := path.Dir(name); !s.dirs[dir]; dir = path.Dir(dir) {
		s.dirs[dir] = true
	}
}

func (s *fakeStore) content(name string) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return string(s.files[name].body)
}

func (s *fakeStore) requestUpload(w http.ResponseWriter, r *http.Request) {
	var q struct {
		Path string
		Size int64
	}
	_ = json.NewDecoder(r.Body).Decode(&q)
	if q.Size == 0 {
		s.write(q.Path, nil)
	}
	token := fmt.Sprintf("up-%d", len(s.sessions)+1)
	s.sessions[token] = &session{path: q.Path, size: q.Size}
	answer(w, 200, api.Ticket{Token: token, URL: s.URL + "/upload"})
}

func (s *fakeStore) requestDownload(w http.ResponseWriter, r *http.Request) {
	var q struct{ Path string }
	_ = json.NewDecoder(r.Body).Decode(&q)
	if _, ok := s.files[q.Path]; !ok && !s.dirs[q.Path] {
		refuse(w, 404, "file-not-found", "there is no "+q.Path)
		return
	}
	token := fmt.Sprintf("down-%d", len(s.reads)+1)
	s.reads[token] = q.Path
	answer(w, 200, api.Ticket{Token: token, URL: s.URL + "/download"})
}

func (s *fakeStore) mkdir(w http.ResponseWriter, r *http.Request) {
	var q struct{ Path []string }
	_ = json.NewDecoder(r.Body).Decode(&q)
	failed := []map[string]string{}
	for _, p := range q.Path {
		if s.taken[p] {
			failed = append(failed, map[string]string{"item": p, "msg": "there is a file of that name"})
			continue
		}
		for ; !s.dirs[p]; p = path.Dir(p) {
			s.dirs[p] = true
		}
	}
	switch {
	case len(failed) == len(q.Path):
		refuse(w, 400, "vfolder-operation-failed", failed[0]["msg"])
	case len(failed) > 0:
		answer(w, 207, map[string]any{"results": map[string]any{"success": []any{}, "failed": failed}})
	default:
		answer(w, 200, map[string]any{"results": map[string]any{"success": []any{}, "failed": []any{}}})
	}
}

func (s *fakeStore) list(w http.ResponseWriter, r *http.Request) {
	dir, after := path.Clean(r.URL.Query().Get("path")), r.URL.Query().Get("after")
	if !s.dirs[dir] {
		refuse(w, 404, "file-not-found", "there is no directory "+dir)
		return
	}
	items := slices.Clone(s.evil)
	at := func(t time.Time) string { return t.UTC().Format("2006-01-02T15:04:05.000000+00:00") }
	for name, f := range s.files {
		if path.Dir(name) == dir {
			items = append(
				items,
				api.FolderEntry{Name: path.Base(name), Type: api.EntryFile, Size: int64(len(f.body)), Mode: "755", Modified: at(f.at)},
			)
		}
	}
	for name := range s.dirs {
		if name != "." && path.Dir(name) == dir {
			items = append(items, api.FolderEntry{Name: path.Base(name), Type: api.EntryDirectory, Mode: "755", Modified: at(s.now)})
		}
	}
	for name := range s.links {
		if path.Dir(name) == dir {
			items = append(items, api.FolderEntry{Name: path.Base(name), Type: api.EntrySymlink, Modified: at(s.now)})
		}
	}
	slices.SortFunc(items, func(a, b api.FolderEntry) int { return strings.Compare(a.Name, b.Name) })
	if after != "" {
		items = slices.DeleteFunc(items, func(e api.FolderEntry) bool { return e.Name <= after })
	}
	page := api.FolderPage{Items: items}
	if s.page > 0 && len(items) > s.page {
		page.Items, page.Next, page.Truncated = items[:s.page], items[s.page-1].Name, true
	}
	answer(w, 200, page)
}

// trouble wraps a route of the proxy: it authorizes by the token and lets happen what the test wants.
func (s *fakeStore) trouble(h func(w http.ResponseWriter, r *http.Request, t trouble, token string)) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Authorization") != "" {
			refuse(w, 500, "leak", "the keypair was shown to the storage proxy")
			return
		}
		token := r.URL.Query().Get("token")
		s.mu.Lock()
		s.requests = append(s.requests, r.Method+" "+r.URL.Path+" "+r.Header.Get("Range"))
		s.now = s.now.Add(10 * time.Millisecond)
		t := fine
		if len(s.troubles) > 0 {
			t, s.troubles = s.troubles[0], s.troubles[1:]
		}
		if t.expire {
			delete(s.sessions, token)
			delete(s.reads, token)
		}
		s.busy++
		s.most = max(s.most, s.busy)
		if s.busy == s.meet && s.here != nil {
			close(s.here)
			s.here = nil
		}
		here := s.here
		known := s.sessions[token] != nil || s.reads[token] != ""
		w.Header().Set("Date", s.now.UTC().Format(http.TimeFormat))
		s.mu.Unlock()
		defer func() {
			s.mu.Lock()
			s.busy--
			s.mu.Unlock()
		}()
		if here != nil && s.meet > 0 {
			select {
			case <-here:
			case <-r.Context().Done(): // the test gave up
			}
		}
		switch {
		case !known:
			refuse(w, 400, "invalid-api-params", "the token has expired")
		case t.status != 0:
			slug := map[int]string{409: "upload-offset-mismatch", 423: "upload-locked", 507: "quota-exceeded", 460: "checksum-mismatch"}[t.status]
			refuse(w, t.status, slug, "trouble on purpose")
		default:
			h(w, r, t, token)
		}
	}
}

func hangUp() { panic(http.ErrAbortHandler) }

func (s *fakeStore) upload(w http.ResponseWriter, r *http.Request, t trouble, token string) {
	var body io.Reader = r.Body
	if t.cut >= 0 {
		body = io.LimitReader(r.Body, t.cut)
	}
	b, err := io.ReadAll(body)
	s.mu.Lock()
	defer s.mu.Unlock()
	u := s.sessions[token]
	w.Header().Set("Tus-Resumable", "1.0.0")
	if r.Method == http.MethodHead {
		w.Header().Set("Upload-Offset", strconv.Itoa(len(u.body)))
		w.Header().Set("Upload-Length", strconv.FormatInt(u.size, 10))
		return
	}
	if r.Method == http.MethodDelete {
		delete(s.sessions, token)
		w.WriteHeader(http.StatusNoContent)
		return
	}
	if r.Header.Get("Upload-Offset") != strconv.Itoa(len(u.body)) {
		refuse(w, 409, "upload-offset-mismatch", "the upload is elsewhere")
		return
	}
	if sum := r.Header.Get("Upload-Checksum"); sum != "" && t.cut < 0 && err == nil {
		want := sha256.Sum256(b)
		if sum != "sha256 "+base64.StdEncoding.EncodeToString(want[:]) {
			refuse(w, 460, "checksum-mismatch", "the chunk is not what was sent")
			return
		}
	}
	u.body = append(u.body, b...)
	if int64(len(u.body)) > u.size {
		refuse(w, 413, "upload-too-large", "more bytes than declared")
		return
	}
	if int64(len(u.body)) == u.size && !u.done {
		u.done = true
		s.write(u.path, u.body)
	}
	if t.cut >= 0 || t.lose {
		hangUp()
	}
	w.Header().Set("Upload-Offset", strconv.Itoa(len(u.body)))
	w.WriteHeader(http.StatusNoContent)
}

// ranged cuts the connection after some bytes.
type ranged struct {
	http.ResponseWriter
	left int64
	// gone, when it is set, ends when the client left; the connection is not cut before.
	gone <-chan struct{}
}

func (c *ranged) Write(p []byte) (int, error) {
	if int64(len(p)) > c.left {
		_, _ = c.ResponseWriter.Write(p[:c.left])
		_ = http.NewResponseController(c.ResponseWriter).Flush()
		if c.gone != nil {
			<-c.gone
		}
		hangUp()
	}
	c.left -= int64(len(p))
	return c.ResponseWriter.Write(p)
}

func (s *fakeStore) download(w http.ResponseWriter, r *http.Request, t trouble, token string) {
	s.mu.Lock()
	name := s.reads[token]
	f, ok := s.files[name]
	etag := s.etag
	s.mu.Unlock()
	if !ok {
		refuse(w, 400, "invalid-api-params", "it is a directory")
		return
	}
	if etag {
		w.Header().Set("ETag", fmt.Sprintf(`"%x-%x"`, f.at.UnixNano(), sha256.Sum256(f.body)))
	}
	if t.cut >= 0 {
		cut := &ranged{ResponseWriter: w, left: t.cut}
		if t.hold {
			cut.gone = r.Context().Done()
		}
		w = cut
	}
	if t.lose {
		hangUp()
	}
	http.ServeContent(w, r, "", f.at, strings.NewReader(string(f.body)))
}

// at once: pauses of tests take no time, but the clock goes on.
func (s *fakeStore) options() transfer.Options {
	return transfer.Options{Chunk: 100, Pause: func(ctx context.Context, d time.Duration) error {
		s.mu.Lock()
		s.now = s.now.Add(d)
		s.mu.Unlock()
		return ctx.Err()
	}}
}
