// Package front is what an app proxy answers itself: the API of the base URL (launching apps, tunnels, status), /setup on each
// circuit's own host, where a one-time code becomes a cookie, and the pages that say why somebody may not pass.
package front

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"strings"
	"sync/atomic"
	"time"

	"berth.dev/berth/internal/appproxy/circuit"
	"berth.dev/berth/internal/appproxy/control"
	"berth.dev/berth/internal/chassis"
	"berth.dev/berth/internal/fault"
	"berth.dev/berth/internal/wire/proxy"
)

// Manager is what only the manager knows or decides; *control.Client is one.
type Manager interface {
	Table() *circuit.Table
	State() control.State
	Lookup(ctx context.Context, label string, port int) (*circuit.Circuit, error)
	Refresh(ctx context.Context, port int) (*circuit.Circuit, error)
	AwaitCircuit(ctx context.Context, id string, epoch int64) *circuit.Circuit
	Bind(ctx context.Context, req proxy.LaunchRequest) (token string, err error)
	Launch(ctx context.Context, req proxy.LaunchRequest) (proxy.LaunchReply, *circuit.Circuit, error)
	Redeem(ctx context.Context, req proxy.RedeemRequest) (proxy.RedeemReply, error)
	Conf(ctx context.Context, req proxy.ConfRequest) (string, error)
	Close(ctx context.Context, req proxy.CloseRequest) error
}

// Options are what a Front works with.
type Options struct {
	Name    string // of the proxy
	Build   string
	Base    *url.URL // scheme and host of the base URL
	Manager Manager
	// Address is how visitors reach a circuit: scheme and host; tcp://host:port for those that are no HTTP.
	Address func(*circuit.Circuit) *url.URL
	// Open reports why visitors cannot reach a circuit's port; nil when they can.
	Open func(*circuit.Circuit) error
	// Dial connects to one of a circuit's targets, which the visitor's address chooses. Join carries a visitor's connection to
	// one that Dial made, and owns both.
	Dial func(context.Context, *circuit.Circuit, netip.Addr) (net.Conn, proxy.TargetID, error)
	Join func(visitor, app net.Conn, c *circuit.Circuit, t proxy.TargetID)
	// Tunnel answers an admitted request for a tunnel.
	Tunnel func(http.ResponseWriter, *http.Request, *circuit.Circuit)
	// Secret is what callers of /v2/conf must know; without one they are all refused.
	Secret     chassis.Secret
	TicketLife time.Duration
	// Attempt makes a random text for every launch; by default that of crypto/rand.
	Attempt func() string
	Clock   chassis.Clock
	Log     *slog.Logger
}

// Front answers requests that are for the proxy itself.
type Front struct {
	o       Options
	base    http.Handler
	warming atomic.Int32 // warm-ups under way

	sessions  gate[string] // launches by session
	launchers gate[netip.Addr]
	askers    gate[netip.Addr]
}

// New makes a Front.
func New(o Options) *Front {
	if o.Attempt == nil {
		o.Attempt = rand.Text
	}
	f := &Front{o: o}
	f.base = f.routes()
	return f
}

// Base is the handler of the base URL.
func (f *Front) Base() http.Handler { return f.base }

func (f *Front) routes() http.Handler {
	mux := http.NewServeMux()
	mux.Handle("GET /{$}", page{
		status: http.StatusOK, slug: "app-proxy", title: "This is the app proxy " + f.o.Name + ".",
		words: "Apps of sessions are reached through it, at addresses of their own.",
		next:  "Open an app from the console, or with: berth app open SESSION APP",
	})
	mux.HandleFunc("GET /status", f.status)
	mux.HandleFunc("GET /healthz", f.healthz)
	mux.HandleFunc("POST /v2/conf", f.conf)
	mux.HandleFunc("PUT /v2/conf", f.conf)
	mux.HandleFunc("GET /v2/proxy/auth", f.auth)
	mux.HandleFunc("GET /v2/proxy/{token}/{session}", f.known)
	mux.HandleFunc("GET /v2/proxy/{token}/{session}/add", f.add)
	mux.HandleFunc("GET /v2/proxy/{token}/{session}/delete", f.end)
	mux.HandleFunc("OPTIONS /v2/proxy/", preflight)
	mux.HandleFunc("GET /setup", f.setupRaw)
	mux.HandleFunc("OPTIONS /setup", preflight)
	mux.HandleFunc("POST "+TunnelPath, f.tunnel)
	mux.HandleFunc("GET "+TunnelPath, f.socket)
	mux.Handle("/", page{status: http.StatusNotFound, slug: "no-page", title: "There is no such page.",
		words: "This address belongs to the app proxy itself.", next: "Open an app from the console, or with: berth app open SESSION APP"})
	return mux
}

