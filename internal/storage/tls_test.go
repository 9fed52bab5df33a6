package storage_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"math/big"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"berth.dev/berth/internal/chassis"
	"berth.dev/berth/internal/storage"
)

// later is a clock that can be put forward.
type later struct {
	chassis.Clock
	ahead atomic.Int64
}

func (l *later) Now() time.Time { return l.Clock.Now().Add(time.Duration(l.ahead.Load())) }

func certificate(t *testing.T, dir string, serial int64) storage.TLSConfig {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	template := &x509.Certificate{SerialNumber: big.NewInt(serial), NotAfter: time.Now().Add(time.Hour), DNSNames: []string{"storage.example"}}
	cert, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	require.NoError(t, err)
	raw, err := x509.MarshalPKCS8PrivateKey(key)
	require.NoError(t, err)
	c := storage.TLSConfig{Cert: filepath.Join(dir, "cert.pem"), Key: filepath.Join(dir, "key.pem")}
	require.NoError(t, os.WriteFile(c.Cert, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: cert}), 0o600))
	require.NoError(t, os.WriteFile(c.Key, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: raw}), 0o600))
	return c
}

func TestCertificateIsRenewed(t *testing.T) {
	t.Parallel()
	cfg, dir := config(t), t.TempDir()
	cfg.Volumes = map[string]storage.VolumeConfig{"disk": {Backend: "posix", Path: t.TempDir()}}
	cfg.TLS = storage.TLSConfig{Cert: filepath.Join(dir, "none"), Key: filepath.Join(dir, "none")}
	_, err := storage.New(t.Context(), cfg, storage.Deps{})
	require.ErrorContains(t, err, "certificate")

	cfg.TLS = certificate(t, dir, 1)
	clock := &later{Clock: chassis.RealClock()}
	n := run(t, cfg, storage.Deps{Clock: clock})
	require.True(t, strings.HasPrefix(n.ClientURL(), "https://"))
	serial := func() int64 {
		c, err := tls.Dial("tcp", n.ClientAddr(), &tls.Config{InsecureSkipVerify: true})
		require.NoError(t, err)
		defer c.Close()
		return c.ConnectionState().PeerCertificates[0].SerialNumber.Int64()
	}
	require.Equal(t, int64(1), serial())
	at := cfg
	at.ManagerListen = n.ManagerAddr()
	_, err = storage.AskFindings(t.Context(), at)
	require.NoError(t, err)
	certificate(t, dir, 2)
	require.Equal(t, int64(1), serial(), "not looked at again yet")
	clock.ahead.Store(int64(2 * time.Minute))
	require.Equal(t, int64(2), serial())
	require.NoError(t, os.WriteFile(cfg.TLS.Cert, []byte("half"), 0o600))
	clock.ahead.Store(int64(4 * time.Minute))
	require.Equal(t, int64(2), serial(), "a file that is being written does no harm")
	_, err = storage.AskFindings(t.Context(), at)
	require.Error(t, err, "somebody with another certificate is not the proxy")
}
