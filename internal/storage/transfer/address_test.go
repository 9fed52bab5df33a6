package transfer_test

import (
	"context"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"berth.dev/berth/internal/clientaddr"
	"berth.dev/berth/internal/storage/transfer"
)

// A token of somebody who may come from some networks only is good from there alone, for uploads, downloads and archives. Headers
// about the address count only when a trusted proxy sent them.
func TestTokensAreBoundToNetworks(t *testing.T) {
	ctx := context.Background()
	r := newRig(t)
	r.write("f", "content")
	behind := r.open(func(o *transfer.Options) {
		var err error
		o.Trusted, err = clientaddr.ParseTrusted("storage.trusted_proxies", []string{"127.0.0.1"})
		require.NoError(t, err)
	})
	tokens := func(clients ...string) (up, down, archive string) {
		up, _, err := r.s.UploadToken(ctx, transfer.UploadRequest{Volume: "volume1", Folder: folder, Path: "new", Size: 5, Clients: clients})
		require.NoError(t, err)
		down, err = r.s.DownloadToken(ctx, transfer.DownloadRequest{Volume: "volume1", Folder: folder, Path: "f", Clients: clients})
		require.NoError(t, err)
		archive, err = r.s.ArchiveToken(ctx, transfer.ArchiveRequest{Volume: "volume1", Folder: folder, Paths: []string{"f"}, Clients: clients})
		require.NoError(t, err)
		return up, down, archive
	}
	statuses := func(p *proxy, forwarded string, clients ...string) (all []int) {
		up, down, archive := tokens(clients...)
		h := headers{}
		if forwarded != "" {
			h["X-Forwarded-For"] = forwarded
		}
		tus := headers{"Tus-Resumable": "1.0.0"}
		chunk := patchHeaders(0)
		for k, v := range h {
			tus[k], chunk[k] = v, v
		}
		for _, a := range []answer{
			p.do("GET", "/download", token(down), h, nil), p.do("HEAD", "/download", token(down), h, nil),
			p.do("GET", "/download-archive", token(archive), h, nil), p.do("HEAD", "/upload", token(up), tus, nil),
			p.do("PATCH", "/upload", token(up), chunk, strings.NewReader("hello")),
		} {
			all = append(all, a.status)
		}
		return all
	}
	allowed, refused := []int{200, 200, 200, 200, 204}, []int{403, 403, 403, 403, 403}
	require.Equal(t, allowed, statuses(r.proxy, ""))
	require.Equal(t, allowed, statuses(r.proxy, "", "10.0.0.0/8", "127.0.0.1"))
	require.Equal(t, refused, statuses(r.proxy, "", "10.0.0.0/8"))
	require.Equal(t, refused, statuses(r.proxy, "", "none"))
	require.Equal(t, refused, statuses(r.proxy, "10.1.1.1", "10.0.0.0/8"), "anybody can write a header")
	require.Equal(t, allowed, statuses(behind, "10.1.1.1", "10.0.0.0/8"))
	require.Equal(t, refused, statuses(behind, "10.1.1.1, 192.0.2.1", "10.0.0.0/8"), "the last one counts")
	require.Equal(t, refused, statuses(behind, "", "10.0.0.0/8"))

	_, down, _ := tokens("10.0.0.0/8")
	a := r.do("GET", "/download", token(down), nil, nil)
	require.Equal(t, "forbidden", a.slug())
	require.Contains(t, a.problem.Msg, "127.0.0.1")
}
