package notice_test

import (
	"bytes"
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/fault"
	"berth.dev/berth/internal/manager/authz"
	"berth.dev/berth/internal/manager/managertest"
	"berth.dev/berth/internal/manager/notice"
	"berth.dev/berth/internal/manager/notice/rule"
	"berth.dev/berth/internal/manager/nouns"
	"berth.dev/berth/internal/manager/reconcile"
	"berth.dev/berth/internal/manager/seal"
	"berth.dev/berth/internal/manager/session"
	sessionrequest "berth.dev/berth/internal/manager/session/request"
	"berth.dev/berth/internal/manager/store"
	"berth.dev/berth/internal/manager/tenancy"
	"berth.dev/berth/internal/testkit/address"
)

// request is what a receiver got.
type request struct {
	header http.Header
	body   []byte
}

// rig is a cluster with a receiver of webhooks, a mailbox, and a clock that the test moves. It makes the passes of the loop itself.
type rig struct {
	*managertest.World
	t        *testing.T
	receiver *httptest.Server
	log      *lockedBuffer

	mu     sync.Mutex
	now    time.Time
	status int // that the receiver answers with
	got    []request
	mails  [][3]string
	broken error // of the mail server
	during func()
}

type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lockedBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}
func (l *lockedBuffer) String() string { l.mu.Lock(); defer l.mu.Unlock(); return l.b.String() }

func (r *rig) Send(_ context.Context, to, subject, text string) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.broken != nil {
		return r.broken
	}
	r.mails = append(r.mails, [3]string{to, subject, text})
	return nil
}

func newRig(t *testing.T, change ...func(*nouns.Deps)) *rig {
	t.Helper()
	r := &rig{t: t, now: time.Now(), status: http.StatusNoContent, log: &lockedBuffer{}}
	r.receiver = address.Serve(t, http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
		body, _ := io.ReadAll(io.LimitReader(q.Body, 1<<20))
		r.mu.Lock()
		r.got = append(r.got, request{q.Header.Clone(), body})
		status, during := r.status, r.during
		r.mu.Unlock()
		if during != nil {
			during()
		}
		w.WriteHeader(status)
	}))
	r.World = managertest.New(t, append([]func(*nouns.Deps){func(d *nouns.Deps) {
		d.Callbacks.AllowPrivate, d.Mailer = true, r
		d.Clock = r.clock
		d.Log = slog.New(slog.NewTextHandler(r.log, &slog.HandlerOptions{Level: slog.LevelDebug}))
	}}, change...)...)
	r.Agent("a1", 8, 16*managertest.GiB)
	return r
}

func (r *rig) clock() time.Time { r.mu.Lock(); defer r.mu.Unlock(); return r.now }

func (r *rig) later(d time.Duration) { r.mu.Lock(); defer r.mu.Unlock(); r.now = r.now.Add(d) }

// answer sets what the receiver says.
func (r *rig) answer(status int) { r.mu.Lock(); defer r.mu.Unlock(); r.status = status }

// loop is that of a new leader.
func (r *rig) loop() reconcile.Work {
	w := r.Notices.Loops()[0].Begin(r.Term())
	r.t.Cleanup(w.End)
	return w
}

// pass makes one pass of a new leader.
func (r *rig) pass() {
	r.t.Helper()
	_, err := r.loop().Pass(r.t.Context())
	require.NoError(r.t, err)
}

// taken returns what the receiver and the mailbox got since the last call.
func (r *rig) taken() ([]request, [][3]string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	got, mails := r.got, r.mails
	r.got, r.mails = nil, nil
	return got, mails
}

// wish sets where notices go and returns the secret.
func (r *rig) wish(a authz.Actor, w notice.Wishes) string {
	r.t.Helper()
	_, secret, err := r.Notices.SetPreferences(r.t.Context(), a, notice.Change{Wishes: w})
	require.NoError(r.t, err)
	return secret.Reveal()
}

// fail makes a session that runs out of memory.
func (r *rig) fail(name string) cluster.SessionID {
	r.t.Helper()
	id := r.Running(name, "a1")
	r.Report(id, "a1", cluster.PhaseEnded, managertest.Ended(137, ""), func(o *cluster.KernelObservation) { o.OOMKilled = true })
	require.True(r.t, r.Session(id).Status.Final())
	return id
}

