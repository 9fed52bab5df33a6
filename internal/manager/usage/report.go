package usage

import (
	"cmp"
	"context"
	"fmt"
	"math/big"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/fault"
	"berth.dev/berth/internal/manager/authz"
	"berth.dev/berth/internal/manager/store/facts"
	"berth.dev/berth/internal/manager/store/list"
)

// maxReport is how many numbers a report adds up at most.
const maxReport = 200_000

// Grouping is by what a report adds up.
type Grouping string

// The groupings.
const (
	ByProject       Grouping = "project"
	ByUser          Grouping = "user"
	ByDomain        Grouping = "domain"
	ByResourceGroup Grouping = "resource-group"
)

// keys are the SQL expressions of a row's key, and of its name for people.
var keys = map[Grouping][2]string{
	ByProject:       {"i.project_id::text", "max(i.project_name)"},
	ByUser:          {"i.user_id::text", "max(i.email)"},
	ByDomain:        {"i.domain_name", "i.domain_name"},
	ByResourceGroup: {"i.resource_group", "i.resource_group"},
}

// Report is what was used in a period.
type Report struct {
	Period
	// Now is when it was made: what is held is counted until then.
	Now time.Time
	By  Grouping
	// Rows come in the order of their domains, names and keys.
	Rows []Row
	// Cost is the sum; nil when nothing of it has a price.
	Cost *big.Rat
}

// Row is what one project, user, domain or resource group used.
type Row struct {
	// Key is the id or name that the grouping is about, Name what people call it. Domain is that of a project or a user.
	Key, Name, Domain string
	// Slots are in the order of their names.
	Slots []Used
	Cost  *big.Rat
}

// Used is what was held of a slot.
type Used struct {
	Slot cluster.SlotName
	// Amount is in thousandths of the slot's unit times microseconds. It is exact.
	Amount *big.Int
	// Hours are hours of the priced unit: of a core, of a device, of a GiB of memory.
	Hours *big.Rat
	// Cost is nil where no price was valid at any time.
	Cost *big.Rat
}

// Report adds up what was used in a period: everything for superadmins and monitors, that of the domain for its administrators, that of the
// actor otherwise.
func (s *Service) Report(ctx context.Context, a authz.Actor, p Period, by Grouping) (Report, error) {
	q, err := s.question(ctx, a, p, by)
	if err != nil {
		return Report{}, err
	}
	parts, err := s.add(ctx, a, p, spans(p, q.prices), q.now, q.key)
	if err != nil {
		return Report{}, err
	}
	out := Report{Period: p, Now: q.now, By: by, Rows: []Row{}}
	out.Rows, out.Cost = sum(parts, q.prices)
	return out, nil
}

// question is what a report needs to know before it adds up.
type question struct {
	key    [2]string
	prices []Price
	now    time.Time
}

// question checks what somebody asks for.
func (s *Service) question(ctx context.Context, a authz.Actor, p Period, by Grouping) (q question, err error) {
	if err := authz.Authenticated(a); err != nil {
		return q, err
	}
	if err := p.Check(); err != nil {
		return q, err
	}
	var known bool
	if q.key, known = keys[by]; !known {
		return q, fault.Invalidf("usage is not grouped by %.40q", string(by)).WithNext("choose project, user, domain or resource-group")
	}
	if q.prices, err = s.prices(ctx); err != nil {
		return q, err
	}
	q.now, err = s.now(ctx)
	return q, err
}

// part is what was held of one slot in one span by what has the key.
type part struct {
	span              Period
	domain, key, name string
	group             string
	slot              cluster.SlotName
	amount            *big.Int
}

