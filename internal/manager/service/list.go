package service

import (
	"context"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5"

	"berth.dev/berth/internal/manager/service/minilang"
)

// listSpec describes a list for page.
type listSpec struct {
	from   string // SQL of our own
	key    string // expression of the text key
	fields minilang.Fields
	order  string // default
	b      minilang.Builder
	where  []string
}

// and adds a condition; %s stands for the parameter.
func (l *listSpec) and(sql string, v any) {
	l.where = append(l.where, fmt.Sprintf(sql, l.b.Arg(v)))
}

// check fills in the defaults of a page.
func (q *ListQuery) check() error {
	if q.Limit == 0 {
		q.Limit = 20
	}
	if q.Limit < 1 || q.Limit > 100 {
		return invalid("a page has 1 to 100 items, not %d", q.Limit)
	}
	if q.Offset < 0 || q.Offset > 10_000_000 {
		return invalid("offset %d is not allowed", q.Offset)
	}
	return nil
}

// page runs a list and returns the keys of its page in order and the size of the whole list.
func (s *Service) page(ctx context.Context, l *listSpec, q ListQuery) (keys []string, total int, err error) {
	if err := q.check(); err != nil {
		return nil, 0, err
	}
	filter, err := minilang.Filter(&l.b, l.fields, q.Filter)
	if err != nil {
		return nil, 0, err
	}
	order, err := minilang.Order(l.fields, q.Order, l.order, l.key)
	if err != nil {
		return nil, 0, err
	}
	where := strings.Join(append(l.where, filter), " AND ")
	sql := "SELECT " + l.key + ", count(*) OVER () FROM " + l.from + " WHERE " + where + " ORDER BY " + order +
		fmt.Sprintf(" LIMIT %d OFFSET %d", q.Limit, q.Offset)
	rows, err := s.d.Store.Pool().Query(ctx, sql, l.b.Args...)
	if err != nil {
		return nil, 0, fmt.Errorf("list: %w", err)
	}
	var key string
	keys = []string{}
	if _, err := pgx.ForEachRow(rows, []any{&key, &total}, func() error { keys = append(keys, key); return nil }); err != nil {
		return nil, 0, fmt.Errorf("list: %w", err)
	}
	if len(keys) == 0 && q.Offset > 0 {
		// Past the end the window function says nothing.
		if err := s.d.Store.Pool().QueryRow(ctx, "SELECT count(*) FROM "+l.from+" WHERE "+where, l.b.Args...).Scan(&total); err != nil {
			return nil, 0, fmt.Errorf("count list: %w", err)
		}
	}
	return keys, total, nil
}

// inOrder puts loaded items into the order of their page; what vanished meanwhile is left out.
func inOrder[K ~string, V any](keys []string, items map[K]V) []V {
	out := make([]V, 0, len(keys))
	for _, k := range keys {
		if v, ok := items[K(k)]; ok {
			out = append(out, v)
		}
	}
	return out
}