// cors lets pages of every origin read an answer. It is for answers that do not depend on cookies.
func cors(w http.ResponseWriter) { w.Header().Set("Access-Control-Allow-Origin", "*") }

func preflight(w http.ResponseWriter, _ *http.Request) {
	h := w.Header()
	cors(w)
	h.Set("Access-Control-Allow-Methods", "GET, OPTIONS")
	h.Set("Access-Control-Allow-Headers", "Accept, Content-Type, X-BackendAI-Version, X-BackendAI-Domain, X-BackendAI-SessionID")
	h.Set("Access-Control-Max-Age", "600")
	w.WriteHeader(http.StatusNoContent)
}

func writeJSON(w http.ResponseWriter, status int, v any) {
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Cache-Control", "no-store")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(v) // a reader that left needs no answer
}

func (f *Front) status(w http.ResponseWriter, _ *http.Request) {
	cors(w)
	writeJSON(w, http.StatusOK, map[string]any{"api_version": "v2", "authority": f.o.Name, "version": f.o.Build,
		"manager_connected": f.o.Manager.State().Connected})
}

func (f *Front) healthz(w http.ResponseWriter, _ *http.Request) { Healthz(w, f.o.Manager) }

// Healthz answers load balancers. A proxy without a manager still serves its visitors, so it is healthy.
func Healthz(w http.ResponseWriter, m Manager) {
	writeJSON(w, http.StatusOK, map[string]any{"ok": true, "manager_connected": m.State().Connected, "circuits": m.Table().Len()})
}

// conf makes a launch token for callers that know the secret. The older protocol sends the upstream's address along; it is
// ignored, because the manager knows it.
func (f *Front) conf(w http.ResponseWriter, r *http.Request) {
	given := chassis.NewSecret(r.Header.Get("X-BackendAI-Token"))
	if f.o.Secret.IsZero() || !f.o.Secret.Equal(given) {
		page{status: http.StatusUnauthorized, slug: "bad-secret", title: "The secret in X-BackendAI-Token is not the proxy's.",
			next: "set appproxy.secret, and the same in the caller"}.ServeHTTP(w, r)
		return
	}
	var body struct {
		Session struct {
			ID        string `json:"id"`
			AccessKey string `json:"access_key"`
		} `json:"session"`
	}
	if err := json.NewDecoder(http.MaxBytesReader(w, r.Body, 64<<10)).Decode(&body); err != nil || body.Session.ID == "" ||
		body.Session.AccessKey == "" {
		page{status: http.StatusBadRequest, slug: "invalid-body", title: "The body is no request for a launch token.",
			next: `send {"session": {"id": "…", "access_key": "…"}}`}.ServeHTTP(w, r)
		return
	}
	token, err := f.o.Manager.Conf(r.Context(), proxy.ConfRequest{Session: body.Session.ID, AccessKey: body.Session.AccessKey})
	if err != nil {
		f.fail(w, r, "No launch token could be made.", err)
		return
	}
	writeJSON(w, http.StatusOK, proxy.ConfReply{Token: token})
}

// fail answers with an error and logs what is our own fault.
func (f *Front) fail(w http.ResponseWriter, r *http.Request, title string, err error) {
	if fault.KindOf(err) == fault.Internal && r.Context().Err() == nil {
		f.o.Log.Error("request failed", "path", r.URL.Path, "error", err)
	}
	pageOf(title, err).ServeHTTP(w, r)
}

