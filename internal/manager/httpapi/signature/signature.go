// Package signature reads and verifies what proves the sender of a request: the signature of the wire, as official clients make it, and
// the extension with which our own client covers the body and keeps the request from being used twice (extension.go). Guard (replay.go)
// remembers what was received. The package knows no keys: the caller finds the secret. httpapi uses it.
package signature

import (
	"crypto/hmac"
	"crypto/sha256"
	"crypto/sha3"
	"crypto/sha512"
	"encoding/hex"
	"hash"
	"mime"
	"net/http"
	"strings"
	"time"

	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/fault"
)

// ReasonInvalid is the reason of errors about headers that cannot be read.
const ReasonInvalid = "invalid-auth-params"

// maxSkew is how far a request's date may be from ours, both ends excluded.
const maxSkew = 15 * time.Minute

// firstUnhashed is the first version whose signatures leave the body out.
const firstUnhashed = "v4.20181215"

// credential is a parsed Authorization header.
type credential struct {
	AccessKey cluster.AccessKey
	Signature []byte
	newHash   func() hash.Hash
}

// hashes are the accepted signing methods; keys are what follows "HMAC-", lower case.
var hashes = map[string]func() hash.Hash{
	"sha256":   sha256.New,
	"sha224":   sha256.New224,
	"sha384":   sha512.New384,
	"sha512":   sha512.New,
	"sha3_256": func() hash.Hash { return sha3.New256() },
	"sha3_384": func() hash.Hash { return sha3.New384() },
	"sha3_512": func() hash.Hash { return sha3.New512() },
}

// parseAuthorization reads "BackendAI signMethod=HMAC-SHA256, credential=KEY:HEX"; the order of
// the pairs is free and the scheme may be Sorna.
func parseAuthorization(text string) (credential, error) {
	bad := func(why string) (credential, error) {
		return credential{}, fault.Invalidf("the Authorization header is malformed: %s", why).WithReason(ReasonInvalid).
			WithNext("send Authorization: BackendAI signMethod=HMAC-SHA256, credential=<access key>:<signature>")
	}
	scheme, rest, ok := strings.Cut(text, " ")
	if !ok || scheme != "BackendAI" && scheme != "Sorna" {
		return bad("the scheme is not BackendAI")
	}
	if len(rest) > 1024 {
		return bad("it is too long")
	}
	var method, cred string
	for pair := range strings.SplitSeq(rest, ",") {
		k, v, ok := strings.Cut(strings.TrimSpace(pair), "=")
		if !ok {
			return bad("a part is not of the form key=value")
		}
		switch strings.TrimSpace(k) {
		case "signMethod":
			method = strings.TrimSpace(v)
		case "credential":
			cred = strings.TrimSpace(v)
		}
	}
	family, name, ok := strings.Cut(method, "-")
	if !ok || !strings.EqualFold(family, "hmac") {
		return bad("signMethod is not HMAC-<hash>")
	}
	newHash := hashes[strings.ToLower(name)]
	if newHash == nil {
		return bad("signMethod names a hash that is not supported")
	}
	key, sig, ok := strings.Cut(cred, ":")
	if !ok || key == "" || len(key) > 128 {
		return bad("credential is not <access key>:<signature>")
	}
	raw, err := hex.DecodeString(sig)
	if err != nil {
		return bad("the signature is not hexadecimal")
	}
	return credential{AccessKey: cluster.AccessKey(key), Signature: raw, newHash: newHash}, nil
}

// dateLayouts are the accepted forms of a date, most frequent first. A form without a zone means UTC.
var dateLayouts = []string{
	"2006-01-02T15:04:05.999999999Z07:00", // ISO 8601, with or without a fraction
	http.TimeFormat,
	time.RFC1123Z,
	time.RFC1123,
	"2006-01-02T15:04:05.999999999Z0700",
	"2006-01-02T15:04:05.999999999",
	"2006-01-02 15:04:05.999999999Z07:00",
	"2006-01-02 15:04:05.999999999",
	"20060102T150405.999999999Z07:00",
	"20060102T150405Z0700",
	"20060102T150405",
	time.RFC850,
	time.ANSIC,
	"Mon, 2 Jan 2006 15:04:05 MST",
	"Mon, 2 Jan 2006 15:04:05 -0700",
	"2 Jan 2006 15:04:05 -0700",
	"2 Jan 2006 15:04:05 MST",
}

// parseDate reads the text of a date header and keeps its own zone. Zone names other than UTC and GMT count as UTC.
func parseDate(text string) (time.Time, bool) {
	text = strings.TrimSpace(text)
	if len(text) == 0 || len(text) > 64 {
		return time.Time{}, false
	}
	for _, layout := range dateLayouts {
		if t, err := time.ParseInLocation(layout, text, time.UTC); err == nil {
			return t, true
		}
	}
	return time.Time{}, false
}

// dateOf returns the raw text of the date that was signed.
func dateOf(h http.Header) string {
	for _, name := range [...]string{"Date", "X-Backendai-Date", "X-Sorna-Date"} {
		if v := h[name]; len(v) > 0 && v[0] != "" {
			return v[0]
		}
	}
	return ""
}

// Signed is a request that claims to be signed, as Read found it.
type Signed struct {
	credential credential
	parts      parts
	// at is the date that was signed, read when it came.
	at    time.Time
	read  time.Time
	extra *extension // nil: the signature of the wire alone
	// writes says that the request may change something.
	writes bool
}

