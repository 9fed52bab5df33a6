package front

import (
	"context"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"berth.dev/berth/internal/appproxy/circuit"
	"berth.dev/berth/internal/fault"
	"berth.dev/berth/internal/wire/proxy"
)

// carried are the parameters of /add that become parameters of /auth.
var carried = []string{
	"app", "protocol", "port", "envs", "args", "open_to_public", "allowed_client_ips", "subdomain", "redirect", "no_reuse", "is_inference",
	"mode", "app_port",
}

// add answers with the address of /auth that publishes the app. It publishes nothing itself. The token in that address works once,
// and for this very address alone.
func (f *Front) add(w http.ResponseWriter, r *http.Request) {
	cors(w)
	q := r.URL.Query()
	out := url.Values{"token": {r.PathValue("token")}, "session_id": {r.PathValue("session")}}
	for _, name := range carried {
		if q.Has(name) {
			out.Set(name, q.Get(name))
		}
	}
	token, err := f.bind(r, out)
	if err != nil {
		f.fail(w, r, "The app cannot be opened.", err)
		return
	}
	out.Set("token", token)
	to := *f.o.Base
	to.Path, to.RawQuery = "/v2/proxy/auth", out.Encode()
	writeJSON(w, http.StatusOK, map[string]any{"code": http.StatusOK, "url": to.String()})
}

// bind asks the manager for the token of an address with these parameters.
func (f *Front) bind(r *http.Request, q url.Values) (string, error) {
	req, err := launchOf(q)
	if err != nil {
		return "", err
	}
	req.Proxy, req.Client = f.o.Name, visitor(r)
	done, err := f.asking(req.Client)
	if err != nil {
		return "", err
	}
	defer done()
	return f.o.Manager.Bind(r.Context(), req)
}

func plausible(q url.Values) error {
	switch {
	case q.Get("token") == "" || len(q.Get("token")) > 256:
		return fault.Invalidf("there is no launch token").WithReason("no-token").WithNext("open the app from the console again")
	case q.Get("session_id") == "" || len(q.Get("session_id")) > 128:
		return fault.Invalidf("no session is named").WithReason("no-session").WithNext("open the app from the console again")
	case q.Get("app") == "" || len(q.Get("app")) > 128:
		return fault.Invalidf("no app is named").WithReason("no-app").WithNext("add app=NAME to the address")
	}
	return nil
}

func truth(text string) bool {
	switch strings.ToLower(text) {
	case "1", "true", "yes", "on":
		return true
	}
	return false
}

