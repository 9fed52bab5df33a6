package link

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/status"

	"berth.dev/berth/internal/chassis"
	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/fault"
	"berth.dev/berth/internal/wire/node"
)

// The files of an identity, all in one directory of mode 0700.
const (
	fileKey     = "node.key"
	fileCert    = "node.crt"
	fileCA      = "ca.crt"
	fileCluster = "cluster"
)

// identity is the node's key with its certificate. The key never leaves the host.
type identity struct {
	dir   string
	agent cluster.AgentID
	clock chassis.Clock

	mu      sync.Mutex
	key     *ecdsa.PrivateKey
	cert    *x509.Certificate // nil before the agent has joined
	ca      *x509.Certificate
	cluster string
}

// openIdentity reads what is there and makes a key when there is none.
func openIdentity(dir string, agent cluster.AgentID, clock chassis.Clock) (*identity, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("open node identity: %w", err)
	}
	id := &identity{dir: dir, agent: agent, clock: clock}
	der, err := id.read(fileKey)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		if id.key, err = ecdsa.GenerateKey(elliptic.P256(), rand.Reader); err != nil {
			return nil, fmt.Errorf("make node key: %w", err)
		}
		if der, err = x509.MarshalECPrivateKey(id.key); err == nil {
			err = id.write(fileKey, "EC PRIVATE KEY", der)
		}
		if err != nil {
			return nil, fmt.Errorf("make node key: %w", err)
		}
		return id, nil
	case err != nil:
		return nil, fmt.Errorf("read node key: %w", err)
	}
	if id.key, err = x509.ParseECPrivateKey(der); err != nil {
		return nil, fmt.Errorf("read node key: %w", err)
	}
	// A certificate that cannot be used is replaced by joining again.
	cert, err := id.certificate(fileCert)
	if err != nil {
		return id, nil
	}
	ca, err := id.certificate(fileCA)
	if err != nil || !id.key.PublicKey.Equal(cert.PublicKey) || cert.Subject.CommonName != string(agent) {
		return id, nil
	}
	name, _ := os.ReadFile(filepath.Join(dir, fileCluster)) // only compared by the manager
	id.cert, id.ca, id.cluster = cert, ca, strings.TrimSpace(string(name))
	return id, nil
}

func (id *identity) read(name string) ([]byte, error) {
	b, err := os.ReadFile(filepath.Join(id.dir, name))
	if err != nil {
		return nil, err
	}
	p, _ := pem.Decode(b)
	if p == nil {
		return nil, fmt.Errorf("%s is not PEM", name)
	}
	return p.Bytes, nil
}

func (id *identity) certificate(name string) (*x509.Certificate, error) {
	der, err := id.read(name)
	if err != nil {
		return nil, err
	}
	return x509.ParseCertificate(der)
}

// write replaces a file whole or not at all.
func (id *identity) write(name, kind string, der []byte) error {
	b := der
	if kind != "" {
		b = pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der})
	}
	path := filepath.Join(id.dir, name)
	if err := os.WriteFile(path+".new", b, 0o600); err != nil {
		return err
	}
	return os.Rename(path+".new", path)
}

// joined reports whether there is a certificate that is valid now.
func (id *identity) joined() bool {
	id.mu.Lock()
	defer id.mu.Unlock()
	return id.cert != nil && id.clock.Now().Before(id.cert.NotAfter)
}

// leave gives up the certificate of a cluster that the operator's token does not belong to:
// the manager was set up anew, or the agent moves. It reports whether it did.
func (id *identity) leave(t node.JoinToken) bool {
	id.mu.Lock()
	defer id.mu.Unlock()
	if id.cert == nil || sha256.Sum256(id.ca.Raw) == t.CA {
		return false
	}
	id.cert, id.ca, id.cluster = nil, nil, ""
	return true
}

// renewAt is when the certificate should be replaced: after two thirds of its life.
func (id *identity) renewAt() time.Time {
	id.mu.Lock()
	defer id.mu.Unlock()
	if id.cert == nil {
		return time.Time{}
	}
	life := id.cert.NotAfter.Sub(id.cert.NotBefore)
	return id.cert.NotBefore.Add(life * 2 / 3)
}

