package transfer

import (
	"context"
	"errors"
	"net/http"
	"sync"
	"time"

	"berth.dev/berth/internal/chassis"
	"berth.dev/berth/internal/fault"
	wire "berth.dev/berth/internal/wire/storage"
)

const (
	// rightsAge is how old this proxy's copy of epochs may get. Beyond it tokens are refused and transfers end, because nobody knows
	// whether their users may still do what the tokens say.
	rightsAge = time.Minute
	// rightsLook is the time between looks at the copy's age, and rightsKept how long an epoch is kept: longer than any token lives.
	rightsLook = time.Second
	rightsKept = maxTokenLife + 24*time.Hour
	// maxTokenLife bounds the life of tokens. Managers tell the epochs of wire.RightsKept, which is longer.
	maxTokenLife = 6 * 24 * time.Hour
)

// Rights is the proxy's copy of the epochs of users and folders. Managers push them. An epoch changes whenever somebody may do
// less than before; a token carries the epochs of the moment in which the manager decided about it, and is good while none of them is
// older than the copy's.
type Rights struct {
	// Wait is how long a request waits for a copy that is young enough; default 5 s.
	Wait time.Duration

	clock chassis.Clock
	boot  string

	mu      sync.Mutex
	known   map[string]epoch
	asOf    time.Time // when all of the copy was last true; zero before the first push
	fresh   chan struct{}
	running map[*admission]struct{}
	began   time.Time
}

type epoch struct {
	n  int64
	at time.Time
}

// NewRights makes an empty copy; boot names this life of the proxy.
func NewRights(clock chassis.Clock, boot string) *Rights {
	return &Rights{Wait: 5 * time.Second, clock: clock, boot: boot, began: clock.Now(), known: map[string]epoch{},
		fresh: make(chan struct{}), running: map[*admission]struct{}{}}
}

// admission is a transfer that was found to be allowed and goes on.
type admission struct {
	rights *wire.TokenRights
	folder string
	end    func(why error)
}

// Take takes over what a manager pushed, and ends the transfers that are allowed no more.
func (r *Rights) Take(q wire.RightsRequest) wire.RightsReply {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := r.clock.Now()
	for subject, n := range q.Epochs {
		if n > r.known[subject].n {
			r.known[subject] = epoch{n, now}
		}
	}
	if q.Boot == r.boot && q.Complete {
		if asOf := now.Add(-time.Duration(q.AgeMS) * time.Millisecond); asOf.After(r.asOf) {
			r.asOf = asOf
		}
		if r.young(now) {
			close(r.fresh)
			r.fresh = make(chan struct{})
		}
	}
	if len(q.Epochs) > 0 {
		for a := range r.running {
			if r.changed(a.rights, a.folder) {
				a.end(errRightsChanged)
			}
		}
	}
	return wire.RightsReply{Boot: r.boot, Again: q.Boot != "" && q.Boot != r.boot}
}

// young reports whether the copy may be believed; mu is held.
func (r *Rights) young(now time.Time) bool { return !r.asOf.IsZero() && now.Sub(r.asOf) <= rightsAge }

// changed reports whether an epoch of a token is older than the copy's; mu is held.
func (r *Rights) changed(t *wire.TokenRights, folder string) bool {
	if t == nil {
		return !r.asOf.IsZero() // of a manager that knew no epochs, while there is one now that does
	}
	return t.UserEpoch < r.known[wire.UserSubject(t.User)].n || t.FolderEpoch < r.known[wire.FolderSubject(folder)].n ||
		t.ShareEpoch < r.known[wire.ShareSubject(t.User, folder)].n
}

var errRightsChanged = fault.Deniedf("the rights of the user or of the folder have changed since this token was made").
	WithReason(reasonDenied).WithNext("start the transfer again, to get a new token if you still may")

func (r *Rights) stale() error {
	return fault.Unavailablef("no manager has confirmed for more than %s what users may do, so no transfer goes on", rightsAge).
		WithReason(reasonUnavailable).WithNext("try again in some seconds; if it lasts, ask your administrator whether the manager runs")
}

// admit checks a token and registers its transfer until leave is called; end is called at most once, when the transfer must end.
func (r *Rights) admit(ctx context.Context, g grant, end func(why error)) (leave func(), err error) {
	var once sync.Once
	a := &admission{rights: g.rights, folder: string(g.folder.Folder), end: func(why error) { once.Do(func() { end(why) }) }}
	wait := r.clock.NewTimer(r.Wait)
	defer wait.Stop()
	for {
		r.mu.Lock()
		now := r.clock.Now()
		// Managers of an older version push nothing: a minute after the start it is clear that there are only such.
		old := r.asOf.IsZero() && g.rights == nil && now.Sub(r.began) > rightsAge
		if old || r.young(now) {
			defer r.mu.Unlock()
			if r.changed(a.rights, a.folder) {
				return nil, errRightsChanged
			}
			r.running[a] = struct{}{}
			return func() {
				r.mu.Lock()
				defer r.mu.Unlock()
				delete(r.running, a)
			}, nil
		}
		fresh := r.fresh
		r.mu.Unlock()
		select {
		case <-fresh:
		case <-wait.C():
			return nil, r.stale()
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

// Run ends all transfers when the copy gets too old, and forgets old epochs, until ctx ends.
func (r *Rights) Run(ctx context.Context) error {
	tick := r.clock.NewTicker(rightsLook)
	defer tick.Stop()
	for {
		select {
		case <-tick.C():
			r.look()
		case <-ctx.Done():
			return nil
		}
	}
}

func (r *Rights) look() {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := r.clock.Now()
	if !r.asOf.IsZero() && !r.young(now) {
		for a := range r.running {
			a.end(r.stale())
		}
	}
	for subject, e := range r.known {
		if now.Sub(e.at) > rightsKept {
			delete(r.known, subject)
		}
	}
}

// Age is how old the copy is; ok is false before the first push.
func (r *Rights) Age() (age time.Duration, ok bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.clock.Now().Sub(r.asOf), !r.asOf.IsZero()
}

// errRevoked is why a body or a reply ends whose transfer must end; revocation says why that is.
var errRevoked = errors.New("the transfer may not go on")

// entitle checks a grant against the copy of epochs. The request that it returns ends when the rights end.
func (s *Server) entitle(w *reply, r *http.Request, g grant) (*http.Request, func(), error) {
	if s.o.Rights == nil {
		return r, func() {}, nil
	}
	ctx, cancel := context.WithCancelCause(r.Context())
	leave, err := s.o.Rights.admit(ctx, g, func(why error) {
		cancel(why)
		w.revoke(why)
	})
	if err != nil {
		cancel(nil)
		return r, nil, err
	}
	return r.WithContext(ctx), func() { leave(); cancel(nil) }, nil
}
