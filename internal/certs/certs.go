// Package certs gives servers their certificates: from files that are read again when they change, self-signed or of an authority of
// their own, or from an ACME authority for every host name. The manager and app proxies use it.
package certs

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"golang.org/x/crypto/acme"

	"berth.dev/berth/internal/chassis"
	"berth.dev/berth/internal/durable"
	"berth.dev/berth/internal/fault"
)

// Source gives certificates to handshakes.
type Source struct {
	get     func(*tls.ClientHelloInfo) (*tls.Certificate, error)
	protos  []string
	expires func() (time.Time, bool)
	http    func(http.Handler) http.Handler
	missing func() []Missing
	// fingerprint is that of an authority of its own.
	fingerprint string
}

// Fingerprint is what clients pin: that of the authority of a generated certificate, else "".
func (s *Source) Fingerprint() string { return s.fingerprint }

// TLS is the server configuration, with HTTP/2 and HTTP/1.1.
func (s *Source) TLS() *tls.Config {
	return &tls.Config{MinVersion: tls.VersionTLS12, GetCertificate: s.get, NextProtos: append([]string{"h2", "http/1.1"}, s.protos...)}
}

// Raw is the server configuration for visitors who speak no HTTP.
func (s *Source) Raw() *tls.Config {
	return &tls.Config{MinVersion: tls.VersionTLS12, GetCertificate: s.get}
}

// Challenge reports whether a handshake was an ACME authority's look and nothing follows.
func Challenge(c *tls.Conn) bool { return c.ConnectionState().NegotiatedProtocol == acme.ALPNProto }

// Expires is when the certificate ends; false when each host has its own.
func (s *Source) Expires() (time.Time, bool) { return s.expires() }

// Missing names the hosts for which no certificate could be got lately, by name.
func (s *Source) Missing() []Missing {
	if s.missing == nil {
		return nil
	}
	return s.missing()
}

// HTTP wraps what port 80 serves with the answers for an ACME authority; the handler as it is where there is none.
func (s *Source) HTTP(h http.Handler) http.Handler {
	if s.http == nil {
		return h
	}
	return s.http(h)
}

// lookEvery is the pause between two looks at the files.
const lookEvery = 10 * time.Second

// files is a certificate that somebody else renews.
type files struct {
	cert, key string
	clock     chassis.Clock
	log       *slog.Logger

	mu     sync.Mutex
	now    *tls.Certificate
	looked time.Time
	failed string
}

// Files reads PEM files: the certificate with its chain, and the key; section is the name of the settings. They are read again when
// they have changed; files that cannot be used then are told of in the log and change nothing.
func Files(section, cert, key string, clock chassis.Clock, log *slog.Logger) (*Source, error) {
	f := &files{cert: cert, key: key, clock: clock, log: log}
	if _, err := f.get(nil); err != nil {
		return nil, fault.Invalidf("the certificate %s cannot be used", cert).WithCause(err).
			WithNext("correct %s.cert and %s.key", section, section)
	}
	return f.source(), nil
}

func (f *files) source() *Source {
	return &Source{get: f.get, expires: func() (time.Time, bool) {
		c, err := f.get(nil)
		if err != nil || c.Leaf == nil {
			return time.Time{}, false
		}
		return c.Leaf.NotAfter, true
	}}
}

func (f *files) get(*tls.ClientHelloInfo) (*tls.Certificate, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	now := f.clock.Now()
	if f.now != nil && now.Sub(f.looked) < lookEvery {
		return f.now, nil
	}
	f.looked = now
	pair, err := tls.LoadX509KeyPair(f.cert, f.key)
	if err == nil {
		f.now, f.failed = &pair, ""
		return f.now, nil
	}
	if f.now == nil {
		return nil, err
	}
	if f.failed != err.Error() {
		f.log.Warn("the new certificate cannot be used, the old one stays", "file", f.cert, "error", err)
	}
	f.failed = err.Error()
	return f.now, nil
}

// The files of a self-signed certificate, and its life.
const (
	selfCert  = "selfsigned.crt"
	selfKey   = "selfsigned.key"
	selfLife  = 365 * 24 * time.Hour
	selfRenew = 30 * 24 * time.Hour
)

// SelfSigned is a certificate for names and addresses ("*.apps.localhost", "127.0.0.1"), made once in dir and again when its
// end is near or the names are others.
func SelfSigned(dir string, names []string, clock chassis.Clock, log *slog.Logger) (*Source, error) {
	f := &files{cert: filepath.Join(dir, selfCert), key: filepath.Join(dir, selfKey), clock: clock, log: log}
	slices.Sort(names)
	names = slices.Compact(names)
	if pair, err := tls.LoadX509KeyPair(f.cert, f.key); err != nil || !fits(pair.Leaf, names, clock.Now()) {
		if err := makeSelf(f.cert, f.key, names, clock.Now()); err != nil {
			return nil, fmt.Errorf("make a self-signed certificate: %w", err)
		}
		log.Info("self-signed certificate made; browsers warn until it is trusted", "file", f.cert, "names", names)
	}
	if _, err := f.get(nil); err != nil {
		return nil, fmt.Errorf("read the self-signed certificate: %w", err)
	}
	return f.source(), nil
}

func fits(leaf *x509.Certificate, names []string, now time.Time) bool {
	if leaf == nil || now.After(leaf.NotAfter.Add(-selfRenew)) || now.Before(leaf.NotBefore) {
		return false
	}
	have := slices.Clone(leaf.DNSNames)
	for _, ip := range leaf.IPAddresses {
		have = append(have, ip.String())
	}
	slices.Sort(have)
	return slices.Equal(have, names)
}

func makeSelf(certFile, keyFile string, names []string, now time.Time) error {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return err
	}
	serial, err := newSerial()
	if err != nil {
		return err
	}
	t := &x509.Certificate{
		SerialNumber: serial, Subject: pkix.Name{CommonName: "Berth app proxy"}, NotBefore: now.Add(-time.Hour), NotAfter: now.Add(selfLife),
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}, BasicConstraintsValid: true,
	}
	for _, name := range names {
		if ip := net.ParseIP(name); ip != nil {
			t.IPAddresses = append(t.IPAddresses, ip)
		} else {
			t.DNSNames = append(t.DNSNames, name)
		}
	}
	der, err := x509.CreateCertificate(rand.Reader, t, t, key.Public(), key)
	if err != nil {
		return err
	}
	raw, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return err
	}
	// The key first: a certificate without its key is made again.
	return errors.Join(writeFile(keyFile, "PRIVATE KEY", raw), writeFile(certFile, "CERTIFICATE", der))
}

func writeFile(path, kind string, der []byte) error {
	return durable.WriteFile(path, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600)
}
