// Package live keeps what agents measured most recently in Redis, for charts and lists. It
// is a cache: losing it loses live figures until the next batch, nothing else, so every
// failure reads as "unknown". link/agent writes it; node, session and idle read it through
// their interfaces.
//
// Layout: <prefix>stat:agent:<id> and <prefix>stat:kernel:<id> hold a JSON object of metric
// name to value and expire after TTL. <prefix>stat:use:<id> is a list of rule.Sample, one a minute, for idle checks.
package live

import (
	"context"
	"encoding/json"
	"log/slog"
	"sync"
	"time"

	"github.com/valkey-io/valkey-go"

	"berth.dev/berth/internal/cluster"
)

// TTL is how long a measurement counts as live: several batches of an agent.
const TTL = 30 * time.Second

// patience is how long Redis is waited for: live figures are not worth more.
const patience = 500 * time.Millisecond

// Stats reads and writes live measurements.
type Stats struct {
	redis  valkey.Client
	prefix string
	log    *slog.Logger
	// Now is time.Now unless a test says otherwise; set it before use.
	Now func() time.Time
	// Patience bounds every exchange with Redis but the reading of windows, which may take four times as long. A test may set it before
	// use: a busy machine is no Redis that is away.
	Patience time.Duration

	mu    sync.Mutex
	open  map[cluster.KernelID]*opened
	keep  time.Duration // of the use of kernels, as it was at asked
	asked int64         // number of a bucket
}

// New makes a Stats; prefix separates clusters that share a Redis.
func New(redis valkey.Client, prefix string, log *slog.Logger) *Stats {
	return &Stats{redis: redis, prefix: prefix + "stat:", log: log, Now: time.Now, Patience: patience,
		open: map[cluster.KernelID]*opened{}}
}

func (s *Stats) agentKey(id cluster.AgentID) string   { return s.prefix + "agent:" + string(id) }
func (s *Stats) kernelKey(id cluster.KernelID) string { return s.prefix + "kernel:" + string(id) }

// Put keeps one batch of an agent. Metrics that could not be measured are absent from the maps.
func (s *Stats) Put(ctx context.Context, agent cluster.AgentID, node map[string]float64, kernels map[cluster.KernelID]map[string]float64) {
	ctx, cancel := context.WithTimeout(ctx, s.Patience)
	defer cancel()
	cmds := make(valkey.Commands, 0, 1+len(kernels))
	set := func(key string, values map[string]float64) {
		raw, err := json.Marshal(values)
		if err != nil {
			return // not a number: unknown
		}
		cmds = append(cmds, s.redis.B().Set().Key(key).Value(valkey.BinaryString(raw)).Ex(TTL).Build())
	}
	set(s.agentKey(agent), node)
	for id, values := range kernels {
		set(s.kernelKey(id), values)
	}
	cmds = append(cmds, s.fold(ctx, kernels)...)
	for _, r := range s.redis.DoMulti(ctx, cmds...) {
		if err := r.Error(); err != nil {
			s.log.Debug("live figures were not stored", "agent", agent, "err", err)
			return
		}
	}
}

// Agents returns what is known of the agents; those without live figures are absent.
func (s *Stats) Agents(ctx context.Context, ids []cluster.AgentID) map[cluster.AgentID]map[string]float64 {
	return get(ctx, s, ids, s.agentKey)
}

// Kernels returns what is known of the kernels; those without live figures are absent.
func (s *Stats) Kernels(ctx context.Context, ids []cluster.KernelID) map[cluster.KernelID]map[string]float64 {
	return get(ctx, s, ids, s.kernelKey)
}

func get[ID comparable](ctx context.Context, s *Stats, ids []ID, key func(ID) string) map[ID]map[string]float64 {
	if len(ids) == 0 {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, s.Patience)
	defer cancel()
	keys := make([]string, len(ids))
	for i, id := range ids {
		keys[i] = key(id)
	}
	found, err := valkey.MGet(s.redis, ctx, keys)
	if err != nil {
		s.log.Debug("live figures were not read", "err", err)
		return nil
	}
	out := make(map[ID]map[string]float64, len(ids))
	for i, k := range keys {
		message := found[k]
		raw, err := message.AsBytes()
		if err != nil {
			continue // expired
		}
		var values map[string]float64
		if json.Unmarshal(raw, &values) == nil {
			out[ids[i]] = values
		}
	}
	return out
}
