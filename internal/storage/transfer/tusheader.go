package transfer

import (
	"crypto/md5"  //nolint:gosec // the protocol's names; a checksum, no signature
	"crypto/sha1" //nolint:gosec // as above
	"crypto/sha256"
	"crypto/subtle"
	"encoding/base64"
	"hash"
	"net/http"
	"strconv"
	"strings"

	"berth.dev/berth/internal/fault"
)

// What OPTIONS says.
const (
	tusVersion    = "1.0.0"
	tusExtensions = "checksum,expiration,termination"
	tusSums       = "sha1,sha256,md5"
	chunkType     = "application/offset+octet-stream"
)

// checksum is what a client says of its chunk.
type checksum struct {
	name string
	want []byte
	make func() hash.Hash
}

func (c checksum) matches(h hash.Hash) bool {
	return subtle.ConstantTimeCompare(h.Sum(nil), c.want) == 1
}

// chunk is what the headers of a PATCH say.
type chunk struct {
	offset int64
	length int64 // -1 when unknown
	sum    *checksum
}

// checkTusVersion accepts requests without a version: some clients of the wire send none.
func checkTusVersion(h http.Header) error {
	if v := h.Get("Tus-Resumable"); v != "" && v != tusVersion {
		return fault.Invalidf("tus %q is not spoken here", fault.Clip(v, maxEcho)).WithReason(reasonTusVersion).WithNext("use tus %s", tusVersion)
	}
	return nil
}

// parseChunk reads the headers of a PATCH.
func parseChunk(h http.Header, length int64) (chunk, error) {
	c := chunk{length: length}
	if err := checkTusVersion(h); err != nil {
		return c, err
	}
	if t := h.Get("Content-Type"); t != "" && !strings.EqualFold(strings.TrimSpace(t), chunkType) {
		return c, fault.Invalidf("chunks of type %q are not taken", fault.Clip(t, maxEcho)).WithReason(reasonMediaType).
			WithNext("send Content-Type: %s", chunkType)
	}
	var err error
	if c.offset, err = parseOffset(h.Values("Upload-Offset")); err != nil {
		return c, err
	}
	c.sum, err = parseChecksum(h.Get("Upload-Checksum"))
	return c, err
}

func parseOffset(values []string) (int64, error) {
	bad := func(got string) (int64, error) {
		return 0, fault.Invalidf("Upload-Offset %q is no offset", fault.Clip(got, maxEcho)).WithReason(reasonInvalidParams).
			WithNext("send one Upload-Offset with the number of bytes that the server has, as HEAD tells it")
	}
	if len(values) != 1 || values[0] == "" {
		return bad(strings.Join(values, ", "))
	}
	// ParseInt alone would take signs.
	if strings.Trim(values[0], "0123456789") != "" {
		return bad(values[0])
	}
	n, err := strconv.ParseInt(values[0], 10, 64)
	if err != nil {
		return bad(values[0])
	}
	return n, nil
}

// parseChecksum reads "<algorithm> <base64>"; "" is none.
func parseChecksum(text string) (*checksum, error) {
	if text == "" {
		return nil, nil //nolint:nilnil // no checksum is an answer
	}
	bad := func(why string) error {
		return fault.Invalidf("Upload-Checksum %s", why).WithReason(reasonInvalidParams).
			WithNext("send the name of one of %s and the base64 of the digest", tusSums)
	}
	name, encoded, ok := strings.Cut(text, " ")
	c := &checksum{name: strings.ToLower(name)}
	switch c.name {
	case "sha1":
		c.make = sha1.New
	case "sha256":
		c.make = sha256.New
	case "md5":
		c.make = md5.New
	default:
		return nil, bad("names no algorithm that is known here")
	}
	want, err := base64.StdEncoding.DecodeString(strings.TrimSpace(encoded))
	if !ok || err != nil || len(want) != c.make().Size() {
		return nil, bad("has no digest of " + c.name)
	}
	c.want = want
	return c, nil
}

// maxEcho bounds what is repeated of text that others sent.
const maxEcho = 80
