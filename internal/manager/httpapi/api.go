package httpapi

import (
	"bytes"
	"context"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"path"
	"runtime/debug"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"berth.dev/berth/internal/clientaddr"
	"berth.dev/berth/internal/fault"
	"berth.dev/berth/internal/manager/app"
	"berth.dev/berth/internal/manager/audit"
	"berth.dev/berth/internal/manager/authz"
	"berth.dev/berth/internal/manager/folder"
	"berth.dev/berth/internal/manager/httpapi/credentials"
	"berth.dev/berth/internal/manager/httpapi/signature"
	"berth.dev/berth/internal/manager/httpapi/throttle"
	"berth.dev/berth/internal/manager/idle"
	"berth.dev/berth/internal/manager/image"
	"berth.dev/berth/internal/manager/metric"
	"berth.dev/berth/internal/manager/node"
	"berth.dev/berth/internal/manager/notice"
	"berth.dev/berth/internal/manager/nouns"
	"berth.dev/berth/internal/manager/operation"
	"berth.dev/berth/internal/manager/resource"
	"berth.dev/berth/internal/manager/seal"
	"berth.dev/berth/internal/manager/session"
	"berth.dev/berth/internal/manager/session/template"
	"berth.dev/berth/internal/manager/tenancy"
	"berth.dev/berth/internal/manager/tenancy/apply"
	"berth.dev/berth/internal/manager/tenancy/directory"
	"berth.dev/berth/internal/manager/tenancy/letter"
	"berth.dev/berth/internal/manager/tenancy/otp"
	"berth.dev/berth/internal/manager/tenancy/provision"
	"berth.dev/berth/internal/manager/tenancy/purge"
	"berth.dev/berth/internal/manager/tenancy/token"
	"berth.dev/berth/internal/manager/usage"
)

// Info is what a manager says about itself.
type Info struct {
	// NodeID names this manager in /manager/status; "" means "manager".
	NodeID string
	// Build is our own version, shown to people only.
	Build string
	// APIVersion and ManagerVersion override what the version probe answers; "" means the constants.
	APIVersion, ManagerVersion string
}

// Deps are what the interface works with. Nouns and Log are required.
type Deps struct {
	Nouns *nouns.Set
	// GraphQL serves /admin/gql and /admin/graphql for authenticated requests; nil answers not-implemented.
	GraphQL http.Handler
	Log     *slog.Logger
	// Clock defaults to time.Now.
	Clock func() time.Time
	// RateLimiter defaults to counting in this process.
	RateLimiter throttle.RateLimiter
	// AnonymousRate is how many requests without a signature a client address may send in 15 minutes; 0 takes the default of 1000.
	AnonymousRate int
	// Limits bound what callers hold open; zero takes the defaults.
	Limits throttle.Limits
	// Seen is what all managers know of the requests that were received; nil means that each goes by its own memory.
	Seen signature.Shared
	// RequireDigest refuses changes of clients that do not sign the body.
	RequireDigest bool
	// HSTS tells browsers to reach this host by TLS alone from then on.
	HSTS bool
	// ActorsTurn is store.ActorsTurn; nil means that requests that last are examined every minute only.
	ActorsTurn func() uint64
	// Trusted are the reverse proxies in front; they say which address a client comes from.
	Trusted clientaddr.Trusted
	Info    Info
}