// visitor is the address behind a request.
func visitor(r *http.Request) netip.Addr {
	if ap, err := netip.ParseAddrPort(r.RemoteAddr); err == nil {
		return ap.Addr().Unmap().WithZone("")
	}
	a, err := netip.ParseAddr(strings.Trim(r.RemoteAddr, "[]"))
	if err != nil {
		return netip.Addr{}
	}
	return a.Unmap().WithZone("")
}

func firstFault(err error) *fault.Error {
	var f *fault.Error
	if errors.As(err, &f) {
		return f
	}
	return nil
}

// Denied says why a visitor may not pass a circuit.
func (f *Front) Denied(c *circuit.Circuit, v circuit.Verdict) http.Handler {
	if v.Decision == circuit.Login {
		return page{
			status: http.StatusUnauthorized, slug: v.Reason, title: "You need to log in to use this app.", words: v.Words,
			next: "Open it from the console, or with: berth app open " + sessionName(c) + " " + c.App + ". Whoever it is shared with does the same.",
		}
	}
	p := page{status: http.StatusForbidden, slug: v.Reason, title: "You may not use this app.", words: v.Words}
	switch v.Reason {
	case "expired":
		p.status, p.title, p.next = http.StatusGone, "This app is not published any more.", "Ask its owner, or open it again from the console."
	case "foreign-origin":
		p.next = "Open the app in a window of its own."
	default:
		p.next = "Ask its owner to admit your address."
	}
	return p
}

func sessionName(c *circuit.Circuit) string {
	if c.Name != "" {
		return c.Name
	}
	return c.Session
}

// NotHTTP answers an HTTP request to an app that speaks another protocol.
func (f *Front) NotHTTP(c *circuit.Circuit) http.Handler {
	return page{
		status: http.StatusBadRequest, slug: "no-http", title: "This app speaks no HTTP.", words: "A browser cannot show it.",
		next: "Use: berth port-forward " + sessionName(c) + " " + c.App,
	}
}

// NoWorkers refuses the script of a service worker on a circuit's port. The worker would outlive the circuit: the browser would
// run it for the next app on that port, which may be another user's, and it could read that app's traffic.
func (f *Front) NoWorkers() http.Handler {
	return page{status: http.StatusForbidden, slug: "no-service-workers", title: "Apps on ports have no service workers.",
		words: "The port may be another app's tomorrow.", next: "Open the app with mode=subdomain."}
}

// Misdirected answers requests for a host that is not the proxy's.
func (f *Front) Misdirected() http.Handler {
	return page{status: http.StatusMisdirectedRequest, slug: "unknown-host", title: "This host name leads nowhere.",
		words: "The app proxy does not serve it.", next: "Check the address."}
}

// Absent answers for a label that the table does not have. It asks the manager first: the circuit may be new.
func (f *Front) Absent(label string) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		found, err := f.o.Manager.Lookup(r.Context(), label, 0)
		if err == nil && found != nil {
			// The next look at the table finds it. 307 keeps method and body.
			again := relative(r.URL.RequestURI())
			if again == "" || r.Header.Get("Upgrade") != "" {
				page{status: http.StatusServiceUnavailable, slug: "starting", title: "The app is being published.",
					words: "It can be reached in a moment.", retry: 1}.ServeHTTP(w, r)
				return
			}
			w.Header().Set("Cache-Control", "no-store")
			w.Header().Set("Location", again)
			w.WriteHeader(http.StatusTemporaryRedirect)
			return
		}
		f.noApp(err).ServeHTTP(w, r)
	})
}

// noApp says that there is no app here. err, when set, is why the manager could not be asked.
func (f *Front) noApp(err error) http.Handler {
	if err != nil || !f.o.Manager.State().Connected {
		if err == nil {
			err = fault.Unavailablef("the manager does not answer at the moment").WithReason("manager-away")
		}
		p := pageOf("Nobody knows whether there is an app here.", err)
		p.words += " Apps that are known go on."
		return p
	}
	return page{
		status: http.StatusNotFound, slug: "no-app", title: "There is no app here.",
		words: "Its session has ended, it was unpublished, or there never was one at this address.",
		next:  "See your sessions in the console or with: berth session list. Open an app with: berth app open SESSION APP",
	}
}

// NoApp answers on a port whose circuit has just gone.
func (f *Front) NoApp() http.Handler { return f.noApp(nil) }
