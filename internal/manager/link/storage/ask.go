package storage

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"net"
	"net/http"
	"strings"
	"time"

	"berth.dev/berth/internal/fault"
	"berth.dev/berth/internal/wire/storage"
)

const (
	maxReply   = 32 << 20
	maxProblem = 64 << 10
	maxAsked   = 3 // nodes for one request
)

// manner is how a request is made.
type manner struct {
	within time.Duration // for one node
	// again reports whether asking a second time changes nothing that asking once did not.
	again bool
}

// manners by path; those with an id of the manager's in them may be repeated, too.
var manners = map[string]manner{
	storage.PathFolderUsage: {40 * time.Second, true},
	storage.PathScope:       {20 * time.Second, true}, storage.PathScopeQuota: {20 * time.Second, true},
	storage.PathFolderCreate: {20 * time.Second, true}, storage.PathFolderDelete: {20 * time.Second, true},
	storage.PathFolderClone: {20 * time.Second, true},
	storage.PathMkdir:       {30 * time.Second, false}, storage.PathRename: {20 * time.Second, false},
	storage.PathMove: {20 * time.Second, false},
	storage.PathList: {30 * time.Second, true}, storage.PathDelete: {2 * time.Minute, false},
	storage.PathDeleteAsync: {20 * time.Second, true},
	storage.PathDownload:    {20 * time.Second, true}, storage.PathArchive: {20 * time.Second, true},
	storage.PathUpload: {20 * time.Second, false},
	storage.PathImport: {20 * time.Second, true}, storage.PathExport: {20 * time.Second, true},
}

func mannerOf(method, path string) manner {
	if m, ok := manners[path]; ok {
		return m
	}
	return manner{15 * time.Second, method == http.MethodGet}
}

// Do asks a node of the proxy. When it does not answer, another node is asked if that can do no harm: if the request never
// reached the first, or may be repeated. Errors that the proxy gave keep their kind, reason and words.
func (l *Link) Do(ctx context.Context, proxy, method, path string, request, reply any) error {
	var body []byte
	if request != nil {
		var err error
		if body, err = json.Marshal(request); err != nil {
			return fmt.Errorf("encode a request to storage proxy %s: %w", proxy, err)
		}
	}
	nodes := l.nodes(proxy)
	if len(nodes) == 0 {
		return noNode(proxy)
	}
	how := mannerOf(method, path)
	var last error
	for _, n := range nodes[:min(len(nodes), maxAsked)] {
		answered, reached, err := l.once(ctx, n, how, method, path, body, reply)
		if answered {
			l.note(n, true)
			return err
		}
		if ctx.Err() != nil { // the caller left
			return err
		}
		l.note(n, false)
		last = err
		if reached && !how.again {
			break
		}
	}
	return last
}

// once asks one node. answered says that what came back, good or bad, is the proxy's answer; reached that the node may have
// acted.
func (l *Link) once(ctx context.Context, n storage.Presence, how manner, method, path string, body []byte, reply any) (answered,
	reached bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, how.within)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, method, strings.TrimRight(n.ManagerURL, "/")+path, bytes.NewReader(body))
	if err != nil {
		return false, false, fmt.Errorf("make a request to storage proxy %s: %w", n.Proxy, err)
	}
	req.Header.Set(storage.Auth, storage.Key(l.cfg.Secret.Reveal(), n.Proxy, storage.ManagerKey))
	req.Header.Set("Accept", "application/json")
	if len(body) > 0 {
		req.Header.Set("Content-Type", "application/json")
	}
	resp, err := l.http.Do(req)
	if err != nil {
		return false, !unsent(err), l.silent(n, err)
	}
	defer resp.Body.Close()
	kind, _, _ := mime.ParseMediaType(resp.Header.Get("Content-Type"))
	// Results of many paths come with a status of their own when some or all failed.
	if resp.StatusCode/100 == 2 || resp.StatusCode == http.StatusUnprocessableEntity && kind == "application/json" {
		if err := decode(resp.Body, reply); err != nil {
			return false, true, l.silent(n, err)
		}
		return true, true, nil
	}
	err = problem(n, resp)
	return !fault.Is(err, fault.Unavailable), true, err
}

// unsent reports whether a request surely did not reach anybody.
func unsent(err error) bool {
	var op *net.OpError
	return errors.As(err, &op) && op.Op == "dial"
}

func (l *Link) silent(n storage.Presence, err error) error {
	kind := fault.Unavailable
	if errors.Is(err, context.DeadlineExceeded) {
		kind = fault.Timeout
	}
	return fault.New(kind, "storage proxy %s (node %s) does not answer", n.Proxy, n.Node).WithReason("storage-proxy-unavailable").
		WithNext("try again; if it lasts, look at the storage proxy").WithCause(err)
}

func decode(from io.Reader, reply any) error {
	text, err := io.ReadAll(io.LimitReader(from, maxReply+1))
	switch {
	case err != nil:
		return err
	case len(text) > maxReply:
		return fmt.Errorf("the answer is longer than %d bytes", maxReply)
	case reply == nil || len(bytes.TrimSpace(text)) == 0:
		return nil
	}
	return json.Unmarshal(text, reply)
}

// problem restores the fault that a proxy answered with.
func problem(n storage.Presence, resp *http.Response) error {
	text, _ := io.ReadAll(io.LimitReader(resp.Body, maxProblem))
	var p storage.Problem
	if json.Unmarshal(text, &p) != nil || p.Msg == "" {
		p = storage.Problem{Kind: kindOfStatus(resp.StatusCode).String(), Msg: fmt.Sprintf("storage proxy %s answered %s", n.Proxy, resp.Status)}
	}
	kind := fault.Internal
	for k := fault.Internal; k <= fault.Timeout; k++ {
		if k.String() == p.Kind {
			kind = k
		}
	}
	e := fault.New(kind, "%s", p.Msg).WithReason(p.Reason)
	e.Next = p.Next
	switch {
	case kind == fault.Unauthenticated:
		// It is this manager that the proxy does not know, not the user.
		e.Kind, e.Reason, e.Next = fault.Unavailable, "storage-proxy-error", "give manager and storage proxy the same secret"
	case p.Reason == "url-not-found":
		e.Kind, e.Reason = fault.Unavailable, "storage-proxy-error"
	case kind == fault.Internal && p.Reason == "":
		e.Reason = "storage-proxy-error"
	}
	return e
}

func kindOfStatus(status int) fault.Kind {
	switch status {
	case http.StatusNotFound:
		return fault.Unavailable // nobody of ours answers without a body
	case http.StatusConflict, http.StatusLocked:
		return fault.Conflict
	case http.StatusUnauthorized:
		return fault.Unauthenticated
	case http.StatusInsufficientStorage, http.StatusTooManyRequests:
		return fault.Exhausted
	case http.StatusBadGateway, http.StatusServiceUnavailable:
		return fault.Unavailable
	case http.StatusGatewayTimeout, http.StatusRequestTimeout:
		return fault.Timeout
	}
	if status/100 == 4 {
		return fault.Invalid
	}
	return fault.Internal
}
