package list

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"

	"berth.dev/berth/internal/fault"
)

const (
	// defaultLimit is the size of a page when the query names none, maxLimit the largest one.
	defaultLimit = 20
	maxLimit     = 100
	maxOffset    = 10_000_000
)

// Query selects a page. Filter and Order are the wire's mini-language: `status == "RUNNING" & name like "a%"` and
// `+name,-created_at`.
type Query struct {
	Filter, Order string
	// Limit is 1 to 100; 0 means 20.
	Limit, Offset int
}

// Page is one page of a list and the number of items of the whole list.
type Page[T any] struct {
	Items []T
	Total int
}

// Reader runs queries; a pool and a transaction satisfy it.
type Reader interface {
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
}

// Spec describes a list: where its rows come from and which of them belong to it. From, Key, Order and conditions are
// SQL of our own, never a caller's text. It serves one query.
type Spec struct {
	// From is what follows FROM.
	From string
	// Key is the expression of the text key of a row.
	Key    string
	Fields Fields
	// Order is the order of a query that names none. Rows that are equal in an order come in the order of their keys.
	Order string
	// Counts returns where the numbers of rows are kept, for a list that would be slow to count: queries that end in a WHERE, to which the
	// list's conditions are added. Their sum is the number of rows. It may add parameters, and is called once, for a query whose filter
	// names none but the fields of Counted: others count the rows themselves, as is done where it is nil or returns none.
	Counts func() []string
	// Counted are the fields that can be asked where the numbers are kept.
	Counted []string
	// Narrow, if set, names a field made by Enum, and what follows for a row from the words that the filter lets the field have: a
	// condition as for Implied, or "".
	Narrow  string
	Implies func(words []string) string
	// Uncounted makes the number of rows that of the page: of lists that are read to their end, where each page would count all that follow.
	Uncounted bool
	// Most is the largest page, where that is not 100: of lists with small rows that clients add up.
	Most int

	b       Builder
	where   []string
	implied []string
}

// Arg adds a parameter and returns its placeholder.
func (s *Spec) Arg(v any) string { return s.b.Arg(v) }

// Where adds a condition.
func (s *Spec) Where(sql string) { s.where = append(s.where, sql) }

// Implied adds a condition that follows from the others. It tells the database which index holds the page; counts are not asked it.
func (s *Spec) Implied(sql string) { s.implied = append(s.implied, sql) }

// And adds a condition about a parameter, for which %s stands.
func (s *Spec) And(sql string, v any) { s.Where(fmt.Sprintf(sql, s.b.Arg(v))) }

func (q *Query) check(most int) error {
	if q.Limit == 0 {
		q.Limit = defaultLimit
	}
	if q.Limit < 1 || q.Limit > most {
		return fault.Invalidf("a page has 1 to %d items, not %d", most, q.Limit)
	}
	if q.Offset < 0 || q.Offset > maxOffset {
		return fault.Invalidf("offset %d is not allowed", q.Offset)
	}
	return nil
}

// Keys returns the keys of a page in order and the number of rows of the whole list. A filter, an order or a page that
// cannot be is Invalid.
func (s *Spec) Keys(ctx context.Context, db Reader, q Query) (keys []string, total int, err error) {
	if err := q.check(cmp.Or(s.Most, maxLimit)); err != nil {
		return nil, 0, err
	}
	filter, err := compile(&s.b, s.Fields, q.Filter, s.Narrow)
	if err != nil {
		return nil, 0, err
	}
	if filter.narrowed {
		if sql := s.Implies(filter.words); sql != "" {
			s.Implied(sql)
		}
	}
	order, err := Order(s.Fields, q.Order, s.Order, s.Key)
	if err != nil {
		return nil, 0, err
	}
	where := strings.Join(append(s.where, filter.sql), " AND ")
	each := "count(*) OVER ()"
	switch {
	case s.Uncounted:
		each = "0"
	case s.counts(filter.fields):
		// Counting apart leaves out joins that only the order needs, and lets an index give the page.
		each = "(" + s.counted(where) + ")"
	}
	page := fmt.Sprintf("SELECT %s, %s FROM %s WHERE %s ORDER BY %s", s.Key, each, s.From, strings.Join(append(s.implied, where),
		" AND "), order)
	read := func(limit, offset int) error {
		rows, err := db.Query(ctx, fmt.Sprintf("%s LIMIT %d OFFSET %d", page, limit, offset), s.args()...)
		if err != nil {
			return fmt.Errorf("list: %w", err)
		}
		var key string
		keys = []string{}
		if _, err := pgx.ForEachRow(rows, []any{&key, &total}, func() error { keys = append(keys, key); return nil }); err != nil {
			return fmt.Errorf("list: %w", err)
		}
		return nil
	}
	if err := read(q.Limit, q.Offset); err != nil {
		return nil, 0, err
	}
	switch {
	case s.Uncounted:
		total = len(keys)
	case len(keys) == 0 && q.Offset > 0:
		// A page past the end says nothing about the number; the first one does.
		if err := read(1, 0); err != nil {
			return nil, 0, err
		}
		keys = []string{}
	}
	return keys, total, nil
}

// counts reports whether the number of rows that a filter by these fields leaves need not be counted with the page.
func (s *Spec) counts(fields map[string]bool) bool {
	for f := range fields {
		if s.Counts == nil || !slices.Contains(s.Counted, f) {
			return false
		}
	}
	return true
}

// counted is a query for the number of rows that meet a condition.
func (s *Spec) counted(where string) string {
	var sums []string
	if s.Counts != nil {
		for _, c := range s.Counts() {
			sums = append(sums, "("+c+" AND "+where+")")
		}
	}
	if len(sums) == 0 {
		return "SELECT count(*) FROM " + s.From + " WHERE " + where
	}
	return "SELECT " + strings.Join(sums, " + ")
}

// args are the parameters. The database plans with their values each time: whose rows are asked for, and by which pattern, decides which
// index is the best.
func (s *Spec) args() []any { return append([]any{pgx.QueryExecModeCacheDescribe}, s.b.Args...) }

// InOrder puts loaded items into the order of the keys of their page. Items that were deleted meanwhile are left out.
func InOrder[K ~string, V any](keys []string, items map[K]V) []V {
	out := make([]V, 0, len(keys))
	for _, k := range keys {
		if v, ok := items[K(k)]; ok {
			out = append(out, v)
		}
	}
	return out
}
