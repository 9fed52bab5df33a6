// Package ca is the cluster's certificate authority: it decides who may join as which agent or app proxy, signs their
// certificates, keeps which of them are valid, makes and checks join tokens, and gives managers the certificate of their agent port.
//
// It keeps what all managers share in a Vault and opens no connection. link/agent calls it.
package ca

import (
	"context"
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rsa"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"math/big"
	"time"

	"berth.dev/berth/internal/chassis"
	"berth.dev/berth/internal/fault"
)

// Vault keeps small values for all managers of a cluster. What it stores is secret.
type Vault interface {
	// Get returns the value of a key, nil when there is none.
	Get(ctx context.Context, key string) ([]byte, error)
	// Update replaces the value of a key by what fn makes of the present one (nil when there is
	// none), alone against other managers; fn returning nil leaves it as it is. It returns
	// the value that is stored in the end.
	Update(ctx context.Context, key string, fn func(old []byte) ([]byte, error)) ([]byte, error)
}

const (
	keyAuthority = "node-authority"

	authorityLife = 20 * 365 * 24 * time.Hour
	nodeCertLife  = 365 * 24 * time.Hour
	clockSkew     = 10 * time.Minute
)

// Options are what an authority needs.
type Options struct {
	ClusterID string
	Vault     Vault
	Clock     chassis.Clock
	Random    io.Reader
	// Forget gives free what else belonged to a node whose certificates an administrator revoked. It may be nil.
	Forget func(context.Context, Node) error
}

// Authority is the cluster's certificate authority with the rules of joining. It is safe for concurrent use.
type Authority struct {
	vault  Vault
	clock  chassis.Clock
	random io.Reader
	forget func(context.Context, Node) error

	cert   *x509.Certificate
	key    crypto.Signer
	roots  *x509.CertPool
	pinned [sha256.Size]byte

	server, client ownCertificate
	serverTLS      *tls.Config
}

type storedAuthority struct {
	Cert []byte `json:"cert"` // DER
	Key  []byte `json:"key"`  // PKCS#8
}

// Open loads the authority; the first manager of a cluster makes it. It ends what older managers let in without asking who.
func Open(ctx context.Context, o Options) (*Authority, error) {
	a := &Authority{vault: o.Vault, clock: o.Clock, random: o.Random, forget: o.Forget}
	raw, err := o.Vault.Update(ctx, keyAuthority, func(old []byte) ([]byte, error) {
		if old != nil {
			return nil, nil
		}
		return a.create(o.ClusterID)
	})
	if err != nil {
		return nil, fmt.Errorf("load the authority of node certificates: %w", err)
	}
	if err := a.load(raw); err != nil {
		return nil, err
	}
	if err := a.voidOldTokens(ctx); err != nil {
		return nil, err
	}
	return a, nil
}

// OpenExisting loads the authority that a manager made.
func OpenExisting(ctx context.Context, o Options) (*Authority, error) {
	a := &Authority{vault: o.Vault, clock: o.Clock, random: o.Random, forget: o.Forget}
	raw, err := o.Vault.Get(ctx, keyAuthority)
	if err != nil {
		return nil, fmt.Errorf("load the authority of node certificates: %w", err)
	}
	if raw == nil {
		return nil, fault.Unavailablef("this cluster has no authority of node certificates yet").WithNext("start a manager once")
	}
	if err := a.load(raw); err != nil {
		return nil, err
	}
	return a, nil
}

func (a *Authority) load(raw []byte) (err error) {
	var s storedAuthority
	if err := json.Unmarshal(raw, &s); err != nil {
		return fmt.Errorf("read the authority of node certificates: %w", err)
	}
	if a.cert, err = x509.ParseCertificate(s.Cert); err != nil {
		return fmt.Errorf("read the authority's certificate: %w", err)
	}
	key, err := x509.ParsePKCS8PrivateKey(s.Key)
	if err != nil {
		return fmt.Errorf("read the authority's key: %w", err)
	}
	signer, ok := key.(crypto.Signer)
	if !ok {
		return fault.New(fault.Internal, "the authority's key cannot sign")
	}
	a.key, a.roots, a.pinned = signer, x509.NewCertPool(), sha256.Sum256(a.cert.Raw)
	a.roots.AddCert(a.cert)
	a.serverTLS = a.newServerTLS()
	return nil
}

