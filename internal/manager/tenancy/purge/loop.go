package purge

import (
	"context"
	"fmt"
	"time"

	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/fault"
	"berth.dev/berth/internal/manager/reconcile"
	"berth.dev/berth/internal/manager/session"
	"berth.dev/berth/internal/manager/store"
	"berth.dev/berth/internal/manager/store/dbgen"
)

const (
	// passPurges is how many purges a pass looks at; of each it takes one step of at most stepRows rows.
	passPurges = 20
	stepRows   = 100
	// soon is the time between looks while purges wait for sessions or storage proxies, calm that without any.
	soon = time.Second
	calm = 30 * time.Second
)

// Loops returns the control loop that carries purges out.
func (s *Service) Loops() []reconcile.Loop {
	return []reconcile.Loop{{
		Name:  "purge",
		Hears: func(topic string) bool { return topic == store.TopicPurges },
		Begin: func(t reconcile.Term) reconcile.Work {
			return reconcile.Work{Pass: func(ctx context.Context) (time.Duration, error) { return s.pass(ctx, t) }}
		},
	}}
}

// pass takes one step of some purges, each in a transaction of its own: one that fails holds up no other.
func (s *Service) pass(ctx context.Context, t reconcile.Term) (wait time.Duration, err error) {
	due, err := s.d.Store.DuePurges(ctx, passPurges)
	if err != nil {
		return 0, fmt.Errorf("read purges: %w", err)
	}
	if len(due) == 0 {
		return calm, nil
	}
	wait = soon
	for _, p := range due {
		var out outcome
		err := t.Commit(ctx, func(ctx context.Context, tx *store.Tx) (err error) {
			if out, err = s.step(ctx, tx, p); err != nil {
				return err
			}
			return s.note(ctx, tx, p, out)
		})
		switch {
		case fault.Is(err, fault.Conflict) && ctx.Err() == nil, store.Dangling(err):
			// Something new belongs to it, or something moved meanwhile: the next step sees it. A leader that was deposed gets here, too,
			// and can write nothing.
			if err := t.Commit(ctx, func(ctx context.Context, tx *store.Tx) error {
				return s.note(ctx, tx, p, outcome{message: "something changed meanwhile; looking again"})
			}); err != nil {
				return 0, err
			}
		case err != nil:
			return 0, fmt.Errorf("purge %s %s: %w", p.Kind, p.Name, err)
		case out.gone:
			s.d.Log.Info("purged", "kind", p.Kind, "name", p.Name, "domain", p.DomainName, "removed", p.Done+int64(out.removed))
			wait = 0
		case out.removed > 0:
			wait = 0
		}
	}
	return wait, nil
}

// outcome is what one step did: how much it removed, what the purge is doing or waiting for, and whether it is done.
type outcome struct {
	removed int
	message string
	gone    bool
}

func (s *Service) note(ctx context.Context, tx *store.Tx, p dbgen.Purge, out outcome) error {
	status := "started"
	if out.gone {
		status, out.message = "done", "done"
		if err := tx.DropPurge(ctx, p.ID); err != nil {
			return fmt.Errorf("forget the purge: %w", err)
		}
	} else if err := tx.PurgeTried(ctx, store.Text(out.message), int64(out.removed), p.ID); err != nil {
		return fmt.Errorf("note the step: %w", err)
	}
	n := p.Done + int64(out.removed)
	tx.Wake("task:" + p.ID)
	return tx.SetTask(ctx, dbgen.SetTaskParams{ID: p.ID, Status: status, Message: store.Text(out.message), Current: n, Total: n})
}

// step takes the next step of a purge.
func (s *Service) step(ctx context.Context, tx *store.Tx, p dbgen.Purge) (outcome, error) {
	var user, project *string
	switch Kind(p.Kind) {
	case User:
		user = &p.Subject
	case Project:
		project = &p.Subject
	default:
		return s.stepDomain(ctx, tx, p)
	}
	if out, err := endSessions(ctx, tx, p, user, project); err != nil || out.message != "" {
		return out, err
	}
	if out, err := s.stepFolders(ctx, tx, p, user, project); err != nil || out.message != "" {
		return out, err
	}
	n, err := tx.ForgetEndedSessions(ctx, user, project, stepRows)
	if err != nil {
		return outcome{}, fmt.Errorf("forget sessions that ended: %w", err)
	}
	left, err := tx.CountOf(ctx, user, project, nil)
	if err != nil {
		return outcome{}, fmt.Errorf("count what is left: %w", err)
	}
	switch {
	case n > 0:
		return outcome{removed: int(n), message: "sessions that ended are being forgotten"}, nil
	case left.Ended > 0:
		return outcome{message: fmt.Sprintf("agents clean up after %d sessions", left.Ended)}, nil
	case project != nil:
		_, err = tx.ForgetProject(ctx, *project)
		return outcome{removed: 1, gone: true}, err
	}
	if n, err = tx.ForgetCreator(ctx, user, stepRows); err != nil || n > 0 {
		return outcome{removed: int(n), message: "folders of projects forget who made them"}, err
	}
	if _, err := tx.ForgetKeypairsOf(ctx, *user); err != nil {
		return outcome{}, fmt.Errorf("delete the keypairs: %w", err)
	}
	_, err = tx.ForgetUser(ctx, *user)
	return outcome{removed: 1, gone: true}, err
}

