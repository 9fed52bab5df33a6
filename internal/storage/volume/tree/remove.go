package tree

import (
	"context"
	"errors"
	"os"
)

// Remove deletes at most limit entries of the tree name in parent, whatever name is, and reports how many went
// and whether nothing of it is left. A tree that is not there is done. It follows no links, needs a bounded
// number of open files at any depth, and can be called again after a crash. An entry that cannot be removed is
// passed over; its error comes at the end.
func Remove(ctx context.Context, parent *os.Root, name string, limit int) (removed int, done bool, err error) {
	return 0, false, errors.New("not written yet")
}
