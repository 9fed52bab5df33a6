// Package follow holds what outlives a manager: logs and executions that go on where they were at the next manager that answers.
package follow

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"syscall"
	"time"

	"github.com/coder/websocket"

	"berth.dev/berth/api"
	"berth.dev/berth/api/endpoint"
)

// Outage is the patience of a client whose manager does not answer: it tries again for a while and tells its user. The zero value has no
// patience; nil is the same. It is used by one goroutine at a time.
type Outage struct {
	// For bounds the time without an answer.
	For time.Duration
	// Tell is called when an outage begins, and with a nil error when it is over; nil tells nobody.
	Tell func(err error)
	// Pause is the first pause between two tries; it doubles up to maxPause. 0 means firstPause.
	Pause time.Duration

	since time.Time // zero: there is none
	next  time.Duration
}

const (
	firstPause = 250 * time.Millisecond
	maxPause   = 5 * time.Second
)

// Wait pauses before the next try. It returns the error itself when trying again would be of no use, or its time is over.
func (o *Outage) Wait(ctx context.Context, err error) error {
	if o == nil || o.For <= 0 || ctx.Err() != nil || !Passing(err) {
		return err
	}
	now := time.Now()
	if o.since.IsZero() {
		if o.since, o.next = now, o.Pause; o.next <= 0 {
			o.next = firstPause
		}
		if o.Tell != nil {
			o.Tell(err)
		}
	}
	if now.Sub(o.since) >= o.For {
		return fmt.Errorf("gave up after %s without an answer: %w", o.For, err)
	}
	length := o.next
	o.next = min(2*o.next, maxPause)
	return pause(ctx, length)
}

// pause waits, or returns why ctx ended.
func pause(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-t.C:
		return nil
	}
}

// Over notes that there was an answer.
func (o *Outage) Over() {
	if o == nil || o.since.IsZero() {
		return
	}
	o.since = time.Time{}
	if o.Tell != nil {
		o.Tell(nil)
	}
}

// Unreachable reports whether nobody listens at the manager's address, so that no request arrived there.
func Unreachable(err error) bool { return endpoint.Unsent(err) }

// Passing reports whether an error may pass by itself: the manager is away, restarts or is overloaded, or a connection broke.
func Passing(err error) bool {
	var problem *api.Error
	if errors.As(err, &problem) {
		switch problem.Status {
		case http.StatusTooManyRequests, http.StatusBadGateway, http.StatusServiceUnavailable, http.StatusGatewayTimeout:
			return true
		}
		return false
	}
	var op *net.OpError
	var dns *net.DNSError
	switch {
	case errors.Is(err, errRestarting), errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF), errors.As(err, &op), errors.As(err, &dns),
		errors.Is(err, syscall.ECONNREFUSED), errors.Is(err, syscall.ECONNRESET), errors.Is(err, syscall.EPIPE):
		return true
	}
	switch websocket.CloseStatus(err) {
	case websocket.StatusGoingAway, websocket.StatusServiceRestart, websocket.StatusTryAgainLater, websocket.StatusAbnormalClosure:
		return true
	}
	return false
}
