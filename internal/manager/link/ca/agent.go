package ca

import (
	"context"
	"crypto/tls"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"time"

	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/fault"
)

// nodeRecord says which certificates of an agent count. Previous is the one before a
// renewal, so that an agent that lost the answer is not locked out; joining anew clears it.
type nodeRecord struct {
	Serial   string    `json:"serial"`
	Previous string    `json:"previous,omitempty"`
	At       time.Time `json:"at"`
}

func nodeKey(agent cluster.AgentID) string { return "node-certificate/" + string(agent) }

// commonName is the name in a verified certificate, with its serial.
func commonName(s tls.ConnectionState) (name, serial string, err error) {
	if len(s.VerifiedChains) == 0 {
		return "", "", fault.New(fault.Unauthenticated, "no node certificate was presented").WithReason("not-joined").
			WithNext("join with a join token first")
	}
	leaf := s.PeerCertificates[0]
	return leaf.Subject.CommonName, hex.EncodeToString(leaf.SerialNumber.Bytes()), nil
}

// Agent tells which agent a connection belongs to, and the serial of its certificate. App proxies and managers are refused.
func (a *Authority) Agent(ctx context.Context, s tls.ConnectionState) (cluster.AgentID, string, error) {
	name, serial, err := commonName(s)
	if err != nil {
		return "", "", err
	}
	if err := CheckAgentID(name); err != nil {
		return "", "", fault.Deniedf("the certificate of %q is not an agent's", name).WithReason("not-an-agent")
	}
	agent := cluster.AgentID(name)
	raw, err := a.vault.Get(ctx, nodeKey(agent))
	if err != nil {
		return "", "", fmt.Errorf("look up the certificate of agent %s: %w", agent, err)
	}
	var rec nodeRecord
	if raw != nil {
		if err := json.Unmarshal(raw, &rec); err != nil {
			return "", "", fmt.Errorf("read the certificate record of agent %s: %w", agent, err)
		}
	}
	if serial != rec.Serial && serial != rec.Previous {
		return "", "", fault.New(fault.Unauthenticated, "the certificate of agent %s is no longer valid, another one was issued since", agent).
			WithReason("certificate-replaced").WithNext("stop the other agent of that name, or join again with a join token")
	}
	return agent, serial, nil
}

// IssueAgent signs a node certificate and makes it the agent's.
func (a *Authority) IssueAgent(ctx context.Context, agent cluster.AgentID, csrDER []byte, renewal bool) ([]byte, error) {
	csr, err := readRequest("agent "+string(agent), csrDER)
	if err != nil {
		return nil, err
	}
	der, serial, now, err := a.sign(string(agent), csr)
	if err != nil {
		return nil, err
	}
	_, err = a.vault.Update(ctx, nodeKey(agent), func(old []byte) ([]byte, error) {
		rec := nodeRecord{Serial: serial, At: now}
		if renewal && old != nil {
			var was nodeRecord
			if err := json.Unmarshal(old, &was); err != nil {
				return nil, fmt.Errorf("read the certificate record: %w", err)
			}
			rec.Previous = was.Serial
		}
		return json.Marshal(rec)
	})
	if err != nil {
		return nil, fmt.Errorf("record the certificate of agent %s: %w", agent, err)
	}
	return der, nil
}
