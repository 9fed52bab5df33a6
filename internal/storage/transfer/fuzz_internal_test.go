package transfer

import (
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"berth.dev/berth/internal/fault"
)

// Whatever is sent as a token, nothing but what was signed here is granted.
func FuzzToken(f *testing.F) {
	// the same in every process that fuzzes
	t := tokens{key: []byte(strings.Repeat("k", 64)), now: func() time.Time { return time.Unix(1e9, 0) },
		random: strings.NewReader(strings.Repeat("r", 16))}
	good, err := t.sign(claims{Op: opUpload, Volume: "v",
		VFID:    "user:11111111-2222-3333-4444-555555555555/aaaaaaaa-bbbb-cccc-dddd-eeeeeeeeeeee",
		RelPath: "a/b", Size: 7, Session: strings.Repeat("0f", 16)}, time.Hour)
	require.NoError(f, err)
	for _, s := range []string{good, "", ".", "..", "a.b.c", good + ".", strings.ToUpper(good), "eyJhbGciOiJub25lIn0.e30."} {
		f.Add(s)
	}
	f.Fuzz(func(tt *testing.T, text string) {
		for _, op := range []string{opUpload, opDownload, opArchive} {
			g, err := t.verify(text, op)
			if err == nil {
				if op != opUpload || g.path != "a/b" || g.size != 7 || strings.Split(text, ".")[1] != strings.Split(good, ".")[1] {
					tt.Fatalf("%q was granted", text)
				}
				continue
			}
			if fault.KindOf(err) != fault.Invalid || fault.ReasonOf(err) != reasonInvalidParams {
				tt.Fatalf("%q: %v", text, err)
			}
			if len(text) > 40 && strings.Contains(err.Error(), text) {
				tt.Fatalf("the error repeats the token: %v", err)
			}
		}
	})
}

// Headers of a chunk are either what they say or refused, and refusals are for people.
func FuzzTusHeaders(f *testing.F) {
	f.Add("0", "1.0.0", chunkType, "sha1 Kq5sNclPz7QV2+lfQIuc6R7oRu0=")
	f.Add("-1", "", "", "")
	f.Add("18446744073709551616", "0.2", "text/plain", "md5")
	f.Add("1e3", "1.0.0", "APPLICATION/offset+octet-stream ", "crc32 AAAA")
	f.Fuzz(func(t *testing.T, offset, version, kind, sum string) {
		h := http.Header{}
		h.Set("Upload-Offset", offset)
		h.Set("Tus-Resumable", version)
		h.Set("Content-Type", kind)
		h.Set("Upload-Checksum", sum)
		c, err := parseChunk(h, -1)
		if err != nil {
			if fault.KindOf(err) != fault.Invalid || fault.NextOf(err) == "" {
				t.Fatalf("%v", err)
			}
			return
		}
		if c.offset < 0 || strings.Trim(offset, "0123456789") != "" {
			t.Fatalf("offset %q was read as %d", offset, c.offset)
		}
		if c.sum != nil && len(c.sum.want) != c.sum.make().Size() {
			t.Fatalf("checksum %q was read as %x", sum, c.sum.want)
		}
		if p := problemOf(fault.Invalidf("x")); p.status != http.StatusBadRequest {
			t.Fatal(p)
		}
	})
}
