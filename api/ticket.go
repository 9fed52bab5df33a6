package api

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
)

// Ticket lets its holder move one file of a folder: a URL of a storage proxy and a token. The token is a secret.
type Ticket struct {
	Token  string `json:"token"`
	URL    string `json:"url"`
	Upload string `json:"upload,omitempty"` // its name, which UploadRequest.Resume goes on with; an extension
}

// UploadRequest is the body of POST /folders/{v}/request-upload.
type UploadRequest struct {
	Path   string `json:"path"`
	Size   int64  `json:"size"`
	Resume string `json:"resume,omitempty"`
}

// DownloadRequest is the body of POST /folders/{v}/request-download; Archive asks for a directory as one file.
type DownloadRequest struct {
	Path    string `json:"path"`
	Archive bool   `json:"archive"`
}

// ErrTicket is a ticket that leads nowhere.
var ErrTicket = errors.New("the manager sent no usable address of a storage proxy")

// RequestUpload begins the upload of one file of size bytes; an empty file is there with the answer.
func (c *Client) RequestUpload(ctx context.Context, to FolderPath, size int64) (Ticket, error) {
	return c.ticket(ctx, to, "request-upload", UploadRequest{Path: to.Clean(), Size: size})
}

// RequestDownload asks for a ticket that reads one file.
func (c *Client) RequestDownload(ctx context.Context, from FolderPath) (Ticket, error) {
	return c.ticket(ctx, from, "request-download", DownloadRequest{Path: from.Clean()})
}

func (c *Client) ticket(ctx context.Context, at FolderPath, verb string, body any) (Ticket, error) {
	var t Ticket
	if err := CheckFolderPath(at.Path); err != nil {
		return t, err
	}
	err := c.folderCall(ctx, at.Folder, verb, request{method: http.MethodPost, json: body}, &t)
	if err == nil {
		_, err = t.address()
	}
	return t, err
}

func (t Ticket) address() (string, error) {
	u, err := url.Parse(t.URL)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" || t.Token == "" {
		return "", ErrTicket
	}
	q := u.Query()
	q.Set("token", t.Token)
	u.RawQuery = q.Encode()
	return u.String(), nil
}

// Host is the scheme and address of the storage proxy.
func (t Ticket) Host() string {
	if u, err := url.Parse(t.URL); err == nil {
		return u.Scheme + "://" + u.Host
	}
	return "its address"
}

// Redeem sends a request to a storage proxy by a ticket alone, without the keypair; the caller closes the body.
// A body has exactly length bytes. Every status but 2xx is an *Error. op stands for the request in errors, since its
// URL is secret.
func (c *Client) Redeem(
	ctx context.Context, method, op string, t Ticket, header http.Header, body io.Reader, length int64,
) (*http.Response, error) {
	address, err := t.address()
	if err != nil {
		return nil, err
	}
	if body != nil && length == 0 {
		body = http.NoBody
	}
	req, err := http.NewRequestWithContext(ctx, method, address, body)
	if err != nil {
		return nil, ErrTicket
	}
	for k, v := range header {
		req.Header[k] = v
	}
	req.Header.Set("User-Agent", c.agent)
	if body != nil {
		req.ContentLength = length
	}
	resp, err := c.http.Do(req)
	if err != nil {
		if cause := context.Cause(ctx); cause != nil {
			return nil, cause
		}
		return nil, fmt.Errorf("reach the storage proxy at %s: %w", t.Host(), bare(err))
	}
	if resp.StatusCode < 200 || resp.StatusCode > 299 {
		defer drain(resp)
		return nil, readProblem(op, resp.StatusCode, resp.Body)
	}
	return resp, nil
}
