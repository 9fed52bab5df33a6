package front

import (
	"context"
	"net/http"
	"net/url"
	"strings"
	"time"

	"berth.dev/berth/internal/appproxy/circuit"
	"berth.dev/berth/internal/fault"
	"berth.dev/berth/internal/wire/proxy"
)

// SetupPath is where codes are redeemed, on each circuit's own host, when the request names one.
const SetupPath = "/setup"

const (
	// awaitNews is how long a visitor whose code was valid waits for what the manager has told of the circuit since. The code is used up:
	// whoever is not waited for needs another one.
	awaitNews = 10 * time.Second
	// awaitNamed is how long somebody who names a circuit that the proxy does not know waits for it. Anybody can do that.
	awaitNamed = 2 * time.Second
)

// IsSetup reports whether a request to a circuit's host is for the proxy. Without a code it is not: an app may have a page of
// that name itself.
func IsSetup(method, path, query string) bool {
	if path != SetupPath || method != http.MethodGet && method != http.MethodHead && method != http.MethodOptions {
		return false
	}
	q, err := url.ParseQuery(query)
	return err == nil && q.Has("token")
}

// Setup turns a visitor's one-time code into a cookie of the circuit's own host.
func (f *Front) Setup(c *circuit.Circuit) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		cors(w)
		w.Header().Set("Cache-Control", "no-store")
		w.Header().Set("Referrer-Policy", "no-referrer")
		q := r.URL.Query()
		switch {
		case r.Method == http.MethodOptions:
			preflight(w, r)
			return
		case r.Method != http.MethodGet || prefetched(r):
			w.WriteHeader(http.StatusNoContent) // whoever only looks must not use the code up
			return
		case warmUp(r):
			f.warmUp(w, r, c)
			return
		}
		own := f.o.Address(c)
		secure := own.Scheme == "https"
		reply, err := f.redeem(r, c, q.Get("token"))
		path := relative(q.Get("redirect"))
		if path == "" {
			path = relative(reply.Path)
		}
		if path == "" {
			path = "/"
		}
		if err != nil {
			// A page that is loaded again shows the used code again; its visitor is let in by the cookie.
			if !c.Public && !f.holds(r, c, secure) {
				f.badCode(c, err).ServeHTTP(w, r)
				return
			}
		} else {
			if reply.Epoch > c.Epoch { // the news of it is on the way; without it the ticket is worth nothing here
				waiting, cancel := context.WithTimeout(r.Context(), awaitNews)
				f.o.Manager.AwaitCircuit(waiting, c.ID, reply.Epoch)
				cancel()
			}
			text, until := f.ticket(c, reply)
			if text == "" {
				f.fail(w, r, "You cannot be let in at the moment.", fault.Unavailablef("the proxy has no keys for tickets yet").WithReason("no-keys").
					WithNext("try again in a moment"))
				return
			}
			http.SetCookie(w, &http.Cookie{
				Name: c.CookieName(secure), Value: text, Path: "/", MaxAge: int(until.Sub(f.o.Clock.Now()).Seconds()),
				HttpOnly: true, Secure: secure, SameSite: http.SameSiteLaxMode,
			})
		}
		if truth(q.Get("do-not-redirect")) {
			to := own.String() + path
			writeJSON(w, http.StatusOK, map[string]any{"redirect": to, "redirectURI": to, "redirect_url": to})
			return
		}
		w.Header().Set("Location", path)
		w.WriteHeader(http.StatusFound)
	})
}

// redeem asks the manager who the visitor with a code is.
func (f *Front) redeem(r *http.Request, c *circuit.Circuit, code string) (proxy.RedeemReply, error) {
	from := visitor(r)
	done, err := f.asking(from)
	if err != nil {
		return proxy.RedeemReply{}, err
	}
	defer done()
	return f.o.Manager.Redeem(r.Context(), proxy.RedeemRequest{Circuit: c.ID, Code: code, Client: from})
}

// ticket signs a ticket for a visitor whose code was redeemed.
func (f *Front) ticket(c *circuit.Circuit, reply proxy.RedeemReply) (text string, until time.Time) {
	keys := f.o.Manager.Table().Keys()
	if len(keys) == 0 {
		return "", until
	}
	until = f.o.Clock.Now().Add(f.o.TicketLife)
	for _, end := range []*time.Time{&reply.ExpiresAt, c.ExpiresAt} {
		if end != nil && !end.IsZero() && end.Before(until) {
			until = *end
		}
	}
	until = until.Truncate(time.Second)
	return proxy.SignTicket(proxy.Ticket{Circuit: c.ID, User: reply.User, Epoch: reply.Epoch, Expires: until,
		Clients: reply.Clients}, keys[0]), until
}

// holds reports whether the request has a valid cookie of the circuit already.
func (f *Front) holds(r *http.Request, c *circuit.Circuit, secure bool) bool {
	cookies := r.CookiesNamed(c.CookieName(secure))
	if len(cookies) != 1 {
		return false
	}
	_, ok := c.Verify(cookies[0].Value, f.o.Manager.Table().Keys(), f.o.Clock.Now())
	return ok
}

func (f *Front) badCode(c *circuit.Circuit, err error) http.Handler {
	switch fault.KindOf(err) {
	case fault.Unavailable, fault.Timeout, fault.Internal, fault.Exhausted:
		return pageOf("You cannot be let in at the moment.", err)
	}
	return page{
		status: http.StatusUnauthorized, slug: "bad-code", title: "This link was used already, or is too old.",
		words: "A link lets one visitor in, once.",
		next:  "Open the app from the console again, or with: berth app open " + sessionName(c) + " " + c.App,
	}
}

