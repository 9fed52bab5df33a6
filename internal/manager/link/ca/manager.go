package ca

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"fmt"
	"strings"
	"sync"
	"time"

	"berth.dev/berth/internal/fault"
	"berth.dev/berth/internal/wire/node"
	"berth.dev/berth/internal/wire/proxy"
)

// managerPrefix stands before a manager's id in the common name of the certificate that it shows to other managers. Nobody
// can join under such a name: only who has the authority's key, which are the managers, can make the certificate.
const managerPrefix = "manager:"

// ownLife is the life of a certificate that a manager makes for itself.
const ownLife = 90 * 24 * time.Hour

// ownCertificate is a certificate that lives in memory only and is renewed after two thirds of its life.
type ownCertificate struct {
	mu      sync.Mutex
	present *tls.Certificate
}

// ServerTLS is the configuration of the agent port, one for all connections. Clients without a certificate get through, because they may
// join; everything else asks Agent, Proxy or Manager.
func (a *Authority) ServerTLS() *tls.Config { return a.serverTLS }

func (a *Authority) newServerTLS() *tls.Config {
	return &tls.Config{
		MinVersion: tls.VersionTLS13,
		NextProtos: []string{"h2", node.ALPNStream, proxy.ALPN, node.ALPNManager},
		ClientAuth: tls.VerifyClientCertIfGiven,
		ClientCAs:  a.roots,
		Time:       a.clock.Now,
		// Nodes connect rarely and resume nothing.
		SessionTicketsDisabled: true,
		GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) {
			return a.own(&a.server, x509.Certificate{
				Subject: pkix.Name{CommonName: node.ServerName}, DNSNames: []string{node.ServerName},
				ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
			})
		},
	}
}

// ManagerTLS is the client configuration with which the manager of that id connects to the agent port of another one.
func (a *Authority) ManagerTLS(id string) *tls.Config {
	return &tls.Config{
		MinVersion: tls.VersionTLS13,
		NextProtos: []string{node.ALPNManager},
		ServerName: node.ServerName,
		RootCAs:    a.roots,
		Time:       a.clock.Now,
		GetClientCertificate: func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
			return a.own(&a.client, x509.Certificate{
				Subject:     pkix.Name{CommonName: managerPrefix + id},
				ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
			})
		},
	}
}

// Manager tells which manager a connection belongs to. Agents and app proxies are refused.
func (a *Authority) Manager(s tls.ConnectionState) (id string, err error) {
	leaf, err := leafOf(s)
	if err != nil {
		return "", err
	}
	id, ok := strings.CutPrefix(leaf.Subject.CommonName, managerPrefix)
	if !ok || id == "" {
		return "", fault.Deniedf("the certificate of %q is not a manager's", leaf.Subject.CommonName).WithReason("not-a-manager")
	}
	return id, nil
}

// own returns the manager's own certificate with the names and usages of t.
func (a *Authority) own(c *ownCertificate, t x509.Certificate) (*tls.Certificate, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := a.clock.Now()
	if c.present != nil && now.Before(c.present.Leaf.NotAfter.Add(-ownLife/3)) && now.After(c.present.Leaf.NotBefore) {
		return c.present, nil
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), a.random)
	if err != nil {
		return nil, fmt.Errorf("make a key: %w", err)
	}
	if t.SerialNumber, err = a.serial(); err != nil {
		return nil, err
	}
	t.NotBefore, t.NotAfter, t.KeyUsage = now.Add(-clockSkew), now.Add(ownLife), x509.KeyUsageDigitalSignature
	der, err := x509.CreateCertificate(a.random, &t, a.cert, key.Public(), a.key)
	if err != nil {
		return nil, fmt.Errorf("make the manager's certificate: %w", err)
	}
	leaf, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, fmt.Errorf("read the manager's certificate: %w", err)
	}
	// The authority goes along, so that joining agents can check it against their token.
	c.present = &tls.Certificate{Certificate: [][]byte{der, a.cert.Raw}, PrivateKey: key, Leaf: leaf}
	return c.present, nil
}