// add adds up, span by span, in the database.
func (s *Service) add(ctx context.Context, a authz.Actor, p Period, spans []Period, now time.Time, key [2]string) ([]part, error) {
	var b list.Builder
	since, until := make([]time.Time, len(spans)), make([]time.Time, len(spans))
	for i, sp := range spans {
		since[i], until[i] = sp.From, sp.Until
	}
	domain := "i.domain_name"
	if key[0] == keys[ByResourceGroup][0] {
		domain = "''::text"
	}
	at := b.Arg(now) + "::timestamptz"
	sql := fmt.Sprintf(`SELECT p.n, %[1]s, %[2]s, %[3]s, i.resource_group, v.key,
	sum(v.value::numeric * (extract(epoch FROM least(coalesce(i.to_at, %[4]s), p.until, %[4]s) - greatest(i.from_at,
		p.since)) * 1000000))::numeric(60, 0)::text
FROM unnest(%[5]s::timestamptz[], %[6]s::timestamptz[]) WITH ORDINALITY AS p(since, until, n)
JOIN %[7]s ON i.from_at < p.until AND coalesce(i.to_at, 'infinity') > p.since CROSS JOIN jsonb_each_text(i.slots) v
WHERE i.from_at < least(%[8]s::timestamptz, %[4]s) AND coalesce(i.to_at, 'infinity') > %[9]s::timestamptz AND p.since < %[4]s AND %[10]s
GROUP BY p.n, %[1]s, %[2]s, i.resource_group, v.key ORDER BY %[1]s, %[2]s, v.key, p.n, i.resource_group LIMIT %[11]d`,
		domain, key[0], key[1], at, b.Arg(since), b.Arg(until), facts.UsageIntervals.From, b.Arg(p.Until), b.Arg(p.From),
		facts.UsageIntervals.Where(a, authz.See, b.Arg), maxReport+1)
	rows, err := s.d.Store.DB().Query(ctx, sql, b.Args...)
	if err != nil {
		return nil, fmt.Errorf("add up usage: %w", err)
	}
	out, err := pgx.CollectRows(rows, func(r pgx.CollectableRow) (part, error) {
		var n int
		var x part
		var amount string
		if err := r.Scan(&n, &x.domain, &x.key, &x.name, &x.group, &x.slot, &amount); err != nil {
			return x, err
		}
		x.span = spans[n-1]
		x.amount, _ = new(big.Int).SetString(amount, 10)
		if x.amount == nil {
			return x, fault.New(fault.Internal, "usage: the database answered with %q", amount)
		}
		return x, nil
	})
	if err != nil {
		return nil, fmt.Errorf("add up usage: %w", err)
	}
	if len(out) > maxReport {
		return nil, fault.Exhaustedf("this report has more than %d numbers", maxReport).WithNext("ask for a shorter period, or group by domain")
	}
	return out, nil
}

// sum puts parts together that belong to one row, and prices them. Parts of a row come one after the other.
func sum(parts []part, prices []Price) (rows []Row, total *big.Rat) {
	rows = []Row{}
	for _, x := range parts {
		if n := len(rows); n == 0 || rows[n-1].Key != x.key || rows[n-1].Domain != x.domain {
			rows = append(rows, Row{Key: x.key, Name: x.name, Domain: x.domain})
		}
		row := &rows[len(rows)-1]
		row.Name = max(row.Name, x.name) // of a project or user who was renamed, one of the names
		if n := len(row.Slots); n == 0 || row.Slots[n-1].Slot != x.slot {
			row.Slots = append(row.Slots, Used{Slot: x.slot, Amount: new(big.Int)})
		}
		used := &row.Slots[len(row.Slots)-1]
		used.Amount.Add(used.Amount, x.amount)
		used.Hours = hours(x.slot, used.Amount)
		if price := perHour(prices, x.slot, x.group, x.span.From); price != nil {
			cost := price.Mul(price, hours(x.slot, x.amount))
			used.Cost, row.Cost, total = plus(used.Cost, cost), plus(row.Cost, cost), plus(total, cost)
		}
	}
	slices.SortStableFunc(rows, func(a, b Row) int {
		return cmp.Or(strings.Compare(a.Domain, b.Domain), strings.Compare(a.Name, b.Name), strings.Compare(a.Key, b.Key))
	})
	return rows, total
}

// plus adds a cost to one that may not be known yet.
func plus(a, b *big.Rat) *big.Rat {
	if a == nil {
		return new(big.Rat).Set(b)
	}
	return a.Add(a, b)
}
