// Package testimage builds tiny container images from nothing: a static program and a few
// files, imported as a tar archive. Tests of runtimes, of the runner and end-to-end tests use
// it; nothing else does. Images are named by their content, so a second run finds them.
package testimage

import (
	"archive/tar"
	"bytes"
	"context"
	"crypto/sha256"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/moby/moby/client"
	"github.com/stretchr/testify/require"
)

// File is one entry of an image: a link when Link is set, else a regular file.
type File struct {
	Data []byte
	Mode int64 // 0 means 0644
	Link string
}

// Tar writes the files, with their parent directories, as the same bytes for the same content.
func Tar(files map[string]File) []byte {
	var buf bytes.Buffer
	w := tar.NewWriter(&buf)
	epoch := time.Unix(0, 0)
	dirs := map[string]bool{"/": true, ".": true}
	var mkdir func(string)
	put := func(h *tar.Header, data []byte) {
		h.ModTime, h.Name = epoch, strings.TrimPrefix(h.Name, "/")
		err := w.WriteHeader(h)
		if err == nil {
			_, err = w.Write(data)
		}
		if err != nil {
			panic(fmt.Sprintf("testimage: %s: %v", h.Name, err)) // a buffer takes everything; only a bad header fails
		}
	}
	mkdir = func(d string) {
		if dirs[d] {
			return
		}
		mkdir(path.Dir(d))
		dirs[d] = true
		put(&tar.Header{Typeflag: tar.TypeDir, Name: d + "/", Mode: 0o755}, nil)
	}
	for _, name := range slices.Sorted(maps.Keys(files)) {
		f := files[name]
		mkdir(path.Dir(path.Clean("/" + name)))
		h := &tar.Header{Typeflag: tar.TypeReg, Name: path.Clean("/" + name), Mode: f.Mode, Size: int64(len(f.Data))}
		if h.Mode == 0 {
			h.Mode = 0o644
		}
		if f.Link != "" {
			h.Typeflag, h.Linkname, h.Size, f.Data = tar.TypeSymlink, f.Link, 0, nil
		}
		put(h, f.Data)
	}
	if err := w.Close(); err != nil {
		panic(fmt.Sprintf("testimage: %v", err))
	}
	return buf.Bytes()
}

var built struct {
	sync.Mutex
	box []byte
}

// Box returns the static program of the conformance suite, built for Linux without cgo.
func Box(t testing.TB) []byte {
	t.Helper()
	built.Lock()
	defer built.Unlock()
	if built.box != nil {
		return built.box
	}
	out := filepath.Join(t.TempDir(), "box")
	cmd := exec.CommandContext(t.Context(), "go", "build", "-trimpath", "-ldflags=-s -w", "-o", out,
		"berth.dev/berth/internal/agent/runtime/conformance/box")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOOS=linux")
	text, err := cmd.CombinedOutput()
	require.NoError(t, err, "build box: %s", text)
	built.box, err = os.ReadFile(out)
	require.NoError(t, err)
	return built.box
}

// Scratch is the least an image can be: /box and the given files, no shell, no libc, no user names.
func Scratch(t testing.TB, extra map[string]File) map[string]File {
	t.Helper()
	files := map[string]File{"/box": {Data: Box(t), Mode: 0o755}}
	maps.Copy(files, extra)
	return files
}

// Distroless looks like the images of that name: users, certificates' directory, time zone, no shell.
// Import it with "USER 65532" for their habit of not being root.
func Distroless(t testing.TB) map[string]File {
	t.Helper()
	return Scratch(t, map[string]File{
		"/etc/passwd": {Data: []byte("root:x:0:0:root:/root:/sbin/nologin\n" +
			"nobody:x:65534:65534:nobody:/nonexistent:/sbin/nologin\nnonroot:x:65532:65532:nonroot:/home/nonroot:/sbin/nologin\n")},
		"/etc/group":              {Data: []byte("root:x:0:\nnobody:x:65534:\nnonroot:x:65532:\n")},
		"/etc/nsswitch.conf":      {Data: []byte("hosts: files dns\n")},
		"/etc/os-release":         {Data: []byte("NAME=\"Berth test\"\nID=distroless\n")},
		"/etc/ssl/certs/.keep":    {},
		"/home/nonroot/.keep":     {},
		"/usr/share/zoneinfo/UTC": {Data: []byte("TZif2")},
	})
}

