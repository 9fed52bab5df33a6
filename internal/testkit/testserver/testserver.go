// Package testserver starts the servers of the module testservers as processes: an object store and an ACME authority. That module
// has its own go.mod, so that what these servers drag in is no dependency of Berth. Tests call this package.
package testserver

import (
	"bufio"
	"bytes"
	"context"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"io"
	"net/http"
	"net/http/httputil"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

const (
	// buildTimeout bounds building the servers from an empty cache on a busy machine.
	buildTimeout = 5 * time.Minute
	startTimeout = time.Minute
)

// client has no proxy of the environment and waits for no answer longer than startTimeout.
var client = &http.Client{Transport: &http.Transport{}, Timeout: startTimeout}

// S3 is a running object store.
type S3 struct {
	URL string
	tb  testing.TB
}

// StartS3 starts an empty object store; it ends with the test.
func StartS3(tb testing.TB) *S3 {
	tb.Helper()
	out := start(tb, "s3")
	return &S3{URL: readLine(tb, out), tb: tb}
}

// Handler passes requests on to the store, for tests that look at them or disturb them.
func (s *S3) Handler() http.Handler { return passOn(s.tb, s.URL) }

// CreateBucket makes an empty bucket.
func (s *S3) CreateBucket(name string) {
	s.tb.Helper()
	s.ask(http.MethodPut, name, nil)
}

// Put stores an object.
func (s *S3) Put(bucket, key string, text []byte) {
	s.tb.Helper()
	s.ask(http.MethodPut, bucket+"/"+key, text)
}

// Get returns the bytes of an object; the test fails when there is none.
func (s *S3) Get(bucket, key string) []byte {
	s.tb.Helper()
	return s.ask(http.MethodGet, bucket+"/"+key, nil)
}

func (s *S3) ask(method, name string, body []byte) []byte {
	s.tb.Helper()
	to := s.URL + (&url.URL{Path: "/" + name}).EscapedPath()
	req, err := http.NewRequestWithContext(s.tb.Context(), method, to, bytes.NewReader(body))
	check(s.tb, err)
	resp, err := client.Do(req)
	check(s.tb, err)
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	check(s.tb, err)
	if resp.StatusCode != http.StatusOK {
		s.tb.Fatalf("%s %s of the object store: %s %s", method, name, resp.Status, text)
	}
	return text
}

// ACME is a running authority that issues certificates.
type ACME struct {
	// Root is the certificate that those it issues lead to.
	Root *x509.Certificate
	url  string
	tb   testing.TB
}

// StartACME starts an authority for which every name leads to 127.0.0.1, and which proves names by TLS at that port there.
func StartACME(tb testing.TB, port int) *ACME {
	tb.Helper()
	out := start(tb, "acme", strconv.Itoa(port))
	a := &ACME{url: readLine(tb, out), tb: tb}
	var root strings.Builder
	for line := readLine(tb, out); line != ""; line = readLine(tb, out) {
		root.WriteString(line + "\n")
	}
	block, _ := pem.Decode([]byte(root.String()))
	if block == nil {
		tb.Fatal("the authority did not tell its root")
		return nil // the linter does not know that Fatal ends the test
	}
	var err error
	a.Root, err = x509.ParseCertificate(block.Bytes)
	check(tb, err)
	return a
}

// Handler is the authority for a server with TLS; its directory is /dir.
func (a *ACME) Handler() http.Handler { return passOn(a.tb, a.url) }

func passOn(tb testing.TB, to string) http.Handler {
	tb.Helper()
	target, err := url.Parse(to)
	check(tb, err)
	return &httputil.ReverseProxy{Transport: client.Transport, Rewrite: func(r *httputil.ProxyRequest) {
		r.SetURL(target)
		r.SetXForwarded()
		r.Out.Host = r.In.Host // signatures and the URLs in answers hold the name under which the client knows the server
	}}
}

// start starts one server and returns its output; it ends with the test.
func start(tb testing.TB, name string, args ...string) *bufio.Reader {
	tb.Helper()
	dir, err := binaries()
	check(tb, err)
	cmd := exec.Command(filepath.Join(dir, name), args...)
	cmd.Stderr = tb.Output()
	stdin, err := cmd.StdinPipe()
	check(tb, err)
	stdout, err := cmd.StdoutPipe()
	check(tb, err)
	check(tb, cmd.Start())
	tb.Cleanup(func() {
		_ = stdin.Close() // it ends
		late := time.AfterFunc(startTimeout, func() { _ = cmd.Process.Kill() })
		defer late.Stop()
		_ = cmd.Wait() // its exit code says nothing
	})
	check(tb, stdout.(*os.File).SetReadDeadline(time.Now().Add(startTimeout)))
	return bufio.NewReader(stdout)
}

func readLine(tb testing.TB, r *bufio.Reader) string {
	tb.Helper()
	line, err := r.ReadString('\n')
	check(tb, err)
	return strings.TrimRight(line, "\n")
}

// binaries builds the servers once per test process. The go command does nothing where they are up to date.
var binaries = sync.OnceValues(func() (string, error) {
	root, err := moduleRoot()
	if err != nil {
		return "", err
	}
	// The go command runs tests again when a file changed that they have read.
	for _, name := range []string{"go.mod", "go.sum", "acme/main.go", "s3/main.go"} {
		if _, err := os.ReadFile(filepath.Join(root, "testservers", name)); err != nil {
			return "", fmt.Errorf("read the sources of the test servers: %w", err)
		}
	}
	ctx, cancel := context.WithTimeout(context.Background(), buildTimeout)
	defer cancel()
	dir := filepath.Join(root, ".cache", "testservers")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", err
	}
	unlock, err := lock(ctx, filepath.Join(dir, ".lock"))
	if err != nil {
		return "", fmt.Errorf("wait for another test that builds the test servers: %w", err)
	}
	defer unlock()
	cmd := exec.CommandContext(ctx, "go", "build", "-C", filepath.Join(root, "testservers"), "-o", dir+string(filepath.Separator), "./...")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOFLAGS="+os.Getenv("GOFLAGS")+" -buildvcs=false", "GOWORK=off", "PWD="+root)
	if text, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("build the test servers: %w: %s", err, text)
	}
	return dir, nil
})

// moduleRoot finds the directory that holds the module testservers, above the directory of the test.
func moduleRoot() (string, error) {
	dir, err := os.Getwd()
	if err != nil {
		return "", err
	}
	for {
		if _, err := os.Stat(filepath.Join(dir, "testservers", "go.mod")); err == nil {
			return dir, nil
		}
		parent := filepath.Dir(dir)
		if parent == dir {
			return "", fmt.Errorf("no directory above the test holds testservers/go.mod")
		}
		dir = parent
	}
}

// lock takes a lock that processes share by a file.
func lock(ctx context.Context, name string) (unlock func(), err error) {
	f, err := os.OpenFile(name, os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return nil, err
	}
	for {
		err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
		if err == nil {
			return func() { _ = f.Close() }, nil
		}
		if err != syscall.EWOULDBLOCK && err != syscall.EINTR {
			_ = f.Close()
			return nil, err
		}
		select {
		case <-time.After(20 * time.Millisecond):
		case <-ctx.Done():
			_ = f.Close()
			return nil, ctx.Err()
		}
	}
}

func check(tb testing.TB, err error) {
	tb.Helper()
	if err != nil {
		tb.Fatal(err)
	}
}
