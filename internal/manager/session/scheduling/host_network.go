package scheduling

import (
	"context"
	"fmt"

	"berth.dev/berth/internal/manager/store"
)

// groupsWithHost are the resource groups whose sessions may run in the network of their hosts; none are read when no session of the batch
// asks for that. What was allowed when a session was created may not be when it is placed.
func groupsWithHost(ctx context.Context, tx *store.Tx, batch []proposal) ([]string, error) {
	for i := range batch {
		if !batch[i].host {
			continue
		}
		names, err := tx.GroupsWithHostNetwork(ctx)
		if err != nil {
			return nil, fmt.Errorf("read which resource groups allow the network of hosts: %w", err)
		}
		return names, nil
	}
	return nil, nil
}

// notOnHost says why a session that asks for the network of its hosts is not placed.
func notOnHost(group string) string {
	return "resource group " + group + " does not let sessions run in the network of their hosts any more"
}
