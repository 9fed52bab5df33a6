// Package membership is a process's membership of the cluster: its key, the certificate that the manager gave it for a join
// token, and the renewal of that. A process that has joined once comes back by its key, without a token. Agents and app proxies
// have one each; the common name of the certificate says which of them it is: an agent's id, or proxy.NamePrefix and a proxy's
// name.
package membership

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"encoding/binary"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"math"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"berth.dev/berth/internal/chassis"
	"berth.dev/berth/internal/durable"
	"berth.dev/berth/internal/wire/node"
	"berth.dev/berth/internal/wire/proxy"
)

// The files of a member, all in one directory of mode 0700.
const (
	fileKey     = "node.key"
	fileCert    = "node.crt"
	fileCA      = "ca.crt"
	fileCluster = "cluster"
)

// Options are what a member needs.
type Options struct {
	// Dir holds the member's files, which no other member uses.
	Dir string
	// Name is the common name: an agent's id, or proxy.NamePrefix and the name of an app proxy. Replicas of one app proxy
	// have the same name and a directory each.
	Name string
	// Token returns the join token; an empty one, or os.ErrNotExist, when there is none.
	Token func() (chassis.Secret, error)
	Log   *slog.Logger
	Clock chassis.Clock
}

// Member is the process's key with its certificate. The key never leaves the host. It is safe for concurrent use.
type Member struct {
	o    Options
	dial net.Dialer

	mu      sync.Mutex
	key     *ecdsa.PrivateKey
	cert    *x509.Certificate // nil before the process has joined
	ca      *x509.Certificate // of the cluster that it joined last, also without a certificate; nil before
	cluster string
}

// Open reads what is there and makes a key when there is none; nothing is dialed yet.
func Open(o Options) (*Member, error) {
	if err := os.MkdirAll(o.Dir, 0o700); err != nil {
		return nil, fmt.Errorf("open node identity: %w", err)
	}
	m := &Member{o: o, dial: Dialer()}
	der, err := m.read(fileKey)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		if m.key, err = ecdsa.GenerateKey(elliptic.P256(), rand.Reader); err != nil {
			return nil, fmt.Errorf("make node key: %w", err)
		}
		if der, err = x509.MarshalECPrivateKey(m.key); err == nil {
			err = m.write(fileKey, "EC PRIVATE KEY", der)
		}
		if err != nil {
			return nil, fmt.Errorf("make node key: %w", err)
		}
		return m, nil
	case err != nil:
		return nil, fmt.Errorf("read node key: %w", err)
	}
	if m.key, err = x509.ParseECPrivateKey(der); err != nil {
		return nil, fmt.Errorf("read node key: %w", err)
	}
	if m.ca, err = m.certificate(fileCA); err != nil {
		return m, nil
	}
	name, _ := os.ReadFile(filepath.Join(o.Dir, fileCluster)) // only compared by the manager
	m.cluster = strings.TrimSpace(string(name))
	// A certificate that cannot be used is replaced by joining again.
	cert, err := m.certificate(fileCert)
	if err == nil && m.key.PublicKey.Equal(cert.PublicKey) && cert.Subject.CommonName == o.Name && cert.CheckSignatureFrom(m.ca) == nil {
		m.cert = cert
	}
	return m, nil
}

// Belongs tells whether a directory holds the key of a member of that name, with a certificate of the authority (DER) that is valid
// now. Such a member needs no join token.
func Belongs(dir, name string, authority []byte, now time.Time) bool {
	if _, err := os.Stat(filepath.Join(dir, fileKey)); err != nil {
		return false // Open would make one
	}
	m, err := Open(Options{Dir: dir, Name: name})
	return err == nil && m.cert != nil && bytes.Equal(m.ca.Raw, authority) && now.Before(m.cert.NotAfter)
}

// Dialer is for connections to managers. Keep-alive probes notice within half a minute that the other end is gone.
func Dialer() net.Dialer {
	return net.Dialer{Timeout: 10 * time.Second, KeepAliveConfig: net.KeepAliveConfig{Enable: true, Idle: 10 * time.Second,
		Interval: 5 * time.Second, Count: 4}}
}

// kind is the noun for this process, section its section of the configuration.
func (m *Member) kind() (noun, section string) {
	if strings.HasPrefix(m.o.Name, proxy.NamePrefix) {
		return "app proxy", "appproxy"
	}
	return "agent", "agent"
}

func (m *Member) read(name string) ([]byte, error) {
	b, err := os.ReadFile(filepath.Join(m.o.Dir, name))
	if err != nil {
		return nil, err
	}
	p, _ := pem.Decode(b)
	if p == nil {
		return nil, fmt.Errorf("%s is not PEM", name)
	}
	return p.Bytes, nil
}

func (m *Member) certificate(name string) (*x509.Certificate, error) {
	der, err := m.read(name)
	if err != nil {
		return nil, err
	}
	return x509.ParseCertificate(der)
}

// write replaces a file atomically.
func (m *Member) write(name, kind string, der []byte) error {
	b := der
	if kind != "" {
		b = pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der})
	}
	return durable.WriteFile(filepath.Join(m.o.Dir, name), b, 0o600)
}

// Joined reports whether there is a certificate that is valid now.
func (m *Member) Joined() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.cert != nil && m.o.Clock.Now().Before(m.cert.NotAfter)
}

// leave drops the certificate when the operator's token belongs to another cluster: the manager was set up anew, or the process
// is moved to another cluster. It reports whether it did.
func (m *Member) leave(t node.JoinToken) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.ca == nil || sha256.Sum256(m.ca.Raw) == t.CA {
		return false
	}
	m.cert, m.ca, m.cluster = nil, nil, ""
	return true
}

// RenewAt is when the certificate should be replaced: after two thirds to three quarters of its life, so that members that joined
// together do not all come back together. It is zero without a certificate.
func (m *Member) RenewAt() time.Time {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.cert == nil {
		return time.Time{}
	}
	return renewAt(m.cert)
}

func renewAt(cert *x509.Certificate) time.Time {
	life := cert.NotAfter.Sub(cert.NotBefore)
	// The signature is as good as random, and says the same every time.
	sum := sha256.Sum256(cert.Signature)
	spread := life / 12 / math.MaxUint16 * time.Duration(binary.BigEndian.Uint16(sum[:]))
	return cert.NotBefore.Add(life*2/3 + spread)
}

// ClusterID is the id of the cluster joined, "" before.
func (m *Member) ClusterID() string {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.cluster
}
