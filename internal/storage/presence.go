package storage

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"berth.dev/berth/internal/chassis"
	wire "berth.dev/berth/internal/wire/storage"
)

const (
	// presenceTTL is how long the announcement of a proxy that died stays, in seconds.
	presenceTTL = 15
	// refreshEvery is the age of announced space, when nothing else has changed.
	refreshEvery = 15 * time.Second
	// takeBack bounds how long an orderly stop waits until etcd has taken the announcement back. It is less than a service may take to stop.
	takeBack = 5 * time.Second
	// giveUp bounds the same before it is announced again: that replaces what was announced before.
	giveUp = time.Second
)

// Presence is what the proxy announces.
func (p *Proxy) Presence() wire.Presence {
	out := wire.Presence{
		Proxy: p.cfg.Proxy, Node: p.cfg.node(), Version: p.deps.Build.Version, Protocol: wire.Version,
		ManagerURL: p.ManagerURL(), ClientURL: p.ClientURL(), StartedAt: p.started, Volumes: p.Volumes(), SFTPGroups: p.cfg.SFTPGroups,
	}
	out.Proof = wire.Prove(p.announceKey, out)
	return out
}

// announce keeps the announcement alive until ctx ends. etcd being away costs nothing but the announcement.
func (p *Proxy) announce(ctx context.Context) error {
	if p.deps.Etcd == nil {
		<-ctx.Done()
		return nil
	}
	backoff := chassis.Backoff{Min: 200 * time.Millisecond, Max: 5 * time.Second}
	for {
		err := p.announceOnce(ctx, backoff.Reset)
		if ctx.Err() != nil {
			return nil
		}
		wait := backoff.Next()
		p.log.Warn("the announcement of this storage proxy in etcd ended; announcing again", "error", err, "retry_in", wait)
		if chassis.Wait(ctx, p.deps.Clock, wait) != nil {
			return nil
		}
	}
}

// announceOnce holds one lease and refreshes what it announces until the lease is lost.
func (p *Proxy) announceOnce(ctx context.Context, good func()) error {
	etcd := p.deps.Etcd
	lease, err := etcd.Grant(ctx, presenceTTL)
	if err != nil {
		return fmt.Errorf("get a lease: %w", err)
	}
	defer func() {
		limit := giveUp
		if ctx.Err() != nil {
			limit = takeBack
		}
		rctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), limit)
		defer cancel()
		_, _ = etcd.Revoke(rctx, lease.ID) // else it runs out by itself
	}()
	alive, err := etcd.KeepAlive(ctx, lease.ID)
	if err != nil {
		return fmt.Errorf("keep the lease: %w", err)
	}
	tick := p.deps.Clock.NewTicker(refreshEvery)
	defer tick.Stop()
	var told wire.Presence
	for {
		now := p.Presence()
		if !reflect.DeepEqual(told, now) {
			raw, err := json.Marshal(now)
			if err != nil {
				return fmt.Errorf("render announcement: %w", err)
			}
			pctx, cancel := context.WithTimeout(ctx, 5*time.Second)
			_, err = etcd.Put(pctx, wire.PresencePath(p.cfg.Etcd.Prefix, now.Proxy, now.Node), string(raw), clientv3.WithLease(lease.ID))
			cancel()
			if err != nil {
				return fmt.Errorf("put: %w", err)
			}
			told = now
			good()
		}
		for waiting := true; waiting; {
			select {
			case _, ok := <-alive:
				if !ok {
					if ctx.Err() != nil {
						return nil
					}
					return errors.New("the lease ran out")
				}
			case <-p.changed:
				waiting = false
			case <-tick.C():
				waiting = false
			}
		}
	}
}
