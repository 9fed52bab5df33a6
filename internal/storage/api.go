package storage

import (
	"bytes"
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"strings"

	"berth.dev/berth/internal/fault"
	wire "berth.dev/berth/internal/wire/storage"
)

// maxBody bounds a request of a manager, in bytes.
const maxBody = 4 << 20

// statuses are the HTTP statuses of kinds.
var statuses = map[fault.Kind]int{
	fault.Internal: http.StatusInternalServerError, fault.NotFound: http.StatusNotFound, fault.Conflict: http.StatusConflict,
	fault.Denied: http.StatusForbidden, fault.Unauthenticated: http.StatusUnauthorized, fault.Invalid: http.StatusBadRequest,
	fault.Exhausted: http.StatusInsufficientStorage, fault.Unavailable: http.StatusServiceUnavailable,
	fault.Timeout: http.StatusGatewayTimeout,
}

// managerAPI is the manager-facing API. Bodies are JSON, also of GET, as older managers send them; a GET without a
// body may name its texts in the query.
func (p *Proxy) managerAPI() http.Handler {
	open := http.NewServeMux()
	for _, path := range []string{"GET /{$}", "GET /status", "GET /health", "GET /livez"} {
		open.HandleFunc(path, func(w http.ResponseWriter, _ *http.Request) {
			answer(w, http.StatusOK, map[string]any{"status": "ok", "type": "storage-proxy", "proxy": p.cfg.Proxy, "version": p.deps.Build.Version,
				"protocol": wire.Version})
		})
	}
	open.HandleFunc("GET /readyz", func(w http.ResponseWriter, r *http.Request) {
		if err := p.Ready(r.Context()); err != nil {
			p.fail(w, r, err)
			return
		}
		answer(w, http.StatusOK, map[string]any{"status": "ok"})
	})
	known := http.NewServeMux()
	p.volumeRoutes(known)
	p.folderRoutes(known)
	p.fileRoutes(known)
	p.taskRoutes(known)
	known.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		p.fail(w, r, fault.NotFoundf("there is no %s %s", r.Method, fault.Clip(r.URL.Path, maxEcho)).WithReason("url-not-found").
			WithNext("see whether manager and storage proxy are of the same version"))
	})
	open.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		shown := sha256.Sum256([]byte(r.Header.Get(wire.Auth)))
		if subtle.ConstantTimeCompare(shown[:], p.auth[:]) != 1 {
			p.fail(w, r, fault.New(fault.Unauthenticated, "the manager's key is not the one of storage proxy %s", p.cfg.Proxy).
				WithReason("auth-failed").
				WithNext("give manager and proxy the same secret: manager.storage.secret and storage.secret"))
			return
		}
		known.ServeHTTP(w, r)
	})
	return open
}

// handle serves one path: it decodes a Req, asks f and encodes what f returns. A nil body is no content.
func handle[Req any](p *Proxy, mux *http.ServeMux, methods, path string,
	f func(ctx context.Context, q Req) (status int, body any, err error)) {
	for method := range strings.FieldsSeq(methods) {
		mux.HandleFunc(method+" "+path, func(w http.ResponseWriter, r *http.Request) {
			var q Req
			err := decode(w, r, &q)
			if err == nil {
				var status int
				var body any
				if status, body, err = f(r.Context(), q); err == nil {
					answer(w, status, body)
					return
				}
			}
			p.fail(w, r, err)
		})
	}
}

// decode reads the body, or the query of a GET without one.
func decode(w http.ResponseWriter, r *http.Request, into any) error {
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxBody))
	var tooLarge *http.MaxBytesError
	if errors.As(err, &tooLarge) {
		return fault.Invalidf("the request is larger than %d bytes", maxBody).WithReason("invalid-api-params").WithNext("send it in pieces")
	}
	if err != nil {
		return fault.Invalidf("the request was cut").WithCause(err)
	}
	if len(bytes.TrimSpace(body)) == 0 {
		texts := map[string]string{}
		for key, values := range r.URL.Query() {
			texts[key] = values[0]
		}
		if body, err = json.Marshal(texts); err != nil {
			return err
		}
	}
	if err := json.Unmarshal(body, into); err != nil {
		return fault.Invalidf("the request cannot be read: %v", err).WithReason("invalid-api-params").
			WithNext("see whether manager and storage proxy are of the same version")
	}
	return nil
}

func answer(w http.ResponseWriter, status int, body any) {
	if body == nil {
		w.WriteHeader(status)
		return
	}
	text, err := json.Marshal(body)
	if err != nil {
		status, text = http.StatusInternalServerError, []byte(`{}`)
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_, _ = w.Write(text) // a manager that left asks again
}

// fail answers with a problem document.
func (p *Proxy) fail(w http.ResponseWriter, r *http.Request, err error) {
	kind := fault.KindOf(err)
	switch {
	case errors.Is(err, context.Canceled):
		kind = fault.Unavailable // the manager left
	case errors.Is(err, context.DeadlineExceeded):
		kind = fault.Timeout
	}
	if kind == fault.Internal {
		p.log.Error("a request of a manager failed", "method", r.Method, "path", r.URL.Path, "error", err)
	}
	status := statuses[kind]
	text, merr := json.Marshal(wire.Problem{
		Type: "about:blank", Title: http.StatusText(status), Status: status, Kind: kind.String(), Reason: fault.ReasonOf(err), Msg: err.Error(),
		Next: fault.NextOf(err),
	})
	if merr != nil {
		text = []byte("{}")
	}
	h := w.Header()
	h.Set("Content-Type", "application/problem+json")
	if status == http.StatusServiceUnavailable {
		h.Set("Retry-After", "5")
	}
	w.WriteHeader(status)
	_, _ = w.Write(text) // a manager that left asks again
}
