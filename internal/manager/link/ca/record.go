package ca

import (
	"context"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/fault"
)

const (
	// maxReplicas bounds the valid certificates of one app proxy's name; a newer one pushes out the oldest.
	maxReplicas = 256
	// keyGrace is how long after the end of its last certificate a node may join again by its key alone.
	keyGrace = 90 * 24 * time.Hour
	// keyEnded counts the changes that ended certificates before their time.
	keyEnded = "node-certificates-ended"
)

// record says which certificates of a node's key count. Previous is the one before a renewal, so that a node that lost the
// answer is not locked out. An agent has one record, an app proxy one for each replica.
//
// A record without a serial is a mark that the node's certificates were revoked: the node stays known.
type record struct {
	Serial   string    `json:"serial"`
	Previous string    `json:"previous,omitempty"`
	At       time.Time `json:"at"`
	// Key is the SHA-256 of the public key; "" in records of agents of older managers, until the agent connects.
	Key string `json:"key,omitempty"`
	// Generation grows when an administrator's word ends the node's earlier certificates. A join token counts for the
	// generation in which it was made, so that no old token brings back who was replaced.
	Generation int `json:"generation,omitempty"`
	// ResourceGroup is where the join token put the agent; "" means the default group.
	ResourceGroup string `json:"resource_group,omitempty"`
}

// recordKey is where the vault keeps the node's records.
func (n Node) recordKey() string {
	if n.Role == RoleAppProxy {
		return "proxy-certificates/" + n.Name
	}
	return "node-certificate/" + n.Name
}

// read decodes the node's records: a list for app proxies, one object for agents.
func (n Node) read(raw []byte) ([]record, error) {
	if raw == nil {
		return nil, nil
	}
	list := make([]record, 1)
	target := any(&list[0])
	if n.Role == RoleAppProxy {
		target = &list
	}
	if err := json.Unmarshal(raw, target); err != nil {
		return nil, fmt.Errorf("read the certificates of %s: %w", n, err)
	}
	return list, nil
}

func (n Node) write(list []record) ([]byte, error) {
	if n.Role == RoleAppProxy {
		return json.Marshal(list)
	}
	return json.Marshal(list[len(list)-1])
}

func generation(list []record) (last int) {
	for _, r := range list {
		last = max(last, r.Generation)
	}
	return last
}

func indexSerial(list []record, serial string) int {
	return slices.IndexFunc(list, func(r record) bool { return serial != "" && (r.Serial == serial || r.Previous == serial) })
}

// indexKey finds the record of a key that may still join by it.
func indexKey(list []record, key string, now time.Time) int {
	return slices.IndexFunc(list, func(r record) bool { return r.Key == key && key != "" && now.Before(r.At.Add(nodeCertLife+keyGrace)) })
}

// fingerprint is how a public key (DER) is kept.
func fingerprint(publicKey []byte) string {
	sum := sha256.Sum256(publicKey)
	return hex.EncodeToString(sum[:])
}

func (a *Authority) records(ctx context.Context, n Node) ([]record, error) {
	raw, err := a.vault.Get(ctx, n.recordKey())
	if err != nil {
		return nil, fmt.Errorf("look up the certificates of %s: %w", n, err)
	}
	return n.read(raw)
}

// ResourceGroup is the group that an administrator chose for an agent when it joined; "" when none was chosen.
func (a *Authority) ResourceGroup(ctx context.Context, agent cluster.AgentID) (string, error) {
	list, err := a.records(ctx, Node{Role: RoleAgent, Name: string(agent)})
	if err != nil || len(list) == 0 {
		return "", err
	}
	return list[len(list)-1].ResourceGroup, nil
}

// leafOf is the verified certificate of a connection.
func leafOf(s tls.ConnectionState) (*x509.Certificate, error) {
	if len(s.VerifiedChains) == 0 {
		return nil, fault.New(fault.Unauthenticated, "no node certificate was presented").WithReason("not-joined").
			WithNext("join with a join token first")
	}
	return s.PeerCertificates[0], nil
}

// SerialOf is a certificate's serial as records have it.
func SerialOf(leaf *x509.Certificate) string { return hex.EncodeToString(leaf.SerialNumber.Bytes()) }

// Agent tells which agent a connection belongs to, and the serial of its certificate. App proxies and managers are refused.
func (a *Authority) Agent(ctx context.Context, s tls.ConnectionState) (cluster.AgentID, string, error) {
	n, serial, err := a.node(ctx, s, RoleAgent)
	return cluster.AgentID(n.Name), serial, err
}

