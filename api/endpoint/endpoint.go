// Package endpoint reads the addresses of the managers of one cluster, and chooses which of them a request is sent to.
package endpoint

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"time"
)

const (
	// connectTries is how often every manager is tried with a request that may be sent again.
	connectTries = 3
	connectPause = 100 * time.Millisecond
	// Max bounds the managers of a list.
	Max = 16
)

// Parse reads the address of one manager.
func Parse(text string) (*url.URL, error) {
	u, err := url.Parse(text)
	if err != nil {
		return nil, fmt.Errorf("read endpoint %q: %w", text, err)
	}
	if u.Scheme != "http" && u.Scheme != "https" || u.Host == "" || u.RawQuery != "" || u.Fragment != "" || u.User != nil {
		return nil, fmt.Errorf("endpoint %q is not of the form http://host:port or https://host:port", text)
	}
	return u, nil
}

// Split reads a comma-separated list of addresses.
func Split(list string) (first string, others []string) {
	for e := range strings.SplitSeq(list, ",") {
		switch e = strings.TrimRight(strings.TrimSpace(e), "/"); {
		case e == "" || e == first || slices.Contains(others, e):
		case first == "":
			first = e
		default:
			others = append(others, e)
		}
	}
	return first, others
}

// Managers are the addresses of the managers of one cluster. The client stays with one of them as long as it answers.
type Managers struct {
	list    []*url.URL
	present atomic.Int64
}

// New reads the addresses, the first to be tried first.
func New(addresses []string) (*Managers, error) {
	m := &Managers{}
	for _, e := range addresses {
		u, err := Parse(strings.TrimRight(e, "/"))
		if err != nil {
			return nil, err
		}
		m.list = append(m.list, u)
	}
	return m, nil
}

// Attempts begins the attempts of one request. repeatable says that the request may be sent again after it may have arrived, because it
// changes nothing.
func (m *Managers) Attempts(repeatable bool) *Attempts {
	return &Attempts{managers: m, repeatable: repeatable, at: m.present.Load(), tries: 1}
}

// Attempts are those to send one request.
type Attempts struct {
	managers   *Managers
	repeatable bool
	at         int64 // the manager that is tried now
	tries      int
}

// Base is the address of the manager that is tried now.
func (a *Attempts) Base() *url.URL { return a.managers.list[a.at] }

// Again reports whether the request may be sent again after err, and chooses where. It pauses when every manager has been tried.
//
// With one manager, nothing but a request that changes nothing and that nobody listened to is sent again.
func (a *Attempts) Again(ctx context.Context, err error) bool {
	alone := len(a.managers.list) == 1
	if !a.repeatable && (alone || !Unsent(err)) || alone && !errors.Is(err, syscall.ECONNREFUSED) {
		a.leave()
		return false
	}
	a.leave()
	if a.tries == connectTries*len(a.managers.list) {
		return false
	}
	if a.tries%len(a.managers.list) == 0 {
		select {
		case <-ctx.Done():
			return false
		case <-time.After(connectPause << (a.tries/len(a.managers.list) - 1)):
		}
	}
	a.tries++
	return true
}

// leave has this request, and the next ones of others, go to the next manager.
func (a *Attempts) leave() {
	next := (a.at + 1) % int64(len(a.managers.list))
	a.managers.present.CompareAndSwap(a.at, next)
	a.at = next
}

// Unsent reports whether a request certainly did not reach anybody: there was no connection.
func Unsent(err error) bool {
	var op *net.OpError
	var dns *net.DNSError
	return errors.Is(err, syscall.ECONNREFUSED) || errors.As(err, &dns) || errors.As(err, &op) && op.Op == "dial"
}

// ChangesNothing reports whether a method only reads.
func ChangesNothing(method string) bool { return method == http.MethodGet || method == http.MethodHead }
