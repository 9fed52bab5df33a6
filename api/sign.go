package api

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"mime"
	"net/http"
	"strings"
	"time"
)

// Version is the API version that this client speaks and signs.
const Version = "v8.20240915"

// Names of the headers that take part in authentication.
const (
	HeaderVersion = "X-BackendAI-Version"
	HeaderDomain  = "X-BackendAI-Domain"
	HeaderDate    = "X-BackendAI-Date"
)

// Scheme is the scheme of the Authorization header.
const Scheme = "BackendAI"

// streamContentType is what both sides sign when a request has no Content-Type header.
const streamContentType = "application/octet-stream"

// emptyHash is the SHA-256 of nothing: bodies are not part of the signature.
const emptyHash = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"

// dateLayout is ISO 8601 with microseconds and offset.
const dateLayout = "2006-01-02T15:04:05.000000-07:00"

// Signed lists the parts of a request that a signature covers, each exactly as on the wire.
type Signed struct {
	Method string
	// Target is the raw request target: path and query with their percent-encoding.
	Target string
	// Date is the text of the Date header.
	Date string
	// Host is the value of the Host header.
	Host string
	// ContentType is the media type; parameters are ignored, "" stands for application/octet-stream.
	ContentType string
	// Version is the value of the X-BackendAI-Version header.
	Version string
	// VersionHeader is the lower-case name of the version header; "" stands for x-backendai-version.
	VersionHeader string
}

// String returns the text that is signed: seven lines without a final newline.
func (s Signed) String() string {
	header := s.VersionHeader
	if header == "" {
		header = strings.ToLower(HeaderVersion)
	}
	return strings.Join([]string{
		strings.ToUpper(s.Method),
		s.Target,
		s.Date,
		"host:" + s.Host,
		"content-type:" + mediaType(s.ContentType),
		header + ":" + s.Version,
		emptyHash,
	}, "\n")
}

func mediaType(contentType string) string {
	if contentType == "" {
		return streamContentType
	}
	if media, _, err := mime.ParseMediaType(contentType); err == nil {
		return media
	}
	media, _, _ := strings.Cut(contentType, ";")
	return strings.ToLower(strings.TrimSpace(media))
}

// Sign returns the lower-case hexadecimal signature of s.
//
// day is the date of the Date header, formatted YYYYMMDD in the header's own time
// zone. The signature is HMAC-SHA256 with a key derived from the secret, the day and
// the host.
func Sign(secretKey, day string, s Signed) string {
	key := mac(mac([]byte(secretKey), day), s.Host)
	return hex.EncodeToString(mac(key, s.String()))
}

func mac(key []byte, text string) []byte {
	h := hmac.New(sha256.New, key)
	h.Write([]byte(text))
	return h.Sum(nil)
}

// Authorization returns the value of the Authorization header for a signature.
func Authorization(accessKey, signature string) string {
	return Scheme + " signMethod=HMAC-SHA256, credential=" + accessKey + ":" + signature
}

// SignRequest sets the Date, version and Authorization headers of r.
//
// The URL, the Host and the Content-Type must already be final, because they are part
// of what is signed. An empty access key leaves the request anonymous but versioned.
func SignRequest(r *http.Request, accessKey, secretKey string, now time.Time) {
	now = now.UTC()
	date := now.Format(dateLayout)
	r.Header.Set("Date", date)
	if r.Header.Get(HeaderVersion) == "" {
		r.Header.Set(HeaderVersion, Version)
	}
	if accessKey == "" {
		return
	}
	host := r.Host
	if host == "" {
		host = r.URL.Host
	}
	signature := Sign(secretKey, now.Format("20060102"), Signed{
		Method:      r.Method,
		Target:      r.URL.RequestURI(),
		Date:        date,
		Host:        host,
		ContentType: r.Header.Get("Content-Type"),
		Version:     r.Header.Get(HeaderVersion),
	})
	r.Header.Set("Authorization", Authorization(accessKey, signature))
}
