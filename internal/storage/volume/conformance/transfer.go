package conformance

import (
	"bytes"
	"context"
	"errors"
	"io"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"berth.dev/berth/internal/fault"
	"berth.dev/berth/internal/storage/volume"
)

func upload(t *testing.T, v volume.Volume) {
	ref, tr := folder(t, v)
	_, err := v.Stage(t.Context(), ref, "up1", false)
	is(t, fault.NotFound, err, "it has to be made first")
	missing := newRef(ref.Scope)
	_, err = v.Stage(t.Context(), missing, "up1", true)
	is(t, fault.NotFound, err, "no upload without a folder")

	data := noise(5<<20 + 3)
	s := stage(t, v, ref, "up1", true)
	meta, err := s.Meta()
	require.NoError(t, err)
	require.Empty(t, meta)
	require.NoError(t, s.SetMeta([]byte("about it")))
	unlock := lock(t, s)
	n, err := s.Append(t.Context(), 0, bytes.NewReader(data), 2<<20)
	require.NoError(t, err)
	require.EqualValues(t, 2<<20, n, "at most n bytes")
	require.NoError(t, s.Sync())
	unlock()
	require.NoError(t, s.Close())
	require.Empty(t, listAll(t, tr, ".", 10), "the folder shows nothing unfinished")

	s = stage(t, v, ref, "up1", false)
	meta, err = s.Meta()
	require.NoError(t, err)
	require.Equal(t, "about it", string(meta))
	size, err := s.Size()
	require.NoError(t, err)
	require.EqualValues(t, 2<<20, size)
	unlock = lock(t, s)
	_, err = s.Append(t.Context(), size+1, strings.NewReader("x"), 1)
	is(t, fault.Conflict, err, "no holes")
	_, err = s.Append(t.Context(), -1, strings.NewReader("x"), 1)
	is(t, fault.Conflict, err)

	// A client that lost an answer sends a part again: the file is cut there.
	lost := errors.New("connection lost")
	n, err = s.Append(t.Context(), 1<<20, &brokenReader{bytes.NewReader(data[1<<20 : 3<<20+5]), lost}, 1<<30)
	require.ErrorIs(t, err, lost)
	require.EqualValues(t, 2<<20+5, n, "what came before the end of the connection is kept")
	size, err = s.Size()
	require.NoError(t, err)
	require.EqualValues(t, 3<<20+5, size)
	n, err = s.Append(t.Context(), size, bytes.NewReader(data[size:]), 1<<30)
	require.NoError(t, err, "a reader may end early")
	require.EqualValues(t, int64(len(data))-size, n)
	f, err := s.Open()
	require.NoError(t, err)
	got, err := io.ReadAll(f)
	require.NoError(t, err)
	f.Close()
	require.True(t, bytes.Equal(data, got))

	write(t, tr, "deep/er/target", "old")
	require.NoError(t, s.Commit("deep/er/target"))
	unlock()
	require.True(t, read(t, tr, "deep/er/target") == string(data), "identical, and the old file is replaced")
	_, err = v.Stage(t.Context(), ref, "up1", false)
	is(t, fault.NotFound, err, "it is finished")
	require.Error(t, s.Commit("deep/er/twice"))

	s = stage(t, v, ref, "up2", true)
	lock(t, s)
	require.NoError(t, s.Commit("new/dirs/empty"))
	require.Equal(t, "", read(t, tr, "new/dirs/empty"), "an empty upload is an empty file")

	s = stage(t, v, ref, "up3", true)
	lock(t, s)
	_, err = s.Append(t.Context(), 0, strings.NewReader("x"), 1)
	require.NoError(t, err)
	require.NoError(t, s.Discard())
	require.NoError(t, s.Discard(), "what is gone is gone")
	_, err = v.Stage(t.Context(), ref, "up3", false)
	is(t, fault.NotFound, err)

	s = stage(t, v, ref, "up4", true)
	lock(t, s)
	require.NoError(t, v.TrashFolder(t.Context(), ref))
	is(t, fault.NotFound, s.Commit("late"), "the folder was deleted meanwhile")
}

func commitRefused(t *testing.T, v volume.Volume) {
	ref, tr := folder(t, v)
	write(t, tr, "dir/file", "1")
	require.NoError(t, tr.Mkdir("void", false, false))
	s := stage(t, v, ref, "u", true)
	unlock := lock(t, s)
	_, err := s.Append(t.Context(), 0, strings.NewReader("data"), 4)
	require.NoError(t, err)
	is(t, fault.Conflict, s.Commit("dir"), "not over a directory")
	is(t, fault.Conflict, s.Commit("void"), "not over an empty one")
	is(t, fault.Conflict, s.Commit("."))
	is(t, fault.Invalid, s.Commit("dir/file/x"), "not below a file")
	require.NoError(t, s.Commit("dir/file2"), "the upload is still there")
	unlock()
	require.Equal(t, "data", read(t, tr, "dir/file2"))
}