func (r *rig) deliveries(a authz.Actor) []notice.Delivery {
	r.t.Helper()
	list, err := r.Notices.Deliveries(r.t.Context(), a)
	require.NoError(r.t, err)
	return list
}

func (r *rig) count(table string) (n int) {
	r.t.Helper()
	require.NoError(r.t, r.Store.Pool().QueryRow(r.t.Context(), "SELECT count(*) FROM "+table).Scan(&n))
	return n
}

// What happens to somebody reaches them once on each channel, with a signature that its reader can check.
func TestNoticesArriveOnce(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	secret := r.wish(r.Admin, notice.Wishes{Email: []rule.Kind{rule.Failed}, URL: r.receiver.URL + "/hook", Webhook: rule.Kinds()})
	require.NotEmpty(t, secret)
	id := r.fail("labs")
	r.pass()
	r.pass()
	got, mails := r.taken()
	require.Len(t, got, 1)
	require.Len(t, mails, 1)
	require.Equal(t, r.Admin.Email, mails[0][0])
	require.Equal(t, "Berth: Session labs failed", mails[0][1])
	var body struct {
		ID, Kind, Text, Reason string
		At                     time.Time
		Subject                struct{ Kind, ID, Name string }
	}
	require.NoError(t, json.Unmarshal(got[0].body, &body))
	require.Equal(t, "failed", body.Kind)
	require.Equal(t, "session", body.Subject.Kind)
	require.Equal(t, string(id), body.Subject.ID)
	require.Equal(t, "labs", body.Subject.Name)
	require.Equal(t, string(cluster.ReasonOutOfMemory), body.Reason)
	require.Contains(t, body.Text, "Session labs failed: out of memory")
	require.Contains(t, mails[0][2], body.Text)
	require.Equal(t, body.ID, got[0].header.Get("Berth-Notice-Id"))
	var at, mac string
	_, err := fmt.Sscanf(strings.Replace(got[0].header.Get("Berth-Signature"), ",", " ", 1), "t=%s v1=%s", &at, &mac)
	require.NoError(t, err)
	h := hmac.New(sha256.New, []byte(secret))
	h.Write([]byte(at + "." + string(got[0].body)))
	require.Equal(t, hex.EncodeToString(h.Sum(nil)), mac)

	list := r.deliveries(r.Admin)
	require.Len(t, list, 2)
	for _, d := range list {
		require.Equal(t, "sent", d.State)
		require.Equal(t, 1, d.Attempts)
		require.Equal(t, body.ID, d.ID, "the same notice on both channels")
	}
	require.Empty(t, r.deliveries(r.Stranger("eve")), "nobody sees those of others")
	require.Zero(t, r.count("notice_sources"))

	// What its user ended is no news.
	_, err = r.Sessions.Destroy(t.Context(), r.Admin, string(r.Create("mine").ID), session.DestroyOptions{})
	require.NoError(t, err)
	r.pass()
	got, mails = r.taken()
	require.Empty(t, got)
	require.Empty(t, mails)
}

// Who ends a session of somebody else has its user told, who it was; who ends their own hears nothing, also not when it is by force.
func TestSessionsThatAnAdministratorEnded(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	u, err := r.Tenancy.CreateUser(t.Context(), r.Admin, "bob@x", tenancy.UserProps{Password: new(seal.Secret("correct horse"))})
	require.NoError(t, err)
	require.NoError(t, r.Tenancy.ModifyProject(t.Context(), r.Admin, "default", tenancy.ProjectProps{
		Members: &tenancy.MemberChange{Mode: tenancy.AddMembers, Users: []string{"bob@x"}}}))
	bob, _, err := r.Tenancy.Authenticate(t.Context(), u.MainAccessKey)
	require.NoError(t, err)
	r.wish(bob, notice.Wishes{URL: r.receiver.URL, Webhook: rule.Kinds()})
	r.wish(r.Admin, notice.Wishes{URL: r.receiver.URL, Webhook: rule.Kinds()})
	as := bob
	as.By = &r.Admin
	ofBob := func(q *sessionrequest.Session) { q.OwnerAccessKey = bob.AccessKey }
	for i, c := range []struct {
		who    authz.Actor
		forced bool
		words  string
	}{
		{r.Admin, false, "an administrator ended it; asked by " + r.Admin.Email},
		{r.Admin, true, "an administrator ended it; asked by " + r.Admin.Email},
		{as, false, "an administrator ended it; asked by " + r.Admin.Email},
		{bob, false, ""}, {bob, true, ""},
	} {
		name := fmt.Sprintf("job%d", i)
		id := r.Create(name, ofBob).ID
		_, err := r.Sessions.Destroy(t.Context(), c.who, string(id), session.DestroyOptions{Forced: c.forced})
		require.NoError(t, err)
		r.pass()
		got, _ := r.taken()
		if c.words == "" {
			require.Empty(t, got, "%s", name)
			continue
		}
		require.Len(t, got, 1, "%s: its user is told, and nobody else", name)
		require.Contains(t, string(got[0].body), "Session "+name+" has ended: "+c.words)
		require.Contains(t, string(got[0].body), `"kind":"ended"`)
		require.Contains(t, string(got[0].body), `"reason":"admin-terminated"`)
	}
}

