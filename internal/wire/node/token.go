package node

import (
	"bytes"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"strings"

	"berth.dev/berth/internal/fault"
)

// ServerName is the name in every manager's certificate for the agent port, whatever
// address it is reached at.
const ServerName = "manager.berth"

// JoinToken lets one agent or app proxy join once and proves the manager to it: Secret is what the manager
// checks, CA the SHA-256 of the certificate authority that the manager must present.
type JoinToken struct {
	CA     [sha256.Size]byte
	Secret string // at least 32 random bytes, base64url
}

const tokenHead = "berth-join-1"

// String is the text that an operator copies to the joining host. It is a secret.
func (t JoinToken) String() string {
	return tokenHead + "." + base64.RawURLEncoding.EncodeToString(t.CA[:]) + "." + t.Secret
}

// ParseJoinToken reads what String wrote, surrounding white space ignored. Its errors never
// repeat the text.
func ParseJoinToken(text string) (JoinToken, error) {
	bad := fault.Invalidf("the join token cannot be read").WithReason("bad-join-token").
		WithNext("copy the whole token that the manager printed, it begins with %s", tokenHead)
	head, rest, ok := strings.Cut(strings.TrimSpace(text), ".")
	ca, secret, ok2 := strings.Cut(rest, ".")
	if !ok || !ok2 || head != tokenHead {
		return JoinToken{}, bad
	}
	sum, err := base64.RawURLEncoding.DecodeString(ca)
	if err != nil || len(sum) != sha256.Size {
		return JoinToken{}, bad
	}
	if raw, err := base64.RawURLEncoding.DecodeString(secret); err != nil || len(raw) < 32 || len(raw) > 128 {
		return JoinToken{}, bad
	}
	return JoinToken{CA: [sha256.Size]byte(sum), Secret: secret}, nil
}

// JoinTLS is the client configuration for the first contact, before the agent has a
// certificate: the manager is trusted only when it presents the token's authority.
func (t JoinToken) JoinTLS() *tls.Config {
	return &tls.Config{
		MinVersion: tls.VersionTLS13,
		ServerName: ServerName,
		NextProtos: []string{"h2"},
		// The authority is not known yet; VerifyConnection checks the chain against the token instead.
		InsecureSkipVerify: true,
		VerifyConnection: func(s tls.ConnectionState) error {
			roots := x509.NewCertPool()
			for _, c := range s.PeerCertificates {
				if sum := sha256.Sum256(c.Raw); bytes.Equal(sum[:], t.CA[:]) {
					roots.AddCert(c)
				}
			}
			_, err := s.PeerCertificates[0].Verify(x509.VerifyOptions{Roots: roots, DNSName: ServerName})
			if err != nil {
				return fault.Deniedf("the manager is not the one that the join token belongs to").WithReason("wrong-cluster").
					WithCause(err).WithNext("get a new join token from the manager of this cluster")
			}
			return nil
		},
	}
}

// ReturningTLS is the client configuration of a node that joined before and has no valid certificate now.
func ReturningTLS(ca *x509.Certificate) *tls.Config {
	roots := x509.NewCertPool()
	roots.AddCert(ca)
	return &tls.Config{MinVersion: tls.VersionTLS13, ServerName: ServerName, RootCAs: roots, NextProtos: []string{"h2"}}
}

// AgentTLS is the client configuration with a node certificate; alpn is "h2" for the
// control stream and ALPNStream for byte streams.
func AgentTLS(cert tls.Certificate, ca *x509.Certificate, alpn string) *tls.Config {
	roots := x509.NewCertPool()
	roots.AddCert(ca)
	return &tls.Config{
		MinVersion: tls.VersionTLS13, ServerName: ServerName, RootCAs: roots,
		Certificates: []tls.Certificate{cert}, NextProtos: []string{alpn},
	}
}
