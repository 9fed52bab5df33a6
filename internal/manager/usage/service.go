// Package usage tells what was used, by whom and at what price: it reads the usage ledger.
//
// The ledger has an interval for each time that a kernel held slots. Triggers write it (migration 0038), in the transaction that gives
// slots or frees them, because occupancy is derived from the same rows; docs/decisions/0045 says why. Reports clip intervals to the
// asked period and to now, in whole microseconds and thousandths of a slot's unit, so the reports of any parts of a period add up to
// that of
// the whole. Months and days are those of UTC.
package usage

import (
	"context"
	"fmt"
	"time"

	"berth.dev/berth/internal/fault"
	"berth.dev/berth/internal/manager/authz"
	"berth.dev/berth/internal/manager/store"
)

// Deps are what the use cases work with; all are required.
type Deps struct {
	Store *store.Store
	IDs   func() string
}

// Service is the use cases.
type Service struct{ d Deps }

// New makes the use cases.
func New(d Deps) (*Service, error) {
	if d.Store == nil || d.IDs == nil {
		return nil, fault.New(fault.Internal, "usage: a store and ids are required")
	}
	return &Service{d}, nil
}

// maxPeriod bounds what one report looks at.
const maxPeriod = 5 * 366 * 24 * time.Hour

// Period is a span of time, From included and Until not.
type Period struct{ From, Until time.Time }

// Check refuses a period that is empty or longer than five years.
func (p Period) Check() error {
	switch {
	case !p.From.Before(p.Until):
		return fault.Invalidf("the period from %s to %s is empty", p.From.Format(time.RFC3339), p.Until.Format(time.RFC3339)).
			WithNext("let it end after its begin")
	case p.Until.Sub(p.From) > maxPeriod:
		return fault.Invalidf("the period from %s to %s is longer than five years", p.From.Format(time.RFC3339), p.Until.Format(time.RFC3339)).
			WithNext("ask for its parts")
	}
	return nil
}

// Month is the period of a month of UTC.
func Month(year int, month time.Month) Period {
	from := time.Date(year, month, 1, 0, 0, 0, 0, time.UTC)
	return Period{from, from.AddDate(0, 1, 0)}
}

// now is the database's time, by which the ledger is written.
func (s *Service) now(ctx context.Context) (time.Time, error) {
	now, err := s.d.Store.SessionNow(ctx)
	if err != nil {
		return now, fmt.Errorf("read the time: %w", err)
	}
	return now.UTC(), nil
}

// all refuses those who do not see the use of everybody.
func all(a authz.Actor, what string) error {
	return authz.UsageIntervals.Need(a, authz.See, authz.Object{}, what)
}