func (a *Authority) create(clusterID string) ([]byte, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), a.random)
	if err != nil {
		return nil, fmt.Errorf("make a key: %w", err)
	}
	serial, err := a.serial()
	if err != nil {
		return nil, err
	}
	now := a.clock.Now()
	t := &x509.Certificate{
		SerialNumber: serial, Subject: pkix.Name{CommonName: "berth cluster " + clusterID},
		NotBefore: now.Add(-clockSkew), NotAfter: now.Add(authorityLife),
		IsCA: true, BasicConstraintsValid: true, MaxPathLenZero: true,
		KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature,
	}
	der, err := x509.CreateCertificate(a.random, t, t, key.Public(), key)
	if err != nil {
		return nil, fmt.Errorf("make the authority's certificate: %w", err)
	}
	raw, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return nil, fmt.Errorf("encode the authority's key: %w", err)
	}
	return json.Marshal(storedAuthority{Cert: der, Key: raw})
}

// Certificate is the authority's own certificate, DER.
func (a *Authority) Certificate() []byte { return a.cert.Raw }

func (a *Authority) serial() (*big.Int, error) {
	b := make([]byte, 16)
	if _, err := io.ReadFull(a.random, b); err != nil {
		return nil, fmt.Errorf("make a serial number: %w", err)
	}
	b[0] = b[0]&0x7f | 0x40 // positive, and always of the same length
	return new(big.Int).SetBytes(b), nil
}

// readRequest checks a certificate request; owner names whose it is in errors.
func readRequest(owner string, der []byte) (*x509.CertificateRequest, error) {
	csr, err := x509.ParseCertificateRequest(der)
	if err != nil {
		return nil, fault.Invalidf("the certificate request of %s cannot be used", owner).WithCause(err)
	}
	switch k := csr.PublicKey.(type) {
	case ed25519.PublicKey:
	case *ecdsa.PublicKey:
		if k.Curve.Params().BitSize < 256 {
			return nil, fault.Invalidf("the key of %s is on the curve %s", owner, k.Curve.Params().Name).
				WithNext("use the curve P-256 or a larger one")
		}
	case *rsa.PublicKey: // 3072 bits are worth 128 bits
		if n := k.N.BitLen(); n < 3072 || n > 8192 {
			return nil, fault.Invalidf("the key of %s has %d bits", owner, n).WithNext("use an RSA key of 3072 to 8192 bits, or another kind")
		}
	default:
		return nil, fault.Invalidf("the key of %s is of a kind that is not supported", owner)
	}
	// After the size of the key, which bounds what this costs.
	if err := csr.CheckSignature(); err != nil {
		return nil, fault.Invalidf("the certificate request of %s cannot be used", owner).WithCause(err)
	}
	return csr, nil
}

// sign makes a node certificate; nothing but its record makes it count.
func (a *Authority) sign(name string, csr *x509.CertificateRequest) (der []byte, serial string, now time.Time, err error) {
	number, err := a.serial()
	if err != nil {
		return nil, "", now, err
	}
	now = a.clock.Now()
	der, err = x509.CreateCertificate(a.random, &x509.Certificate{
		SerialNumber: number, Subject: pkix.Name{CommonName: name},
		NotBefore: now.Add(-clockSkew), NotAfter: now.Add(nodeCertLife),
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	}, a.cert, csr.PublicKey, a.key)
	if err != nil {
		return nil, "", now, fmt.Errorf("sign the certificate of %s: %w", name, err)
	}
	return der, hex.EncodeToString(number.Bytes()), now, nil
}