// endSessions ends some live sessions; its message is empty when there are none.
func endSessions(ctx context.Context, tx *store.Tx, p dbgen.Purge, user, project *string) (outcome, error) {
	live, err := tx.LiveSessionsOf(ctx, user, project, nil, stepRows)
	if err != nil || len(live) == 0 {
		return outcome{}, err
	}
	var ids []cluster.SessionID
	for _, r := range live {
		ids = append(ids, cluster.SessionID(r.ID))
	}
	if err := session.StopAll(ctx, tx, ids, "", cluster.ReasonUserPurged, p.Kind+" "+p.Name+" is being purged"); err != nil {
		return outcome{}, err
	}
	return outcome{message: fmt.Sprintf("sessions are ending, such as %s of %s", live[0].Name, live[0].Email)}, nil
}

// stepFolders takes a step of some folders: those that others have a share of go to the heir, the rest is removed. Its message is empty
// when there are none.
func (s *Service) stepFolders(ctx context.Context, tx *store.Tx, p dbgen.Purge, user, project *string) (outcome, error) {
	out, after := outcome{}, nobody
	for {
		page, err := tx.FoldersOf(ctx, dbgen.FoldersOfParams{UserID: user, ProjectID: project, After: after, MaxRows: stepRows})
		if err != nil {
			return out, fmt.Errorf("read the folders: %w", err)
		}
		for _, f := range page {
			after = f.ID
			gone, waits := false, ""
			if p.KeepShared && f.Shared && user != nil {
				gone, err = bequeath(ctx, tx, p, f, *user)
			}
			if err == nil && !gone {
				gone, waits, err = s.d.Folders.Discard(ctx, tx, f)
			}
			switch {
			case err != nil:
				return out, err
			case gone:
				out.removed++
				out.message = "folders are being removed"
			case waits != "":
				out.message = waits
			}
		}
		if len(page) < stepRows || out.removed >= stepRows {
			return out, nil
		}
	}
}

// bequeath gives a folder that others have a share of to the heir; one that is on its way out stays with its owner.
func bequeath(ctx context.Context, tx *store.Tx, p dbgen.Purge, f dbgen.FoldersOfRow, user string) (done bool, err error) {
	heir := ""
	if p.HeirID != nil {
		heir = *p.HeirID
	} else if heir, err = tx.FirstSuperadmin(ctx); err != nil {
		return false, fmt.Errorf("find an heir: %w", err)
	}
	if err := tx.LockFolderOwner(ctx, heir); err != nil {
		return false, fmt.Errorf("wait for other folders of the heir: %w", err)
	}
	n, err := tx.BequeathFolder(ctx, heir, f.ID, user)
	if err != nil || n == 0 {
		return false, err
	}
	if _, err := tx.RevokeFolder(ctx, f.ID, []string{heir}); err != nil {
		return false, fmt.Errorf("take back the heir's share: %w", err)
	}
	return true, tx.CancelInvitations(ctx, f.ID)
}

// stepDomain purges what belongs to a domain, some at a time, and the domain when nothing does.
func (s *Service) stepDomain(ctx context.Context, tx *store.Tx, p dbgen.Purge) (outcome, error) {
	sub := func(kind Kind, id, name string) error {
		return begin(ctx, tx, "", dbgen.AddPurgeParams{ID: s.d.IDs(), Kind: string(kind), Subject: id, Name: name, DomainName: p.DomainName,
			HeirID: p.HeirID, KeepShared: p.KeepShared, ParentID: &p.ID})
	}
	users, err := tx.UsersInDomain(ctx, p.Subject, stepRows)
	if err != nil {
		return outcome{}, fmt.Errorf("read the users: %w", err)
	}
	for _, u := range users {
		if err := sub(User, u.ID, u.Email); err != nil {
			return outcome{}, err
		}
	}
	projects, err := tx.ProjectsInDomain(ctx, p.Subject, stepRows)
	if err != nil {
		return outcome{}, fmt.Errorf("read the projects: %w", err)
	}
	for _, j := range projects {
		if err := sub(Project, j.ID, j.Name); err != nil {
			return outcome{}, err
		}
	}
	left, err := tx.CountInDomain(ctx, p.Subject)
	if err != nil {
		return outcome{}, fmt.Errorf("count what is left: %w", err)
	}
	if left.Users+left.Projects > 0 {
		return outcome{message: fmt.Sprintf("%d users and %d projects are being purged", left.Users, left.Projects)}, nil
	}
	_, err = tx.ForgetDomain(ctx, p.Subject)
	return outcome{removed: 1, gone: true}, err
}
