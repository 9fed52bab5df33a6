package resource

import (
	"context"
	"fmt"

	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/manager/store"
	"berth.dev/berth/internal/manager/store/dbgen"
	"berth.dev/berth/internal/manager/tenancy"
)

// DefaultGroup is the resource group that new agents come to.
const DefaultGroup = tenancy.Default

// FirstRows makes the resource group and the presets of an empty cluster whose first domain exists already.
func FirstRows(ctx context.Context, tx *store.Tx, ids func() string) error {
	about := "Made at the first start."
	if err := tx.AddResourceGroup(ctx, DefaultGroup, &about); err != nil {
		return fmt.Errorf("make the first resource group: %w", err)
	}
	if err := tx.AllowGroupForDomain(ctx, DefaultGroup, tenancy.Default); err != nil {
		return fmt.Errorf("allow the first resource group: %w", err)
	}
	for _, p := range []struct {
		name    string
		cpu, gb int64
	}{{"default", 1, 2}, {"small", 1, 1}, {"medium", 2, 4}, {"large", 4, 8}} {
		slots := cluster.Slots{cluster.SlotCPU: cluster.Whole(p.cpu), cluster.SlotMem: cluster.Whole(p.gb << 30)}
		if err := tx.AddPreset(ctx, dbgen.AddPresetParams{ID: ids(), Name: p.name, ResourceSlots: slots}); err != nil {
			return fmt.Errorf("make preset %s: %w", p.name, err)
		}
	}
	return nil
}