// API is the handler. Its only state of requests are those that last, so that it can end them.
type API struct {
	audit      *audit.Service
	usage      *usage.Service
	metrics    *metric.Service
	tenancy    *tenancy.Service
	tokens     *token.Service
	otp        *otp.Service
	letters    *letter.Service
	proofs     credentials.Proofs
	directory  *directory.Service
	provision  *provision.Service
	resources  *resource.Service
	images     *image.Service
	nodes      *node.Service
	folders    *folder.Service
	sessions   *session.Service
	templates  *template.Service
	apps       *app.Service
	idle       *idle.Service
	operations *operation.Service
	notices    *notice.Service
	tenancies  *apply.Service
	purges     *purge.Service

	graphql http.Handler
	log     *slog.Logger
	now     func() time.Time
	limiter throttle.RateLimiter
	// strangers counts requests without a signature by address. It is apart from limiter, so that a flood from many addresses pushes out
	// no counts of keypairs.
	strangers     *throttle.LocalLimiter
	anonymousRate int
	trusted       clientaddr.Trusted
	guard         *signature.Guard
	// requireDigest is Deps.RequireDigest.
	hsts          bool
	requireDigest bool
	info          Info
	mux           *http.ServeMux

	// stopping ends with Stop, and with it every stream.
	stopping context.Context
	stop     context.CancelFunc
	mu       sync.Mutex // orders streams.Add against Stop's Wait
	streams  sync.WaitGroup
	held     map[*held]struct{} // requests that last
	// actorsTurn is Deps.ActorsTurn.
	actorsTurn func() uint64
	// tunnels counts the streams that carry an app's bytes.
	tunnels atomic.Int64
	places  *throttle.Places
	logins  *throttle.Logins
	// destroyWait is how long the end of a session holds its request; tests change it.
	destroyWait time.Duration
}

// New builds the handler of every route.
func New(d Deps) *API {
	n := d.Nouns
	a := &API{
		audit: n.Audit, usage: n.Usage, metrics: n.Metrics, tenancy: n.Tenancy, tokens: n.Tokens, otp: n.OTP, letters: n.Letters,
		directory: n.Directory, provision: n.Provision,
		proofs:    credentials.Proofs{Identities: n.Identities, OpenID: n.OpenID, Passkeys: n.Passkeys},
		resources: n.Resources, images: n.Images, nodes: n.Nodes, folders: n.Folders, sessions: n.Sessions, apps: n.Apps,
		templates: n.Templates,
		idle:      n.Idle, operations: n.Operations, notices: n.Notices, tenancies: n.Tenancies, purges: n.Purges,
		graphql: d.GraphQL, log: d.Log, now: d.Clock, limiter: d.RateLimiter, trusted: d.Trusted, info: d.Info, mux: http.NewServeMux(),
		held: map[*held]struct{}{}, actorsTurn: d.ActorsTurn, requireDigest: d.RequireDigest, hsts: d.HSTS,
		destroyWait: destroyWait,
	}
	a.stopping, a.stop = context.WithCancel(context.Background())
	if a.now == nil {
		a.now = time.Now
	}
	if d.Limits == (throttle.Limits{}) {
		d.Limits = throttle.DefaultLimits()
	}
	a.places, a.logins = throttle.NewPlaces(d.Limits), throttle.NewLogins()
	if a.actorsTurn == nil {
		a.actorsTurn = func() uint64 { return 0 }
	}
	a.strangers, a.anonymousRate = throttle.NewLocalLimiter(a.now), d.AnonymousRate
	if a.anonymousRate == 0 {
		a.anonymousRate = defaultAnonymousRate
	}
	if a.limiter == nil {
		a.limiter = throttle.NewLocalLimiter(a.now)
	}
	a.guard = signature.NewGuard(a.now, d.Seen)
	for _, f := range []struct {
		to *string
		is string
	}{{&a.info.NodeID, "manager"}, {&a.info.APIVersion, APIVersion}, {&a.info.ManagerVersion, ManagerVersion}} {
		if *f.to == "" {
			*f.to = f.is
		}
	}
	a.routes()
	return a
}

// NewServer returns a server with the timeouts that the handler needs. There is none for writing: creating a session
// may hold a request for as long as an image takes to pull, and streams live for days. Bodies have deadlines of
// their own.
func NewServer(h http.Handler, log *slog.Logger) *http.Server {
	return &http.Server{
		Handler:           h,
		ReadHeaderTimeout: 10 * time.Second,
		IdleTimeout:       2 * time.Minute,
		MaxHeaderBytes:    64 << 10,
		ErrorLog:          slog.NewLogLogger(log.Handler(), slog.LevelDebug),
	}
}

