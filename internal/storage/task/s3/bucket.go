// Package s3 copies between a folder and an S3-compatible object store.
//
// Endpoints come from users, so every address is checked at the moment of connecting, after its name was
// resolved; redirects are not followed and no proxy is used. Keys of objects are hostile paths.
package s3

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/minio/minio-go/v7"
	"github.com/minio/minio-go/v7/pkg/credentials"
	"github.com/minio/minio-go/v7/pkg/s3utils"

	"berth.dev/berth/internal/fault"
	wire "berth.dev/berth/internal/wire/storage"
)

// Policy says which object stores may be reached. Link-local, multicast and unspecified addresses, which include
// the metadata services of clouds, are always refused.
type Policy struct {
	AllowPrivate bool // also private and loopback addresses
	AllowHTTP    bool // also without TLS
}

// reserved are ranges that the net package does not name and that are no public servers' either.
var reserved = []netip.Prefix{
	netip.MustParsePrefix("100.64.0.0/10"), // carrier-grade NAT
	netip.MustParsePrefix("0.0.0.0/8"), netip.MustParsePrefix("192.0.0.0/24"), netip.MustParsePrefix("198.18.0.0/15"),
	netip.MustParsePrefix("240.0.0.0/4"), netip.MustParsePrefix("64:ff9b::/96"), netip.MustParsePrefix("64:ff9b:1::/48"),
	netip.MustParsePrefix("2002::/16"), // both of the above hide an IPv4 address
}

// Check refuses addresses that object stores may not have.
func (p Policy) Check(ip netip.Addr) error {
	ip = ip.Unmap()
	switch {
	case !ip.IsValid(), ip.IsUnspecified(), ip.IsMulticast(), ip.IsLinkLocalUnicast(), ip == netip.MustParseAddr("fd00:ec2::254"),
		ip == netip.AddrFrom4([4]byte{255, 255, 255, 255}):
		return fault.Deniedf("an object store may not be at %s", ip).WithReason("object-store-address")
	case p.AllowPrivate:
		return nil
	}
	private := ip.IsPrivate() || ip.IsLoopback()
	for _, r := range reserved {
		private = private || r.Contains(ip)
	}
	if private {
		return fault.Deniedf("an object store may not be at the private address %s", ip).WithReason("object-store-address").
			WithNext("an administrator of the storage proxy can set storage.object_stores.allow_private")
	}
	return nil
}

// Bucket is a bucket of an object store.
type Bucket struct {
	core      minio.Core
	transport *http.Transport
	name      string
}

const (
	maxRetries    = 5 // of one request
	headerTimeout = time.Minute
	connsPerStore = 32
	// answerPatience and maxAnswer bound the body of one answer: a page of a listing, an error, a part of an object.
	answerPatience = 5 * time.Minute // stores say "still working" that long while they put large objects together
	maxAnswer      = 64 << 20
)

// ReasonAway is the reason of errors that mean that the object store does not answer, or not as one does.
const ReasonAway = "object-store-unavailable"

func away(format string, args ...any) *fault.Error {
	return fault.Unavailablef(format, args...).WithReason(ReasonAway).WithNext("check the endpoint, or try again later")
}

// bounded ends answers that go on for too long. The client library reads listings and errors to their end, so a
// store that never comes to one would hold a task, and its memory, for ever. It also ends what is sent when the answer is there: a store
// may answer before it has read all, package http goes on reading then, and the library sends the same file again from its beginning.
type bounded struct {
	next     http.RoundTripper
	patience time.Duration
	most     int64
}

func (b bounded) RoundTrip(r *http.Request) (*http.Response, error) {
	ctx, cancel := context.WithCancelCause(r.Context())
	r = r.WithContext(ctx)
	if r.Body != nil && r.Body != http.NoBody {
		sent := &sentBody{body: r.Body}
		r.Body = sent
		defer sent.end()
	}
	resp, err := b.next.RoundTrip(r)
	if err != nil {
		cancel(nil)
		return nil, err
	}
	resp.Body = &boundedBody{body: resp.Body, ctx: ctx, cancel: cancel, left: b.most,
		timer: time.AfterFunc(b.patience, func() { cancel(away("an answer of the object store did not end within %s", b.patience)) })}
	return resp, nil
}

// sentBody is the body of a request. After end nobody reads it any more.
type sentBody struct {
	mu    sync.Mutex
	body  io.ReadCloser
	ended bool
}

func (s *sentBody) Read(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ended {
		return 0, errors.New("the object store has answered before it read all")
	}
	return s.body.Read(p)
}

func (s *sentBody) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.body.Close()
}

func (s *sentBody) end() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ended = true
}

type boundedBody struct {
	body   io.ReadCloser
	ctx    context.Context
	cancel context.CancelCauseFunc
	timer  *time.Timer
	left   int64
}

