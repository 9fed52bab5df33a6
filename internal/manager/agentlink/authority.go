package agentlink

import (
	"context"
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rsa"
	"crypto/sha256"
	"crypto/subtle"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math/big"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"berth.dev/berth/internal/chassis"
	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/fault"
	"berth.dev/berth/internal/wire/node"
	"berth.dev/berth/internal/wire/proxy"
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
	keyAuthority  = "node-authority"
	keyJoinTokens = "join-tokens"
	// maxTokens bounds the valid join tokens; a newer one pushes out the oldest.
	maxTokens = 16

	authorityLife = 20 * 365 * 24 * time.Hour
	nodeCertLife  = 365 * 24 * time.Hour
	serverLife    = 90 * 24 * time.Hour
	clockSkew     = 10 * time.Minute
)

// authority is the cluster's certificate authority with the rules of joining.
type authority struct {
	vault  Vault
	clock  chassis.Clock
	random io.Reader

	cert   *x509.Certificate
	key    crypto.Signer
	roots  *x509.CertPool
	pinned [sha256.Size]byte

	mu     sync.Mutex
	server *tls.Certificate
}

type storedAuthority struct {
	Cert []byte `json:"cert"` // DER
	Key  []byte `json:"key"`  // PKCS#8
}

// openAuthority loads the authority; the first manager of a cluster makes it.
func openAuthority(ctx context.Context, d Deps) (*authority, error) {
	a := &authority{vault: d.Vault, clock: d.Clock, random: d.Random}
	raw, err := d.Vault.Update(ctx, keyAuthority, func(old []byte) ([]byte, error) {
		if old != nil {
			return nil, nil
		}
		return a.create(d.ClusterID)
	})
	if err != nil {
		return nil, fmt.Errorf("load the authority of node certificates: %w", err)
	}
	var s storedAuthority
	if err := json.Unmarshal(raw, &s); err != nil {
		return nil, fmt.Errorf("read the authority of node certificates: %w", err)
	}
	if a.cert, err = x509.ParseCertificate(s.Cert); err != nil {
		return nil, fmt.Errorf("read the authority's certificate: %w", err)
	}
	key, err := x509.ParsePKCS8PrivateKey(s.Key)
	if err != nil {
		return nil, fmt.Errorf("read the authority's key: %w", err)
	}
	signer, ok := key.(crypto.Signer)
	if !ok {
		return nil, fault.New(fault.Internal, "the authority's key cannot sign")
	}
	a.key, a.roots, a.pinned = signer, x509.NewCertPool(), sha256.Sum256(a.cert.Raw)
	a.roots.AddCert(a.cert)
	return a, nil
}

func (a *authority) create(clusterID string) ([]byte, error) {
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

func (a *authority) serial() (*big.Int, error) {
	b := make([]byte, 16)
	if _, err := io.ReadFull(a.random, b); err != nil {
		return nil, fmt.Errorf("make a serial number: %w", err)
	}
	b[0] = b[0]&0x7f | 0x40 // positive, and always of the same length
	return new(big.Int).SetBytes(b), nil
}

// serverTLS is the configuration of the agent port. Clients without a certificate get
// through, because they may join; everything else asks identify.
func (a *authority) serverTLS() *tls.Config {
	return &tls.Config{
		MinVersion: tls.VersionTLS13,
		NextProtos: []string{"h2", node.ALPNStream, proxy.ALPN},
		ClientAuth: tls.VerifyClientCertIfGiven,
		ClientCAs:  a.roots,
		Time:       a.clock.Now,
		GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) {
			return a.serverCertificate()
		},
	}
}

// serverCertificate lives in memory only and is renewed after two thirds of its life.
func (a *authority) serverCertificate() (*tls.Certificate, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	now := a.clock.Now()
	if a.server != nil && now.Before(a.server.Leaf.NotAfter.Add(-serverLife/3)) && now.After(a.server.Leaf.NotBefore) {
		return a.server, nil
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), a.random)
	if err != nil {
		return nil, fmt.Errorf("make a key: %w", err)
	}
	serial, err := a.serial()
	if err != nil {
		return nil, err
	}
	t := &x509.Certificate{
		SerialNumber: serial, Subject: pkix.Name{CommonName: node.ServerName}, DNSNames: []string{node.ServerName},
		NotBefore: now.Add(-clockSkew), NotAfter: now.Add(serverLife),
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	der, err := x509.CreateCertificate(a.random, t, a.cert, key.Public(), a.key)
	if err != nil {
		return nil, fmt.Errorf("make the manager's certificate: %w", err)
	}
	leaf, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, fmt.Errorf("read the manager's certificate: %w", err)
	}
	// The authority goes along, so that joining agents can check it against their token.
	a.server = &tls.Certificate{Certificate: [][]byte{der, a.cert.Raw}, PrivateKey: key, Leaf: leaf}
	return a.server, nil
}