// prefetched requests are made by browsers for pages that nobody has opened.
func prefetched(r *http.Request) bool {
	return strings.Contains(r.Header.Get("Sec-Purpose"), "prefetch") || r.Header.Get("Purpose") == "prefetch" ||
		r.Header.Get("X-Moz") == "prefetch"
}

// warmUp recognizes the request that the web console's page makes in the background before it opens the same address in a
// window: a browser keeps no cookie of such an answer, and the code works once. Browsers say what a request is for, except
// to hosts without TLS that are not their own; there the kinds of answers they accept tell.
func warmUp(r *http.Request) bool {
	if truth(r.URL.Query().Get("do-not-redirect")) {
		return false
	}
	if mode := r.Header.Get("Sec-Fetch-Mode"); mode != "" {
		return mode != "navigate"
	}
	return strings.HasPrefix(r.UserAgent(), "Mozilla/") && !strings.Contains(r.Header.Get("Accept"), "text/html") &&
		!strings.Contains(r.Header.Get("Accept"), "application/json")
}

// maxWarmUps bounds the connections that are opened to apps for visitors who are not in yet.
const maxWarmUps = 16

// warmUp answers whether the app can be reached, which is what the caller waits for. Anybody may ask. So nothing is said about an
// app that the caller's address may not use, and few connections to apps are opened for this at the same time.
func (f *Front) warmUp(w http.ResponseWriter, r *http.Request, c *circuit.Circuit) {
	defer f.warming.Add(-1)
	if f.warming.Add(1) > maxWarmUps || c.AdmitConn(visitor(r), f.o.Clock.Now()).Reason == "address-not-allowed" {
		w.WriteHeader(http.StatusNoContent)
		return
	}
	ctx, cancel := context.WithTimeout(r.Context(), 3*time.Second)
	defer cancel()
	conn, _, err := f.o.Dial(ctx, c, visitor(r))
	if err != nil {
		w.WriteHeader(http.StatusBadGateway)
		return
	}
	_ = conn.Close()
	w.WriteHeader(http.StatusNoContent)
}

// relative keeps a path of the same host, with its query; "" for everything that may lead elsewhere.
func relative(text string) string {
	if len(text) > 2048 || !strings.HasPrefix(text, "/") || strings.HasPrefix(text, "//") || strings.ContainsAny(text, "\\\r\n\t") {
		return ""
	}
	for _, c := range text {
		if c < ' ' || c == 0x7f {
			return ""
		}
	}
	u, err := url.Parse(text)
	if err != nil || u.Scheme != "" || u.Host != "" || u.User != nil || strings.HasPrefix(u.Path, "//") || strings.HasPrefix(u.Path, "/\\") {
		return ""
	}
	return u.String()
}

// desktopHelper is the program on the visitor's machine that the described system's desktop application brings.
const desktopHelper = "http://localhost:45678/start"

// setupRaw redeems the code of an app that speaks no HTTP: the visitor's address may connect to the circuit's port then.
func (f *Front) setupRaw(w http.ResponseWriter, r *http.Request) {
	cors(w)
	w.Header().Set("Cache-Control", "no-store")
	w.Header().Set("Referrer-Policy", "no-referrer")
	q := r.URL.Query()
	if r.Method != http.MethodGet || prefetched(r) || warmUp(r) {
		w.WriteHeader(http.StatusNoContent)
		return
	}
	waiting, cancel := context.WithTimeout(r.Context(), awaitNamed)
	c := f.o.Manager.Table().ByID(q.Get("circuit"))
	if c == nil && q.Get("circuit") != "" {
		c = f.o.Manager.AwaitCircuit(waiting, q.Get("circuit"), 0)
	}
	cancel()
	if c == nil || c.HTTP() {
		f.noApp(nil).ServeHTTP(w, r)
		return
	}
	reply, err := f.redeem(r, c, q.Get("token"))
	if err != nil {
		f.badCode(c, err).ServeHTTP(w, r)
		return
	}
	gateway := f.o.Address(c)
	if gateway.Scheme != "tcp" {
		f.fail(w, r, "The app cannot be reached from outside.", fault.Unavailablef("this proxy opens no ports").WithReason("no-ports").
			WithNext("use: berth port-forward %s %s", sessionName(c), c.App))
		return
	}
	// The visitor's address is admitted with the circuit's next revision: be sure to have it before the visitor connects.
	if _, err := f.o.Manager.Refresh(r.Context(), c.Port); err != nil {
		f.o.Log.Warn("an address that was let in may have to wait", "circuit", c.ID, "error", err)
	}
	to := desktopHelper + "?directTCP=true&auth=" + url.QueryEscape(c.ID) + "&proto=tcp&gateway=" + gateway.String()
	if truth(q.Get("do-not-redirect")) || !WantsHTML(r) {
		out := map[string]any{"redirectURI": to, "redirect": to, "gateway": gateway.String()}
		if text, until := f.ticket(c, reply); text != "" && !c.Public && r.Header.Get("Origin") == "" {
			// Programs may come through a tunnel instead; pages get nothing that would outlive them.
			out["ticket"], out["circuit"], out["expires_at"] = text, c.ID, until
		}
		writeJSON(w, http.StatusOK, out)
		return
	}
	page{
		status: http.StatusOK, slug: "ready", title: "You can connect now.", words: "Your address may connect to " + gateway.Host + ".",
		next: "From elsewhere use: berth port-forward " + sessionName(c) + " " + c.App, link: "Start the desktop helper", linkTo: to,
	}.ServeHTTP(w, r)
}