// Stop ends all streams and held requests with a word to their clients and waits for them. Requests that are
// answered at once go on; ending those is the server's part.
func (a *API) Stop(ctx context.Context) error {
	a.mu.Lock()
	a.stop()
	a.mu.Unlock()
	ended := make(chan struct{})
	go func() { defer close(ended); a.streams.Wait() }()
	select {
	case <-ended:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("end streams: %w", ctx.Err())
	}
}

var errStopping = fault.Unavailablef("the manager is restarting").WithNext("try again in some seconds")

// hold marks a request as one that lasts: it takes a place of its caller, and its context ends with Stop too, and when its
// right is gone. The caller calls release.
func (a *API) hold(c *call, kind throttle.Kind) (release func(), err error) {
	leave, err := a.places.Take(c.actor, a.client(c.r), kind)
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			leave()
		}
	}()
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.stopping.Err() != nil {
		return nil, errStopping
	}
	a.streams.Add(1)
	ctx, cancel := context.WithCancelCause(c.ctx())
	h := &held{actor: c.actor, from: a.client(c.r), login: c.login, end: cancel}
	a.held[h] = struct{}{}
	unhook := context.AfterFunc(a.stopping, func() { cancel(errStopping) })
	c.r = c.r.WithContext(ctx)
	return func() {
		unhook()
		cancel(nil)
		a.mu.Lock()
		delete(a.held, h)
		a.mu.Unlock()
		leave()
		a.streams.Done()
	}, nil
}

// lasting wraps a handler of streams, waiting one whose requests wait for something.
func (a *API) lasting(h handler) handler { return a.holding(throttle.Stream, h) }

func (a *API) waiting(h handler) handler { return a.holding(throttle.Wait, h) }

func (a *API) holding(kind throttle.Kind, h handler) handler {
	return func(c *call) error {
		release, err := a.hold(c, kind)
		if err != nil {
			return err
		}
		defer release()
		c.w.waits = true
		if err = h(c); err == nil || c.w.status != 0 {
			return err
		}
		if a.stopping.Err() != nil {
			err = errStopping
		} else if errors.Is(context.Cause(c.ctx()), errRevoked) {
			err = errRevoked
		} else {
			return err
		}
		c.r = c.r.WithContext(context.WithoutCancel(c.ctx())) // not the client's doing: it gets an answer
		return err
	}
}

// access says who may call a route.
type access int

const (
	// public routes look at no credential at all. A client address has a number of requests for all of them.
	public access = iota
	// probed routes are public ones that count, too, but are not refused: the version probe, which every command of official clients
	// begins with, and logins, which have limits of their own (throttle.Logins).
	probed
	// signed routes need an authenticated caller.
	signedOnly
	// unfrozen routes are signed and refused while the manager is frozen.
	unfrozen
)

// call is one request on its way through a handler.
type call struct {
	w *responseWriter
	r *http.Request
	// actor is the zero Actor on public routes.
	actor authz.Actor
	login seal.Secret // the token of the login that the request came by, "" for none
	// means is how the sender of a request tries to prove who they are, claimed the access key that they name.
	means, claimed string
}

func (c *call) ctx() context.Context { return c.r.Context() }

type handler func(*call) error

// handle registers a handler under one or more patterns of http.ServeMux.
func (a *API) handle(who access, h handler, patterns ...string) {
	for _, p := range patterns {
		a.mux.HandleFunc(p, func(rw http.ResponseWriter, r *http.Request) {
			w := rw.(*responseWriter) // ServeHTTP is the only caller
			c := &call{w: w, r: r}
			err := a.admit(c, who)
			if err == nil {
				err = h(c)
			}
			if err != nil {
				a.respondError(w, c.r, err)
			}
		})
	}
}

type actorKey struct{}

// ActorFrom returns the caller that was authenticated for the request of ctx.
func ActorFrom(ctx context.Context) (authz.Actor, bool) {
	a, ok := ctx.Value(actorKey{}).(authz.Actor)
	return a, ok
}

