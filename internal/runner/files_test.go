package runner_test

import (
	"archive/tar"
	"bytes"
	"io"
	"mime/multipart"
	"net/textproto"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"berth.dev/berth/internal/fault"
	"berth.dev/berth/internal/wire/run"
)

// tarOf makes a tar stream of name, text pairs.
func tarOf(t *testing.T, pairs ...string) io.Reader {
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for i := 0; i < len(pairs); i += 2 {
		require.NoError(t, w.WriteHeader(&tar.Header{Name: pairs[i], Mode: 0o644, Size: int64(len(pairs[i+1])), Typeflag: tar.TypeReg}))
		_, err := io.WriteString(w, pairs[i+1])
		require.NoError(t, err)
	}
	require.NoError(t, w.Close())
	return &b
}

func untar(t *testing.T, r io.ReadCloser) map[string]string {
	defer r.Close()
	out := map[string]string{}
	for tr := tar.NewReader(r); ; {
		h, err := tr.Next()
		if err == io.EOF {
			return out
		}
		require.NoError(t, err)
		b, err := io.ReadAll(tr)
		require.NoError(t, err)
		out[h.Name] = string(b) + h.Linkname
	}
}

func TestFiles(t *testing.T) {
	t.Parallel()
	b := start(t, config(t))
	home := b.cfg.User.Home
	res, err := b.c.Upload(ctx(t), run.ContentTar,
		tarOf(t, "a.txt", "alpha", "dir/sub/b.txt", "beta", filepath.Join(home, "abs.txt"), "gamma"))
	require.NoError(t, err)
	require.Equal(t, run.UploadResult{Files: 3, Bytes: 14}, res)
	fi, err := os.Stat(filepath.Join(home, "dir/sub/b.txt"))
	require.NoError(t, err)
	require.EqualValues(t, b.cfg.User.UID, fi.Sys().(*syscall.Stat_t).Uid, "what is uploaded belongs to the session's user")
	require.EqualValues(t, b.cfg.User.GID, fi.Sys().(*syscall.Stat_t).Gid)

	var body bytes.Buffer
	mw := multipart.NewWriter(&body)
	p, err := mw.CreatePart(textproto.MIMEHeader{"Content-Disposition": {`form-data; name="src"; filename="form/c.txt"`},
		"Content-Type": {"application/octet-stream"}})
	require.NoError(t, err)
	_, _ = io.WriteString(p, "delta")
	require.NoError(t, mw.Close())
	_, err = b.c.Upload(ctx(t), mw.FormDataContentType(), &body)
	require.NoError(t, err)

	list, err := b.c.Files(ctx(t), ".")
	require.NoError(t, err)
	require.Equal(t, home, list.Abspath)
	var names []string
	for _, e := range list.Entries {
		names = append(names, e.Filename)
	}
	require.Equal(t, []string{"a.txt", "abs.txt", "dir", "form", "id_container"}, names)
	require.Equal(t, "-rw-r--r--", list.Entries[0].Mode)
	require.EqualValues(t, 5, list.Entries[0].Size)
	require.Equal(t, byte('d'), list.Entries[2].Mode[0])
	require.Positive(t, list.Entries[0].Mtime)
	list, err = b.c.Files(ctx(t), "a.txt")
	require.NoError(t, err)
	require.Len(t, list.Entries, 1)

	r, err := b.c.Download(ctx(t), "a.txt", "dir", "form/c.txt")
	require.NoError(t, err)
	require.Equal(t, map[string]string{"a.txt": "alpha", "dir/": "", "dir/sub/": "", "dir/sub/b.txt": "beta", "c.txt": "delta"}, untar(t, r))
	r, err = b.c.Download(ctx(t), ".")
	require.NoError(t, err)
	require.Equal(t, "beta", untar(t, r)["home/dir/sub/b.txt"])
}

