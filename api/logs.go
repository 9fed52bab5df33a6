package api

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"time"
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
	_, err := c.streamLogs(ctx, session, kernelID, follow, 0, w)
	return err
}

// streamLogs copies what comes after the first bytes and returns how much that was.
func (c *Client) streamLogs(ctx context.Context, session, kernelID string, follow bool, from int64, w io.Writer) (int64, error) {
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

// endLooks is how often a log that ended is asked for more while its session goes on: one of its containers may have ended alone.
const (
	endLooks = 5
	endPause = 300 * time.Millisecond
)

// FollowLogs copies the console output to w until the session has ended. When the manager goes away, it goes on where it was at the
// next one that answers; the outage bounds each time without an answer, but not the first contact. session is best an id: a name is lost
// when its session ends.
func (c *Client) FollowLogs(ctx context.Context, session, kernelID string, w io.Writer, o *Outage) error {
	at, quiet := int64(0), 0
	out := &writeErrors{w: w}
	for first := true; ; first = false {
		n, err := c.streamLogs(ctx, session, kernelID, true, at, out)
		at += n
		var over bool
		if err == nil {
			o.Over()
			// A manager that stops may end a reply in order. Only the session says whether it is over.
			var info SessionInfo
			if info, err = c.SessionInfo(ctx, session); err == nil {
				if quiet++; n > 0 {
					quiet = 0
				}
				over = Ended(info.Status) || quiet >= endLooks
			}
		}
		switch {
		case out.err != nil:
			return fmt.Errorf("write the log of session %s: %w", session, out.err)
		case over:
			return nil
		case err == nil:
			err = pause(ctx, endPause)
		case !first || n > 0:
			err = o.Wait(ctx, err)
		}
		if err != nil {
			return err
		}
	}
}

// writeErrors remembers that the reader of the output failed: trying again would not help.
type writeErrors struct {
	w   io.Writer
	err error
}

func (w *writeErrors) Write(p []byte) (int, error) {
	n, err := w.w.Write(p)
	if err != nil {
		w.err = err
	}
	return n, err
}

func kernelQuery(kernelID string) url.Values {
	q := url.Values{}
	if kernelID != "" {
		q.Set("kernel_id", kernelID)
	}
	return q
}