// admit authenticates a request, counts it against its keypair's rate and refuses changes while frozen.
func (a *API) admit(c *call, who access) error {
	if who == public || who == probed {
		remaining, ok := a.strangers.Take(c.r.Context(), clientaddr.Network(a.client(c.r)).String(), a.anonymousRate)
		c.w.rate(a.anonymousRate, remaining)
		if !ok && who == public {
			return fault.Exhaustedf("address %s has sent its %d requests without a signature of the last 15 minutes",
				a.clientText(c.r), a.anonymousRate).WithReason(reasonRateLimit).
				WithNext("wait some minutes; if a proxy stands there, ask an administrator to add it to manager.trusted_proxies")
		}
		return nil
	}
	actor, s, err := a.authenticate(c)
	if err != nil {
		a.recordRefusal(c, audit.Refusal{Action: "request.authenticate", Account: c.claimed, Means: c.means}, err)
		return err
	}
	c.actor = actor
	c.w.actor = string(actor.AccessKey)
	c.r = c.r.WithContext(audit.WithRequest(context.WithValue(c.r.Context(), actorKey{}, actor), c.w.requestID))
	if actor.RateLimit > 0 {
		remaining, ok := a.limiter.Take(c.r.Context(), "key:"+string(actor.AccessKey), actor.RateLimit)
		c.w.rate(actor.RateLimit, remaining)
		if !ok {
			return fault.Exhaustedf("access key %s has used its %d requests of the last 15 minutes", actor.AccessKey, actor.RateLimit).
				WithReason(reasonRateLimit).WithNext("wait some minutes, or ask an administrator to raise the keypair's rate limit")
		}
	}
	if s != nil { // an API token is good for many requests
		// What is noted of requests is bounded by the rate of their keypair, so that nobody pushes out what is known of others.
		if err := a.guard.Take(c.r.Context(), s, a.client(c.r)); err != nil {
			return err
		}
		if err := a.checkBody(c, s); err != nil {
			return err
		}
	}
	if err := a.actAs(c); err != nil || who != unfrozen {
		return err
	}
	frozen, err := a.operations.Frozen(c.r.Context())
	if err != nil {
		return err
	}
	if frozen && !authz.Cluster.May(c.actor, authz.Administer, authz.Object{}) {
		return fault.Unavailablef("the cluster is frozen for maintenance and takes no changes").WithReason("server-frozen").
			WithNext("try again later; the announcement of the cluster may say when")
	}
	return nil
}

// errNotAuthenticated is the answer to every request whose signature proves nothing, whatever the reason.
var errNotAuthenticated = fault.New(fault.Unauthenticated,
	"the access key is not known or not active, or the signature does not match it").WithReason(reasonAuthFailed).
	WithNext("check the access key and the secret key, and that proxies on the way keep the Host header")

// authenticate verifies the signature of a request, or its API token or login (Signed is nil then), and the address that it comes from. It
// refuses what this manager knows to have come before, which therefore does not count against the rate of the keypair.
func (a *API) authenticate(c *call) (authz.Actor, *signature.Signed, error) {
	var none authz.Actor
	r := c.r
	header := r.Header.Get("Authorization")
	if header == "" {
		return none, nil, fault.New(fault.Unauthenticated, "the request is not signed").
			WithNext("set BACKEND_ACCESS_KEY and BACKEND_SECRET_KEY, or source the client.env of the cluster")
	}
	if text, is := bearerOf(header); is {
		c.means = "api-token"
		actor, err := a.authenticateToken(r, text)
		c.claimed = string(actor.AccessKey) // of one that is good, but not from here
		return actor, nil, err
	}
	if text, is := loginOf(header); is {
		c.login = text
		actor, err := a.authenticateLogin(r, text)
		return actor, nil, err
	}
	s, err := signature.Read(r, a.now())
	if err != nil {
		return none, nil, err
	}
	c.means, c.claimed = "signature", string(s.AccessKey())
	actor, secret, err := a.tenancy.Authenticate(r.Context(), s.AccessKey())
	if err != nil && !fault.Is(err, fault.Unauthenticated) {
		return none, nil, err
	}
	// Strangers learn nothing of keys: one that does not exist, one that is not active and a wrong secret bring the same answer after
	// the same work.
	if matches := s.Matches(secret.Reveal()); err != nil || !matches {
		return none, nil, errNotAuthenticated
	}
	actor.ClientIP = a.clientText(r)
	from := a.client(r)
	if err := authz.From(actor, from); err != nil {
		return none, nil, err
	}
	return actor, s, a.guard.Known(s, from)
}

