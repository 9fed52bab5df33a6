package rule_test

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/manager/notice/rule"
)

func TestWhichEventsAreNews(t *testing.T) {
	t.Parallel()
	end, cancel := string(cluster.SessionTerminated), string(cluster.SessionCancelled)
	for name, c := range map[string]struct {
		event rule.Event
		kind  rule.Kind // "": none
		words string
	}{
		"its user ended it":         {event: rule.Event{Name: end, Reason: cluster.ReasonUserRequested}},
		"its user ended it at once": {event: rule.Event{Name: end, Reason: cluster.ReasonForced}},
		"an administrator ended it": {rule.Event{Name: end, Status: cluster.Terminated, Reason: cluster.ReasonAdministrator,
			Detail: "asked by boss@x"}, rule.Ended, "Session lab has ended: an administrator ended it; asked by boss@x."},
		"its user is purged": {event: rule.Event{Name: end, Reason: cluster.ReasonUserPurged}},
		"a start":            {event: rule.Event{Name: string(cluster.SessionStarted)}},
		"unused": {rule.Event{Name: end, Reason: cluster.ReasonIdleTimeout, Status: cluster.Terminated}, rule.Ended,
			"Session lab has ended: nobody used it."},
		"a batch job that worked": {rule.Event{Name: end, Reason: cluster.ReasonTaskFinished, Result: cluster.ResultSuccess}, rule.Ended,
			"Session lab has ended: its command ended."},
		"a batch job that did not": {rule.Event{Name: end, Reason: cluster.ReasonTaskFinished, Result: cluster.ResultFailure}, rule.Failed,
			"Session lab failed: its command ended."},
		"an error": {rule.Event{Name: end, Status: cluster.Error, Reason: "strange"}, rule.Failed, "Session lab failed: strange."},
		"no image": {rule.Event{Name: cancel, Status: cluster.Cancelled, Reason: cluster.ReasonFailedToPull, Detail: "no\nsuch  manifest."},
			rule.Failed, "Session lab failed: its image could not be pulled; no such manifest."},
		"without a reason": {rule.Event{Name: cancel}, rule.Ended, "Session lab has ended."},
		"idle": {rule.Event{Name: string(cluster.SessionIdleWarning), Detail: "nobody used it for 10m"}, rule.Idle,
			"Session lab ends soon: nobody used it for 10m."},
		"a broken device": {rule.Event{Name: string(cluster.SessionDeviceLost), Reason: cluster.ReasonDeviceLost, Detail: "GPU-0 broke"},
			rule.Failed, "Session lab lost a device: GPU-0 broke."},
		"invited": {rule.Event{Name: rule.Invited, Detail: "a@x", InvitationState: "pending"}, rule.Shared,
			"a@x invites you to folder lab."},
		"an invitation that was taken back": {event: rule.Event{Name: rule.Invited, InvitationState: "canceled"}},
		"an invitation that is gone":        {event: rule.Event{Name: rule.Invited}},
		"shared": {rule.Event{Name: rule.Granted, Detail: "team"}, rule.Shared,
			"Folder lab of team is shared with you."},
		"an invitation that was accepted": {event: rule.Event{Name: rule.Granted, Accepted: true}},
	} {
		c.event.Subject = "lab"
		n, ok := rule.Of(c.event)
		require.Equal(t, c.kind != "", ok, name)
		require.Equal(t, c.kind, n.Kind, name)
		require.Equal(t, c.words, n.Words, name)
	}
	long := strings.Repeat("é", 500)
	for length, want := range map[int]string{500: long, 501: long + "…", 5000: long + "…"} {
		n, _ := rule.Of(rule.Event{Name: end, Subject: "labs", Detail: strings.Repeat("é", length)})
		require.Equal(t, "Session labs has ended: "+want+".", n.Words)
	}
	n, _ := rule.Of(rule.Event{Name: rule.Granted, Subject: "data"})
	require.Equal(t, "Folder data of somebody is shared with you.", n.Words)
}

func TestWhoHearsWhere(t *testing.T) {
	t.Parallel()
	all := rule.Kinds()
	full := rule.Reader{Active: true, Email: all, Webhook: all, HasWebhook: true, MailWorks: true}
	with := func(change func(*rule.Reader)) rule.Reader { r := full; change(&r); return r }
	both := []rule.Delivery{{Channel: rule.Email}, {Channel: rule.Webhook}}
	for name, c := range map[string]struct {
		reader rule.Reader
		kind   rule.Kind
		want   []rule.Delivery
	}{
		"both":                   {full, rule.Failed, both},
		"nothing chosen":         {rule.Reader{Active: true, HasWebhook: true, MailWorks: true}, rule.Failed, nil},
		"other kinds":            {with(func(r *rule.Reader) { r.Email, r.Webhook = all[:1], all[:1] }), rule.Failed, nil},
		"one here":               {with(func(r *rule.Reader) { r.Webhook = []rule.Kind{rule.Idle} }), rule.Failed, both[:1]},
		"one there":              {with(func(r *rule.Reader) { r.Email = []rule.Kind{rule.Idle} }), rule.Failed, both[1:]},
		"not active":             {with(func(r *rule.Reader) { r.Active = false }), rule.Failed, nil},
		"not active, test":       {with(func(r *rule.Reader) { r.Active = false }), rule.Test, nil},
		"a test needs no choice": {with(func(r *rule.Reader) { r.Email, r.Webhook = nil, nil }), rule.Test, both},
		"no mail":                {with(func(r *rule.Reader) { r.MailWorks = false }), rule.Idle, both[1:]},
		"a service account":      {with(func(r *rule.Reader) { r.Service = true }), rule.Idle, both[1:]},
		"no webhook":             {with(func(r *rule.Reader) { r.HasWebhook = false }), rule.Idle, both[:1]},
		"too many": {with(func(r *rule.Reader) { r.EmailsLately, r.WebhooksWaiting = 60, 200 }), rule.Idle,
			[]rule.Delivery{{rule.Email, "60 e-mails were sent within an hour"},
				{rule.Webhook, "200 notices wait for this receiver already"}}},
	} {
		require.Equal(t, c.want, rule.Deliveries(c.kind, c.reader), name)
	}
}

func TestAttemptsComeLaterAndEnd(t *testing.T) {
	t.Parallel()
	var gaps []time.Duration
	for i := 1; ; i++ {
		gap, ok := rule.Again(i)
		if !ok {
			break
		}
		gaps = append(gaps, gap)
	}
	require.Equal(t, []time.Duration{15 * time.Second, time.Minute, 4 * time.Minute, 16 * time.Minute, time.Hour, time.Hour, time.Hour}, gaps)
}
