package api

import (
	"context"
	"errors"
	"net"
	"net/http"
	"net/url"
	"strings"
	"sync/atomic"
	"syscall"
	"time"
)

const (
	// connectTries is how often every manager is tried with a request that may be sent again.
	connectTries = 3
	connectPause = 100 * time.Millisecond
	// maxManagers bounds the managers of a list.
	maxManagers = 16
)

// managers are the addresses of the managers of one cluster. The client stays with one of them as long as it answers.
type managers struct {
	list    []*url.URL
	present atomic.Int64
}

// newManagers reads the addresses, the first to be tried first.
func newManagers(endpoints []string) (*managers, error) {
	m := &managers{}
	for _, e := range endpoints {
		u, err := parseEndpoint(strings.TrimRight(e, "/"))
		if err != nil {
			return nil, err
		}
		m.list = append(m.list, u)
	}
	return m, nil
}

// attempts begins the attempts of one request. repeatable says that the request may be sent again after it may have arrived, because it
// changes nothing.
func (m *managers) attempts(repeatable bool) *attempts {
	return &attempts{managers: m, repeatable: repeatable, at: m.present.Load(), tries: 1}
}

// attempts are those to send one request.
type attempts struct {
	*managers
	repeatable bool
	at         int64 // the manager that is tried now
	tries      int
}

// base is the address of the manager that is tried now.
func (a *attempts) base() *url.URL { return a.list[a.at] }

// again reports whether the request may be sent again after err, and chooses where. It pauses when every manager has been tried.
//
// With one manager, nothing but a request that changes nothing and that nobody listened to is sent again.
func (a *attempts) again(ctx context.Context, err error) bool {
	alone := len(a.list) == 1
	if !a.repeatable && (alone || !Unsent(err)) || alone && !errors.Is(err, syscall.ECONNREFUSED) {
		a.leave()
		return false
	}
	a.leave()
	if a.tries == connectTries*len(a.list) {
		return false
	}
	if a.tries%len(a.list) == 0 {
		select {
		case <-ctx.Done():
			return false
		case <-time.After(connectPause << (a.tries/len(a.list) - 1)):
		}
	}
	a.tries++
	return true
}

// leave has this request, and the next ones of others, go to the next manager.
func (a *attempts) leave() {
	next := (a.at + 1) % int64(len(a.list))
	a.present.CompareAndSwap(a.at, next)
	a.at = next
}

// Unsent reports whether a request certainly did not reach anybody: there was no connection.
func Unsent(err error) bool {
	var op *net.OpError
	var dns *net.DNSError
	return errors.Is(err, syscall.ECONNREFUSED) || errors.As(err, &dns) || errors.As(err, &op) && op.Op == "dial"
}

// changesNothing reports whether a method only reads.
func changesNothing(method string) bool { return method == http.MethodGet || method == http.MethodHead }
