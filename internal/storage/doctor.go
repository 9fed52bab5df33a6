package storage

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"time"

	"berth.dev/berth/internal/fault"
	wire "berth.dev/berth/internal/wire/storage"
)

// AskFindings asks the proxy of this configuration, which runs on this host, for its findings. It is Unavailable
// when none does.
func AskFindings(ctx context.Context, cfg Config) ([]Finding, error) {
	keys, err := cfg.keys()
	if err != nil {
		return nil, err
	}
	host, port, err := net.SplitHostPort(cfg.ManagerListen)
	if err != nil {
		return nil, fault.Invalidf("storage.manager_listen %q is no address", cfg.ManagerListen).WithNext("set it to host:port")
	}
	if ip := net.ParseIP(host); host == "" || ip != nil && ip.IsUnspecified() {
		host = "127.0.0.1"
	}
	transport := &http.Transport{DisableKeepAlives: true}
	scheme := "http"
	if cfg.TLS.Cert != "" {
		scheme = "https"
		// The proxy is known by its certificate file, whatever name is in it.
		transport.TLSClientConfig = &tls.Config{InsecureSkipVerify: true,
			VerifyPeerCertificate: func(raw [][]byte, _ [][]*x509.Certificate) error {
				text, err := os.ReadFile(cfg.TLS.Cert)
				if err != nil {
					return err
				}
				block, _ := pem.Decode(text)
				if block == nil || len(raw) == 0 || !bytes.Equal(block.Bytes, raw[0]) {
					return errors.New("somebody else answers: the certificate is not the one of storage.tls.cert")
				}
				return nil
			}}
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, scheme+"://"+net.JoinHostPort(host, port)+"/findings", nil)
	if err != nil {
		return nil, err
	}
	req.Header.Set(wire.Auth, keys.Manager)
	resp, err := (&http.Client{Transport: transport, Timeout: 20 * time.Second,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}).Do(req)
	if err != nil {
		return nil, fault.Unavailablef("the storage proxy does not answer at %s", cfg.ManagerListen).WithCause(err).WithNext("start it")
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(io.LimitReader(resp.Body, maxBody))
	if err != nil {
		return nil, err
	}
	if resp.StatusCode != http.StatusOK {
		return nil, fault.New(fault.Internal, "the storage proxy answers %s: %s", resp.Status,
			fault.Clip(strings.TrimSpace(string(body)), maxEcho)).
			WithNext("see whether it runs with this configuration")
	}
	var out []Finding
	return out, json.Unmarshal(body, &out)
}