// checkBody compares the body with the digest that the sender signed. It is read for that, so only bodies of bounded size may have one.
func (a *API) checkBody(c *call, s *signature.Signed) error {
	want := s.Digest()
	switch {
	case !s.Extended() && a.requireDigest && s.Writes():
		return fault.New(fault.Unauthenticated, "this cluster takes changes only from clients that sign the body").
			WithReason(reasonAuthFailed).WithNext("use the berth command line, or ask an administrator for " +
			"manager.require_body_digest = false")
	case want == nil:
		return nil
	}
	body, err := c.readBody(maxBody)
	if err != nil {
		return err
	}
	if got := sha256.Sum256(body); !hmac.Equal(got[:], want) {
		return fault.New(fault.Unauthenticated, "the body of the request is not the one that was signed").WithReason(reasonAuthFailed).
			WithNext("check that proxies on the way change no bodies, and reach the manager by https")
	}
	c.r.Body = io.NopCloser(bytes.NewReader(body))
	return nil
}

// methods are those that routes use; anything else is not allowed anywhere.
var methods = []string{"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE"}

// ServeHTTP answers one request; see the package comment.
func (a *API) ServeHTTP(rw http.ResponseWriter, r *http.Request) {
	started := time.Now()
	w := &responseWriter{ResponseWriter: rw, api: a, requestID: requestID()}
	h := w.Header()
	h["Server"] = []string{"BackendAI"}
	h["X-Backendai-Request-Id"] = []string{w.requestID}
	h["X-Content-Type-Options"] = nosniff
	h["Referrer-Policy"] = noReferrer
	if a.hsts && r.TLS != nil {
		h["Strict-Transport-Security"] = oneYear
	}
	defer func() {
		if v := recover(); v != nil {
			if v == http.ErrAbortHandler { // a reply that broke off in the middle: the connection must end
				a.access(w, r, started)
				panic(v)
			}
			a.log.Error("handler panicked", "request", w.requestID, "path", r.URL.Path, "panic", v, "stack", string(debug.Stack()))
			a.respondError(w, r, fault.New(fault.Internal, "panic: %v", v))
		}
		a.access(w, r, started)
	}()
	if _, err := checkVersion(r.Header); err != nil {
		a.respondError(w, r, err)
		return
	}
	p := r.URL.Path
	if len(p) == 0 || p[0] != '/' || len(p) > 1 && path.Clean(p) != p {
		a.respondError(w, r, urlNotFound(r))
		return
	}
	// The method that is routed is the one that was signed. No official client overrides it, so nobody may.
	for _, name := range overrides {
		if m := r.Header.Get(name); m != "" && m != r.Method {
			a.respondError(w, r, fault.Invalidf("%s is not accepted: the signature covers the method of the request line", name).
				WithReason(reasonBadRequest).WithNext("send the request with its own method"))
			return
		}
	}
	a.mux.ServeHTTP(w, r)
}

// The values of header fields that every answer has; nobody changes them.
var (
	nosniff    = []string{"nosniff"}
	noReferrer = []string{"no-referrer"}
	oneYear    = []string{"max-age=31536000"}
)

// overrides are the headers that other servers take a method from.
var overrides = [...]string{"X-Method-Override", "X-Http-Method-Override", "X-Http-Method"}

