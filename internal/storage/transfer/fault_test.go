package transfer_test

import (
	"bufio"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/base64"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
	"pgregory.net/rapid"

	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/fault"
	"berth.dev/berth/internal/storage/transfer"
	"berth.dev/berth/internal/storage/volume"
	"berth.dev/berth/internal/testkit/await"
)

// sick says how the staged files of a volume fail.
type sick struct {
	room    atomic.Int64 // bytes that the disk still takes; negative for all
	syncs   atomic.Int64 // how many syncs fail from now on
	commits atomic.Int64 // how many commits fail from now on
	noMarks atomic.Bool  // there is no room for another staged file
}

type sickStaged struct {
	volume.Staged
	v *sick
}

func full() error {
	return fault.Exhaustedf("no space left").WithReason("volume-full").WithNext("delete files")
}

func (s sickStaged) Append(ctx context.Context, offset int64, r io.Reader, n int64) (int64, error) {
	room := s.v.room.Load()
	if room < 0 || n <= room {
		return s.Staged.Append(ctx, offset, r, n)
	}
	written, err := s.Staged.Append(ctx, offset, r, room)
	if err == nil {
		err = full()
	}
	return written, err
}

func (s sickStaged) Sync() error {
	if s.v.syncs.Add(-1) >= 0 {
		return fault.Unavailablef("write failed").WithCause(unix.EIO).WithNext("try again")
	}
	return s.Staged.Sync()
}

func (s sickStaged) Commit(p string) error {
	if s.v.commits.Add(-1) >= 0 {
		return fault.Unavailablef("rename failed").WithCause(unix.EIO).WithNext("try again")
	}
	return s.Staged.Commit(p)
}

func newSick(t testing.TB) (*rig, *sick) {
	t.Helper()
	s := &sick{}
	s.room.Store(-1)
	r := newRig(t, func(o *transfer.Options) {
		healthy := o.Volumes
		o.Volumes = func(name string) (volume.Volume, bool) {
			v, ok := healthy(name)
			return &sickView{sick: s, Volume: v}, ok
		}
	})
	return r, s
}

// sickView is sick over the volume that the rig opened.
type sickView struct {
	volume.Volume
	sick *sick
}

func (v *sickView) Stage(ctx context.Context, f cluster.FolderRef, id string, create bool) (volume.Staged, error) {
	if create && v.sick.noMarks.Load() {
		return nil, full()
	}
	st, err := v.Volume.Stage(ctx, f, id, create)
	if err != nil {
		return nil, err
	}
	return sickStaged{st, v.sick}, nil
}

func TestDiskFull(t *testing.T) {
	r, s := newSick(t)
	tok := r.uploadToken("x", 10)
	s.room.Store(4)
	a := r.patch(tok, 0, []byte("0123456789"))
	require.Equal(t, http.StatusInsufficientStorage, a.status)
	require.Contains(t, a.problem.Msg, "no space left")
	require.EqualValues(t, 4, a.offset(t))
	require.EqualValues(t, 4, r.head(tok).offset(t))
	s.room.Store(-1)
	require.Equal(t, 204, r.patch(tok, 4, []byte("456789")).status)
	require.Equal(t, "0123456789", r.read("x"))
}

// An upload that takes the last bytes of a quota is complete, although nothing else fits any more.
func TestUploadThatFillsTheDisk(t *testing.T) {
	r, s := newSick(t)
	tok := r.uploadToken("x", 4)
	s.noMarks.Store(true)
	require.Equal(t, 204, r.patch(tok, 0, []byte("0123")).status)
	require.Equal(t, "0123", r.read("x"))
}

// What could not be made durable is never acknowledged.
func TestSyncFails(t *testing.T) {
	r, s := newSick(t)
	tok := r.uploadToken("x", 10)
	require.Equal(t, 204, r.patch(tok, 0, []byte("01")).status)
	s.syncs.Store(1)
	a := r.patch(tok, 2, []byte("23456789"))
	require.Equal(t, 503, a.status)
	require.EqualValues(t, 2, r.head(tok).offset(t))
	r.missing("x")
	require.Equal(t, 204, r.patch(tok, 2, []byte("23456789")).status)
	require.Equal(t, "0123456789", r.read("x"))
}

