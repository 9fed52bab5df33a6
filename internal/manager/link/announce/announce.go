// Package announce keeps announcements in etcd and follows those of others. An announcement is a key that lives as long as
// whoever wrote it. It decides nothing about what they mean: link/peer and link/storage do.
package announce

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"berth.dev/berth/internal/chassis"
)

const (
	// ttl is how long the announcement of a process that died stays, in seconds.
	ttl      = 15
	listTime = 10 * time.Second
	// steady is how long an announcement or a watch must last to count as a success.
	steady             = time.Minute
	minPause, maxPause = 200 * time.Millisecond, 5 * time.Second
)

// Keep keeps a key until ctx ends; then the key goes. etcd being away costs nothing but the announcement.
func Keep(ctx context.Context, etcd *clientv3.Client, clock chassis.Clock, log *slog.Logger, key, value string) error {
	return again(ctx, clock, log, "the announcement in etcd ended; announcing again", func() error {
		return once(ctx, etcd, key, value)
	})
}

// again calls fn until ctx ends, with pauses that grow while it fails quickly.
func again(ctx context.Context, clock chassis.Clock, log *slog.Logger, words string, fn func() error) error {
	backoff := chassis.Backoff{Min: minPause, Max: maxPause}
	for {
		began := clock.Now()
		err := fn()
		if ctx.Err() != nil {
			return nil
		}
		if clock.Now().Sub(began) > steady {
			backoff.Reset()
		}
		wait := backoff.Next()
		log.Warn(words, "error", err, "retry_in", wait)
		if chassis.Wait(ctx, clock, wait) != nil {
			return nil
		}
	}
}

func once(ctx context.Context, etcd *clientv3.Client, key, value string) error {
	lease, err := etcd.Grant(ctx, ttl)
	if err != nil {
		return fmt.Errorf("get a lease: %w", err)
	}
	defer func() {
		rctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
		defer cancel()
		_, _ = etcd.Revoke(rctx, lease.ID) // else it runs out by itself
	}()
	if _, err := etcd.Put(ctx, key, value, clientv3.WithLease(lease.ID)); err != nil {
		return fmt.Errorf("put: %w", err)
	}
	alive, err := etcd.KeepAlive(ctx, lease.ID)
	if err != nil {
		return fmt.Errorf("keep the lease: %w", err)
	}
	for range alive {
	}
	return errors.New("the lease ran out")
}

// Listener is told what is announced below a prefix; names are keys without it. Calls come one after the other.
type Listener struct {
	// All replaces everything that was known. It comes first, and again after every break.
	All func(all map[string][]byte)
	// Put is a new or changed announcement, Gone one that ended.
	Put  func(name string, value []byte)
	Gone func(name string)
}

// Follow reads the announcements below a prefix, limit at most, and then follows their changes until ctx ends. While etcd is
// away nothing is told: what is known stays true.
func Follow(ctx context.Context, etcd *clientv3.Client, clock chassis.Clock, log *slog.Logger, prefix string, limit int64,
	l Listener) error {
	return again(ctx, clock, log, "cannot follow announcements in etcd; what is known stays true", func() error {
		return follow(ctx, etcd, prefix, limit, l)
	})
}

func follow(ctx context.Context, etcd *clientv3.Client, prefix string, limit int64, l Listener) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	lctx, done := context.WithTimeout(ctx, listTime)
	list, err := etcd.Get(lctx, prefix, clientv3.WithPrefix(), clientv3.WithLimit(limit))
	done()
	if err != nil {
		return fmt.Errorf("read announcements: %w", err)
	}
	name := func(key []byte) string { return strings.TrimPrefix(string(key), prefix) }
	all := make(map[string][]byte, len(list.Kvs))
	for _, kv := range list.Kvs {
		all[name(kv.Key)] = kv.Value
	}
	l.All(all)
	changes := etcd.Watch(clientv3.WithRequireLeader(ctx), prefix, clientv3.WithPrefix(), clientv3.WithRev(list.Header.Revision+1))
	for reply := range changes {
		if err := reply.Err(); err != nil {
			return fmt.Errorf("follow announcements: %w", err)
		}
		for _, e := range reply.Events {
			if e.Type == clientv3.EventTypeDelete {
				l.Gone(name(e.Kv.Key))
			} else {
				l.Put(name(e.Kv.Key), e.Kv.Value)
			}
		}
	}
	return errors.New("the watch ended")
}