func urlNotFound(r *http.Request) error {
	return fault.NotFoundf("No such URL: %s %.200s", r.Method, r.URL.Path).WithReason(reasonURLNotFound).
		WithNext("check BACKEND_ENDPOINT and that the client's version fits the server's")
}

// notRouted answers what no route matched: 405 when another method would have, else 404.
func (a *API) notRouted(c *call) error {
	allowed := ""
	probe := *c.r
	for _, m := range methods {
		probe.Method = m
		if _, pattern := a.mux.Handler(&probe); pattern != "/" && pattern != "" {
			if allowed != "" {
				allowed += ", "
			}
			allowed += m
		}
	}
	if allowed == "" {
		return urlNotFound(c.r)
	}
	c.w.Header().Set("Allow", allowed)
	return fault.Invalidf("%.20s is not allowed on %.200s", c.r.Method, c.r.URL.Path).
		WithReason(reasonMethodNotAllowed).
		WithNext("use one of %s", allowed)
}

// slow is how long a request may take before the log says so.
const slow = 2 * time.Second

// accessLevel is the level at which a request is logged: debug, unless it failed or was slow. Streams and questions that wait for an
// answer of the session last as long as they last.
func accessLevel(status int, waits bool, took time.Duration) slog.Level {
	if status >= 400 || took >= slow && !waits && status != http.StatusSwitchingProtocols {
		return slog.LevelInfo
	}
	return slog.LevelDebug
}

// access logs one request. Queries stay out of the log: they may hold tokens.
func (a *API) access(w *responseWriter, r *http.Request, started time.Time) {
	level := accessLevel(w.status, w.waits, time.Since(started))
	if !a.log.Enabled(r.Context(), level) {
		return
	}
	a.log.LogAttrs(r.Context(), level, "request",
		slog.String("request", w.requestID), slog.String("method", r.Method), slog.String("path", r.URL.Path),
		slog.Int("status", w.status), slog.Int64("bytes", w.bytes), slog.Duration("took", time.Since(started)),
		slog.String("key", w.actor), slog.String("from", a.clientText(r)), slog.String("note", w.note))
}

func requestID() string {
	var b [8]byte
	_, _ = rand.Read(b[:]) // never fails
	return hex.EncodeToString(b[:])
}

// responseWriter remembers what was answered.
type responseWriter struct {
	http.ResponseWriter
	api       *API
	requestID string
	actor     string
	note      string
	status    int
	bytes     int64
	// waits: the answer comes when something happens, so its time says nothing.
	waits bool
}

func (w *responseWriter) WriteHeader(status int) {
	if w.status == 0 {
		w.status = status
	}
	w.ResponseWriter.WriteHeader(status)
}

func (w *responseWriter) Write(b []byte) (int, error) {
	if w.status == 0 {
		w.status = http.StatusOK
	}
	n, err := w.ResponseWriter.Write(b)
	w.bytes += int64(n)
	return n, err
}

// Unwrap lets http.ResponseController and WebSocket upgrades reach the connection.
func (w *responseWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// Flush sends what was written.
func (w *responseWriter) Flush() { _ = http.NewResponseController(w.ResponseWriter).Flush() }

// defaultAnonymousRate is what official servers tell strangers.
const defaultAnonymousRate = 1000

func (w *responseWriter) rate(limit, remaining int) {
	h := w.Header()
	h["X-Ratelimit-Limit"] = []string{strconv.Itoa(limit)}
	h["X-Ratelimit-Remaining"] = []string{strconv.Itoa(remaining)}
	h["X-Ratelimit-Window"] = []string{"900"}
}

// Fail answers a request with the problem document of err; for handlers that are mounted here.
func Fail(w http.ResponseWriter, r *http.Request, err error) {
	rw, ok := w.(*responseWriter)
	if !ok {
		panic(fmt.Sprintf("httpapi.Fail with a %T", w))
	}
	rw.api.respondError(rw, r, err)
}
