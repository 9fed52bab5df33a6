package e2e_test

import (
	"crypto/sha256"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestObjectStore copies a bucket into a folder, and the folder to another place of the bucket and back. Nobody may name
// an address of this host unless its operator says so.
func TestObjectStore(t *testing.T) {
	t.Parallel()
	s := objects(t, 12)
	p := up(t, "AWS_ACCESS_KEY_ID=test", "AWS_SECRET_ACCESS_KEY=hush-hush-secret", "AWS_ENDPOINT_URL="+s.url)
	p.onDisk("data")

	refused := p.run("", "folder", "import", "s3://bucket/in/", "data:in")
	require.NotZero(t, refused.code, "a private address without TLS")
	require.Contains(t, refused.stderr, "next:")

	p.must("down")
	p.more = append(p.more, "BERTH_STORAGE__OBJECT_STORES__ALLOW_PRIVATE=true", "BERTH_STORAGE__OBJECT_STORES__ALLOW_HTTP=true")
	p.start()
	p.eventually("the storage proxy is known", func() bool { return strings.Contains(p.run("", "folder", "hosts").stdout, "local:volume1") })
	p.must("folder", "import", "s3://bucket/in/", "data:in")
	same := func(dir string) {
		t.Helper()
		to := filepath.Join(t.TempDir(), dir)
		p.must("cp", "-r", "data:"+dir, to)
		for name, sum := range s.sums {
			text, err := os.ReadFile(filepath.Join(to, name))
			require.NoError(t, err)
			require.Equal(t, sum, sha256.Sum256(text), "%s/%s", dir, name)
		}
	}
	same("in")
	// The server of this test stores parts of large objects together with their signatures, so those stay away.
	delete(s.sums, "d0/o0")
	p.must("folder", "rm", "data:in/d0/o0")
	p.must("folder", "export", "data:in", "s3://bucket/out/")
	p.must("folder", "import", "s3://bucket/out/", "data:back")
	same("back")
	log, err := os.ReadFile(filepath.Join(p.dir, "berth.log"))
	require.NoError(t, err)
	require.NotContains(t, string(log), "hush-hush-secret")
	p.clean()
}