// Warnings of idle sessions and shares of folders are notices, too; an invitation that was taken back is not.
func TestIdleWarningsAndShares(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	bob := r.Stranger("bob")
	for _, a := range []authz.Actor{r.Admin, bob} {
		r.wish(a, notice.Wishes{URL: r.receiver.URL, Webhook: rule.Kinds()})
	}
	id := r.Running("labs", "a1")
	r.Exec(`INSERT INTO session_events (session_id, event, detail) VALUES ($1, 'session_idle_warning', 'nobody used it')`, string(id))
	const folder, pending, taken, kept = "00000000-0000-4000-8000-0000000000f1", "00000000-0000-4000-8000-0000000000a1",
		"00000000-0000-4000-8000-0000000000a2", "00000000-0000-4000-8000-0000000000f2"
	for i, f := range []string{folder, kept} {
		r.Exec(`INSERT INTO folders (id, name, host, domain_name, user_id, creator_id, quota_scope,
usage_mode, permission, status) VALUES ($1, $2, 'p:v', 'default', $3::uuid, $3::uuid, 'user:' || ($3::uuid)::text,
'general', 'rw', 'ready')`,
			f, fmt.Sprintf("data%d", i), string(r.Admin.UserID))
	}
	invite := func(id, folder string) {
		r.Exec(`INSERT INTO folder_invitations (id, folder_id, inviter_id, invitee_id, permission) VALUES ($1, $2, $3, $4, 'ro')`, id, folder,
			string(r.Admin.UserID), string(bob.UserID))
	}
	invite(taken, kept)
	r.Exec(`UPDATE folder_invitations SET state = 'canceled' WHERE id = $1`, taken)
	invite(pending, folder)
	texts := func() (out []string) {
		r.pass()
		r.pass()
		r.pass()
		got, _ := r.taken()
		for _, q := range got {
			var b struct{ Kind, Text string }
			require.NoError(t, json.Unmarshal(q.body, &b))
			out = append(out, b.Kind+": "+b.Text)
		}
		return out
	}
	require.ElementsMatch(t, []string{"idle: Session labs ends soon: nobody used it.",
		"shared: " + r.Admin.Email + " invites you to folder data0."}, texts())
	// Bob accepts, which is no news to him; then he is given the other folder.
	require.NoError(t, r.Store.Tx(t.Context(), func(ctx context.Context, tx *store.Tx) error {
		if err := tx.GrantFolder(ctx, folder, string(bob.UserID), "ro"); err != nil {
			return err
		}
		return tx.SetInvitation(ctx, pending, "accepted", "ro")
	}))
	require.Empty(t, texts())
	r.Exec(`INSERT INTO folder_permissions (folder_id, user_id, permission) VALUES ($1, $2, 'ro')`, kept, string(bob.UserID))
	require.Equal(t, []string{"shared: Folder data1 of " + r.Admin.Email + " is shared with you."}, texts())
}

