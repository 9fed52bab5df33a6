package store

import (
	"context"
	"fmt"
)

const (
	// resealPage is how many rows are held at a time.
	resealPage = 200
	// BeforeAllUUIDs is where a walk over ids of UUIDs begins.
	BeforeAllUUIDs = "00000000-0000-0000-0000-000000000000"
)

// Reseal walks over the rows of a table that hold sealed secrets, in the order of their ids and page by page, each page in a transaction of
// its own, and returns how many changed. after is less than every id. read returns a page and locks it; again seals the secrets of one
// row with the current key, and says the row's id and whether anything changed.
//
// It may be cut off and begun again: what is sealed with the current key is left alone.
func Reseal[Row any](ctx context.Context, s *Store, after string,
	read func(ctx context.Context, tx *Tx, after string, limit int32) ([]Row, error),
	again func(ctx context.Context, tx *Tx, r Row) (id string, is bool, err error)) (changed int, err error) {
	for more := true; more && err == nil; {
		page, from := 0, after
		err = s.Tx(ctx, func(ctx context.Context, tx *Tx) error {
			page, after = 0, from // the transaction may run again
			rows, err := read(ctx, tx, from, resealPage)
			if err != nil {
				return fmt.Errorf("read sealed secrets: %w", err)
			}
			more = len(rows) == resealPage
			for _, r := range rows {
				id, is, err := again(ctx, tx, r)
				if err != nil {
					return fmt.Errorf("seal the secrets of %s again: %w", id, err)
				}
				if after = id; is {
					page++
				}
			}
			return nil
		})
		changed += page
	}
	return changed, err
}
