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
	// HeaderLogin holds the token of a login at a web server.
	HeaderLogin = "X-BackendAI-SessionID"
	HeaderDate  = "X-BackendAI-Date"
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
	return hex.EncodeToString(mac(signingKey(secretKey, day, s.Host), s.String()))
}

func signingKey(secretKey, day, host string) []byte { return mac(mac([]byte(secretKey), day), host) }

func mac(key []byte, text string) []byte {
	h := hmac.New(sha256.New, key)
	h.Write([]byte(text))
	return h.Sum(nil)
}

// Authorization returns the value of the Authorization header for a signature.
func Authorization(accessKey, signature string) string {
	return Scheme + " signMethod=HMAC-SHA256, credential=" + accessKey + ":" + signature
}

// Strict is what SignStrictly covers beyond the signature of the wire.
type Strict struct {
	// Nonce is 32 hex digits that are never used again.
	Nonce string
	// Body is the SHA-256 of the body in hex, or StreamBody.
	Body string
}

// StreamBody stands for the digest of a body that is not known when the request is signed.
const StreamBody = "stream"

// HeaderSignature is the header with which this client covers the body and keeps the request from being used twice.
const HeaderSignature = "X-Berth-Signature"

// BodyDigest is Strict.Body of a body.
func BodyDigest(body []byte) string {
	sum := sha256.Sum256(body)
	return hex.EncodeToString(sum[:])
}

// SignStrictly is SignRequest with the header HeaderSignature. Managers that do not know the header go by the rest. The others refuse
// the request without it, because the date, which the signature covers, says by its zone that there is one.
func SignStrictly(r *http.Request, accessKey, secretKey string, now time.Time, s Strict) {
	if accessKey == "" {
		SignRequest(r, accessKey, secretKey, now)
		return
	}
	now = now.UTC()
	signed, key := sign(r, accessKey, secretKey, now, now.Format(strictDateLayout))
	covered := strings.Join([]string{"berth-request-1", signed.String(), s.Nonce, s.Body}, "\n")
	r.Header.Set(HeaderSignature, "nonce="+s.Nonce+", body="+s.Body+", mac="+hex.EncodeToString(mac(key, covered)))
}

// strictDateLayout is dateLayout with the zone that means UTC and that SignRequest and official clients never write.
const strictDateLayout = "2006-01-02T15:04:05.000000-00:00"

// SignRequest sets the Date, version and Authorization headers of r.
//
// The URL, the Host and the Content-Type must already be final, because they are part
// of what is signed. An empty access key leaves the request anonymous but versioned.
func SignRequest(r *http.Request, accessKey, secretKey string, now time.Time) {
	now = now.UTC()
	sign(r, accessKey, secretKey, now, now.Format(dateLayout))
}

// sign signs a request with a date as it is to be written, and returns what was signed and the key that it was signed with.
func sign(r *http.Request, accessKey, secretKey string, now time.Time, date string) (Signed, []byte) {
	r.Header.Set("Date", date)
	if r.Header.Get(HeaderVersion) == "" {
		r.Header.Set(HeaderVersion, Version)
	}
	if accessKey == "" {
		return Signed{}, nil
	}
	host := r.Host
	if host == "" {
		host = r.URL.Host
	}
	s := Signed{
		Method:      r.Method,
		Target:      r.URL.RequestURI(),
		Date:        date,
		Host:        host,
		ContentType: r.Header.Get("Content-Type"),
		Version:     r.Header.Get(HeaderVersion),
	}
	key := signingKey(secretKey, now.Format("20060102"), host)
	r.Header.Set("Authorization", Authorization(accessKey, hex.EncodeToString(mac(key, s.String()))))
	return s, key
}