// A receiver that is away is asked again, later and later, with the same notice; then the notice is given up and says why.
func TestFailedWebhooksAreRetriedAndGivenUp(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.wish(r.Admin, notice.Wishes{URL: r.receiver.URL, Webhook: rule.Kinds()})
	r.answer(http.StatusServiceUnavailable)
	r.fail("labs")
	r.fail("labs2")
	ids := map[string]int{}
	see := func() {
		r.pass()
		got, _ := r.taken()
		require.LessOrEqual(t, len(got), 1, "one receiver is asked once at a time")
		for _, q := range got {
			ids[q.header.Get("Berth-Notice-Id")]++
		}
	}
	see()
	require.Len(t, ids, 1)
	see()
	require.Len(t, ids, 1, "the other notice does not ask a receiver that is away")
	first := r.deliveries(r.Admin)
	require.Equal(t, 1, first[0].Attempts+first[1].Attempts)
	r.later(16 * time.Second)
	r.answer(http.StatusOK)
	see()
	r.later(time.Hour)
	see()
	require.Len(t, ids, 2)
	for _, d := range r.deliveries(r.Admin) {
		require.Equal(t, "sent", d.State)
	}

	r.answer(http.StatusFound)
	id := r.fail("lost")
	var attempts int
	for range rule.MaxAttempts + 3 {
		r.pass()
		got, _ := r.taken()
		attempts += len(got)
		r.later(2 * time.Hour)
	}
	require.Equal(t, rule.MaxAttempts, attempts)
	d := r.deliveries(r.Admin)[0]
	require.Equal(t, string(id), d.Subject)
	require.Equal(t, "failed", d.State)
	require.Contains(t, d.Error, "redirects are not followed")
	require.NotNil(t, d.Done)
	require.Nil(t, d.Next)

	r.mu.Lock()
	r.broken = errors.New("the mail server is away")
	r.mu.Unlock()
	r.wish(r.Admin, notice.Wishes{Email: rule.Kinds()})
	r.fail("mailed")
	r.pass()
	d = r.deliveries(r.Admin)[0]
	require.Equal(t, "waiting", d.State)
	require.Equal(t, "the mail server did not take it", d.Error)
	require.Contains(t, r.log.String(), "the mail server is away")
	require.NotNil(t, d.Next)
}

// A manager that dies between sending and storing loses nothing: the next leader sends the same notice again. What a deposed leader
// sent counts for nothing.
func TestNothingIsLostWithAManager(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.wish(r.Admin, notice.Wishes{URL: r.receiver.URL, Webhook: rule.Kinds()})
	r.fail("labs")
	work := r.loop()
	r.mu.Lock()
	r.during = func() { r.Term() } // somebody else leads now
	r.mu.Unlock()
	_, err := work.Pass(t.Context())
	require.ErrorIs(t, err, reconcile.ErrDeposed)
	before, _ := r.taken()
	require.Len(t, before, 1)
	r.mu.Lock()
	r.during = nil
	r.mu.Unlock()
	r.pass()
	got, _ := r.taken()
	require.Empty(t, got, "it may be on its way still")
	r.later(4 * time.Minute)
	r.pass()
	got, _ = r.taken()
	require.Len(t, got, 1)
	require.Equal(t, before[0].header.Get("Berth-Notice-Id"), got[0].header.Get("Berth-Notice-Id"))
	require.Equal(t, before[0].body, got[0].body)
}

// Webhooks go where callbacks may go. What a policy refuses is given up at once.
func TestWebhooksStayOutside(t *testing.T) {
	t.Parallel()
	r := newRig(t, func(d *nouns.Deps) { d.Callbacks.AllowPrivate = false })
	for _, bad := range []string{"ftp://x/y", "https://", "https://u:p@x/", "x", "http://x/" + strings.Repeat("y", 3000)} {
		_, _, err := r.Notices.SetPreferences(t.Context(), r.Admin, notice.Change{Wishes: notice.Wishes{URL: bad}})
		require.True(t, fault.Is(err, fault.Invalid), bad)
	}
	r.wish(r.Admin, notice.Wishes{URL: r.receiver.URL, Webhook: rule.Kinds()})
	r.fail("labs")
	r.pass()
	d := r.deliveries(r.Admin)[0]
	require.Equal(t, "failed", d.State)
	require.Equal(t, 1, d.Attempts)
	require.Contains(t, d.Error, "the address leads where webhooks may not go")

	r.later(2 * time.Hour)
	r.wish(r.Admin, notice.Wishes{URL: strings.Replace(r.receiver.URL, "127.0.0.1", "localhost", 1), Webhook: rule.Kinds()})
	r.fail("by-name")
	r.pass()
	d = r.deliveries(r.Admin)[0]
	require.Equal(t, "by-name", d.Name)
	require.Contains(t, d.Error, "the address leads where webhooks may not go")
	require.NotContains(t, d.Error, "127.0.0.1", "nobody learns where a name leads")

	strict := newRig(t)
	strict.wish(strict.Admin, notice.Wishes{URL: "http://169.254.169.254/latest/meta-data", Webhook: rule.Kinds()})
	strict.fail("labs")
	strict.pass()
	d = strict.deliveries(strict.Admin)[0]
	require.Equal(t, "failed", d.State)
	require.Contains(t, d.Error, "the address leads where webhooks may not go")
	got, _ := r.taken()
	require.Empty(t, got)
}

