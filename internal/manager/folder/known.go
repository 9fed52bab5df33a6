package folder

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"

	"berth.dev/berth/internal/manager/store"
	"berth.dev/berth/internal/manager/store/dbgen"
	"berth.dev/berth/internal/wire/storage"
)

// settingKnown is the setting in which the leader stores what a mount needs to know of each volume. Agents mount volumes without asking
// storage proxies, so sessions can mount a folder while its proxy is away.
const settingKnown = "volumes/known"

// knownVolume is what settingKnown holds of one volume.
type knownVolume struct {
	Path     string `json:"path"`
	OwnerUID int    `json:"owner_uid"`
	OwnerGID int    `json:"owner_gid"`
}

func readKnown(ctx context.Context, q *dbgen.Queries) (map[string]knownVolume, error) {
	out := map[string]knownVolume{}
	raw, err := q.GetSetting(ctx, settingKnown)
	if store.Missing(err) {
		return out, nil
	}
	if err == nil {
		err = json.Unmarshal(raw, &out)
	}
	if err != nil {
		return nil, fmt.Errorf("read setting %s: %w", settingKnown, err)
	}
	return out, nil
}

// remember stores volumes that are new or changed in settingKnown.
func (l *Loop) remember(ctx context.Context) error {
	now := map[string]knownVolume{}
	for host, v := range l.s.volumes() {
		now[host] = knownVolume{Path: v.Path, OwnerUID: v.OwnerUID, OwnerGID: v.OwnerGID}
	}
	if len(now) == 0 || l.known != nil && includes(l.known, now) {
		return nil
	}
	err := l.write(ctx, func(ctx context.Context, tx *store.Tx) error {
		all, err := readKnown(ctx, tx.Queries)
		if err != nil {
			return err
		}
		l.known = all
		if includes(all, now) {
			return nil
		}
		maps.Copy(all, now)
		raw, err := json.Marshal(all)
		if err != nil {
			return err
		}
		return tx.SetSetting(ctx, settingKnown, raw)
	})
	if err != nil {
		l.known = nil
		return fmt.Errorf("remember volumes: %w", err)
	}
	return nil
}

func includes(all, some map[string]knownVolume) bool {
	for host, v := range some {
		if all[host] != v {
			return false
		}
	}
	return true
}

// volume returns what a mount needs to know of a host: from the announcement of its proxy, or else from settingKnown. nil is unknown.
func (l *mountLookup) volume(ctx context.Context, host string) (*seen, error) {
	if v, there := l.volumes[host]; there {
		return &v, nil
	}
	if l.remembered == nil {
		var err error
		if l.remembered, err = readKnown(ctx, l.q); err != nil {
			return nil, err
		}
	}
	v, there := l.remembered[host]
	if !there {
		return nil, nil
	}
	return &seen{Volume: storage.Volume{Path: v.Path, OwnerUID: v.OwnerUID, OwnerGID: v.OwnerGID}}, nil
}
