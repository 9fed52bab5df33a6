package usage

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/manager/authz"
)

// Charts show the last 30 days in quarters of an hour.
const (
	binLength = 15 * time.Minute
	binCount  = 30 * 24 * 4
)

// Bin is what was held in a quarter of an hour.
type Bin struct {
	At time.Time
	// Sessions held something at any time of it.
	Sessions int
	// CPU is in cores, Mem in bytes, Devices in units of all other slots: what was held on average.
	CPU, Mem, Devices float64
}

// held is an interval of the ledger.
type held struct {
	session     string
	slots       cluster.Slots
	from, until time.Time
}

// bins spreads intervals over quarters of an hour. Intervals of a session come one after the other.
func bins(begin time.Time, all func(each func(held))) []Bin {
	out := make([]Bin, binCount)
	for i := range out {
		out[i].At = begin.Add(time.Duration(i) * binLength)
	}
	last, counted := "", -1
	seen := [binCount]bool{}
	all(func(h held) {
		if counted < 0 || h.session != last {
			last, counted, seen = h.session, 0, [binCount]bool{}
		}
		end := begin.Add(binCount * binLength)
		if h.from.Before(begin) {
			h.from = begin
		}
		if h.until.After(end) {
			h.until = end
		}
		if !h.from.Before(h.until) {
			return
		}
		var cpu, mem, devices float64
		for slot, n := range h.slots {
			switch v := float64(n) / cluster.Milli; slot {
			case cluster.SlotCPU:
				cpu += v
			case cluster.SlotMem:
				mem += v
			default:
				devices += v
			}
		}
		for i := int(h.from.Sub(begin) / binLength); i < binCount && out[i].At.Before(h.until); i++ {
			from, until := out[i].At, out[i].At.Add(binLength)
			if h.from.After(from) {
				from = h.from
			}
			if h.until.Before(until) {
				until = h.until
			}
			part := float64(until.Sub(from)) / float64(binLength)
			out[i].CPU, out[i].Mem, out[i].Devices = out[i].CPU+cpu*part, out[i].Mem+mem*part, out[i].Devices+devices*part
			if !seen[i] {
				seen[i] = true
				out[i].Sessions++
			}
		}
	})
	return out
}

// Mine are the bins of the actor's own sessions, the oldest first. The last one is not over yet.
func (s *Service) Mine(ctx context.Context, a authz.Actor) ([]Bin, error) {
	if err := authz.Authenticated(a); err != nil {
		return nil, err
	}
	return s.bins(ctx, "i.user_id = $3::uuid", string(a.UserID))
}

// Everybodys are the bins of all sessions (superadmins and monitors).
func (s *Service) Everybodys(ctx context.Context, a authz.Actor) ([]Bin, error) {
	if err := all(a, "see the usage of everybody"); err != nil {
		return nil, err
	}
	return s.bins(ctx, "true")
}

func (s *Service) bins(ctx context.Context, of string, args ...any) ([]Bin, error) {
	now, err := s.now(ctx)
	if err != nil {
		return nil, err
	}
	begin := now.Truncate(binLength).Add(-(binCount - 1) * binLength)
	rows, err := s.d.Store.DB().Query(ctx, `SELECT i.session_id::text, i.slots, i.from_at, least(coalesce(i.to_at, $2::timestamptz), $2)
FROM usage_intervals i WHERE coalesce(i.to_at, 'infinity') > $1::timestamptz AND i.from_at < $2 AND `+of+` ORDER BY i.session_id`,
		append([]any{begin, now}, args...)...)
	if err != nil {
		return nil, fmt.Errorf("read the usage ledger: %w", err)
	}
	out := bins(begin, func(each func(held)) {
		var h held
		var slots []byte
		_, err = pgx.ForEachRow(rows, []any{&h.session, &slots, &h.from, &h.until}, func() error {
			h.slots = nil
			if err := json.Unmarshal(slots, &h.slots); err != nil {
				return err
			}
			each(h)
			return nil
		})
	})
	if err != nil {
		return nil, fmt.Errorf("read the usage ledger: %w", err)
	}
	return out, nil
}
