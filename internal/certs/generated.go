package certs

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"berth.dev/berth/internal/chassis"
	"berth.dev/berth/internal/fault"
)

// The files of a generated authority, and its life.
const (
	CAFile    = "tls-ca.crt"
	caKeyFile = "tls-ca.key"
	caLife    = 20 * 365 * 24 * time.Hour
)

// generated is an authority of this server's own, with a certificate that it signed.
type generated struct {
	ca    *x509.Certificate
	key   *ecdsa.PrivateKey
	names []string
	clock chassis.Clock
	log   *slog.Logger

	mu   sync.Mutex
	leaf *tls.Certificate
}

// Generated serves names and addresses with a certificate of an authority that is made once and kept in dir. The authority stays the
// same when the certificate is renewed, so clients that know its fingerprint need nothing else. They find it in the chain.
func Generated(dir string, names []string, clock chassis.Clock, log *slog.Logger) (*Source, error) {
	names = slices.Clone(names)
	slices.Sort(names)
	g := &generated{names: slices.Compact(names), clock: clock, log: log}
	var err error
	if g.ca, g.key, err = loadAuthority(dir, clock.Now()); err != nil {
		return nil, fmt.Errorf("prepare the generated certificate authority in %s: %w", dir, err)
	}
	if _, err := g.get(nil); err != nil {
		return nil, fmt.Errorf("generate a certificate: %w", err)
	}
	return &Source{get: g.get, fingerprint: Fingerprint(g.ca), expires: func() (time.Time, bool) { return g.ca.NotAfter, true }}, nil
}

// Fingerprint is the SHA-256 of a certificate, as clients pin it.
func Fingerprint(c *x509.Certificate) string {
	sum := sha256.Sum256(c.Raw)
	return "sha256:" + hex.EncodeToString(sum[:])
}

func loadAuthority(dir string, now time.Time) (*x509.Certificate, *ecdsa.PrivateKey, error) {
	certFile, keyFile := filepath.Join(dir, CAFile), filepath.Join(dir, caKeyFile)
	pair, err := tls.LoadX509KeyPair(certFile, keyFile)
	switch key, ok := pair.PrivateKey.(*ecdsa.PrivateKey); {
	case err == nil && ok:
		return pair.Leaf, key, nil
	case err == nil:
		return nil, nil, fault.Invalidf("%s is of a kind that this program does not make", keyFile).WithNext("remove both files of the authority")
	}
	// Clients know the authority: it is made anew only where there is none at all.
	if _, serr := os.Stat(certFile); !errors.Is(serr, fs.ErrNotExist) {
		return nil, nil, err
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, nil, err
	}
	serial, err := newSerial()
	if err != nil {
		return nil, nil, err
	}
	t := &x509.Certificate{
		SerialNumber: serial, Subject: pkix.Name{CommonName: "Berth " + hex.EncodeToString(serial.Bytes()[:4])},
		NotBefore: now.Add(-time.Hour), NotAfter: now.Add(caLife), IsCA: true, BasicConstraintsValid: true, MaxPathLenZero: true,
		KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature,
	}
	der, err := x509.CreateCertificate(rand.Reader, t, t, key.Public(), key)
	if err != nil {
		return nil, nil, err
	}
	raw, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return nil, nil, err
	}
	if err := errors.Join(writeFile(keyFile, "PRIVATE KEY", raw), writeFile(certFile, "CERTIFICATE", der)); err != nil {
		return nil, nil, err
	}
	ca, err := x509.ParseCertificate(der)
	return ca, key, err
}

func newSerial() (*big.Int, error) {
	n, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 120))
	if err != nil {
		return nil, err
	}
	return n.SetBit(n, 120, 1), nil // of the same length always
}

// get signs a new certificate when the end of the present one is near. Its key is never on disk.
func (g *generated) get(*tls.ClientHelloInfo) (*tls.Certificate, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	now := g.clock.Now()
	if g.leaf != nil && now.Before(g.leaf.Leaf.NotAfter.Add(-selfRenew)) && !now.Before(g.leaf.Leaf.NotBefore) {
		return g.leaf, nil
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	serial, err := newSerial()
	if err != nil {
		return nil, err
	}
	t := &x509.Certificate{
		SerialNumber: serial, Subject: pkix.Name{CommonName: "Berth manager"}, NotBefore: now.Add(-time.Hour), NotAfter: now.Add(selfLife),
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}, BasicConstraintsValid: true,
	}
	for _, name := range g.names {
		if ip := net.ParseIP(name); ip != nil {
			t.IPAddresses = append(t.IPAddresses, ip)
		} else {
			t.DNSNames = append(t.DNSNames, name)
		}
	}
	der, err := x509.CreateCertificate(rand.Reader, t, g.ca, key.Public(), g.key)
	if err != nil {
		return nil, err
	}
	leaf, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, err
	}
	g.leaf = &tls.Certificate{Certificate: [][]byte{der, g.ca.Raw}, PrivateKey: key, Leaf: leaf}
	return g.leaf, nil
}
