package login

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"berth.dev/berth/api"
	"berth.dev/berth/api/login"
	"berth.dev/berth/internal/cli/frame"
)

// browserPatience is how long a browser's answer is waited for.
const browserPatience = 10 * time.Minute

// byBrowser has the user log in on a page of the web server. The page's answer is a code that only this process can read. It comes by
// itself where the browser runs on this machine, and else the user pastes it.
func (a *verbs) byBrowser(ctx context.Context, cmd *cobra.Command, s *login.Server) (api.Secret, error) {
	h, err := login.NewHandover()
	if err != nil {
		return "", err
	}
	ctx, cancel := context.WithTimeoutCause(ctx, browserPatience, fmt.Errorf("nobody logged in within %s", browserPatience))
	defer cancel()
	ctx, giveUp := context.WithCancelCause(ctx)
	defer giveUp(nil)
	codes := make(chan string)
	offer := func(code string) {
		select {
		case codes <- code:
		case <-ctx.Done():
		}
	}
	q := url.Values{"key": {h.Key()}, "name": {a.self()}}
	page := s.Address() + "/server/cli?"
	port, stop := listen(ctx, offer)
	defer stop()
	local := port != 0 && a.Browse(page+with(q, "port", strconv.Itoa(port)))
	if local {
		frame.Say(cmd, "a browser opens; log in there and confirm. If it does not, open\n  %s%s", page, q.Encode())
	} else {
		frame.Say(cmd, "open this address in a browser, on any machine, log in there and confirm:\n  %s%s", page, q.Encode())
	}
	fmt.Fprint(cmd.ErrOrStderr(), "code of that page: ")
	// Nothing ends a read of standard input; this goroutine ends with the process.
	go func() {
		lines := bufio.NewScanner(cmd.InOrStdin())
		for lines.Scan() {
			offer(strings.TrimSpace(lines.Text()))
		}
		if !local {
			giveUp(errors.New("no code came, and no browser runs here that could send one"))
		}
	}()
	for {
		select {
		case code := <-codes:
			token, err := h.Open(code)
			if err == nil {
				fmt.Fprintln(cmd.ErrOrStderr())
				return token, nil
			}
			frame.Say(cmd, "%v", err)
		case <-ctx.Done():
			return "", context.Cause(ctx)
		}
	}
}

func with(q url.Values, name, value string) string {
	out := url.Values{name: {value}}
	for k, v := range q {
		out[k] = v
	}
	return out.Encode()
}

// self is what the page shows of this command line.
func (a *verbs) self() string {
	host, err := os.Hostname()
	if err != nil {
		host = "an unknown machine"
	}
	return "berth/" + a.Build + " on " + host
}

// listen takes a code from a browser of this machine. The port is 0 where it cannot listen.
func listen(ctx context.Context, offer func(string)) (port int, stop func()) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return 0, func() {}
	}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /{$}", func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "text/html; charset=utf-8")
		w.Header().Set("Content-Security-Policy", "default-src 'none'")
		w.Header().Set("Referrer-Policy", "no-referrer")
		fmt.Fprint(w, "<!doctype html><title>Berth</title><p>The command line goes on; you can close this page.")
		if c := r.URL.Query().Get("code"); c != "" {
			go offer(c)
		}
	})
	server := &http.Server{Handler: mux, ReadHeaderTimeout: 5 * time.Second, MaxHeaderBytes: 16 << 10,
		BaseContext: func(net.Listener) context.Context { return ctx }}
	done := make(chan struct{})
	go func() {
		defer close(done)
		if err := server.Serve(l); !errors.Is(err, http.ErrServerClosed) {
			_ = l.Close()
		}
	}()
	return l.Addr().(*net.TCPAddr).Port, func() {
		late, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
		defer cancel()
		_ = server.Shutdown(late) // the page that is being written comes through
		_ = server.Close()
		<-done
	}
}
