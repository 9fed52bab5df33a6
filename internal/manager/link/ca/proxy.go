package ca

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
	"berth.dev/berth/internal/wire/proxy"
)

// maxReplicas bounds the valid certificates of one app proxy's name; a newer one pushes out the oldest.
const maxReplicas = 256

// replicaRecord is the certificate of one replica of an app proxy. Replicas share a name; their keys tell them apart.
type replicaRecord struct {
	nodeRecord
	Key string `json:"key"` // SHA-256 of the public key
}

func proxyKey(name string) string { return "proxy-certificates/" + name }

// CheckProxyName allows what is safe in paths, host names and certificates.
func CheckProxyName(name string) error {
	if !plainName(name, maxProxyName) {
		return fault.Invalidf("the app proxy's name %q is not allowed", name).
			WithNext("use 1 to %d letters, digits, '-', '_' or '.', beginning with a letter, digit or '_'", maxProxyName)
	}
	return nil
}

// Proxy tells which app proxy a connection belongs to. Agents are refused.
func (a *Authority) Proxy(ctx context.Context, s tls.ConnectionState) (name, serial string, err error) {
	full, serial, err := commonName(s)
	if err != nil {
		return "", "", err
	}
	name, ok := strings.CutPrefix(full, proxy.NamePrefix)
	if !ok || CheckProxyName(name) != nil {
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

// IssueProxy signs a certificate for one replica. renewed is the serial that it succeeds, "" when the replica joins with a
// token: then its earlier certificates for the same key end, and those of other replicas stay.
func (a *Authority) IssueProxy(ctx context.Context, name string, csrDER []byte, renewed string) ([]byte, error) {
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
		return r.Key == rec.Key || rec.Previous != "" && (r.Serial == rec.Previous || r.Previous == rec.Previous) ||
			now.After(r.At.Add(nodeCertLife))
	})
	next = append(next, rec)
	return next[max(0, len(next)-maxReplicas):]
}
