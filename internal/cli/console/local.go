package console

import (
	"context"
	"crypto/rand"
	"crypto/subtle"
	"errors"
	"fmt"
	"log"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"time"

	"berth.dev/berth/api"
	"berth.dev/berth/internal/cli/frame"
)

const (
	// codeLife is how long an address lets somebody in.
	codeLife = 5 * time.Minute
	// maxCodes bounds the addresses of one app that were not followed yet.
	maxCodes = 32
	// maxRaw bounds the connections of an app that speaks no HTTP.
	maxRaw = 256
	// entrance is our own path among those of an app.
	entrance = "/.berth-enter"
)

// local is one app at a port of this machine.
//
// Every program of the machine can connect to it, and pages of other sites can make the browser do so. An HTTP app is
// therefore open only to who has its cookie, which a one-time code buys, and to requests that its own pages make.
type local struct {
	c       *api.Client
	session string
	app     api.App
	http    bool
	addr    string
	port    int
	now     func() time.Time

	listener net.Listener
	server   *http.Server
	cancel   context.CancelFunc
	done     sync.WaitGroup
	cookie   *http.Cookie

	mu    sync.Mutex
	codes map[string]time.Time // until when
}

func listen(c *api.Client, session string, app api.App, now func() time.Time) (*local, error) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(context.Background()) // until close
	l := &local{c: c, session: session, app: app, http: app.HTTP(), addr: ln.Addr().String(), port: ln.Addr().(*net.TCPAddr).Port,
		now: now, listener: ln, cancel: cancel, codes: map[string]time.Time{}}
	if !l.http {
		l.done.Go(func() { l.acceptRaw(ctx) })
		return l, nil
	}
	l.cookie = &http.Cookie{
		Name: "berth-local-" + strconv.Itoa(l.port), Value: rand.Text(), Path: "/", HttpOnly: true, SameSite: http.SameSiteLaxMode,
	}
	l.server = &http.Server{Handler: l.handler(), ReadHeaderTimeout: 10 * time.Second, IdleTimeout: time.Minute, MaxHeaderBytes: 64 << 10}
	l.done.Go(func() { _ = l.server.Serve(ln) })
	return l, nil
}

// enter is an address that lets its follower in, once.
func (l *local) enter() string {
	if !l.http {
		return "tcp://" + l.addr
	}
	code := rand.Text()
	l.mu.Lock()
	defer l.mu.Unlock()
	for c, until := range l.codes {
		if l.now().After(until) || len(l.codes) >= maxCodes {
			delete(l.codes, c)
		}
	}
	l.codes[code] = l.now().Add(codeLife)
	return "http://" + l.addr + entrance + "?code=" + code
}

// redeem uses a code up.
func (l *local) redeem(code string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	until, ok := l.codes[code]
	delete(l.codes, code)
	return ok && !l.now().After(until)
}

func (l *local) handler() http.Handler {
	target := &url.URL{Scheme: "http", Host: l.addr}
	forward := &httputil.ReverseProxy{
		Rewrite: func(r *httputil.ProxyRequest) {
			r.SetURL(target)
			r.Out.Host = r.In.Host
			stripCookie(r.Out, l.cookie.Name)
		},
		Transport: &http.Transport{
			DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
				return l.c.DialApp(ctx, l.session, l.app.Name, 0)
			},
			MaxIdleConnsPerHost: 8, IdleConnTimeout: 30 * time.Second, DisableCompression: true, ResponseHeaderTimeout: 10 * time.Minute,
		},
		FlushInterval: -1,
		ErrorLog:      log.New(quiet{}, "", 0),
		ErrorHandler: func(w http.ResponseWriter, _ *http.Request, err error) {
			w.Header().Set("Content-Type", "text/plain; charset=utf-8")
			w.WriteHeader(http.StatusBadGateway)
			fmt.Fprintf(w, "The app %s cannot be reached: %v\n", l.app.Name, err)
		},
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case r.Host != l.addr:
			http.Error(w, "this is not the name of this server", http.StatusMisdirectedRequest)
		case r.URL.Path == entrance && r.Method == http.MethodGet && l.redeem(r.URL.Query().Get("code")):
			http.SetCookie(w, l.cookie)
			w.Header().Set("Cache-Control", "no-store")
			w.Header().Set("Referrer-Policy", "no-referrer")
			http.Redirect(w, r, "/", http.StatusSeeOther)
		case !l.holds(r):
			http.Error(w, "follow the link of berth console again: this address worked once", http.StatusForbidden)
		case foreign(r, l.addr):
			http.Error(w, "a page of another site may not use this app", http.StatusForbidden)
		default:
			forward.ServeHTTP(w, r)
		}
	})
}

// holds reports whether a request carries the cookie.
func (l *local) holds(r *http.Request) bool {
	for _, c := range r.CookiesNamed(l.cookie.Name) {
		if subtle.ConstantTimeCompare([]byte(c.Value), []byte(l.cookie.Value)) == 1 {
			return true
		}
	}
	return false
}

// foreign reports whether another site's page caused a request. Cookies do not tell ports of one host apart, so pages of the
// machine's other ports are another site too. Following a link is allowed.
func foreign(r *http.Request, addr string) bool {
	if o := r.Header.Get("Origin"); o != "" && o != "http://"+addr {
		return true
	}
	switch r.Header.Get("Sec-Fetch-Site") {
	case "", "none", "same-origin":
		return false
	}
	return r.Header.Get("Sec-Fetch-Mode") != "navigate" || r.Method != http.MethodGet && r.Method != http.MethodHead
}

// stripCookie keeps our own cookie from the app.
func stripCookie(r *http.Request, name string) {
	cookies := r.Cookies()
	r.Header.Del("Cookie")
	for _, c := range cookies {
		if c.Name != name && !strings.HasPrefix(c.Name, "berth-local-") {
			r.AddCookie(c)
		}
	}
}

// quiet drops what the reverse proxy logs: visitors are told.
type quiet struct{}

func (quiet) Write(p []byte) (int, error) { return len(p), nil }

// acceptRaw carries connections of an app that speaks no HTTP.
func (l *local) acceptRaw(ctx context.Context) {
	var all sync.WaitGroup
	defer all.Wait()
	free := make(chan struct{}, maxRaw)
	for {
		select {
		case free <- struct{}{}:
		case <-ctx.Done():
			return
		}
		conn, err := l.listener.Accept()
		if err != nil {
			if errors.Is(err, net.ErrClosed) || ctx.Err() != nil {
				return
			}
			<-free
			select {
			case <-ctx.Done():
			case <-time.After(100 * time.Millisecond):
			}
			continue
		}
		all.Go(func() {
			defer func() { <-free }()
			defer conn.Close()
			if remote, err := l.c.DialApp(ctx, l.session, l.app.Name, 0); err == nil {
				_ = frame.Join(ctx, conn, remote)
			}
		})
	}
}

// close ends the port and its connections.
func (l *local) close() {
	l.cancel()
	_ = l.listener.Close()
	if l.server != nil {
		_ = l.server.Close()
	}
	l.done.Wait()
}
