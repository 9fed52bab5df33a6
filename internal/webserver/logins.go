package webserver

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"sync"
	"time"

	lru "github.com/hashicorp/golang-lru/v2"

	"berth.dev/berth/api"
	"berth.dev/berth/internal/fault"
)

const (
	// believed is how long what a manager said of a login is believed, maxLogins of how many it is remembered.
	believed  = time.Second
	maxLogins = 20_000
	// lookEvery is the pause between two looks at the logins of what lasts: WebSockets, event streams, transfers.
	lookEvery = 5 * time.Second
	// askPatience bounds a question to the managers, maxReply its answer.
	askPatience = 20 * time.Second
	maxReply    = 1 << 20
	tokenLength = 64
)

// errNoLogin says that a token opens nothing.
var errNoLogin = errors.New("no such login")

// tokenID is what is kept of a token.
type tokenID [sha256.Size]byte

// logins asks managers what tokens stand for.
type logins struct {
	s *Server

	mu    sync.Mutex
	known *lru.Cache[tokenID, knownLogin]
	held  map[tokenID]*heldLogin
}

// knownLogin is what a manager said a moment ago; is.AccessKey is empty where there is no such login.
type knownLogin struct {
	is    api.Login
	until time.Time
}

// heldLogin are the requests of a login that are under way.
type heldLogin struct {
	token string
	next  int
	ends  map[int]context.CancelCauseFunc
}

func newLogins(s *Server) *logins {
	known, _ := lru.New[tokenID, knownLogin](maxLogins) // its only error is about sizes that are not positive
	return &logins{s: s, known: known, held: map[tokenID]*heldLogin{}}
}

// find tells what a token stands for. It returns errNoLogin, or fault.Unavailable.
func (l *logins) find(ctx context.Context, token string) (api.Login, error) {
	if len(token) != tokenLength {
		return api.Login{}, errNoLogin
	}
	id, now := tokenID(sha256.Sum256([]byte(token))), l.s.clock.Now()
	if k, ok := l.known.Get(id); ok && now.Before(k.until) {
		if k.is.AccessKey == "" {
			return api.Login{}, errNoLogin
		}
		return k.is, nil
	}
	is, err := l.ask(ctx, token)
	switch {
	case err == nil:
		l.known.Add(id, knownLogin{is, now.Add(believed)})
	case errors.Is(err, errNoLogin):
		l.known.Add(id, knownLogin{until: now.Add(believed)})
		l.end(id)
	}
	return is, err
}

func (l *logins) ask(ctx context.Context, token string) (api.Login, error) {
	reply, err := l.s.ask(ctx, "/auth/logins/resume", api.LoginToken{Token: token})
	switch {
	case err != nil:
		return api.Login{}, err
	case reply.status == http.StatusUnauthorized || reply.status == http.StatusBadRequest:
		return api.Login{}, errNoLogin
	}
	return reply.login()
}

// forget has the next look at a token ask, and ends what it holds when gone is set.
func (l *logins) forget(token string, gone bool) {
	id := tokenID(sha256.Sum256([]byte(token)))
	l.known.Remove(id)
	if gone {
		l.end(id)
	}
}

var errEnded = errors.New("the login has ended")

// hold has a request end with its login.
func (l *logins) hold(ctx context.Context, token string) (context.Context, func()) {
	ctx, cancel := context.WithCancelCause(ctx)
	id := tokenID(sha256.Sum256([]byte(token)))
	l.mu.Lock()
	defer l.mu.Unlock()
	h := l.held[id]
	if h == nil {
		h = &heldLogin{token: token, ends: map[int]context.CancelCauseFunc{}}
		l.held[id] = h
	}
	h.next++
	n := h.next
	h.ends[n] = cancel
	return ctx, func() {
		cancel(nil)
		l.mu.Lock()
		defer l.mu.Unlock()
		if delete(h.ends, n); len(h.ends) == 0 && l.held[id] == h {
			delete(l.held, id)
		}
	}
}

func (l *logins) end(id tokenID) {
	l.mu.Lock()
	defer l.mu.Unlock()
	h := l.held[id]
	if h == nil {
		return
	}
	delete(l.held, id)
	for _, cancel := range h.ends {
		cancel(errEnded)
	}
}

// watch looks at the logins of what lasts until ctx ends. While no manager answers, it goes on.
func (l *logins) watch(ctx context.Context) error {
	tick := l.s.clock.NewTicker(lookEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-tick.C():
		}
		l.mu.Lock()
		tokens := make([]string, 0, len(l.held))
		for _, h := range l.held {
			tokens = append(tokens, h.token)
		}
		l.mu.Unlock()
		for _, token := range tokens {
			if _, err := l.find(ctx, token); err != nil && ctx.Err() != nil {
				return ctx.Err()
			}
		}
	}
}

// reply is what a manager answered to a question of this server.
type reply struct {
	status int
	header http.Header
	body   []byte
}

// ask sends a question of this server's own, unsigned; without a body it is a GET. Its error is fault.Unavailable, or that of the context.
func (s *Server) ask(ctx context.Context, path string, body any) (reply, error) {
	method, raw := http.MethodGet, []byte(nil)
	if body != nil {
		var err error
		if raw, err = json.Marshal(body); err != nil {
			return reply{}, err
		}
		method = http.MethodPost
	}
	ctx, cancel := context.WithTimeout(ctx, askPatience)
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, method, "http://manager.local"+path, bytes.NewReader(raw))
	if err != nil {
		return reply{}, err
	}
	r.Header.Set("Content-Type", "application/json")
	s.tell(ctx, r)
	resp, err := s.managers.RoundTrip(r)
	if err != nil {
		return reply{}, err
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(io.LimitReader(resp.Body, maxReply))
	if err != nil {
		return reply{}, fault.Unavailablef("the manager broke off").WithCause(err)
	}
	if resp.StatusCode == http.StatusServiceUnavailable { // what a manager itself has no answer to
		return reply{}, fault.Unavailablef("the manager is not ready: %.200s", text)
	}
	return reply{resp.StatusCode, resp.Header, text}, nil
}

func (r reply) login() (api.Login, error) {
	var l api.LoginReply
	if err := json.Unmarshal(r.body, &l); r.status != http.StatusOK || err != nil || l.Data.AccessKey == "" || l.Data.SessionToken == "" {
		return api.Login{}, fmt.Errorf("the manager answers %d", r.status)
	}
	return l.Data, nil
}

func (r reply) problem() api.Problem {
	var p api.Problem
	_ = json.Unmarshal(r.body, &p) // what is no problem has no type
	return p
}