// Whoever wants nothing, or is not active, is told nothing, also of what waits already.
func TestWhoWantsNothingHearsNothing(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	quiet := func(why string) {
		t.Helper()
		r.later(2 * time.Hour)
		r.pass()
		got, mails := r.taken()
		require.Empty(t, got, why)
		require.Empty(t, mails, why)
	}
	r.fail("default")
	require.Zero(t, r.count("notice_sources"), "nothing is noted of who wants nothing")
	quiet("by default")
	all := notice.Wishes{Email: rule.Kinds(), URL: r.receiver.URL, Webhook: rule.Kinds()}
	r.wish(r.Admin, notice.Wishes{Email: []rule.Kind{rule.Idle}, URL: r.receiver.URL, Webhook: []rule.Kind{rule.Shared}})
	r.fail("other-kinds")
	quiet("of other kinds")

	r.wish(r.Admin, all)
	r.Exec(`UPDATE users SET status = 'inactive' WHERE id = $1`, string(r.Admin.UserID))
	r.Exec(`INSERT INTO session_events (session_id, event) SELECT id, 'session_idle_warning' FROM sessions`)
	require.NotZero(t, r.count("notice_sources"))
	quiet("not active")
	r.Exec(`UPDATE users SET status = 'active' WHERE id = $1`, string(r.Admin.UserID))
	quiet("active again: what happened meanwhile is over")

	// It waits when its reader changes their mind.
	r.answer(http.StatusBadGateway)
	r.mu.Lock()
	r.broken = errors.New("away")
	r.mu.Unlock()
	r.fail("waits")
	r.pass()
	r.taken()
	r.answer(http.StatusOK)
	r.mu.Lock()
	r.broken = nil
	r.mu.Unlock()
	r.wish(r.Admin, notice.Wishes{})
	require.Zero(t, r.count("notice_preferences"))
	quiet("changed their mind")
	for _, d := range r.deliveries(r.Admin) {
		require.Equal(t, "failed", d.State, d.Words)
	}
}

// The secret of a webhook is told once, to who set it, and is nowhere afterwards; a new address gets a new one.
func TestSecretsAreToldOnce(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	ctx := t.Context()
	w := notice.Wishes{Email: []rule.Kind{}, URL: r.receiver.URL + "/a?key=of-the-receiver", Webhook: rule.Kinds()}
	secret := r.wish(r.Admin, w)
	require.Regexp(t, `^bwhs_[\w-]{43}$`, secret)
	require.Empty(t, r.wish(r.Admin, w), "the same address keeps its secret")
	p, again, err := r.Notices.SetPreferences(ctx, r.Admin, notice.Change{Wishes: w, Secret: true})
	require.NoError(t, err)
	require.NotEmpty(t, again)
	require.NotEqual(t, secret, again.Reveal())
	require.Equal(t, w, p.Wishes)
	w.URL = r.receiver.URL + "/b?key=of-the-receiver"
	other := r.wish(r.Admin, w)
	require.NotEmpty(t, other)
	r.answer(http.StatusTeapot)
	r.fail("labs")
	r.pass()
	r.receiver.CloseClientConnections()
	r.receiver.Close()
	r.later(time.Hour)
	r.pass()
	d := r.deliveries(r.Admin)[0]
	require.NotEmpty(t, d.Error)
	p, err = r.Notices.Preferences(ctx, r.Admin)
	require.NoError(t, err)
	told := fmt.Sprintf("%+v %+v %#v", p, d, again) + r.log.String()
	var kept string
	require.NoError(t, r.Store.Pool().QueryRow(ctx, `SELECT coalesce(string_agg(x, ' '), '') FROM (
SELECT p::text AS x FROM notice_preferences p UNION ALL SELECT d::text FROM notice_deliveries d UNION ALL SELECT a::text FROM audit_log a
UNION ALL SELECT c::text FROM audit_changes c) y`).Scan(&kept))
	for _, s := range []string{secret, again.Reveal(), other} {
		require.NotContains(t, told, s)
		require.NotContains(t, kept, s)
	}
	require.NotContains(t, r.log.String()+d.Error, "of-the-receiver", "an address may be a secret, too")
	var audited string
	require.NoError(t, r.Store.Pool().QueryRow(ctx, `SELECT coalesce(string_agg(c::text, ' '), '') FROM audit_changes c`).Scan(&audited))
	require.NotContains(t, audited, "of-the-receiver")

	// With a token nobody is told a secret, nor in the stead of others.
	_, _, err = r.Notices.SetPreferences(ctx, r.Admin.Within(&authz.Scope{Token: "x"}), notice.Change{Wishes: w, Secret: true})
	require.True(t, fault.Is(err, fault.Denied))
	for _, bad := range []notice.Wishes{{Email: []rule.Kind{"all"}}, {Webhook: rule.Kinds()}, {Email: []rule.Kind{rule.Test}}} {
		_, _, err = r.Notices.SetPreferences(ctx, r.Admin, notice.Change{Wishes: bad})
		require.True(t, fault.Is(err, fault.Invalid), "%v", bad)
	}
}

