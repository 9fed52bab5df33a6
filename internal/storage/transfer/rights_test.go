package transfer_test

import (
	"context"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"berth.dev/berth/internal/storage/transfer"
	"berth.dev/berth/internal/testkit/await"
	wire "berth.dev/berth/internal/wire/storage"
)

const boot = "this life"

// told is a push that completes the copy.
func told(epochs map[string]int64) wire.RightsRequest {
	return wire.RightsRequest{Boot: boot, Complete: true, Epochs: epochs}
}

// newGuardedRig is a rig that checks tokens against a copy of epochs.
func newGuardedRig(t *testing.T) (*rig, *transfer.Rights) {
	var rights *transfer.Rights
	r := newRig(t, func(o *transfer.Options) {
		rights = transfer.NewRights(o.Clock, boot)
		rights.Wait = 20 * time.Millisecond
		o.Rights = rights
	})
	rights.Take(told(nil))
	return r, rights
}

func (p *proxy) entitled(t *testing.T, upload bool, size int64) string {
	t.Helper()
	var token string
	var err error
	rights := &wire.TokenRights{User: "ada"}
	if upload {
		token, _, err = p.s.UploadToken(context.Background(), transfer.UploadRequest{Volume: "volume1", Folder: folder, Path: "f", Size: size,
			Rights: rights})
	} else {
		token, err = p.s.DownloadToken(context.Background(), transfer.DownloadRequest{Volume: "volume1", Folder: folder, Path: "f",
			Rights: rights})
	}
	require.NoError(t, err)
	return token
}

// TestARunningDownloadEndsWithItsRights reads the beginning of a large file, and the rest after the rights have changed.
func TestARunningDownloadEndsWithItsRights(t *testing.T) {
	t.Parallel()
	r, rights := newGuardedRig(t)
	const size = 64 << 20
	r.write("f", strings.Repeat("x", size))
	resp, err := client.Get(r.url + "/download?token=" + r.entitled(t, false, 0))
	require.NoError(t, err)
	defer resp.Body.Close()
	_, err = io.ReadFull(resp.Body, make([]byte, 1000))
	require.NoError(t, err)
	rights.Take(told(map[string]int64{wire.FolderSubject(string(folder.Folder)): 1}))
	rest, err := io.ReadAll(resp.Body)
	require.Error(t, err, "the reply does not look complete")
	require.Less(t, len(rest), size-1000)
}

// TestARunningUploadEndsWithItsRights sends the beginning of a file, and the rest after the rights have changed.
func TestARunningUploadEndsWithItsRights(t *testing.T) {
	t.Parallel()
	r, rights := newGuardedRig(t)
	in, out := io.Pipe()
	defer out.Close()
	req, err := http.NewRequestWithContext(t.Context(), "PATCH", r.url+"/upload?token="+r.entitled(t, true, 2000), in)
	require.NoError(t, err)
	for k, v := range map[string]string{"Tus-Resumable": "1.0.0", "Content-Type": chunkMT, "Upload-Offset": "0", "Expect": "100-continue"} {
		req.Header.Set(k, v)
	}
	answers := make(chan *http.Response, 1)
	go func() {
		resp, err := (&http.Client{Transport: &http.Transport{ExpectContinueTimeout: time.Minute}}).Do(req)
		if err == nil {
			answers <- resp
		}
		if err != nil {
			answers <- nil
		}
	}()
	_, err = out.Write([]byte(strings.Repeat("x", 1000))) // returns once the client took it, which is when the server reads
	require.NoError(t, err)
	rights.Take(told(map[string]int64{wire.UserSubject("ada"): 1}))
	resp := await.Value(t, answers)
	require.NotNil(t, resp)
	defer resp.Body.Close()
	require.Equal(t, 403, resp.StatusCode)
	r.missing("f")
}

func TestACopyOfUnknownAgeAllowsNothing(t *testing.T) {
	t.Parallel()
	r, rights := newGuardedRig(t)
	r.write("f", "content")
	token := r.entitled(t, false, 0)
	get := func(token string) int {
		resp, err := client.Get(r.url + "/download?token=" + token)
		require.NoError(t, err)
		defer resp.Body.Close()
		_, _ = io.Copy(io.Discard, resp.Body)
		return resp.StatusCode
	}
	require.Equal(t, 200, get(token))
	r.clock.add(59 * time.Second)
	require.Equal(t, 200, get(token))
	r.clock.add(2 * time.Second)
	require.Equal(t, 503, get(token))
	// A push that is late counts from when it was true.
	rights.Take(wire.RightsRequest{Boot: boot, Complete: true, AgeMS: 70_000})
	require.Equal(t, 503, get(token))
	// Neither does one that is for an earlier life of the proxy, or only a part.
	require.True(t, rights.Take(wire.RightsRequest{Boot: "earlier", Complete: true}).Again)
	rights.Take(wire.RightsRequest{Boot: boot})
	require.Equal(t, 503, get(token))
	rights.Take(told(nil))
	require.Equal(t, 200, get(token))
}

// TestManagersThatTellNothing are those of an older version: their tokens are good until some manager tells something.
func TestManagersThatTellNothing(t *testing.T) {
	t.Parallel()
	var rights *transfer.Rights
	r := newRig(t, func(o *transfer.Options) {
		rights = transfer.NewRights(o.Clock, boot)
		rights.Wait = 20 * time.Millisecond
		o.Rights = rights
	})
	r.write("f", "content")
	r.clock.add(2 * time.Minute)
	token := r.downloadToken("f")
	get := func(token string) int {
		resp, err := client.Get(r.url + "/download?token=" + token)
		require.NoError(t, err)
		defer resp.Body.Close()
		_, _ = io.Copy(io.Discard, resp.Body)
		return resp.StatusCode
	}
	require.Equal(t, 200, get(token))
	require.Equal(t, 503, get(r.entitled(t, false, 0)))
	rights.Take(told(nil))
	require.Equal(t, 403, get(token))
	require.Equal(t, 200, get(r.entitled(t, false, 0)))
}
