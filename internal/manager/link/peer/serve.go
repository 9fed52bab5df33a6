package peer

import (
	"context"
	"crypto/tls"
	"log/slog"
	"net/http"
	"net/http/httputil"
	"time"

	"golang.org/x/net/http2"

	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/fault"
	"berth.dev/berth/internal/manager/link/h2"
	"berth.dev/berth/internal/wire/node"
	"berth.dev/berth/internal/wire/run"
)

const (
	maxHeader = 64 << 10
	pingEvery = 15 * time.Second
)

// Serve serves a connection of the manager of that id until it or ctx ends. Requests go to agents that are connected to this
// manager and nowhere else, so that no request is relayed twice.
func (r *Relay) Serve(ctx context.Context, id string, conn *tls.Conn) {
	r.o.Log.Info("another manager connected", "manager", id, "remote", conn.RemoteAddr())
	server := &http2.Server{
		MaxConcurrentStreams: maxStreams, ReadIdleTimeout: pingEvery, PingTimeout: pingEvery,
		MaxUploadBufferPerConnection: 4 << 20, MaxUploadBufferPerStream: 1 << 20,
	}
	h2.Serve(ctx, conn, server, maxHeader, r.handler(), r.o.Log)
	r.o.Log.Info("another manager disconnected", "manager", id)
}

// handler passes requests to this manager's own agents.
func (r *Relay) handler() http.Handler {
	return &httputil.ReverseProxy{
		// The transport chooses the agent by the header and takes that out. The query passes as it is.
		Rewrite:       func(p *httputil.ProxyRequest) { p.Out.URL.RawQuery = p.In.URL.RawQuery },
		Transport:     roundTrip(r.local),
		FlushInterval: -1, // streams are not held back
		ErrorLog:      slog.NewLogLogger(r.o.Log.Handler(), slog.LevelDebug),
		ModifyResponse: func(resp *http.Response) error {
			resp.Header.Del(node.HeaderRelay) // only this manager says that
			return nil
		},
		ErrorHandler: func(w http.ResponseWriter, _ *http.Request, err error) {
			w.Header().Set(node.HeaderRelay, "1")
			run.WriteFailure(w, err)
		},
	}
}

type roundTrip func(*http.Request) (*http.Response, error)

func (f roundTrip) RoundTrip(req *http.Request) (*http.Response, error) { return f(req) }

// local sends a relayed request to an agent of this manager.
func (r *Relay) local(req *http.Request) (*http.Response, error) {
	agent, manager := req.Header.Get(node.HeaderAgent), req.Header.Get(node.HeaderManager)
	switch {
	case manager != r.o.ID:
		return nil, fault.Unavailablef("this is manager %s, the request is for manager %.100s", r.o.ID, manager).
			WithReason("agent-not-connected").WithNext("try again")
	case agent == "":
		return nil, fault.Invalidf("the relayed request names no agent")
	}
	req.Header.Del(node.HeaderAgent)
	req.Header.Del(node.HeaderManager)
	return r.o.Local.RoundTrip(cluster.AgentID(agent), req)
}