func TestRenameFails(t *testing.T) {
	r, s := newSick(t)
	for _, sum := range []bool{false, true} {
		name := fmt.Sprint("x", sum)
		tok := r.uploadToken(name, 4)
		h := patchHeaders(0)
		if sum {
			d := sha256.Sum256([]byte("0123"))
			h["Upload-Checksum"] = "sha256 " + base64.StdEncoding.EncodeToString(d[:])
		}
		s.commits.Store(2)
		require.Equal(t, 503, r.do("PATCH", "/upload", token(tok), h, strings.NewReader("0123")).status)
		require.Equal(t, 503, r.head(tok).status, "not in place, so not complete")
		a := r.head(tok)
		require.Equal(t, 200, a.status)
		require.EqualValues(t, 4, a.offset(t))
		require.Equal(t, "0123", r.read(name))
	}
}

// A full quota keeps a complete upload out of its place; ending it gives its room back.
func TestUploadThatCannotBePlacedIsEnded(t *testing.T) {
	r, s := newSick(t)
	tok := r.uploadToken("x", 4)
	s.commits.Store(1000)
	require.Equal(t, 503, r.patch(tok, 0, []byte("0123")).status)
	require.Equal(t, 204, r.do("DELETE", "/upload", token(tok), nil, nil).status)
	s.commits.Store(0)
	require.Equal(t, 404, r.head(tok).status)
	r.missing("x")
}

// slow is a body that stops until it is told to go on.
type slow struct {
	first string
	rest  chan string
}

func (s *slow) Read(p []byte) (int, error) {
	if s.first != "" {
		n := copy(p, s.first)
		s.first = s.first[n:]
		return n, nil
	}
	more, ok := <-s.rest
	if !ok {
		return 0, io.EOF
	}
	return copy(p, more), nil
}

// begin sends the first two bytes of a file, and the rest as it is told to. A refusal is answered at once because it asks whether to go on:
// else the server waits for the rest first, for as long as a test has.
func (p *proxy) begin(tok string) (rest chan string, end chan answer) {
	body, end := &slow{first: "ab", rest: make(chan string)}, make(chan answer, 1)
	h := patchHeaders(0)
	h["Expect"] = "100-continue"
	go func() {
		a, _ := p.try("PATCH", "/upload", token(tok), h, body)
		end <- a
	}()
	return body.rest, end
}

func TestTwoWriters(t *testing.T) {
	for _, same := range []bool{true, false} {
		t.Run(fmt.Sprintf("same proxy %v", same), func(t *testing.T) {
			r := newRig(t)
			other := r.proxy
			if !same {
				other = r.open()
			}
			tok := r.uploadToken("x", 6)
			rest, first := r.begin(tok)
			// The second writer is refused as long as the first one lives.
			require.Eventually(t, func() bool {
				select {
				case a := <-first:
					if a.status == http.StatusLocked { // it came while the second one was there for a moment
						close(rest)
						rest, first = r.begin(tok)
					}
				default:
				}
				a, err := other.try("PATCH", "/upload", token(tok), patchHeaders(0), nil)
				return err == nil && a.status == http.StatusLocked && a.slug() == "upload-locked"
			}, 30*time.Second, 10*time.Millisecond)
			a := other.head(tok)
			require.Less(t, a.offset(t), int64(6), "HEAD answers beside a writer")
			rest <- "cdef"
			close(rest)
			a = await.Value(t, first)
			require.Equal(t, 204, a.status)
			require.Equal(t, "abcdef", r.read("x"))
			require.EqualValues(t, 6, other.head(tok).offset(t))
		})
	}
}

