package agentlink

import (
	"context"
	"crypto/sha256"
	"crypto/tls"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	"berth.dev/berth/internal/fault"
	"berth.dev/berth/internal/wire/node"
	"berth.dev/berth/internal/wire/proxy"
)

const (
	// maxReplicas bounds the valid certificates of one app proxy's name; a newer one pushes out the oldest.
	maxReplicas = 256
	// maxProxyConns bounds the connections of all app proxies to this manager.
	maxProxyConns = 1024
	// maxProxyName keeps common names below the 64 characters that X.509 allows.
	maxProxyName = 64 - len(proxy.NamePrefix)
)

// replicaRecord is the certificate of one replica of an app proxy. Replicas share a name; their keys tell them apart.
type replicaRecord struct {
	nodeRecord
	Key string `json:"key"` // SHA-256 of the public key
}

func proxyKey(name string) string { return "proxy-certificates/" + name }

// checkProxyName allows what is safe in paths, host names and certificates.
func checkProxyName(name string) error {
	if !plainName(name, maxProxyName) {
		return fault.Invalidf("the app proxy's name %q is not allowed", name).
			WithNext("use 1 to %d letters, digits, '-', '_' or '.', beginning with a letter, digit or '_'", maxProxyName)
	}
	return nil
}

// identifyProxy tells which app proxy a connection belongs to. Agents are refused.
func (a *authority) identifyProxy(ctx context.Context, s tls.ConnectionState) (name, serial string, err error) {
	full, serial, err := commonName(s)
	if err != nil {
		return "", "", err
	}
	name, ok := strings.CutPrefix(full, proxy.NamePrefix)
	if !ok || checkProxyName(name) != nil {
		return "", "", fault.Deniedf("the certificate of %q is not an app proxy's", full).WithReason("not-a-proxy")
	}
	raw, err := a.vault.Get(ctx, proxyKey(name))
	if err != nil {
		return "", "", fmt.Errorf("look up the certificates of app proxy %s: %w", name, err)
	}
	list, err := readReplicas(name, raw)
	if err != nil {
		return "", "", err
	}
	if indexSerial(list, serial) < 0 {
		return "", "", fault.New(fault.Unauthenticated, "this certificate of app proxy %s is no longer valid", name).
			WithReason("certificate-replaced").WithNext("remove the proxy's node.crt and let it join again with a join token")
	}
	return name, serial, nil
}

func readReplicas(name string, raw []byte) ([]replicaRecord, error) {
	if raw == nil {
		return nil, nil
	}
	var list []replicaRecord
	if err := json.Unmarshal(raw, &list); err != nil {
		return nil, fmt.Errorf("read the certificates of app proxy %s: %w", name, err)
	}
	return list, nil
}

func indexSerial(list []replicaRecord, serial string) int {
	return slices.IndexFunc(list, func(r replicaRecord) bool { return r.Serial == serial || r.Previous != "" && r.Previous == serial })
}

// issueProxy signs a certificate for one replica. renewed is the serial that it succeeds, "" when the replica joins with a
// token: then its earlier certificates for the same key end, and those of other replicas stay.
func (a *authority) issueProxy(ctx context.Context, name string, csrDER []byte, renewed string) ([]byte, error) {
	csr, err := readRequest("app proxy "+name, csrDER)
	if err != nil {
		return nil, err
	}
	der, serial, now, err := a.sign(proxy.NamePrefix+name, csr)
	if err != nil {
		return nil, err
	}
	sum := sha256.Sum256(csr.RawSubjectPublicKeyInfo)
	rec := replicaRecord{Key: hex.EncodeToString(sum[:]), nodeRecord: nodeRecord{Serial: serial, Previous: renewed, At: now}}
	_, err = a.vault.Update(ctx, proxyKey(name), func(old []byte) ([]byte, error) {
		list, err := readReplicas(name, old)
		if err != nil {
			return nil, err
		}
		return json.Marshal(withReplica(list, rec, now))
	})
	if err != nil {
		return nil, fmt.Errorf("record the certificate of app proxy %s: %w", name, err)
	}
	return der, nil
}

// withReplica puts a record in the place of what it succeeds and drops what has expired.
func withReplica(list []replicaRecord, rec replicaRecord, now time.Time) []replicaRecord {
	next := slices.DeleteFunc(slices.Clone(list), func(r replicaRecord) bool {
		return r.Key == rec.Key || rec.Previous != "" && (r.Serial == rec.Previous || r.Previous == rec.Previous) || now.After(r.At.Add(nodeCertLife))
	})
	next = append(next, rec)
	return next[max(0, len(next)-maxReplicas):]
}

// joinProxy is join for app proxies.
func (l *Link) joinProxy(ctx context.Context, name string, req *node.JoinRequest) (*node.JoinReply, error) {
	if err := checkProxyName(name); err != nil {
		return nil, err
	}
	renewed := ""
	if s, ok := tlsState(ctx); ok && len(s.VerifiedChains) > 0 {
		owner, serial, err := l.auth.identifyProxy(ctx, s)
		switch {
		case fault.Is(err, fault.Unauthenticated): // counts for nothing
		case err != nil:
			return nil, err
		case owner != name:
			return nil, fault.Deniedf("app proxy %s may not renew a certificate of %s", owner, name)
		default:
			renewed = serial
		}
	}
	if renewed == "" {
		if err := l.checkJoinToken(ctx, req.Token); err != nil {
			return nil, err
		}
	}
	der, err := l.auth.issueProxy(ctx, name, req.CsrDer, renewed)
	if err != nil {
		return nil, err
	}
	l.log.Info("an app proxy joined", "proxy", name, "remote", remote(ctx), "renewal", renewed != "")
	return &node.JoinReply{CertificateDer: der, CaDer: l.auth.cert.Raw, ClusterId: l.d.ClusterID}, nil
}

// greetProxy hands the connection of an app proxy to whoever serves it. It owns conn.
func (l *Link) greetProxy(ctx, hctx context.Context, conn *tls.Conn) {
	name, _, err := l.auth.identifyProxy(hctx, conn.ConnectionState())
	switch {
	case err != nil:
	case l.d.Proxies == nil:
		err = fault.Unavailablef("this manager serves no app proxies")
	case l.proxyConns.Add(1) > maxProxyConns:
		l.proxyConns.Add(-1)
		err = fault.Exhaustedf("%d connections of app proxies are open", maxProxyConns)
	}
	if err != nil {
		l.log.Warn("app proxy connection refused", "remote", conn.RemoteAddr(), "error", err)
		_ = conn.Close()
		return
	}
	l.work.Go(func() { // apart from the handshake, which counts against its own bound
		defer l.proxyConns.Add(-1)
		defer conn.Close()
		l.d.Proxies(ctx, name, conn)
	})
}
