package manager

import (
	"context"
	"crypto/tls"
	"net/http"
	"time"

	"berth.dev/berth/internal/cluster"
	agentlink "berth.dev/berth/internal/manager/link/agent"
	"berth.dev/berth/internal/manager/link/peer"
	"berth.dev/berth/internal/manager/session"
	"berth.dev/berth/internal/manager/store"
)

// wirePeers prepares what managers do for each other. Without etcd there are no others to relay to; who is connected is noted all
// the same, because a manager may get others later.
func (m *Manager) wirePeers(link *agentlink.Deps) {
	link.Hold, link.Release, link.Connected = m.hold, m.release, m.connected
	if m.deps.Etcd == nil {
		return
	}
	log := m.log.With("part", "peer")
	m.peers = peer.NewDirectory(m.deps.Etcd, m.cfg.Etcd.Prefix+"/"+m.admin.ClusterID+"/managers/", m.deps.Clock, log,
		func() { m.link.TellManagers() })
	m.relay = peer.NewRelay(peer.Options{
		ID: m.cfg.id(), Local: localAgents{m}, Holder: m.holder, Find: m.peers.Find,
		TLS: func() *tls.Config { return m.link.ManagerTLS(m.cfg.id()) }, Log: log,
	})
	link.Peers, link.Managers = m.relay.Serve, m.AgentPorts
}

// localAgents is the agent port, which is made after the relay.
type localAgents struct{ m *Manager }

func (l localAgents) Holds(a cluster.AgentID) bool { return l.m.link.Holds(a) }

func (l localAgents) Await(ctx context.Context, a cluster.AgentID) error {
	return l.m.link.Await(ctx, a)
}

func (l localAgents) RoundTrip(a cluster.AgentID, req *http.Request) (*http.Response, error) {
	return l.m.link.RoundTrip(a, req)
}

// streams is the way to the agents of the whole cluster.
func (m *Manager) streams() session.Streams {
	if m.relay == nil {
		return m.link
	}
	return m.relay
}

func (m *Manager) stopRelay(ctx context.Context) error {
	if m.relay == nil {
		return nil
	}
	return m.relay.Stop(ctx)
}

// AgentPorts are the agent ports of all managers that announce themselves, nil without etcd.
func (m *Manager) AgentPorts() []string {
	if m.peers == nil {
		return nil
	}
	return m.peers.AgentPorts()
}

// Holds tells whether an agent's byte streams are with this manager.
func (m *Manager) Holds(agent cluster.AgentID) bool { return m.link.Holds(agent) }

// hold notes that an agent registered with this manager.
func (m *Manager) hold(ctx context.Context, agent cluster.AgentID, epoch int64) error {
	_, err := m.store.HoldAgent(ctx, string(agent), m.cfg.id(), epoch)
	return err
}

// release notes that the registration of that epoch is over.
func (m *Manager) release(ctx context.Context, agent cluster.AgentID, epoch int64) error {
	_, err := m.store.ReleaseAgent(ctx, string(agent), epoch)
	return err
}

// connected tells whether an agent is connected to any manager and was heard within the lease, and from where.
func (m *Manager) connected(ctx context.Context, agent cluster.AgentID, lease time.Duration) (at string, ok bool, err error) {
	at, err = m.store.ConnectedAgent(ctx, string(agent), lease)
	if store.Missing(err) {
		return "", false, nil
	}
	return at, err == nil, err
}

// holder is the manager that an agent registered with last, "" when there is none.
func (m *Manager) holder(ctx context.Context, agent cluster.AgentID) (string, error) {
	id, err := m.store.AgentHolder(ctx, string(agent))
	if store.Missing(err) {
		return "", nil
	}
	return id, err
}

// announce keeps the manager's announcement until ctx ends.
func (m *Manager) announce(ctx context.Context) error {
	return m.peers.Announce(ctx, peer.Presence{
		ID: m.cfg.id(), API: m.APIAddr(), Agents: m.link.Advertised(), Version: m.deps.Build.Version, StartedAt: m.deps.Clock.Now().UTC(),
	})
}
