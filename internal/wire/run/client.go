package run

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"berth.dev/berth/internal/fault"
)

// Options say how a Client reaches its runner: either Dial or Transport is set.
type Options struct {
	// Dial connects to the runner's socket.
	Dial func(ctx context.Context) (net.Conn, error)
	// Transport carries requests instead, for example over the agent's reversed connection.
	Transport http.RoundTripper
	// BaseURL is put before every route, with a path prefix when there is one, such as
	// http://agent/kernels/ID/runner. Empty means http://runner.
	BaseURL string
	// Token proves the caller; the manager leaves it empty because the agent adds it.
	Token string
}

// Client calls one runner. It is safe for concurrent use. Errors are faults: what the
// runner answered, or Unavailable when it could not be reached.
type Client struct {
	http  *http.Client
	base  string
	token string
	close func()
}

// NewClient returns a client; nothing is dialed yet.
func NewClient(o Options) *Client {
	c := &Client{base: strings.TrimSuffix(o.BaseURL, "/"), token: o.Token, close: func() {}}
	if c.base == "" {
		c.base = "http://runner"
	}
	rt := o.Transport
	if rt == nil {
		t := &http.Transport{
			DialContext:         func(ctx context.Context, _, _ string) (net.Conn, error) { return o.Dial(ctx) },
			MaxIdleConnsPerHost: 4,
			IdleConnTimeout:     30 * time.Second,
			DisableCompression:  true,
		}
		rt, c.close = t, t.CloseIdleConnections
	}
	c.http = &http.Client{Transport: rt, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	return c
}

// UnixDialer dials a socket file.
func UnixDialer(path string) func(ctx context.Context) (net.Conn, error) {
	return func(ctx context.Context) (net.Conn, error) {
		var d net.Dialer
		return d.DialContext(ctx, "unix", path)
	}
}

// Close drops idle connections.
func (c *Client) Close() { c.close() }

// Hello asks who is there.
func (c *Client) Hello(ctx context.Context) (Hello, error) {
	var out Hello
	err := c.call(ctx, http.MethodGet, PathHello, nil, &out)
	return out, err
}

// Step starts, answers or continues a run and waits for what happens; see StepRequest.
func (c *Client) Step(ctx context.Context, runID string, req StepRequest) (StepResult, error) {
	var out StepResult
	err := c.call(ctx, http.MethodPost, strings.Replace(PathStep, "{id}", url.PathEscape(runID), 1), req, &out)
	return out, err
}

// Interrupt sends the running code an interrupt; see InterruptRequest.
func (c *Client) Interrupt(ctx context.Context, runID string) (InterruptResult, error) {
	var out InterruptResult
	err := c.call(ctx, http.MethodPost, PathInterrupt, InterruptRequest{RunID: runID}, &out)
	return out, err
}

// Notice shows a text on the session's terminals.
func (c *Client) Notice(ctx context.Context, text string) error {
	return c.call(ctx, http.MethodPost, PathNotice, NoticeRequest{Text: text}, &NoticeResult{})
}

// SetKeys tells the runner which SSH keys log in; see KeysRequest.
func (c *Client) SetKeys(ctx context.Context, keys []string) (KeysResult, error) {
	var out KeysResult
	err := c.call(ctx, http.MethodPost, PathKeys, KeysRequest{Keys: keys}, &out)
	return out, err
}

// SetPeers tells the runner who the kernels of its session are; see PeersRequest.
func (c *Client) SetPeers(ctx context.Context, req PeersRequest) (PeersResult, error) {
	var out PeersResult
	err := c.call(ctx, http.MethodPost, PathPeers, req, &out)
	return out, err
}

// Complete asks for completions at a cursor.
func (c *Client) Complete(ctx context.Context, req CompleteRequest) (CompleteResult, error) {
	var out CompleteResult
	err := c.call(ctx, http.MethodPost, PathComplete, req, &out)
	return out, err
}

// Files lists a directory below the user's home, or one file.
func (c *Client) Files(ctx context.Context, path string) (Listing, error) {
	var out Listing
	err := c.call(ctx, http.MethodGet, PathFiles+"?"+url.Values{"path": {path}}.Encode(), nil, &out)
	return out, err
}

// Batch asks how far the command of a batch session is.
func (c *Client) Batch(ctx context.Context) (BatchState, error) {
	var out BatchState
	err := c.call(ctx, http.MethodGet, PathBatch, nil, &out)
	return out, err
}

// Shutdown tells the runner to end everything and to exit.
func (c *Client) Shutdown(ctx context.Context, grace time.Duration) error {
	return c.call(ctx, http.MethodPost, PathShutdown, ShutdownRequest{GraceMS: int(grace.Milliseconds())}, nil)
}

// ContentTar is the content type of a tar stream.
const ContentTar = "application/x-tar"

// Upload writes files below the user's home. The body is a tar stream (ContentTar) or a
// multipart form whose parts carry relative paths as their file names; contentType says which.
func (c *Client) Upload(ctx context.Context, contentType string, body io.Reader) (UploadResult, error) {
	req, err := c.request(ctx, http.MethodPost, PathUpload, body)
	if err != nil {
		return UploadResult{}, err
	}
	req.Header.Set("Content-Type", contentType)
	var out UploadResult
	err = c.do(req, &out)
	return out, err
}

// Download returns a tar stream of the given paths below the user's home; each file or
// directory stands under its base name. The caller closes it.
func (c *Client) Download(ctx context.Context, paths ...string) (io.ReadCloser, error) {
	req, err := c.request(ctx, http.MethodGet, PathDownload+"?"+url.Values{"path": paths}.Encode(), nil)
	if err != nil {
		return nil, err
	}
	resp, err := c.send(req)
	if err != nil {
		return nil, err
	}
	return resp.Body, nil
}

// PTY attaches to a terminal of the session, starting it when it is not there.
func (c *Client) PTY(ctx context.Context, start PTYStart) (*Stream, error) {
	return c.stream(ctx, PathPTY, JSONFrame(FrameStart, start))
}

// Exec runs a command in the session as its user. The stream's end ends the command.
func (c *Client) Exec(ctx context.Context, start ExecStart) (*Stream, error) {
	return c.stream(ctx, PathExec, JSONFrame(FrameStart, start))
}

func (c *Client) request(ctx context.Context, method, path string, body io.Reader) (*http.Request, error) {
	req, err := http.NewRequestWithContext(ctx, method, c.base+path, body)
	if err != nil {
		return nil, fault.Invalidf("call the runner").WithCause(err)
	}
	req.Header.Set(HeaderVersion, fmt.Sprint(Version))
	if c.token != "" {
		req.Header.Set("Authorization", "Bearer "+c.token)
	}
	return req, nil
}

// send returns only 2xx replies.
func (c *Client) send(req *http.Request) (*http.Response, error) {
	resp, err := c.http.Do(req)
	if err != nil {
		if ctx := req.Context(); ctx.Err() != nil {
			return nil, fmt.Errorf("call the runner: %w", context.Cause(ctx))
		}
		return nil, fault.Unavailablef("the runner does not answer").WithCause(err)
	}
	if resp.StatusCode/100 == 2 {
		return resp, nil
	}
	defer resp.Body.Close()
	body, _ := io.ReadAll(io.LimitReader(resp.Body, 64<<10)) // what arrived is all there is to report
	return nil, FaultOf(resp.StatusCode, body)
}

func (c *Client) do(req *http.Request, out any) error {
	resp, err := c.send(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if out == nil {
		_, err = io.Copy(io.Discard, io.LimitReader(resp.Body, 64<<10))
	} else {
		// The runner lives among the session's programs: one of them may answer in its place, without end.
		err = json.NewDecoder(io.LimitReader(resp.Body, MaxReply)).Decode(out)
		_, _ = io.Copy(io.Discard, io.LimitReader(resp.Body, 64<<10)) // lets the connection be used again
	}
	if err != nil {
		return fault.Unavailablef("read the runner's answer").WithCause(err)
	}
	return nil
}

func (c *Client) call(ctx context.Context, method, path string, in, out any) error {
	var body io.Reader
	if in != nil {
		b, err := json.Marshal(in)
		if err != nil {
			return fault.Invalidf("call the runner").WithCause(err)
		}
		body = bytes.NewReader(b)
	}
	req, err := c.request(ctx, method, path, body)
	if err != nil {
		return err
	}
	if in != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	return c.do(req, out)
}

// Apps lists the apps of the session.
func (c *Client) Apps(ctx context.Context) (AppList, error) {
	var out AppList
	err := c.call(ctx, http.MethodGet, PathApps, nil, &out)
	return out, err
}

// StartApp starts an app and waits until it answers; see AppStartRequest.
func (c *Client) StartApp(ctx context.Context, name string, req AppStartRequest) (AppStartResult, error) {
	var out AppStartResult
	err := c.call(ctx, http.MethodPost, strings.Replace(PathAppStart, "{name}", url.PathEscape(name), 1), req, &out)
	return out, err
}

// StopApp ends an app; one that does not run is left as it is.
func (c *Client) StopApp(ctx context.Context, name string) (App, error) {
	var out App
	err := c.call(ctx, http.MethodPost, strings.Replace(PathAppStop, "{name}", url.PathEscape(name), 1), struct{}{}, &out)
	return out, err
}

// AppLog returns at most tail bytes of the end of what an app wrote; 0 means as much as the runner likes.
func (c *Client) AppLog(ctx context.Context, name string, tail int) ([]byte, error) {
	path := strings.Replace(PathAppLog, "{name}", url.PathEscape(name), 1)
	if tail > 0 {
		path += "?tail=" + strconv.Itoa(tail)
	}
	req, err := c.request(ctx, http.MethodGet, path, nil)
	if err != nil {
		return nil, err
	}
	resp, err := c.send(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(io.LimitReader(resp.Body, MaxRequest))
	if err != nil {
		return nil, fault.Unavailablef("read the log of app %s", name).WithCause(err)
	}
	return b, nil
}
