package ca

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"berth.dev/berth/internal/wire/proxy"
)

// keyRevocations is where the vault keeps which app proxies' certificates ended before their time, for as long as grants that were
// signed before may be valid.
const keyRevocations = "app-proxy-revocations"

// RevokedProxies are the app proxies whose certificates ended lately. Agents refuse the grants that were signed before.
func (a *Authority) RevokedProxies(ctx context.Context) ([]proxy.Revocation, error) {
	return RevokedProxies(ctx, a.vault)
}

// RevokedProxies is the same for those who have the vault alone.
func RevokedProxies(ctx context.Context, vault interface {
	Get(ctx context.Context, key string) ([]byte, error)
}) ([]proxy.Revocation, error) {
	raw, err := vault.Get(ctx, keyRevocations)
	if err != nil {
		return nil, fmt.Errorf("look up revoked app proxies: %w", err)
	}
	return readRevocations(raw)
}

func readRevocations(raw []byte) (list []proxy.Revocation, err error) {
	if raw == nil {
		return nil, nil
	}
	if err := json.Unmarshal(raw, &list); err != nil {
		return nil, fmt.Errorf("read revoked app proxies: %w", err)
	}
	return list, nil
}

// afterEnd covers the grants that were signed between the two calls of noteRevocation: each ends at most a second after what the first
// call refused.
const afterEnd = 2 * time.Second

// noteRevocation makes agents refuse what an app proxy was granted until now. It is called before its certificates end, so that a crash
// in between leaves no certificate ended without it, and with later once they have ended, for what was granted in between.
func (a *Authority) noteRevocation(ctx context.Context, n Node, later time.Duration) error {
	if n.Role != RoleAppProxy {
		return nil
	}
	_, err := a.vault.Update(ctx, keyRevocations, func(old []byte) ([]byte, error) {
		list, err := readRevocations(old)
		if err != nil {
			return nil, err
		}
		now := a.clock.Now()
		return json.Marshal(proxy.MergeRevocations(list, []proxy.Revocation{proxy.Revoke(n.Name, now.Add(later))}, now))
	})
	if err != nil {
		return fmt.Errorf("note that the grants of %s are void: %w", n, err)
	}
	return nil
}
