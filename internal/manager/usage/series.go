package usage

import (
	"context"
	"time"

	"berth.dev/berth/internal/fault"
	"berth.dev/berth/internal/manager/authz"
)

// maxSteps bounds how many reports a series has: a year of days.
const maxSteps = 366

// Step is how long each report of a series is. Days and months are those of UTC.
type Step string

// The steps.
const (
	Daily   Step = "day"
	Monthly Step = "month"
)

// next is when the step ends that has the instant.
func (s Step) next(at time.Time) time.Time {
	at = at.UTC()
	if s == Monthly {
		return time.Date(at.Year(), at.Month()+1, 1, 0, 0, 0, 0, time.UTC)
	}
	return time.Date(at.Year(), at.Month(), at.Day()+1, 0, 0, 0, 0, time.UTC)
}

// steps cuts the period at its days or months, until the instant: what has not begun then is no part of it.
func (p Period) steps(step Step, now time.Time) ([]Period, error) {
	if step != Daily && step != Monthly {
		return nil, fault.Invalidf("usage is not told by the %.40q", string(step)).WithNext("choose day or month")
	}
	out := []Period{}
	for from := p.From; from.Before(p.Until) && from.Before(now); {
		if len(out) == maxSteps {
			return nil, fault.Invalidf("the period from %s to %s has more than %d steps", p.From.Format(time.RFC3339),
				p.Until.Format(time.RFC3339), maxSteps).WithNext("ask for its parts, or by the month")
		}
		until := step.next(from)
		if until.After(p.Until) {
			until = p.Until
		}
		out = append(out, Period{from, until})
		from = until
	}
	return out, nil
}

// Series tells how a report came about, step by step, in order: a report for each day or month of the period that has begun. Together they
// are the report of the period. It is made of one look at the ledger.
func (s *Service) Series(ctx context.Context, a authz.Actor, p Period, by Grouping, step Step) ([]Report, error) {
	q, err := s.question(ctx, a, p, by)
	if err != nil {
		return nil, err
	}
	steps, err := p.steps(step, q.now)
	if err != nil || len(steps) == 0 {
		return nil, err
	}
	var all []Period
	for _, one := range steps {
		all = append(all, spans(one, q.prices)...)
	}
	parts, err := s.add(ctx, a, p, all, q.now, q.key)
	if err != nil {
		return nil, err
	}
	return inSteps(steps, parts, q, by), nil
}

// inSteps gives every step its parts, which keep their order.
func inSteps(steps []Period, parts []part, q question, by Grouping) []Report {
	place := make(map[time.Time]int, len(steps))
	for i, one := range steps {
		for _, sp := range spans(one, q.prices) {
			place[sp.From] = i
		}
	}
	of := make([][]part, len(steps))
	for _, x := range parts {
		i := place[x.span.From]
		of[i] = append(of[i], x)
	}
	out := make([]Report, len(steps))
	for i, one := range steps {
		out[i] = Report{Period: one, Now: q.now, By: by}
		out[i].Rows, out[i].Cost = sum(of[i], q.prices)
	}
	return out
}