func (b *boundedBody) Read(p []byte) (int, error) {
	if b.left <= 0 {
		return 0, away("an answer of the object store is longer than any answer should be")
	}
	n, err := b.body.Read(p[:min(int64(len(p)), b.left)])
	b.left -= int64(n)
	if cause := context.Cause(b.ctx); err != nil && !errors.Is(err, io.EOF) && fault.ReasonOf(cause) == ReasonAway {
		err = cause
	}
	return n, err
}

func (b *boundedBody) Close() error {
	b.timer.Stop()
	err := b.body.Close()
	b.cancel(nil)
	return err
}

// Open checks the address and makes a client; nothing is sent yet.
func Open(store wire.ObjectStore, p Policy) (*Bucket, error) {
	u, err := url.Parse(store.Endpoint)
	bad := func(format string, args ...any) error {
		return fault.Invalidf(format, args...).WithReason("invalid-api-params").WithNext("write it as https://host[:port]")
	}
	switch {
	case err != nil || u.Host == "" || u.Hostname() == "":
		return nil, bad("the object store's endpoint is no address")
	case u.Scheme != "https" && u.Scheme != "http":
		return nil, bad("the object store's endpoint is neither https nor http")
	case u.Scheme == "http" && !p.AllowHTTP:
		return nil, fault.Deniedf("object stores are reached by https only").WithReason("object-store-address").
			WithNext("write https://, or have storage.object_stores.allow_http set")
	case u.User != nil || u.RawQuery != "" || u.Fragment != "" || strings.Trim(u.Path, "/") != "":
		return nil, bad("the object store's endpoint has more than a host and a port")
	}
	if err := s3utils.CheckValidBucketName(store.Bucket); err != nil {
		return nil, fault.Invalidf("%q is no bucket: %v", fault.Clip(store.Bucket, maxEcho), err).WithReason("invalid-api-params").
			WithNext("name the bucket alone, without a path")
	}
	if ip, err := netip.ParseAddr(u.Hostname()); err == nil {
		if err := p.Check(ip); err != nil {
			return nil, err
		}
	}
	dialer := &net.Dialer{Timeout: 15 * time.Second, Control: func(_, address string, _ syscall.RawConn) error {
		at, err := netip.ParseAddrPort(address)
		if err != nil {
			return fault.Deniedf("an object store may not be at %s", address)
		}
		return p.Check(at.Addr())
	}}
	transport := &http.Transport{
		DialContext: dialer.DialContext, TLSHandshakeTimeout: 15 * time.Second, ResponseHeaderTimeout: headerTimeout,
		MaxConnsPerHost: connsPerStore, MaxIdleConnsPerHost: connsPerStore, IdleConnTimeout: 30 * time.Second,
		DisableCompression: true, MaxResponseHeaderBytes: 64 << 10,
	}
	var keys *credentials.Credentials
	if store.AccessKey == "" && store.SecretKey == "" {
		keys = credentials.NewStatic("", "", "", credentials.SignatureAnonymous)
	} else {
		keys = credentials.NewStaticV4(store.AccessKey, store.SecretKey, "")
	}
	client, err := minio.New(u.Host, &minio.Options{
		Creds: keys, Secure: u.Scheme == "https", Transport: bounded{transport, answerPatience, maxAnswer}, Region: store.Region,
		MaxRetries: maxRetries,
	})
	if err != nil {
		return nil, bad("the object store cannot be used: %v", err)
	}
	return &Bucket{core: minio.Core{Client: client}, transport: transport, name: store.Bucket}, nil
}

// Close gives the idle connections back.
func (b *Bucket) Close() { b.transport.CloseIdleConnections() }

// failed gives an error of the store a kind and words. They never hold the keys.
func (b *Bucket) failed(ctx context.Context, what string, err error) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	var f *fault.Error
	if errors.As(err, &f) { // of the dialer, or of the volume
		return err
	}
	answer := minio.ToErrorResponse(err)
	switch answer.StatusCode {
	case http.StatusUnauthorized, http.StatusForbidden:
		return fault.Deniedf("%s: the object store refuses (%s)", what, answer.Code).
			WithNext("check the access key and what it may do in bucket %s", b.name)
	case http.StatusNotFound:
		return fault.NotFoundf("%s: the object store does not have it (%s)", what, answer.Code).
			WithNext("check the bucket's and the object's name")
	case http.StatusBadRequest, http.StatusMovedPermanently, http.StatusTemporaryRedirect:
		return fault.Invalidf("%s: the object store refuses: %s", what, fault.Clip(answer.Message, maxEcho))
	case http.StatusPreconditionFailed:
		return fault.Conflictf("%s: the object has changed meanwhile", what).WithNext("start the transfer again")
	}
	return away("%s: the object store does not answer", what).WithCause(errors.New(fault.Clip(err.Error(), maxEcho)))
}

// maxEcho bounds what is repeated of text that others sent.
const maxEcho = 200
