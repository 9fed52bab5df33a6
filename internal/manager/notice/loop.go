package notice

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/fault"
	"berth.dev/berth/internal/manager/notice/rule"
	"berth.dev/berth/internal/manager/operation/callback"
	"berth.dev/berth/internal/manager/reconcile"
	"berth.dev/berth/internal/manager/store"
	"berth.dev/berth/internal/manager/store/dbgen"
)

const (
	// every is the longest time between two looks: events come without a hint.
	every = 5 * time.Second
	// maxDecided bounds the events of one pass, atOnce what is sent in one.
	maxDecided = 100
	atOnce     = 16
	// patience bounds one request or e-mail. claim is for how long a notice is the leader's that sends it: longer than a pass may take.
	patience = 15 * time.Second
	claim    = 3 * time.Minute
	// remembered is how long what is done stays, forget the time between two looks for what is older, forgotten how much goes at once.
	remembered = 30 * 24 * time.Hour
	forget     = time.Hour
	forgotten  = 1000
)

// The states of a delivery.
const (
	waiting = "waiting"
	sent    = "sent"
	failed  = "failed"
)

// Loops returns the loop that decides about events and sends notices. One manager sends at a time: the leader. One that was deposed while
// it sent stores nothing, so what it sent comes again.
func (s *Service) Loops() []reconcile.Loop {
	return []reconcile.Loop{{
		Name:  "notices",
		Hears: func(topic string) bool { return topic == store.TopicNotices },
		Begin: func(t reconcile.Term) reconcile.Work {
			l := &loop{Service: s, term: t, client: callback.NewClient(s.d.Receivers)}
			return reconcile.Work{Pass: l.pass, End: l.client.Close}
		},
	}}
}

type loop struct {
	*Service
	term   reconcile.Term
	client *callback.Client
	forgot time.Time
}

// pass decides about some events, then sends some notices. No transaction is open while it sends.
func (l *loop) pass(ctx context.Context) (time.Duration, error) {
	more, err := l.decide(ctx)
	if err != nil {
		return 0, err
	}
	claimed, err := l.claim(ctx)
	if err != nil {
		return 0, err
	}
	outcomes := make([]error, len(claimed))
	var sending sync.WaitGroup
	for i := range claimed {
		sending.Go(func() {
			ctx, cancel := context.WithTimeout(ctx, patience)
			defer cancel()
			outcomes[i] = l.send(ctx, claimed[i])
		})
	}
	sending.Wait()
	if ctx.Err() != nil {
		return 0, ctx.Err() // what was sent comes again
	}
	if err := l.settle(ctx, claimed, outcomes); err != nil {
		return 0, err
	}
	if more || len(claimed) == atOnce {
		return 0, nil
	}
	return l.rest(ctx)
}

// decide makes deliveries of events.
func (l *loop) decide(ctx context.Context) (more bool, err error) {
	err = l.term.Commit(ctx, func(ctx context.Context, tx *store.Tx) error {
		more = false
		now := l.d.Clock()
		rows, err := tx.NoticeSources(ctx, now.Add(-time.Hour), maxDecided)
		if err != nil {
			return fmt.Errorf("read events: %w", err)
		}
		if len(rows) == 0 {
			return nil
		}
		more = len(rows) == maxDecided
		ids, users := make([]string, len(rows)), []string{}
		made := map[string]*[2]int{} // e-mails and webhooks of a user in this pass
		for i, r := range rows {
			ids[i] = r.ID
			n, ok := rule.Of(rule.Event{Name: r.Event, Subject: r.Name, Status: cluster.Status(r.Status), Result: cluster.Result(r.Result),
				Reason: cluster.Reason(r.Reason), Detail: r.Detail, InvitationState: r.InvitationState, Accepted: r.WasAsked})
			if !ok {
				continue
			}
			if made[r.UserID] == nil {
				made[r.UserID] = new([2]int)
				users = append(users, r.UserID)
			}
			count := made[r.UserID]
			reader := rule.Reader{Active: r.Active, Service: r.IsService, Email: kindsOf(r.EmailKinds), Webhook: kindsOf(r.WebhookKinds),
				HasWebhook: r.HasWebhook, MailWorks: l.d.Mailer != nil, EmailsLately: int(r.EmailsLately) + count[0],
				WebhooksWaiting: int(r.WebhooksWaiting) + count[1]}
			for _, d := range rule.Deliveries(n.Kind, reader) {
				row := dbgen.AddNoticeDeliveryParams{NoticeID: r.ID, Channel: string(d.Channel), UserID: r.UserID, Kind: string(n.Kind),
					SubjectKind: n.SubjectKind, Subject: r.Subject, Name: r.Name, Reason: r.Reason, Words: n.Words, At: r.At,
					State: waiting, Now: now, LastError: d.Refused}
				if d.Refused != "" {
					row.State = failed
				} else if d.Channel == rule.Email {
					count[0]++
				} else {
					count[1]++
				}
				if err := tx.AddNoticeDelivery(ctx, row); err != nil {
					return fmt.Errorf("store a notice: %w", err)
				}
			}
		}
		if err := tx.TrimNotices(ctx, users, kept); err != nil {
			return fmt.Errorf("forget old notices: %w", err)
		}
		return tx.DropNoticeSources(ctx, ids)
	})
	if err != nil {
		return false, fmt.Errorf("decide about notices: %w", err)
	}
	return more, nil
}

