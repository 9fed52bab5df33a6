package chassis

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"strings"
	"time"
)

// HTTPServer is an HTTP server as a service. Its listener opens when the service starts, so
// a taken port is a failed start and Addr is known as soon as it runs.
type HTTPServer struct {
	*Service
	server   *http.Server
	listener net.Listener
}

// HTTPOptions are the parts of an HTTPServer that differ.
type HTTPOptions struct {
	// Listen is "host:port", port 0 meaning any free one, or "unix:/path/socket".
	Listen  string
	Handler http.Handler
	// TLS may be nil for plain HTTP.
	TLS *tls.Config
	// Drain bounds how long open requests may finish at a stop before they are cut; default 5 s.
	Drain time.Duration
	Log   *slog.Logger
	// Configure may change the server before it serves; may be nil.
	Configure func(*http.Server)
}

// HSTS is the Strict-Transport-Security of servers that are told to send it: browsers come by TLS alone for a year, to every port of
// the host name. It does not speak for the names below.
const HSTS = "max-age=31536000"

// NewHTTPServer makes the service; see After for its place in the order.
func NewHTTPServer(name string, o HTTPOptions) *HTTPServer {
	if o.Drain == 0 {
		o.Drain = 5 * time.Second
	}
	h := &HTTPServer{server: &http.Server{
		Handler:           o.Handler,
		TLSConfig:         o.TLS,
		ReadHeaderTimeout: 10 * time.Second,
		IdleTimeout:       2 * time.Minute,
		MaxHeaderBytes:    64 << 10,
	}}
	if o.Log != nil {
		h.server.ErrorLog = slog.NewLogLogger(o.Log.With("service", name).Handler(), slog.LevelDebug)
	}
	if o.Configure != nil {
		o.Configure(h.server)
	}
	h.Service = NewService(name, Hooks{
		StopTimeout: o.Drain + 5*time.Second,
		Start: func(ctx context.Context) error {
			ln, err := listen(ctx, o.Listen)
			if err != nil {
				return err
			}
			h.listener = ln
			return nil
		},
		Run: func(ctx context.Context) error {
			served := make(chan error, 1)
			go func() {
				if o.TLS != nil {
					served <- h.server.ServeTLS(h.listener, "", "")
					return
				}
				served <- h.server.Serve(h.listener)
			}()
			select {
			case err := <-served:
				return err
			case <-ctx.Done():
			}
			drain, cancel := context.WithTimeout(context.WithoutCancel(ctx), o.Drain)
			defer cancel()
			if err := h.server.Shutdown(drain); err != nil {
				// Streams that nobody ends are cut here; that is expected at a stop.
				err = h.server.Close()
				if err != nil && !errors.Is(err, net.ErrClosed) {
					return err
				}
			}
			<-served
			return nil
		},
	})
	return h
}

// Addr is where the server listens: "host:port" or "unix:/path". Valid once the service runs.
func (h *HTTPServer) Addr() string {
	if h.listener.Addr().Network() == "unix" {
		return "unix:" + h.listener.Addr().String()
	}
	return h.listener.Addr().String()
}

func listen(ctx context.Context, addr string) (net.Listener, error) {
	var lc net.ListenConfig
	path, unix := strings.CutPrefix(addr, "unix:")
	if !unix {
		ln, err := lc.Listen(ctx, "tcp", addr)
		if err != nil {
			return nil, fmt.Errorf("listen on %s: %w", addr, err)
		}
		return Crowded(ln), nil
	}
	// A socket that a killed process left behind would be in the way.
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("remove old socket: %w", err)
	}
	ln, err := lc.Listen(ctx, "unix", path)
	if err != nil {
		return nil, fmt.Errorf("listen on %s: %w", addr, err)
	}
	return ln, nil
}

// AdminConfig says where the health and metrics server listens.
type AdminConfig struct {
	// Listen is "host:port" or "unix:/path"; empty turns the server off.
	Listen string
}

// NewAdminServer serves h's handler. Keep it away from the public: metrics tell much.
func NewAdminServer(c AdminConfig, h *Health, log *slog.Logger) *HTTPServer {
	return NewHTTPServer("admin-http", HTTPOptions{Listen: c.Listen, Handler: h.Handler(), Log: log, Drain: time.Second})
}