// Proxy tells which app proxy a connection belongs to, and the serial of its certificate. Agents and managers are refused.
func (a *Authority) Proxy(ctx context.Context, s tls.ConnectionState) (name, serial string, err error) {
	n, serial, err := a.node(ctx, s, RoleAppProxy)
	return n.Name, serial, err
}

func (a *Authority) node(ctx context.Context, s tls.ConnectionState, role Role) (Node, string, error) {
	leaf, err := leafOf(s)
	if err != nil {
		return Node{}, "", err
	}
	n, err := NodeOf(leaf.Subject.CommonName)
	if err != nil || n.Role != role {
		if role == RoleAppProxy {
			return Node{}, "", fault.Deniedf("the certificate of %q is not an app proxy's", leaf.Subject.CommonName).WithReason("not-a-proxy")
		}
		return Node{}, "", fault.Deniedf("the certificate of %q is not an agent's", leaf.Subject.CommonName).WithReason("not-an-agent")
	}
	serial := SerialOf(leaf)
	r, err := a.counts(ctx, n, serial)
	if err != nil {
		return Node{}, "", err
	}
	if r.Key == "" && r.Serial == serial {
		a.learnKey(ctx, n, serial, fingerprint(leaf.RawSubjectPublicKeyInfo))
	}
	return n, serial, nil
}

// Counts fails when the node's certificate with that serial has been replaced or revoked.
func (a *Authority) Counts(ctx context.Context, n Node, serial string) error {
	_, err := a.counts(ctx, n, serial)
	return err
}

func (a *Authority) counts(ctx context.Context, n Node, serial string) (record, error) {
	list, err := a.records(ctx, n)
	if err != nil {
		return record{}, err
	}
	i := indexSerial(list, serial)
	if i < 0 {
		return record{}, replaced(n)
	}
	return list[i], nil
}

func replaced(n Node) error {
	return fault.New(fault.Unauthenticated, "this certificate of %s is no longer valid: it was replaced or revoked", n).
		WithReason("certificate-replaced").
		WithNext("if this host is the right one, remove node.crt from its state directory and join with a new token: "+
			"berth admin join-token create --role %s --name %s --replace", n.Role, n.Name)
}

// learnKey completes a record that an older manager wrote. A failure is no harm: the next connection tries again.
func (a *Authority) learnKey(ctx context.Context, n Node, serial, key string) {
	_, _ = a.vault.Update(ctx, n.recordKey(), func(old []byte) ([]byte, error) {
		list, err := n.read(old)
		if err != nil {
			return nil, err
		}
		i := indexSerial(list, serial)
		if i < 0 || list[i].Serial != serial || list[i].Key != "" {
			return nil, nil
		}
		list[i].Key = key
		return n.write(list)
	})
}

// Ended is a text that changes when certificates have ended before their time; whoever keeps connections open looks at it.
func (a *Authority) Ended(ctx context.Context) (string, error) {
	raw, err := a.vault.Get(ctx, keyEnded)
	return string(raw), err
}

func (a *Authority) noteEnd(ctx context.Context) error {
	_, err := a.vault.Update(ctx, keyEnded, func(old []byte) ([]byte, error) {
		n := 0
		if old != nil {
			if err := json.Unmarshal(old, &n); err != nil {
				return nil, fmt.Errorf("read the count of ended certificates: %w", err)
			}
		}
		return json.Marshal(n + 1)
	})
	if err != nil {
		return fmt.Errorf("note that certificates ended: %w", err)
	}
	return nil
}

// RevokeCertificates ends all certificates of a node. It stays known: it joins again with an administrator's word only.
func (a *Authority) RevokeCertificates(ctx context.Context, n Node) error {
	if err := n.check(); err != nil {
		return err
	}
	if list, err := a.records(ctx, n); err != nil || len(list) == 0 {
		if err == nil {
			err = neverJoined(n)
		}
		return err
	}
	if err := a.noteRevocation(ctx, n, 0); err != nil {
		return err
	}
	_, err := a.vault.Update(ctx, n.recordKey(), func(old []byte) ([]byte, error) {
		list, err := n.read(old)
		if err != nil {
			return nil, err
		}
		if len(list) == 0 {
			return nil, neverJoined(n)
		}
		return n.write([]record{{At: a.clock.Now(), Generation: generation(list) + 1}})
	})
	if err != nil {
		return fmt.Errorf("revoke the certificates of %s: %w", n, err)
	}
	if err := a.noteRevocation(ctx, n, afterEnd); err != nil {
		return err
	}
	if err := a.noteEnd(ctx); err != nil || a.forget == nil {
		return err
	}
	if err := a.forget(ctx, n); err != nil {
		return fmt.Errorf("free what %s had: %w", n, err)
	}
	return nil
}

func neverJoined(n Node) error { return fault.NotFoundf("no %s has ever joined this cluster", n) }
