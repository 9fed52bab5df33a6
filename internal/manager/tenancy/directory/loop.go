package directory

import (
	"context"
	"fmt"
	"time"

	"berth.dev/berth/internal/fault"
	"berth.dev/berth/internal/manager/ldap"
	"berth.dev/berth/internal/manager/reconcile"
	"berth.dev/berth/internal/manager/store"
	"berth.dev/berth/internal/manager/store/dbgen"
	"berth.dev/berth/internal/manager/tenancy/identity"
)

const (
	// calm is the time between looks for syncs that nobody told of; pageOfKnown how many users are read at once.
	calm        = 30 * time.Second
	pageOfKnown = 1000
	// checkEvery is how often a sync that goes on makes sure that this manager still leads, in users.
	checkEvery = 200
)

// Loops returns the control loop that carries syncs out.
func (s *Service) Loops() []reconcile.Loop {
	if s.d.Client == nil {
		return nil
	}
	return []reconcile.Loop{{
		Name:  "directory",
		Hears: func(topic string) bool { return topic == store.TopicDirectory },
		Begin: func(t reconcile.Term) reconcile.Work {
			return reconcile.Work{Pass: func(ctx context.Context) (time.Duration, error) { return s.pass(ctx, t) }}
		},
	}}
}

// pass carries out the sync that has waited longest, or asks for the one of the schedule. One that runs already was begun by a leader that
// is gone: it is done again from the start, which changes nothing that was done.
func (s *Service) pass(ctx context.Context, t reconcile.Term) (time.Duration, error) {
	row, err := s.d.Store.NextDirectorySync(ctx, s.d.Policy.Name)
	if store.Missing(err) {
		return s.schedule(ctx, t)
	}
	if err != nil {
		return 0, fmt.Errorf("read syncs: %w", err)
	}
	if err := t.Commit(ctx, func(ctx context.Context, tx *store.Tx) error {
		_, err := tx.BeginDirectorySync(ctx, row.ID)
		return err
	}); err != nil {
		return 0, err
	}
	out := s.carryOut(ctx, t, row)
	if ctx.Err() != nil {
		return 0, ctx.Err() // the next leader begins anew
	}
	now := s.d.Clock()
	out.ID, out.EndedAt = row.ID, &now
	if err := t.Commit(ctx, func(ctx context.Context, tx *store.Tx) error { return tx.EndDirectorySync(ctx, out) }); err != nil {
		return 0, err
	}
	level := s.d.Log.Info
	if out.Status != "done" {
		level = s.d.Log.Error
	}
	level("the directory was compared with the users here", "sync", row.ID, "status", out.Status, "dry_run", row.DryRun, "message",
		out.Message,
		"people", out.People, "created", out.Created, "changed", out.Updated, "removed", out.Removed, "refused", out.Refused)
	return 0, nil
}

// schedule asks for a sync when the last one of the schedule is long ago.
func (s *Service) schedule(ctx context.Context, t reconcile.Term) (time.Duration, error) {
	every := s.d.Policy.SyncEvery
	if every == 0 {
		return calm, nil
	}
	last, err := s.d.Store.LastScheduledSync(ctx, s.d.Policy.Name)
	if err != nil {
		return 0, fmt.Errorf("read the last sync: %w", err)
	}
	if wait := every - s.d.Clock().Sub(last); wait > 0 {
		return min(wait, calm), nil
	}
	if err := t.Check(ctx); err != nil {
		return 0, err
	}
	if _, err := s.add(ctx, Request{}, ""); err != nil {
		return 0, err
	}
	return 0, nil
}

// carryOut reads the directory, decides, and does what was decided unless it is too much or only asked for.
func (s *Service) carryOut(ctx context.Context, t reconcile.Term, row dbgen.DirectorySync) dbgen.EndDirectorySyncParams {
	out := dbgen.EndDirectorySyncParams{Diff: []string{}}
	fail := func(status string, err error) dbgen.EndDirectorySyncParams {
		out.Status, out.Message = status, store.Text(fault.Clip(words(err), 1000))
		return out
	}
	steps, skipped, people, active, err := s.compare(ctx)
	if err != nil {
		return fail("failed", err)
	}
	c := count(people, steps)
	out.People, out.Created, out.Updated, out.Removed, out.Narrowed, out.Refused = int32(c.people), int32(c.created), int32(c.changed),
		int32(c.removed), int32(c.narrowed), int32(c.refused)
	out.Diff = store.Texts(differences(steps, skipped))
	if err := s.d.Policy.Limits.check(c, active, int(row.Allowance)); err != nil {
		return fail("stopped", err)
	}
	if row.DryRun {
		out.Status, out.Message = "done", "this is what a sync would do; nothing was changed"
		return out
	}
	failed, err := s.apply(ctx, t, steps)
	if err != nil {
		return fail("failed", err)
	}
	if out.Status = "done"; failed != "" {
		out.Message = store.Text(fault.Clip(failed, 1000))
	}
	return out
}

