package certs

import (
	"cmp"
	"context"
	"crypto/tls"
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/crypto/acme"
	"golang.org/x/crypto/acme/autocert"

	"berth.dev/berth/internal/chassis"
	"berth.dev/berth/internal/fault"
)

// Authority is an ACME authority; Directory is its URL, empty for Let's Encrypt.
type Authority struct {
	Directory, Email, Dir string
}

// Missing is a host whose visitors are turned away because the authority gave no certificate.
type Missing struct {
	Host    string
	Since   time.Time
	Problem string
}

const (
	// missingLife is how long a failure is told of after the last visitor met it.
	missingLife = time.Hour
	maxMissing  = 64
)

// authority gets certificates and remembers for which hosts it could not.
type authority struct {
	manager *autocert.Manager
	may     func(host string) bool
	clock   chassis.Clock
	log     *slog.Logger

	mu     sync.Mutex
	failed map[string]failure // by host; at most maxMissing
}

type failure struct {
	since, last time.Time
	text        string
}

// authorityPatience bounds one question to the authority.
const authorityPatience = time.Minute

// ACME gets a certificate for each host name that may have one, when a visitor first asks for it. The authority proves the
// name over port 443 (TLS-ALPN) or, where the handler of HTTP is served on it, port 80. A wildcard cannot be proven so.
func ACME(a Authority, may func(host string) bool, clock chassis.Clock, log *slog.Logger) *Source {
	s := newAuthority(a, may, clock, log)
	return &Source{
		get: s.get, protos: []string{acme.ALPNProto}, http: s.manager.HTTPHandler, missing: s.missing,
		expires: func() (time.Time, bool) { return time.Time{}, false },
	}
}

func newAuthority(a Authority, may func(host string) bool, clock chassis.Clock, log *slog.Logger) *authority {
	s := &authority{may: may, clock: clock, log: log, failed: map[string]failure{}}
	s.manager = &autocert.Manager{
		Prompt: autocert.AcceptTOS, Cache: autocert.DirCache(a.Dir), Email: a.Email,
		HostPolicy: func(_ context.Context, host string) error {
			if !may(strings.ToLower(host)) {
				return fault.NotFoundf("there is no app at %q", host)
			}
			return nil
		},
	}
	s.manager.Client = &acme.Client{DirectoryURL: cmp.Or(a.Directory, autocert.DefaultACMEDirectory), HTTPClient: &http.Client{
		Timeout: authorityPatience, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}}
	return s
}

func (s *authority) get(hello *tls.ClientHelloInfo) (*tls.Certificate, error) {
	cert, err := s.manager.GetCertificate(hello)
	if !slices.Equal(hello.SupportedProtos, []string{acme.ALPNProto}) { // the authority's own look says nothing about visitors
		s.note(strings.ToLower(strings.TrimSuffix(hello.ServerName, ".")), err)
	}
	return cert, err
}

// note remembers how a host's last handshake went, if it is one of ours: names that strangers make up are none.
func (s *authority) note(host string, err error) {
	if err != nil && !s.may(host) {
		return
	}
	now := s.clock.Now()
	s.mu.Lock()
	old, was := s.failed[host]
	switch {
	case err == nil:
		delete(s.failed, host)
	case was:
		s.failed[host] = failure{since: old.since, last: now, text: err.Error()}
	default:
		if s.prune(now); len(s.failed) < maxMissing {
			s.failed[host] = failure{since: now, last: now, text: err.Error()}
		}
	}
	s.mu.Unlock()
	switch {
	case err == nil && was:
		s.log.Info("the authority gave a certificate again", "host", host)
	case err != nil && (!was || now.Sub(old.last) > missingLife):
		s.log.Warn("the authority gave no certificate", "host", host, "error", err)
	}
}

func (s *authority) missing() []Missing {
	now := s.clock.Now()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.prune(now)
	var out []Missing
	for host, f := range s.failed {
		out = append(out, Missing{Host: host, Since: f.since, Problem: f.text})
	}
	slices.SortFunc(out, func(a, b Missing) int { return cmp.Compare(a.Host, b.Host) })
	return out
}

// prune forgets what nobody met for long and hosts that are gone. Callers hold mu.
func (s *authority) prune(now time.Time) {
	for host, f := range s.failed {
		if now.Sub(f.last) > missingLife || !s.may(host) {
			delete(s.failed, host)
		}
	}
}