// Read collects what proves the sender of r: the Authorization header, what its signature covers, and the extension. It checks
// the date against now, and nothing else.
func Read(r *http.Request, now time.Time) (*Signed, error) {
	cred, err := parseAuthorization(r.Header.Get("Authorization"))
	if err != nil {
		return nil, err
	}
	p, at, err := partsOf(r, now)
	if err != nil {
		return nil, err
	}
	s := &Signed{credential: cred, parts: p, at: at, read: now}
	s.writes = r.Method != http.MethodGet && r.Method != http.MethodHead || r.Header.Get("Upgrade") != ""
	s.extra, err = extensionOf(r, p.Date)
	return s, err
}

// AccessKey is the keypair that the sender claims to hold.
func (s *Signed) AccessKey() cluster.AccessKey { return s.credential.AccessKey }

// Matches reports whether the holder of the secret key signed the request.
func (s *Signed) Matches(secret string) bool {
	key, text := s.parts.key(s.credential.newHash, secret), s.parts.text(s.credential.newHash)
	ok := hmac.Equal(s.credential.Signature, mac(s.credential.newHash, key, text))
	if s.extra != nil {
		ok = hmac.Equal(s.extra.mac, mac(s.credential.newHash, key, s.extra.text(text))) && ok
	}
	return ok
}

func mac(newHash func() hash.Hash, key, text []byte) []byte {
	m := hmac.New(newHash, key)
	m.Write(text)
	return m.Sum(nil)
}

// parts are what a signature covers.
type parts struct {
	Method string
	// Target is the request target exactly as it came: path and query, percent-encoding kept.
	Target string
	// Date is the date header's exact text, Day its date in its own zone.
	Date, Day string
	Host      string
	// ContentType is lower case and without parameters.
	ContentType string
	// VersionHeader is x-backendai-version or x-sorna-version.
	VersionHeader, Version string
	// Body is covered only by versions before v4.20181215.
	Body []byte
}

// text is what is signed: seven lines without a final newline.
func (s parts) text(newHash func() hash.Hash) []byte {
	body := newHash()
	if s.Version < firstUnhashed && s.ContentType != "multipart/form-data" {
		body.Write(s.Body)
	}
	var text []byte
	text = append(text, strings.ToUpper(s.Method)...)
	text = append(text, '\n')
	text = append(text, s.Target...)
	text = append(text, '\n')
	text = append(text, s.Date...)
	text = append(text, "\nhost:"...)
	text = append(text, s.Host...)
	text = append(text, "\ncontent-type:"...)
	text = append(text, s.ContentType...)
	text = append(text, '\n')
	text = append(text, s.VersionHeader...)
	text = append(text, ':')
	text = append(text, s.Version...)
	text = append(text, '\n')
	return hex.AppendEncode(text, body.Sum(nil))
}

// key is derived from the secret key, the day and the host.
func (s parts) key(newHash func() hash.Hash, secret string) []byte {
	return mac(newHash, mac(newHash, []byte(secret), []byte(s.Day)), []byte(s.Host))
}

// signature is that of the wire.
func (s parts) signature(newHash func() hash.Hash, secret string) []byte {
	return mac(newHash, s.key(newHash, secret), s.text(newHash))
}

// partsOf collects what the signature of r covers and checks its date against now.
func partsOf(r *http.Request, now time.Time) (parts, time.Time, error) {
	bad := func(format string, args ...any) *fault.Error {
		return fault.Invalidf(format, args...).WithReason(ReasonInvalid)
	}
	version, header := Version(r.Header)
	if version == "" {
		return parts{}, time.Time{}, bad(
			"the request is signed but has no X-BackendAI-Version header",
		).
			WithNext("send the version of the API that the client speaks, for example v8.20240915")
	}
	raw := dateOf(r.Header)
	if raw == "" {
		return parts{}, time.Time{}, bad("the request is signed but has no Date header").
			WithNext("send Date or X-BackendAI-Date and sign the same text")
	}
	at, ok := parseDate(raw)
	if !ok {
		return parts{}, time.Time{}, bad("the request's date cannot be read").
			WithNext("send it like 2026-11-20T08:21:13.659045+00:00 or Fri, 20 Nov 2026 08:21:13 GMT")
	}
	if skew := now.Sub(at); skew >= maxSkew || skew <= -maxSkew {
		return parts{}, time.Time{}, bad("the request's date and the server's time differ by 15 minutes or more (date/time sync error)").
			WithNext("synchronise the clock of your machine; the server's time is %s", now.UTC().Format(time.RFC3339))
	}
	target := r.RequestURI
	if !strings.HasPrefix(target, "/") { // an absolute-form target of a proxy
		target = r.URL.RequestURI()
	}
	return parts{
		Method: r.Method, Target: target, Date: raw, Day: at.Format("20060102"), Host: r.Host,
		ContentType: mediaType(r.Header), VersionHeader: strings.ToLower(header), Version: version,
	}, at, nil
}

// mediaType is the content type as signatures see it: lower case, without parameters, and
// application/octet-stream where there is none, as for WebSocket and event streams.
func mediaType(h http.Header) string {
	v := h.Get("Content-Type")
	if v == "" {
		return "application/octet-stream"
	}
	t, _, err := mime.ParseMediaType(v)
	if err != nil {
		t, _, _ = strings.Cut(v, ";")
		t = strings.ToLower(strings.TrimSpace(t))
	}
	return t
}

// Version returns the version header's text, "" when there is none, and the name it came under.
func Version(h http.Header) (value, header string) {
	for _, name := range [...]string{"X-Backendai-Version", "X-Sorna-Version"} {
		if v := h[name]; len(v) > 0 && v[0] != "" {
			return v[0], name
		}
	}
	return "", ""
}