func oneWriter(t *testing.T, v volume.Volume) {
	ref, _ := folder(t, v)
	a, b := stage(t, v, ref, "u", true), stage(t, v, ref, "u", true)
	unlock := lock(t, a)
	_, err := b.Lock(soon(t))
	is(t, fault.Conflict, err)
	_, err = a.Lock(soon(t))
	is(t, fault.Conflict, err, "nor twice by one handle")
	unlock()
	unlock() // harmless
	unlock = lock(t, b)
	got := make(chan error, 1)
	go func() {
		u, err := a.Lock(t.Context())
		if err == nil {
			u()
		}
		got <- err
	}()
	unlock()
	require.NoError(t, <-got, "who waits gets it")

	lock(t, b)
	require.NoError(t, b.Close(), "the lock ends with its holder")
	unlock = lock(t, a)
	unlock()

	// A counter under the lock: every writer sees what the one before wrote.
	var wg sync.WaitGroup
	var inside atomic.Int32
	for range 4 {
		wg.Go(func() {
			s, err := v.Stage(t.Context(), ref, "u", true)
			if err != nil {
				t.Errorf("stage: %v", err)
				return
			}
			defer s.Close()
			for range 5 {
				unlock, err := s.Lock(t.Context())
				if err != nil {
					t.Errorf("lock: %v", err)
					return
				}
				if inside.Add(1) != 1 {
					t.Error("two writers")
				}
				size, _ := s.Size()
				if _, err := s.Append(t.Context(), size, strings.NewReader("x"), 1); err != nil {
					t.Errorf("append: %v", err)
				}
				inside.Add(-1)
				unlock()
			}
		})
	}
	wg.Wait()
	size, err := a.Size()
	require.NoError(t, err)
	require.EqualValues(t, 20, size)

	// One who waited for an upload that was finished meanwhile must not write into the finished file.
	c := stage(t, v, ref, "u", false)
	unlock = lock(t, a)
	go func() {
		u, err := c.Lock(t.Context())
		if err == nil {
			u()
		}
		got <- err
	}()
	require.NoError(t, a.Commit("done"))
	unlock()
	is(t, fault.NotFound, <-got)
}

func uploadsApart(t *testing.T, v volume.Volume) {
	ref, tr := folder(t, v)
	other := newRef(ref.Scope)
	require.NoError(t, v.CreateFolder(t.Context(), other, 0o755))
	s := stage(t, v, ref, "same", true)
	lock(t, s)
	_, err := s.Append(t.Context(), 0, strings.NewReader("mine"), 4)
	require.NoError(t, err)
	_, err = v.Stage(t.Context(), other, "same", false)
	is(t, fault.NotFound, err, "an upload is of one folder")
	o := stage(t, v, other, "same", true)
	lock(t, o)
	require.NoError(t, o.Commit("f"))
	require.NoError(t, s.Commit("f"))
	require.Equal(t, "mine", read(t, tr, "f"))
	require.Equal(t, "", read(t, tree(t, v, other), "f"))
}

func expire(t *testing.T, v volume.Volume) {
	ref, _ := folder(t, v)
	future := time.Now().Add(24 * time.Hour)
	open := stage(t, v, ref, "open", true)
	idle := stage(t, v, ref, "idle", true)
	require.NoError(t, idle.SetMeta([]byte("x")))
	require.NoError(t, idle.Close())
	n, err := v.ExpireStaged(t.Context(), time.Now().Add(-24*time.Hour))
	require.NoError(t, err)
	require.Zero(t, n, "young ones stay")
	n, err = v.ExpireStaged(t.Context(), future)
	require.NoError(t, err)
	require.Equal(t, 1, n, "open ones stay")
	_, err = v.Stage(t.Context(), ref, "idle", false)
	is(t, fault.NotFound, err)
	again := stage(t, v, ref, "idle", true)
	meta, err := again.Meta()
	require.NoError(t, err)
	require.Empty(t, meta, "nothing is left of it")
	require.NoError(t, again.Close())
	_, err = open.Size()
	require.NoError(t, err)
	require.NoError(t, open.Close())
	n, err = v.ExpireStaged(t.Context(), future)
	require.NoError(t, err)
	require.Equal(t, 2, n)
}

func journal(t *testing.T, v volume.Volume) {
	j := v.Tasks()
	ids, err := j.List()
	require.NoError(t, err)
	require.Empty(t, ids)
	_, err = j.Get("t1")
	is(t, fault.NotFound, err)
	require.NoError(t, j.Put("t1", []byte(`{"n":1}`)))
	require.NoError(t, j.Put("t1", []byte(`{"n":2}`)))
	require.NoError(t, j.Put("t2", nil))
	doc, err := j.Get("t1")
	require.NoError(t, err)
	require.JSONEq(t, `{"n":2}`, string(doc))
	ids, err = j.List()
	require.NoError(t, err)
	require.ElementsMatch(t, []string{"t1", "t2"}, ids)

	release, ok, err := j.Claim("t1")
	require.NoError(t, err)
	require.True(t, ok)
	_, ok, err = j.Claim("t1")
	require.NoError(t, err)
	require.False(t, ok, "one holder")
	require.NoError(t, j.Put("t1", []byte("3")), "a claim does not stop its holder")
	ids, err = j.List()
	require.NoError(t, err)
	require.Len(t, ids, 2, "claims are no journals")
	_, ok, err = j.Claim("t1")
	require.NoError(t, err)
	require.False(t, ok, "nor does writing end it")
	release()
	release2, ok, err := j.Claim("t1")
	require.NoError(t, err)
	require.True(t, ok)
	require.NoError(t, j.Delete("t1"))
	require.NoError(t, j.Delete("t1"), "what is gone is gone")
	release2()
	_, err = j.Get("t1")
	is(t, fault.NotFound, err)

	var holders, wins atomic.Int32
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for range 50 {
				release, ok, err := j.Claim("t2")
				if err != nil {
					t.Errorf("claim: %v", err)
				}
				if !ok {
					continue
				}
				if holders.Add(1) != 1 {
					t.Error("two holders")
				}
				wins.Add(1)
				holders.Add(-1)
				release()
			}
		})
	}
	wg.Wait()
	require.Positive(t, wins.Load())
}

// ended is a context whose deadline has passed.
func ended(t *testing.T) context.Context {
	ctx, cancel := context.WithDeadline(t.Context(), time.Now().Add(-time.Second))
	t.Cleanup(cancel)
	return ctx
}
