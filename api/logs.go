package api

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
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
	_, err := c.StreamLogsFrom(ctx, session, kernelID, follow, 0, w)
	return err
}

// StreamLogsFrom copies what comes after the first bytes and returns how much that was.
func (c *Client) StreamLogsFrom(ctx context.Context, session, kernelID string, follow bool, from int64, w io.Writer) (int64, error) {
	path, err := sessionPath("/session", session, "logs")
	if err != nil {
		return 0, err
	}
	q := kernelQuery(kernelID)
	if follow {
		q.Set("follow", "true")
	}
	if from > 0 {
		q.Set("from", strconv.FormatInt(from, 10))
	}
	resp, err := c.send(ctx, request{method: http.MethodGet, path: path, query: q, accept: "text/plain"})
	if err != nil {
		return 0, err
	}
	defer resp.Body.Close()
	n, err := io.Copy(w, resp.Body)
	if err != nil {
		if cause := context.Cause(ctx); cause != nil {
			return n, cause
		}
		return n, fmt.Errorf("read logs of session %s: %w", session, err)
	}
	return n, nil
}

func kernelQuery(kernelID string) url.Values {
	q := url.Values{}
	if kernelID != "" {
		q.Set("kernel_id", kernelID)
	}
	return q
}