// Many that want to be the writer at once: each offset is written by one, and the file is right.
func TestManyWriters(t *testing.T) {
	patient := func(o *transfer.Options) { o.LockWait = 30 * time.Second }
	r := newRig(t, patient)
	other := r.open(patient)
	data := bytes.Repeat([]byte("0123456789abcdef"), 4<<10)
	tok := r.uploadToken("x", int64(len(data)))
	const step = 8 << 10
	var took atomic.Int64
	var wg sync.WaitGroup
	for i := range 6 {
		p := r.proxy
		if i%2 == 1 {
			p = other
		}
		wg.Go(func() {
			for at := 0; at < len(data); at += step {
				a, err := p.try("PATCH", "/upload", token(tok), patchHeaders(int64(at)), bytes.NewReader(data[at:at+step]))
				if err == nil && a.status == 204 {
					took.Add(1)
				}
			}
		})
	}
	wg.Wait()
	require.GreaterOrEqual(t, took.Load(), int64(len(data)/step))
	require.Equal(t, string(data), r.read("x"))
}

// A client whose line died comes back while the server still holds its old request.
func TestQuietWriterYields(t *testing.T) {
	r := newRig(t, func(o *transfer.Options) { o.LockWait, o.QuietWriter = 30*time.Second, time.Second })
	tok := r.uploadToken("x", 6)
	c := r.dial(patchHead(tok, 0, 6) + "ab") // the bytes are there with the head, however slow everything is
	defer c.Close()
	require.Eventually(t, func() bool { // the old request had the upload
		a := r.head(tok)
		return a.status == 200 && a.offset(t) == 2
	}, 30*time.Second, 10*time.Millisecond)
	a := r.patch(tok, 2, []byte("cdef"))
	require.Equal(t, 204, a.status, string(a.body))
	require.Equal(t, "abcdef", r.read("x"))
}

func TestBodyThatStops(t *testing.T) {
	r := newRig(t, func(o *transfer.Options) { o.IdleTimeout = 2 * time.Second })
	tok := r.uploadToken("x", 6)
	// Its first bytes come with its head, so that they are there in time. Who asks whether to go on is answered at once.
	c := r.dial(strings.Replace(patchHead(tok, 0, 6), "\r\n\r\n", "\r\nExpect: 100-continue\r\n\r\n", 1) + "ab")
	defer c.Close()
	in := bufio.NewReader(c)
	a, err := http.ReadResponse(in, nil)
	for err == nil && a.StatusCode == http.StatusContinue {
		a, err = http.ReadResponse(in, nil)
	}
	require.NoError(t, err)
	defer a.Body.Close()
	require.Equal(t, http.StatusRequestTimeout, a.StatusCode)
	require.Equal(t, "2", a.Header.Get("Upload-Offset"))
	require.Eventually(t, func() bool { a := r.head(tok); return a.status == 200 && a.offset(t) == 2 }, 30*time.Second, 10*time.Millisecond)
}

// dial opens a connection and writes text.
func (p *proxy) dial(text string) *net.TCPConn {
	p.t.Helper()
	u, err := url.Parse(p.url)
	require.NoError(p.t, err)
	c, err := net.Dial("tcp", u.Host)
	require.NoError(p.t, err)
	require.NoError(p.t, c.SetDeadline(time.Now().Add(time.Minute)))
	_, err = io.WriteString(c, text)
	require.NoError(p.t, err)
	return c.(*net.TCPConn)
}

// patchHead is the head of a request that sends a chunk.
func patchHead(tok string, offset int64, length int) string {
	return fmt.Sprintf("PATCH /upload?%s HTTP/1.1\r\nHost: x\r\nTus-Resumable: 1.0.0\r\nContent-Type: %s\r\nUpload-Offset: %d\r\n"+
		"Content-Length: %d\r\n\r\n", token(tok).Encode(), chunkMT, offset, length)
}

// cutPatch sends a chunk's headers and only the first bytes of its body, and leaves.
func (p *proxy) cutPatch(tok string, offset int64, body []byte, sent int, reset bool) {
	p.t.Helper()
	c := p.dial(patchHead(tok, offset, len(body)) + string(body[:sent]))
	if reset {
		_ = c.SetLinger(0)
	}
	_ = c.Close()
}