// nodeRecord says which certificates of an agent count. Previous is the one before a
// renewal, so that an agent that lost the answer is not locked out; joining anew clears it.
type nodeRecord struct {
	Serial   string    `json:"serial"`
	Previous string    `json:"previous,omitempty"`
	At       time.Time `json:"at"`
}

func nodeKey(agent cluster.AgentID) string { return "node-certificate/" + string(agent) }

// commonName is the name in a verified certificate, with its serial.
func commonName(s tls.ConnectionState) (name, serial string, err error) {
	if len(s.VerifiedChains) == 0 {
		return "", "", fault.New(fault.Unauthenticated, "no node certificate was presented").WithReason("not-joined").
			WithNext("join with a join token first")
	}
	leaf := s.PeerCertificates[0]
	return leaf.Subject.CommonName, hex.EncodeToString(leaf.SerialNumber.Bytes()), nil
}

// identify tells which agent a connection belongs to, and the serial of its certificate. App proxies are refused.
func (a *authority) identify(ctx context.Context, s tls.ConnectionState) (cluster.AgentID, string, error) {
	name, serial, err := commonName(s)
	if err != nil {
		return "", "", err
	}
	if err := checkAgentID(name); err != nil {
		return "", "", fault.Deniedf("the certificate of %q is not an agent's", name).WithReason("not-an-agent")
	}
	agent := cluster.AgentID(name)
	raw, err := a.vault.Get(ctx, nodeKey(agent))
	if err != nil {
		return "", "", fmt.Errorf("look up the certificate of agent %s: %w", agent, err)
	}
	var rec nodeRecord
	if raw != nil {
		if err := json.Unmarshal(raw, &rec); err != nil {
			return "", "", fmt.Errorf("read the certificate record of agent %s: %w", agent, err)
		}
	}
	if serial != rec.Serial && serial != rec.Previous {
		return "", "", fault.New(fault.Unauthenticated, "the certificate of agent %s is no longer valid, another one was issued since", agent).
			WithReason("certificate-replaced").WithNext("stop the other agent of that name, or join again with a join token")
	}
	return agent, serial, nil
}

// issue signs a node certificate and makes it the agent's.
func (a *authority) issue(ctx context.Context, agent cluster.AgentID, csrDER []byte, renewal bool) ([]byte, error) {
	csr, err := readRequest("agent "+string(agent), csrDER)
	if err != nil {
		return nil, err
	}
	der, serial, now, err := a.sign(string(agent), csr)
	if err != nil {
		return nil, err
	}
	_, err = a.vault.Update(ctx, nodeKey(agent), func(old []byte) ([]byte, error) {
		rec := nodeRecord{Serial: serial, At: now}
		if renewal && old != nil {
			var was nodeRecord
			if err := json.Unmarshal(old, &was); err != nil {
				return nil, fmt.Errorf("read the certificate record: %w", err)
			}
			rec.Previous = was.Serial
		}
		return json.Marshal(rec)
	})
	if err != nil {
		return nil, fmt.Errorf("record the certificate of agent %s: %w", agent, err)
	}
	return der, nil
}

// readRequest checks a certificate request; owner names whose it is in errors.
func readRequest(owner string, der []byte) (*x509.CertificateRequest, error) {
	csr, err := x509.ParseCertificateRequest(der)
	if err == nil {
		err = csr.CheckSignature()
	}
	if err != nil {
		return nil, fault.Invalidf("the certificate request of %s cannot be used", owner).WithCause(err)
	}
	switch k := csr.PublicKey.(type) {
	case *ecdsa.PublicKey, ed25519.PublicKey:
	case *rsa.PublicKey:
		if k.N.BitLen() < 2048 {
			return nil, fault.Invalidf("the key of %s is too short: %d bits", owner, k.N.BitLen())
		}
	default:
		return nil, fault.Invalidf("the key of %s is of a kind that is not supported", owner)
	}
	return csr, nil
}