// Musl looks like Alpine: musl's loader as the only libc, and busybox for a shell. It is made of
// two Debian packages, which are fetched once; without them the test is skipped.
func Musl(t testing.TB) map[string]File {
	t.Helper()
	cache, err := os.UserCacheDir()
	require.NoError(t, err)
	cache = filepath.Join(cache, "berth-test-musl")
	require.NoError(t, os.MkdirAll(cache, 0o755))
	dir := t.TempDir()
	sh := func(name string, arg ...string) {
		t.Helper()
		cmd := exec.CommandContext(t.Context(), name, arg...)
		cmd.Dir = cache
		if text, err := cmd.CombinedOutput(); err != nil {
			t.Skipf("SKIPPED: no musl image without the Debian packages musl and busybox-static: %s: %v\n%s", name, err, text)
		}
	}
	debs, err := filepath.Glob(filepath.Join(cache, "*.deb"))
	require.NoError(t, err)
	if len(debs) < 2 {
		sh("apt-get", "download", "musl", "busybox-static")
		debs, err = filepath.Glob(filepath.Join(cache, "*.deb"))
		require.NoError(t, err)
	}
	for _, d := range debs {
		sh("dpkg-deb", "-x", d, filepath.Join(dir, "root"))
	}
	read := func(pattern string) []byte {
		t.Helper()
		found, err := filepath.Glob(filepath.Join(dir, "root", pattern))
		require.NoError(t, err)
		require.NotEmpty(t, found, "no %s in the packages", pattern)
		b, err := os.ReadFile(found[0])
		require.NoError(t, err)
		return b
	}
	libc := read("lib/*-linux-musl/libc.so")
	files := Scratch(t, map[string]File{
		"/bin/busybox":              {Data: read("bin/busybox"), Mode: 0o755},
		"/lib/libc.musl.so.1":       {Data: libc, Mode: 0o755},
		"/lib/ld-musl-x86_64.so.1":  {Link: "libc.musl.so.1"},
		"/lib/ld-musl-aarch64.so.1": {Link: "libc.musl.so.1"},
		"/etc/passwd":               {Data: []byte("root:x:0:0:root:/root:/bin/ash\nnobody:x:65534:65534:nobody:/:/sbin/nologin\n")},
		"/etc/group":                {Data: []byte("root:x:0:root\nnobody:x:65534:\n")},
		"/etc/os-release":           {Data: []byte("NAME=\"Berth test musl\"\nID=alpine\n")},
		"/root/.keep":               {},
		"/tmp/.keep":                {},
	})
	for _, name := range []string{"ash", "cat", "echo", "env", "id", "ls", "mkdir", "pwd", "sh", "sleep", "stty", "true", "false", "wc"} {
		files["/bin/"+name] = File{Link: "busybox"}
	}
	return files
}

// Engine returns a client of the engine that tests may use, or skips the test by name. BERTH_TEST_ENGINE=1
// says that there is one; DOCKER_HOST where.
func Engine(t testing.TB) *client.Client {
	t.Helper()
	if os.Getenv("BERTH_TEST_ENGINE") == "" {
		t.Skip("SKIPPED: needs a container engine; set BERTH_TEST_ENGINE=1 (make test does)")
	}
	api, err := client.New(client.FromEnv)
	require.NoError(t, err)
	t.Cleanup(func() { _ = api.Close() })
	return api
}

// Import makes an image of the files and returns its reference and id. Changes are
// lines of a Dockerfile such as "LABEL a=b" or "USER 65532".
func Import(t testing.TB, api *client.Client, name string, files map[string]File, changes ...string) (ref, id string) {
	t.Helper()
	archive := Tar(files)
	sum := sha256.New()
	_, _ = sum.Write(archive) // a hash takes everything
	_, _ = io.WriteString(sum, strings.Join(changes, "\n"))
	ref = fmt.Sprintf("berth-test/%s:%x", name, sum.Sum(nil)[:8])
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	importing.Lock()
	defer importing.Unlock()
	if img, err := api.ImageInspect(ctx, ref); err == nil {
		return ref, img.ID
	}
	res, err := api.ImageImport(ctx, client.ImageImportSource{Source: bytes.NewReader(archive), SourceName: "-"}, ref,
		client.ImageImportOptions{Changes: changes, Message: "berth test image"})
	require.NoError(t, err)
	text, err := io.ReadAll(res)
	_ = res.Close()
	require.NoError(t, err)
	img, err := api.ImageInspect(ctx, ref)
	require.NoError(t, err, "the engine answered: %s", text)
	return ref, img.ID
}

// importing keeps parallel tests of one process from importing the same image twice.
var importing sync.Mutex