// However the uploads are cut, wherever they go on, and whichever proxy is asked, the file is the same.
func TestInterruptedUploadsAreIdentical(t *testing.T) {
	for name, make := range map[string]func(testing.TB, ...func(*transfer.Options)) *rig{"posix": newRig, "memory": newMemoryRig} {
		t.Run(name, func(t *testing.T) {
			interrupted(t, make(t, func(o *transfer.Options) { o.LockWait = 30 * time.Second }))
		})
	}
}

func interrupted(t *testing.T, r *rig) {
	tree, err := r.v.OpenFolder(t.Context(), folder)
	require.NoError(t, err)
	defer tree.Close()
	proxies := []*proxy{r.proxy, r.open(func(o *transfer.Options) { o.LockWait = 30 * time.Second })}
	n := 0
	rapid.Check(t, func(t *rapid.T) {
		n++
		name := fmt.Sprintf("dir/file%d", n)
		data := rapid.SliceOfN(rapid.Byte(), 1, 3000).Draw(t, "data")
		if rapid.Bool().Draw(t, "large") {
			data = bytes.Repeat(data, 100)
		}
		tok := r.uploadToken(name, int64(len(data)))
		sums := rapid.Bool().Draw(t, "sums")
		for step := 0; ; step++ {
			p := proxies[rapid.IntRange(0, 1).Draw(t, "proxy")]
			head := p.head(tok)
			if head.status == http.StatusLocked {
				continue // the last request is still being made durable
			}
			if head.status != 200 {
				t.Fatalf("HEAD: %d", head.status)
			}
			at := head.offset(r.t)
			if at == int64(len(data)) {
				break
			}
			size := rapid.IntRange(1, len(data)-int(at)).Draw(t, "chunk")
			body := data[at : int(at)+size]
			if step < 6 && rapid.Bool().Draw(t, "cut") {
				p.cutPatch(tok, at, body, rapid.IntRange(0, size).Draw(t, "sent"), rapid.Bool().Draw(t, "reset"))
				continue
			}
			h := patchHeaders(at)
			if sums {
				d := sha256.Sum256(body)
				h["Upload-Checksum"] = "sha256 " + base64.StdEncoding.EncodeToString(d[:])
			}
			a := p.do("PATCH", "/upload", token(tok), h, bytes.NewReader(body))
			if a.status != 204 && a.status != 409 { // 409: a cut request moved it between the two
				t.Fatalf("PATCH: %d %s", a.status, a.body)
			}
		}
		f, err := tree.Open(name)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		if got, err := io.ReadAll(f); err != nil || !bytes.Equal(got, data) {
			t.Fatalf("the file differs: %v, %d of %d bytes", err, len(got), len(data))
		}
	})
}

func TestTooManyTransfers(t *testing.T) {
	r := newRig(t, func(o *transfer.Options) { o.MaxPerFolder = 1 })
	one, two := r.uploadToken("one", 6), r.uploadToken("two", 6)
	rest, first := r.begin(one)
	require.Eventually(t, func() bool {
		select {
		case a := <-first:
			if a.status == http.StatusServiceUnavailable { // it came while the second one was there for a moment
				close(rest)
				rest, first = r.begin(one)
			}
		default:
		}
		a, err := r.try("PATCH", "/upload", token(two), patchHeaders(0), nil)
		return err == nil && a.status == 503 && a.slug() == "too-many-transfers" && a.header.Get("Retry-After") != ""
	}, 30*time.Second, 10*time.Millisecond)
	over, cancel := context.WithCancel(t.Context())
	cancel()
	require.ErrorIs(t, r.s.Wait(over), context.Canceled)
	rest <- "cdef"
	close(rest)
	require.Equal(t, 204, (await.Value(t, first)).status)
	require.NoError(t, r.s.Wait(t.Context()))
	require.Equal(t, 204, r.patch(two, 0, []byte("abcdef")).status)
}
