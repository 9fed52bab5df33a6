package docker_test

import (
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"berth.dev/berth/internal/agent/runtime/testimage"
)

// registry serves two images, as little as an engine needs: "box:1" and "broken:1",
// whose layer is not what its manifest says.
type registry struct {
	host     string // as in references: 127.0.0.1:port, which engines reach without TLS
	configID string
}

func newRegistry(t *testing.T) registry {
	blobs := map[string][]byte{}
	manifests := map[string][]byte{}
	add := func(b []byte) string {
		d := fmt.Sprintf("sha256:%x", sha256.Sum256(b))
		blobs[d] = b
		return d
	}
	layer := testimage.Tar(testimage.Scratch(t, map[string]testimage.File{"/unique": {Data: []byte(uuid.NewString())}}))
	var zipped bytes.Buffer
	z := gzip.NewWriter(&zipped)
	_, err := z.Write(layer)
	require.NoError(t, err)
	require.NoError(t, z.Close())
	text := func(v any) []byte {
		b, err := json.Marshal(v)
		require.NoError(t, err)
		return b
	}
	config := text(map[string]any{
		"architecture": "amd64", "os": "linux", "created": "2026-01-01T00:00:00Z", "config": map[string]any{},
		"rootfs": map[string]any{"type": "layers", "diff_ids": []string{fmt.Sprintf("sha256:%x", sha256.Sum256(layer))}},
	})
	reg := registry{configID: add(config)}
	manifest := func(layer []byte, digest string) []byte {
		return text(map[string]any{
			"schemaVersion": 2, "mediaType": manifestType,
			"config": map[string]any{"mediaType": "application/vnd.docker.container.image.v1+json", "size": len(config), "digest": reg.configID},
			"layers": []any{map[string]any{"mediaType": "application/vnd.docker.image.rootfs.diff.tar.gzip", "size": len(layer), "digest": digest}},
		})
	}
	good := manifest(zipped.Bytes(), add(zipped.Bytes()))
	wrong := fmt.Sprintf("sha256:%x", sha256.Sum256([]byte(uuid.NewString())))
	blobs[wrong] = bytes.Repeat([]byte("not what was promised "), 100)
	bad := manifest(blobs[wrong], wrong)
	for name, m := range map[string][]byte{"box": good, "broken": bad} {
		manifests[name+"/1"] = m
		manifests[name+"/"+fmt.Sprintf("sha256:%x", sha256.Sum256(m))] = m
	}

	mux := http.NewServeMux()
	mux.HandleFunc("GET /v2/{$}", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Docker-Distribution-Api-Version", "registry/2.0")
	})
	mux.HandleFunc("GET /v2/{name}/manifests/{ref}", func(w http.ResponseWriter, r *http.Request) {
		m, ok := manifests[r.PathValue("name")+"/"+r.PathValue("ref")]
		if !ok {
			w.Header().Set("Content-Type", "application/json")
			w.WriteHeader(http.StatusNotFound)
			fmt.Fprint(w, `{"errors":[{"code":"MANIFEST_UNKNOWN","message":"manifest unknown"}]}`)
			return
		}
		w.Header().Set("Content-Type", manifestType)
		w.Header().Set("Docker-Content-Digest", fmt.Sprintf("sha256:%x", sha256.Sum256(m)))
		_, _ = w.Write(m)
	})
	mux.HandleFunc("GET /v2/{name}/blobs/{digest}", func(w http.ResponseWriter, r *http.Request) {
		b, ok := blobs[r.PathValue("digest")]
		if !ok {
			http.NotFound(w, r)
			return
		}
		w.Header().Set("Content-Length", fmt.Sprint(len(b)))
		_, _ = w.Write(b)
	})
	srv := httptest.NewServer(mux)
	t.Cleanup(srv.Close)
	reg.host = strings.TrimPrefix(srv.URL, "http://")
	return reg
}

const manifestType = "application/vnd.docker.distribution.manifest.v2+json"