func (id *identity) clusterID() string {
	id.mu.Lock()
	defer id.mu.Unlock()
	return id.cluster
}

// tls is the client configuration with the node certificate.
func (id *identity) tls(alpn string) *tls.Config {
	id.mu.Lock()
	defer id.mu.Unlock()
	return node.AgentTLS(tls.Certificate{Certificate: [][]byte{id.cert.Raw}, PrivateKey: id.key, Leaf: id.cert}, id.ca, alpn)
}

// join gets a certificate: with a token for the first one, over the present one for the next.
func (id *identity) join(ctx context.Context, addr string, token string, dial grpc.DialOption) error {
	conf := &tls.Config{}
	secret := ""
	if token != "" {
		t, err := node.ParseJoinToken(token)
		if err != nil {
			return err
		}
		conf, secret = t.JoinTLS(), t.Secret
	}
	if id.joined() {
		conf = id.tls("h2")
	} else if token == "" {
		return fault.Invalidf("this agent has no node certificate and no join token").WithReason("no-join-token").
			WithNext("set agent.join_token_file to the file with the manager's join token")
	}
	csr, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{Subject: pkix.Name{CommonName: string(id.agent)}}, id.key)
	if err != nil {
		return fmt.Errorf("request a node certificate: %w", err)
	}
	conn, err := grpc.NewClient("passthrough:///"+addr, grpc.WithTransportCredentials(credentials.NewTLS(conf)), dial)
	if err != nil {
		return fmt.Errorf("request a node certificate: %w", err)
	}
	defer conn.Close()
	ctx, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	reply, err := node.NewNodeClient(conn).Join(ctx, &node.JoinRequest{Token: secret, AgentId: string(id.agent), CsrDer: csr, Version: node.Version})
	if err != nil {
		return fmt.Errorf("request a node certificate: %w", fromStatus(err))
	}
	return id.accept(reply)
}

// accept checks and keeps what the manager gave.
func (id *identity) accept(r *node.JoinReply) error {
	cert, err := x509.ParseCertificate(r.GetCertificateDer())
	if err != nil {
		return fmt.Errorf("read the node certificate: %w", err)
	}
	ca, err := x509.ParseCertificate(r.GetCaDer())
	if err != nil {
		return fmt.Errorf("read the cluster's authority: %w", err)
	}
	roots := x509.NewCertPool()
	roots.AddCert(ca)
	if _, err := cert.Verify(x509.VerifyOptions{Roots: roots, CurrentTime: id.clock.Now(), KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}}); err != nil {
		return fmt.Errorf("check the node certificate: %w", err)
	}
	if !id.key.PublicKey.Equal(cert.PublicKey) || cert.Subject.CommonName != string(id.agent) {
		return fault.Invalidf("the manager gave a certificate of another agent (%s)", cert.Subject.CommonName)
	}
	// The certificate last: without it the others are not used.
	for _, f := range []struct {
		name, kind string
		data       []byte
	}{{fileCA, "CERTIFICATE", ca.Raw}, {fileCluster, "", []byte(r.GetClusterId())}, {fileCert, "CERTIFICATE", cert.Raw}} {
		if err := id.write(f.name, f.kind, f.data); err != nil {
			return fmt.Errorf("keep the node certificate: %w", err)
		}
	}
	id.mu.Lock()
	defer id.mu.Unlock()
	id.cert, id.ca, id.cluster = cert, ca, r.GetClusterId()
	return nil
}

// fromStatus turns a gRPC status into a fault.
func fromStatus(err error) error {
	s, ok := status.FromError(err)
	if !ok {
		return err
	}
	kind := map[codes.Code]fault.Kind{
		codes.NotFound: fault.NotFound, codes.AlreadyExists: fault.Conflict, codes.FailedPrecondition: fault.Conflict, codes.Aborted: fault.Conflict,
		codes.PermissionDenied: fault.Denied, codes.Unauthenticated: fault.Unauthenticated, codes.InvalidArgument: fault.Invalid,
		codes.ResourceExhausted: fault.Exhausted, codes.Unavailable: fault.Unavailable, codes.DeadlineExceeded: fault.Timeout,
	}[s.Code()]
	return fault.New(kind, "%s", s.Message())
}