// sign makes a node certificate; nothing but its record makes it count.
func (a *authority) sign(name string, csr *x509.CertificateRequest) (der []byte, serial string, now time.Time, err error) {
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

// storedToken is a join token as it is kept: hashed.
type storedToken struct {
	Hash [sha256.Size]byte `json:"hash"`
	At   time.Time         `json:"at"`
}

func (a *authority) newToken(ctx context.Context) (node.JoinToken, error) {
	raw := make([]byte, 32)
	if _, err := io.ReadFull(a.random, raw); err != nil {
		return node.JoinToken{}, fmt.Errorf("make a join token: %w", err)
	}
	t := node.JoinToken{CA: a.pinned, Secret: base64.RawURLEncoding.EncodeToString(raw)}
	_, err := a.vault.Update(ctx, keyJoinTokens, func(old []byte) ([]byte, error) {
		list, err := readTokens(old)
		if err != nil {
			return nil, err
		}
		list = append(list, storedToken{Hash: sha256.Sum256([]byte(t.Secret)), At: a.clock.Now()})
		return json.Marshal(list[max(0, len(list)-maxTokens):])
	})
	if err != nil {
		return node.JoinToken{}, fmt.Errorf("store a join token: %w", err)
	}
	return t, nil
}

func (a *authority) revokeTokens(ctx context.Context) error {
	_, err := a.vault.Update(ctx, keyJoinTokens, func([]byte) ([]byte, error) { return []byte("[]"), nil })
	return err
}

// checkToken compares with every valid token, in the same time whichever matches.
func (a *authority) checkToken(ctx context.Context, secret string) (bool, error) {
	raw, err := a.vault.Get(ctx, keyJoinTokens)
	if err != nil {
		return false, fmt.Errorf("load join tokens: %w", err)
	}
	list, err := readTokens(raw)
	if err != nil {
		return false, err
	}
	sum := sha256.Sum256([]byte(secret))
	found := 0
	for _, t := range list {
		found |= subtle.ConstantTimeCompare(sum[:], t.Hash[:])
	}
	return found == 1 && secret != "", nil
}

func readTokens(raw []byte) ([]storedToken, error) {
	if raw == nil {
		return nil, nil
	}
	var list []storedToken
	if err := json.Unmarshal(raw, &list); err != nil {
		return nil, fmt.Errorf("read join tokens: %w", err)
	}
	return list, nil
}

// keepTokenFile makes sure that the file holds a valid token of this cluster.
func (a *authority) keepTokenFile(ctx context.Context, path string) error {
	text, err := os.ReadFile(path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("read the join token file: %w", err)
	}
	if t, err := node.ParseJoinToken(string(text)); err == nil && t.CA == a.pinned {
		ok, err := a.checkToken(ctx, t.Secret)
		if err != nil {
			return err
		}
		if ok {
			return nil
		}
	}
	t, err := a.newToken(ctx)
	if err != nil {
		return err
	}
	// Write beside and rename, so that no agent ever reads half a token.
	f, err := os.CreateTemp(filepath.Dir(path), ".join-token-*") // mode 0600
	if err != nil {
		return fmt.Errorf("write the join token file: %w", err)
	}
	_, err = f.WriteString(t.String() + "\n")
	if err = errors.Join(err, f.Close()); err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		_ = os.Remove(f.Name())
		return fmt.Errorf("write the join token file %s: %w", path, err)
	}
	return nil
}

// checkAgentID allows what is safe in paths, labels and certificates. A ':' is not, so that no agent has the common name
// of an app proxy.
func checkAgentID(id string) error {
	if !plainName(id, 64) {
		return fault.Invalidf("the agent id %q is not allowed", id).
			WithNext("use 1 to 64 letters, digits, '-', '_' or '.', beginning with a letter, digit or '_'")
	}
	return nil
}

func plainName(name string, longest int) bool {
	ok := len(name) >= 1 && len(name) <= longest && !slices.ContainsFunc([]byte(name), func(c byte) bool {
		return !(c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || c == '-' || c == '_' || c == '.')
	})
	return ok && name[0] != '.' && name[0] != '-'
}