// words are an error with what to do next.
func words(err error) string {
	text := err.Error()
	if next := fault.NextOf(err); next != "" {
		text += "; " + next
	}
	return text
}

// compare decides about everybody. Whom the directory was not asked about when it answered, because they came later, is left alone: the
// users
// here are read first.
func (s *Service) compare(ctx context.Context) (steps []step, skipped []ldap.Skipped, people, active int, err error) {
	known := map[string]identity.Known{}
	for after := ""; ; {
		page, err := s.d.Identity.KnownOf(ctx, s.d.Policy.Name, after, pageOfKnown)
		if err != nil {
			return nil, nil, 0, 0, err
		}
		for _, k := range page {
			known[k.Subject], after = k, k.Subject
			if k.Status == "active" {
				active++
			}
		}
		if len(page) < pageOfKnown {
			break
		}
	}
	all, skipped, err := s.d.Client.All(ctx)
	if err != nil {
		return nil, nil, 0, 0, err
	}
	there, unsure := map[string]bool{}, false
	for _, k := range skipped {
		there[k.Subject] = true
		unsure = unsure || k.Subject == ""
	}
	for i := range all {
		there[all[i].Subject] = true
		one, err := s.decide(ctx, s.person(&all[i]), known)
		if err != nil {
			return nil, nil, 0, 0, err
		}
		steps = append(steps, one)
	}
	for subject, k := range known {
		if there[subject] || k.Status != "active" {
			continue
		}
		gone := identity.Person{Provider: s.d.Policy.Name, Subject: subject, Email: k.Email}
		if unsure {
			steps = append(steps, step{person: gone, role: k.Role, active: true, plan: identity.Plan{Action: identity.Refuse,
				Words: "not in the directory, or one of its entries that cannot be read; nothing is done"}})
			continue
		}
		one, err := s.decide(ctx, gone, known)
		if err != nil {
			return nil, nil, 0, 0, err
		}
		steps = append(steps, one)
	}
	return steps, skipped, len(all), active, nil
}

// decide says what becomes of a person. Who is in the directory and may not be here any more is shut out.
func (s *Service) decide(ctx context.Context, p identity.Person, known map[string]identity.Known) (step, error) {
	k, is := known[p.Subject]
	plan, err := s.d.Identity.Preview(ctx, p, &s.d.Policy.Rules)
	if err != nil {
		return step{}, err
	}
	if is && k.Status == "active" && p.Active && plan.Action == identity.Refuse && plan.Reason == identity.ReasonNoGroup {
		p.Active = false
		if plan, err = s.d.Identity.Preview(ctx, p, &s.d.Policy.Rules); err != nil {
			return step{}, err
		}
	}
	return step{person: p, plan: plan, active: is && k.Status == "active", role: k.Role}, nil
}

// apply does what was decided; who loses access comes first. failed tells of users of whom something went wrong.
func (s *Service) apply(ctx context.Context, t reconcile.Term, steps []step) (failed string, err error) {
	there := map[string]bool{}
	for after := ""; ; {
		page, err := s.d.Store.UsersOfDirectory(ctx, s.d.Policy.Name, after, pageOfKnown)
		if err != nil {
			return "", fmt.Errorf("read who logs in at the directory: %w", err)
		}
		for _, subject := range page {
			there[subject], after = true, subject
		}
		if len(page) < pageOfKnown {
			break
		}
	}
	n := 0
	for _, removing := range []bool{true, false} {
		for i := range steps {
			one := &steps[i]
			changes := one.plan.Changes() || one.plan.Action == identity.Update && !there[one.person.Subject]
			if one.removes() != removing || !changes {
				continue
			}
			if n++; n%checkEvery == 0 {
				if err := t.Check(ctx); err != nil {
					return "", err
				}
			}
			result, err := s.d.Identity.Apply(ctx, one.person, &s.d.Policy.Rules)
			if err == nil && one.person.Active && !there[one.person.Subject] {
				err = s.logInThere(ctx, result.User, one.person.Email)
			}
			switch {
			case err == nil:
			case fault.Is(err, fault.Denied), fault.Is(err, fault.Conflict), fault.Is(err, fault.Invalid):
				failed = fmt.Sprintf("not everybody could be changed, such as %s: %s", one.person.Email, words(err))
			default:
				return "", err
			}
		}
	}
	return failed, nil
}