// claim takes notices that are due. A leader that dies before it stores what became of them leaves them to the next.
func (l *loop) claim(ctx context.Context) (rows []dbgen.ClaimNoticesRow, err error) {
	err = l.term.Commit(ctx, func(ctx context.Context, tx *store.Tx) (err error) {
		now := l.d.Clock()
		rows, err = tx.ClaimNotices(ctx, now.Add(claim), now, atOnce)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("claim notices: %w", err)
	}
	return rows, nil
}

// unwanted is why a notice is not sent any more.
func (l *loop) unwanted(r dbgen.ClaimNoticesRow) string {
	return rule.Wanted(rule.Kind(r.Kind), rule.Channel(r.Channel), rule.Reader{Active: r.Active, Service: r.IsService,
		Email: kindsOf(r.EmailKinds), Webhook: kindsOf(r.WebhookKinds), HasWebhook: r.WebhookUrl != nil, MailWorks: l.d.Mailer != nil})
}

func (l *loop) send(ctx context.Context, r dbgen.ClaimNoticesRow) error {
	if why := l.unwanted(r); why != "" {
		return fault.Deniedf("%s", why)
	}
	if r.Channel == string(rule.Email) {
		return l.mail(ctx, r)
	}
	secret, err := l.d.Seal.Open(r.WebhookSecretSealed, purpose(r.UserID))
	if err != nil {
		l.d.Log.Error("the secret of a webhook cannot be opened", "user", r.UserID, "error", err)
		return fault.Deniedf("the secret of the webhook cannot be read here: ask for a new one")
	}
	return post(ctx, l.client, *r.WebhookUrl, secret, r, l.d.Clock())
}

// mail sends an e-mail. What the mail server says is for operators: users are told that it went wrong.
func (l *loop) mail(ctx context.Context, r dbgen.ClaimNoticesRow) error {
	err := l.d.Mailer.Send(ctx, r.Email, subjectOf(r), r.Words+"\n\n"+mailEnd)
	if err == nil {
		return nil
	}
	l.d.Log.Warn("could not send an e-mail of a notice", "notice", r.NoticeID, "user", r.UserID, "error", err)
	if fault.Is(err, fault.Invalid) {
		return fault.Invalidf("%s is no address for e-mail", r.Email)
	}
	return errors.New("the mail server did not take it")
}

const mailEnd = "You asked for these e-mails. Change that on your profile page, or with: berth notice set\n"

// subjectOf is the subject of an e-mail.
func subjectOf(r dbgen.ClaimNoticesRow) string {
	words := map[rule.Kind]string{rule.Ended: "Session %s has ended", rule.Failed: "Session %s failed", rule.Idle: "Session %s ends soon",
		rule.Shared: "Folder %s is shared with you"}[rule.Kind(r.Kind)]
	if words == "" {
		return "Berth: a test"
	}
	return "Berth: " + fmt.Sprintf(words, oneLine(r.Name))
}

// settle stores what became of notices.
func (l *loop) settle(ctx context.Context, claimed []dbgen.ClaimNoticesRow, outcomes []error) error {
	if len(claimed) == 0 {
		return nil
	}
	now := l.d.Clock()
	err := l.term.Commit(ctx, func(ctx context.Context, tx *store.Tx) error {
		var users []string
		for i, r := range claimed {
			users = append(users, r.UserID)
			if err := settleOne(ctx, tx, r, outcomes[i], now); err != nil {
				return err
			}
		}
		slices.Sort(users)
		return tx.TrimNotices(ctx, slices.Compact(users), kept)
	})
	if err != nil {
		return fmt.Errorf("store what became of notices: %w", err)
	}
	for i, r := range claimed {
		if outcomes[i] != nil {
			l.d.Log.Info("a notice was not delivered", "notice", r.NoticeID, "channel", r.Channel, "user", r.UserID, "attempts", r.Attempts)
		}
	}
	return nil
}

func settleOne(ctx context.Context, tx *store.Tx, r dbgen.ClaimNoticesRow, outcome error, now time.Time) error {
	done := dbgen.NoticeDoneParams{State: sent, Now: now, NoticeID: r.NoticeID, Channel: r.Channel}
	if outcome == nil {
		return tx.NoticeDone(ctx, done)
	}
	words := fault.Clip(store.Text(outcome.Error()), 300)
	gap, again := rule.Again(int(r.Attempts))
	if !again || fault.Is(outcome, fault.Denied) || fault.Is(outcome, fault.Invalid) {
		done.State, done.LastError = failed, words
		return tx.NoticeDone(ctx, done)
	}
	return tx.NoticeLater(ctx, dbgen.NoticeLaterParams{NoticeID: r.NoticeID, At: now.Add(gap), LastError: words, UserID: r.UserID,
		Channel: r.Channel})
}

// rest forgets what is old and returns how long the loop may rest.
func (l *loop) rest(ctx context.Context) (time.Duration, error) {
	now := l.d.Clock()
	if now.Sub(l.forgot) >= forget {
		err := l.term.Commit(ctx, func(ctx context.Context, tx *store.Tx) error {
			if err := tx.DropOrphanedNoticeSources(ctx); err != nil {
				return err
			}
			return tx.PruneNotices(ctx, now.Add(-remembered), forgotten)
		})
		if err != nil {
			return 0, fmt.Errorf("forget old notices: %w", err)
		}
		l.forgot = now
	}
	next, err := l.d.Store.NextNotice(ctx)
	if store.Missing(err) {
		return every, nil
	}
	if err != nil {
		return 0, fmt.Errorf("look for the next notice: %w", err)
	}
	return max(min(next.Sub(now), every), 0), nil
}
