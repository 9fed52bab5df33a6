package ca

import (
	"context"
	"crypto/tls"
	"fmt"
	"slices"

	"berth.dev/berth/internal/fault"
)

// Request asks for a node's certificate.
type Request struct {
	Node Node
	// CSR is the PKCS#10 request, DER. Its signature proves that the sender has the key.
	CSR []byte
	// TLS is the state of the connection; it may show the node's present certificate.
	TLS tls.ConnectionState
	// Secret is the join token's, "" without one.
	Secret string
	// From is the address of the sender.
	From string
	// Connected tells whether the node is connected to any manager of the cluster now, and from where. Only agents are asked
	// about; nil means that nobody knows.
	Connected func(ctx context.Context) (at string, ok bool, err error)
}

// Joined is the answer to a Request.
type Joined struct {
	// Certificate is the node's new certificate, DER.
	Certificate []byte
	// By says in words what let the node in.
	By string
}

// credential is what lets a request in; exactly one field is set.
type credential struct {
	serial string // of the valid certificate that the connection shows
	key    bool   // the public key is recorded for the node
	token  storedToken
}

func (c credential) String() string {
	switch {
	case c.serial != "":
		return "its certificate"
	case c.key:
		return "its key"
	}
	return "join token " + c.token.ID
}

// Join gives a node a certificate, if one of three things speaks for it: its valid certificate, its recorded key, or a join token
// for exactly this node. A node that is known by another key needs a token with which an administrator says that it is replaced.
func (a *Authority) Join(ctx context.Context, r Request) (Joined, error) {
	if err := r.Node.check(); err != nil {
		return Joined{}, err
	}
	csr, err := readRequest(r.Node.String(), r.CSR)
	if err != nil {
		return Joined{}, err
	}
	key := fingerprint(csr.RawSubjectPublicKeyInfo)
	c, err := a.credential(ctx, r, key)
	if err != nil {
		return Joined{}, err
	}
	der, serial, now, err := a.sign(r.Node.commonName(), csr)
	if err != nil {
		return Joined{}, err
	}
	if c.token.Replace {
		if err := a.noteRevocation(ctx, r.Node, 0); err != nil {
			return Joined{}, err
		}
	}
	ended := false
	// This update decides. What was read before may have changed since, at another manager.
	_, err = a.vault.Update(ctx, r.Node.recordKey(), func(old []byte) ([]byte, error) {
		list, err := r.Node.read(old)
		if err != nil {
			return nil, err
		}
		next, err := succeed(list, r.Node, c, record{Serial: serial, Key: key, At: now})
		if err != nil {
			return nil, err
		}
		ended = generation(next) > generation(list) && len(list) > 0
		return r.Node.write(next)
	})
	if err != nil {
		return Joined{}, fmt.Errorf("record the certificate of %s: %w", r.Node, err)
	}
	if ended {
		if err := a.noteRevocation(ctx, r.Node, afterEnd); err != nil {
			return Joined{}, err
		}
		if err := a.noteEnd(ctx); err != nil {
			return Joined{}, err
		}
	}
	return Joined{Certificate: der, By: c.String()}, nil
}

// credential finds what speaks for the request. A token is marked as used by the key.
func (a *Authority) credential(ctx context.Context, r Request, key string) (credential, error) {
	if len(r.TLS.VerifiedChains) > 0 {
		owner, serial, err := a.node(ctx, r.TLS, r.Node.Role)
		switch {
		case fault.Is(err, fault.Unauthenticated): // a replaced certificate counts for nothing
		case err != nil:
			return credential{}, err
		case owner != r.Node:
			return credential{}, fault.Deniedf("%s may not get a certificate of %s", owner, r.Node).WithReason("wrong-identity")
		default:
			return credential{serial: serial}, nil
		}
	}
	list, err := a.records(ctx, r.Node)
	if err != nil {
		return credential{}, err
	}
	if indexKey(list, key, a.clock.Now()) >= 0 {
		return credential{key: true}, nil
	}
	t, err := a.usable(ctx, r.Node, r.Secret, key)
	if err != nil {
		return credential{}, err
	}
	if err := admits(list, r.Node, t); err != nil {
		return credential{}, err
	}
	if r.Node.Role == RoleAgent && len(list) > 0 && r.Connected != nil {
		at, ok, err := r.Connected(ctx)
		if err != nil {
			return credential{}, fmt.Errorf("look whether %s is connected: %w", r.Node, err)
		}
		if ok {
			return credential{}, fault.Conflictf("%s is connected from %s", r.Node, at).WithReason("agent-id-taken").
				WithNext("stop it first, or end its certificate: berth admin certificate revoke --role agent --name %s", r.Node.Name)
		}
	}
	if err := a.use(ctx, r.Node, r.Secret, key, r.From); err != nil {
		return credential{}, err
	}
	return credential{token: t}, nil
}

// admits tells whether a token lets a new key in for a node that has these records.
func admits(list []record, n Node, t storedToken) error {
	switch {
	case n.Role == RoleAgent && len(list) > 0 && !t.Replace:
		return known(n)
	case t.Generation != generation(list):
		return fault.Conflictf("%s was replaced or revoked after join token %s was made", n, t.ID).WithReason("join-token-outdated").
			WithNext("make a new one: berth admin join-token create --role %s --name %s --replace", n.Role, n.Name)
	}
	return nil
}

func known(n Node) error {
	return fault.Conflictf("%s has joined this cluster before, with another key", n).WithReason("node-known").
		WithNext("give it back its state directory, or let another machine take its place: "+
			"berth admin join-token create --role %s --name %s --replace", n.Role, n.Name)
}

// succeed puts a new record in the place of what it succeeds and drops what has expired.
func succeed(list []record, n Node, c credential, rec record) ([]record, error) {
	rec.Generation, rec.ResourceGroup = generation(list), c.token.ResourceGroup
	i := indexSerial(list, c.serial)
	if i < 0 && c.serial == "" {
		i = indexKey(list, rec.Key, rec.At) // also the second attempt of a node that lost the answer to the first
	}
	switch {
	case i >= 0:
		rec.Previous = c.serial
		if c.serial == "" {
			rec.Previous = list[i].Serial
		}
		rec.ResourceGroup = list[i].ResourceGroup
		list = slices.Delete(slices.Clone(list), i, i+1)
	case c.token.ID == "":
		return nil, replaced(n)
	default:
		if err := admits(list, n, c.token); err != nil {
			return nil, err
		}
		if c.token.Replace {
			rec.Generation++
			list = nil
		}
	}
	next := slices.DeleteFunc(slices.Clone(list), func(r record) bool {
		return r.Serial == "" || r.Key == rec.Key || rec.At.After(r.At.Add(nodeCertLife+keyGrace))
	})
	next = append(next, rec)
	return next[max(0, len(next)-maxReplicas):], nil
}
