package api

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/url"
)

// LogsReply is the answer of GET /session/{s}/logs to those who want JSON.
type LogsReply struct {
	Result LogsText `json:"result"`
}

// LogsText is console output.
type LogsText struct {
	Logs string `json:"logs"`
}

// Logs returns the console output of a session so far; it works for ended sessions too.
// kernelID selects one container of a cluster session, "" the main one.
func (c *Client) Logs(ctx context.Context, session, kernelID string) (string, error) {
	var out LogsReply
	err := c.sessionCall(ctx, session, "logs", request{method: http.MethodGet, query: kernelQuery(kernelID)}, &out)
	return out.Result.Logs, err
}

// StreamLogs copies the console output to w, from its beginning; with follow it goes on
// until the container has ended and everything is written.
func (c *Client) StreamLogs(ctx context.Context, session, kernelID string, follow bool, w io.Writer) error {
	path, err := sessionPath("/session", session, "logs")
	if err != nil {
		return err
	}
	q := kernelQuery(kernelID)
	if follow {
		q.Set("follow", "true")
	}
	resp, err := c.send(ctx, request{method: http.MethodGet, path: path, query: q, accept: "text/plain"})
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if _, err := io.Copy(w, resp.Body); err != nil {
		if cause := context.Cause(ctx); cause != nil {
			return cause
		}
		return fmt.Errorf("read logs of session %s: %w", session, err)
	}
	return nil
}

func kernelQuery(kernelID string) url.Values {
	q := url.Values{}
	if kernelID != "" {
		q.Set("kernel_id", kernelID)
	}
	return q
}