func TestFilesStayInside(t *testing.T) {
	t.Parallel()
	cfg := config(t)
	cfg.Limits.MaxUpload, cfg.Limits.MaxFiles = 1000, 5
	b := start(t, cfg)
	home := b.cfg.User.Home
	secret := filepath.Join(cfg.Dir, "secret.txt")
	require.NoError(t, os.WriteFile(secret, []byte("secret"), 0o666))
	require.NoError(t, os.Symlink("../secret.txt", filepath.Join(home, "link")))
	require.NoError(t, os.Symlink("/etc", filepath.Join(home, "etc")))
	require.NoError(t, os.Symlink(".", filepath.Join(home, "here")))
	require.NoError(t, syscall.Mkfifo(filepath.Join(home, "fifo"), 0o666))

	for _, p := range []string{"..", "../secret.txt", "/etc/passwd", "a/../../secret.txt", "link", "etc", "etc/passwd", "x\x00y"} {
		_, err := b.c.Files(ctx(t), p)
		require.Error(t, err, p)
		require.Equal(t, fault.Invalid, fault.KindOf(err), "%q: %v", p, err)
		_, err = b.c.Download(ctx(t), p)
		require.Error(t, err, p)
		require.Equal(t, fault.Invalid, fault.KindOf(err), "%q: %v", p, err)
	}
	for _, p := range []string{"../evil", "/etc/evil", "a/../../evil", "etc/evil", ".", "dir/.."} {
		_, err := b.c.Upload(ctx(t), run.ContentTar, tarOf(t, p, "x"))
		require.Error(t, err, p)
	}
	// Replacing a link replaces the link, not what it points to.
	_, err := b.c.Upload(ctx(t), run.ContentTar, tarOf(t, "link", "mine", "here/in.txt", "in"))
	require.NoError(t, err)
	text, err := os.ReadFile(secret)
	require.NoError(t, err)
	require.Equal(t, "secret", string(text))
	require.FileExists(t, filepath.Join(home, "in.txt"))

	var links bytes.Buffer
	w := tar.NewWriter(&links)
	require.NoError(t, w.WriteHeader(&tar.Header{Name: "out", Typeflag: tar.TypeSymlink, Linkname: "../secret.txt"}))
	require.NoError(t, w.Close())
	_, err = b.c.Upload(ctx(t), run.ContentTar, &links)
	require.Equal(t, fault.Invalid, fault.KindOf(err))

	_, err = b.c.Upload(ctx(t), run.ContentTar, tarOf(t, "big", string(make([]byte, 1001))))
	require.Equal(t, fault.Exhausted, fault.KindOf(err))
	require.NoFileExists(t, filepath.Join(home, "big"))
	_, err = b.c.Upload(ctx(t), run.ContentTar, tarOf(t, "1", "", "2", "", "3", "", "4", "", "5", "", "6", ""))
	require.Equal(t, fault.Exhausted, fault.KindOf(err))
	_, err = b.c.Upload(ctx(t), "text/plain", tarOf(t))
	require.Equal(t, fault.Invalid, fault.KindOf(err))
	_, err = b.c.Upload(ctx(t), run.ContentTar, bytes.NewReader(bytes.Repeat([]byte("junk"), 1000)))
	require.Equal(t, fault.Invalid, fault.KindOf(err))
	_, err = b.c.Files(ctx(t), "nothing")
	require.Equal(t, fault.NotFound, fault.KindOf(err))
	_, err = b.c.Download(ctx(t), "nothing")
	require.Equal(t, fault.NotFound, fault.KindOf(err))
	r, err := b.c.Download(ctx(t), "fifo") // never waits for a writer
	require.NoError(t, err)
	require.Empty(t, untar(t, r))

	if os.Getuid() == 0 {
		require.NoError(t, os.WriteFile(filepath.Join(home, "root-only"), []byte("x"), 0o600))
		_, err = b.c.Download(ctx(t), "root-only")
		require.Equal(t, fault.Denied, fault.KindOf(err), "the session's user may not read it, so nobody may")
	}
}

// TestFullDisk: a home without space gives a named error and keeps no half file; cells and batch
// commands go on.
func TestFullDisk(t *testing.T) {
	t.Parallel()
	cfg := config(t)
	require.NoError(t, os.Mkdir(cfg.User.Home, 0o755))
	if err := syscall.Mount("tmpfs", cfg.User.Home, "tmpfs", 0, "size=64k,mode=0777"); err != nil {
		t.Skipf("a small file system cannot be mounted here: %v", err)
	}
	t.Cleanup(func() { _ = syscall.Unmount(cfg.User.Home, syscall.MNT_DETACH) })
	b := start(t, cfg)
	_, err := b.c.Upload(ctx(t), run.ContentTar, tarOf(t, "fits", "x", "big", string(make([]byte, 200_000))))
	require.Equal(t, fault.Exhausted, fault.KindOf(err), "%v", err)
	require.Equal(t, "disk-full", fault.ReasonOf(err))
	list, err := b.c.Files(ctx(t), ".")
	require.NoError(t, err)
	require.Len(t, list.Entries, 2, "the session's key and what fits; half a file is not left behind: %v", list.Entries)
	require.Equal(t, "works\n", b.query("q", "print('works')").stdout)
	r := b.shell("fill", "head -c 200000 /dev/zero > zeros; echo $?")
	require.Equal(t, "1\n", r.stdout)
	require.Contains(t, r.stderr, "No space left")
}