// Tests of the ways are few, and those of channels that do not work are refused.
func TestTestsAreBounded(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	ctx := t.Context()
	_, err := r.Notices.SendTest(ctx, r.Admin, rule.Webhook)
	require.True(t, fault.Is(err, fault.Conflict), "%v", err)
	_, err = r.Notices.SendTest(ctx, r.Admin, "pigeon")
	require.True(t, fault.Is(err, fault.Invalid))
	var wg sync.WaitGroup
	refused := make(chan error, 20)
	for range cap(refused) {
		wg.Go(func() {
			_, err := r.Notices.SendTest(ctx, r.Admin, rule.Email)
			refused <- err
		})
	}
	wg.Wait()
	close(refused)
	sent := 0
	for err := range refused {
		if err == nil {
			sent++
		} else {
			require.True(t, fault.Is(err, fault.Exhausted), "%v", err)
		}
	}
	require.Equal(t, 5, sent)
	for range sent {
		r.pass()
	}
	_, mails := r.taken()
	require.Len(t, mails, sent)
	require.Equal(t, "Berth: a test", mails[0][1])
	r.later(11 * time.Minute)
	r.wish(r.Admin, notice.Wishes{URL: r.receiver.URL})
	id, err := r.Notices.SendTest(ctx, r.Admin, rule.Webhook)
	require.NoError(t, err)
	r.pass()
	got, _ := r.taken()
	require.Len(t, got, 1)
	require.Equal(t, id, got[0].header.Get("Berth-Notice-Id"))
	require.Contains(t, string(got[0].body), `"subject":null`)

	mute := managertest.New(t)
	p, err := mute.Notices.Preferences(ctx, mute.Admin)
	require.NoError(t, err)
	require.Equal(t, "this cluster sends no e-mail", p.NoEmail)
	_, err = mute.Notices.SendTest(ctx, mute.Admin, rule.Email)
	require.True(t, fault.Is(err, fault.Conflict))
}

// What is remembered of a user is bounded.
func TestOldNoticesAreForgotten(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.wish(r.Admin, notice.Wishes{URL: r.receiver.URL, Webhook: rule.Kinds()})
	r.Exec(`INSERT INTO notice_deliveries (notice_id, channel, user_id, kind, subject_kind, subject, name, reason, words, at, state, next_at,
made_at, done_at) SELECT gen_random_uuid(), 'webhook', $1, 'ended', 'session', '', '', '', '', now(), 'sent', now(),
 now() - n * interval '1 hour', now()
FROM generate_series(1, 300) n`, string(r.Admin.UserID))
	r.fail("labs")
	r.pass()
	require.Equal(t, 100, r.count("notice_deliveries"))
	require.Equal(t, "labs", r.deliveries(r.Admin)[0].Name)
	r.later(31 * 24 * time.Hour)
	r.pass()
	require.Zero(t, r.count("notice_deliveries"))
}