// port reads an optional port; 0 when there is none.
func port(q url.Values, name string) (int, error) {
	text := q.Get(name)
	if text == "" || text == "null" {
		return 0, nil
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < 1 || n > 65535 {
		return 0, fault.Invalidf("%s is %q", name, text).WithReason("invalid-port").WithNext("write a port between 1 and 65535")
	}
	return n, nil
}

// launchOf reads the parameters of /auth.
func launchOf(q url.Values) (proxy.LaunchRequest, error) {
	if err := plausible(q); err != nil {
		return proxy.LaunchRequest{}, err
	}
	req := proxy.LaunchRequest{
		Token: q.Get("token"), Session: q.Get("session_id"), App: q.Get("app"), Protocol: q.Get("protocol"),
		Envs: q.Get("envs"), Arguments: q.Get("args"), Public: truth(q.Get("open_to_public")), Allowed: q.Get("allowed_client_ips"),
		Label: strings.ToLower(q.Get("subdomain")), NoReuse: truth(q.Get("no_reuse")), Mode: proxy.Mode(q.Get("mode")),
	}
	var err error
	if req.ProxyPort, err = port(q, "port"); err != nil {
		return req, err
	}
	if req.Port, err = port(q, "app_port"); err != nil {
		return req, err
	}
	switch req.Mode {
	case "", proxy.ModePort, proxy.ModeSubdomain:
	default:
		return req, fault.Invalidf("mode is %q", req.Mode).WithReason("invalid-mode").WithNext("use port or subdomain")
	}
	return req, nil
}

// auth publishes an app and answers with where its visitor goes next.
func (f *Front) auth(w http.ResponseWriter, r *http.Request) {
	cors(w)
	if r.Method != http.MethodGet || prefetched(r) {
		w.Header().Set("Cache-Control", "no-store")
		w.WriteHeader(http.StatusNoContent) // whoever only looks must not use the token up
		return
	}
	q := r.URL.Query()
	req, err := launchOf(q)
	if err != nil {
		f.fail(w, r, "The app cannot be opened.", err)
		return
	}
	req.Proxy, req.Client, req.Attempt = f.o.Name, visitor(r), f.o.Attempt()
	reply, c, err := f.launch(r.Context(), req)
	if err != nil {
		f.fail(w, r, "The app cannot be opened.", err)
		return
	}
	to := f.setupURL(c, reply.Code, q.Get("redirect"))
	w.Header().Set("Cache-Control", "no-store")
	w.Header().Set("Referrer-Policy", "no-referrer")
	if strings.Contains(r.Header.Get("Accept"), "application/json") {
		writeJSON(w, http.StatusOK, map[string]any{"redirect_url": to, "reuse": reply.Reused && c.HTTP()})
		return
	}
	w.Header().Set("Location", to)
	w.WriteHeader(http.StatusPermanentRedirect)
}

// portTries bounds how many ports are tried when other programs hold them.
const portTries = 16

// launch publishes an app and opens its port. When another program holds that port and the caller asked for no particular one,
// it publishes the app on another port. A circuit that existed before stays, because other replicas of this proxy may serve it.
func (f *Front) launch(ctx context.Context, req proxy.LaunchRequest) (proxy.LaunchReply, *circuit.Circuit, error) {
	done, err := f.launching(req.Session, req.Client)
	if err != nil {
		return proxy.LaunchReply{}, nil, err
	}
	defer done()
	for try := 1; ; try++ {
		reply, c, err := f.o.Manager.Launch(ctx, req)
		if err != nil {
			return reply, nil, err
		}
		err = f.o.Open(c)
		if err == nil || req.ProxyPort != 0 || slices.Contains(req.Passed, c.ID) || try == portTries || fault.ReasonOf(err) != "port-taken" {
			return reply, c, err
		}
		req.Passed, req.Unopened = append(req.Passed, c.ID), ""
		if !reply.Reused {
			req.Unopened = c.ID
		}
	}
}

// setupURL is the address at which a visitor redeems a code: on the circuit's own host, which sets its cookie then, or below the
// base URL for apps that speak no HTTP.
func (f *Front) setupURL(c *circuit.Circuit, code, redirect string) string {
	to, q := *f.o.Base, url.Values{"token": {code}}
	if c.HTTP() {
		to = *f.o.Address(c)
	} else {
		q.Set("circuit", c.ID)
	}
	if safe := relative(redirect); safe != "" && c.HTTP() {
		q.Set("redirect", safe)
	}
	to.Path, to.RawQuery = "/setup", q.Encode()
	return to.String()
}

// known answers the question of older clients whether a token has circuits. The answer is always the same.
func (f *Front) known(w http.ResponseWriter, _ *http.Request) {
	cors(w)
	writeJSON(w, http.StatusOK, map[string]any{"code": http.StatusOK})
}

// end closes the circuits of a token at a session. An invalid token gets the same answer and closes nothing.
func (f *Front) end(w http.ResponseWriter, r *http.Request) {
	cors(w)
	done, err := f.asking(visitor(r))
	if err == nil {
		err = f.o.Manager.Close(r.Context(), proxy.CloseRequest{Token: r.PathValue("token"), Session: r.PathValue("session")})
		done()
	}
	switch fault.KindOf(err) {
	case fault.Unavailable, fault.Timeout, fault.Exhausted:
		f.fail(w, r, "The apps could not be closed.", err)
		return
	}
	writeJSON(w, http.StatusOK, map[string]any{"code": http.StatusOK})
}
