// Package pin trusts servers by the fingerprint of their certificate authority: the system's authorities are not asked.
package pin

import (
	"crypto/sha256"
	"crypto/subtle"
	"crypto/tls"
	"crypto/x509"
	"encoding/hex"
	"errors"
	"fmt"
	"strings"
)

// Env names the variable with the fingerprint of the manager's certificate authority.
const Env = "BERTH_CA_FINGERPRINT"

// fingerprintPrefix begins fingerprints: "sha256:" and 64 hex digits.
const fingerprintPrefix = "sha256:"

// Parse reads a fingerprint.
func Parse(text string) ([]byte, error) {
	digits, ok := strings.CutPrefix(strings.ToLower(strings.TrimSpace(text)), fingerprintPrefix)
	raw, err := hex.DecodeString(strings.ReplaceAll(digits, ":", ""))
	if !ok || err != nil || len(raw) != sha256.Size {
		return nil, fmt.Errorf("%s is not %s and 64 hex digits; `berth status` on the manager's machine shows it", Env,
			fingerprintPrefix)
	}
	return raw, nil
}

// Err means that a server showed no certificate that belongs to the pinned fingerprint.
var Err = errors.New("the manager's certificate is not the one that " + Env +
	" names; somebody else may answer at this address, or the cluster has a new certificate authority")

// TLS accepts servers whose certificate is, or was signed by, the one with the fingerprint, for the name that was asked for.
func TLS(fingerprint []byte) *tls.Config {
	return &tls.Config{
		MinVersion: tls.VersionTLS12,
		// The system's authorities are not asked: VerifyConnection verifies against the pinned one alone.
		InsecureSkipVerify: true, //nolint:gosec // see VerifyConnection
		VerifyConnection: func(s tls.ConnectionState) error {
			roots, between := x509.NewCertPool(), x509.NewCertPool()
			found := false
			for _, c := range s.PeerCertificates {
				sum := sha256.Sum256(c.Raw)
				if subtle.ConstantTimeCompare(sum[:], fingerprint) == 1 {
					roots.AddCert(c)
					found = true
				} else {
					between.AddCert(c)
				}
			}
			if !found || len(s.PeerCertificates) == 0 {
				return Err
			}
			_, err := s.PeerCertificates[0].Verify(x509.VerifyOptions{Roots: roots, Intermediates: between, DNSName: s.ServerName})
			if err != nil {
				return fmt.Errorf("%w: %w", Err, err)
			}
			return nil
		},
	}
}
