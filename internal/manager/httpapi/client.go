package httpapi

import (
	"net/http"
	"net/netip"

	"berth.dev/berth/internal/clientaddr"
)

// client is the address of whoever sent a request: the other end of the connection, or whom a trusted proxy there speaks for. It is
// the zero address when there is none, as on a local socket.
func (a *API) client(r *http.Request) netip.Addr {
	return a.trusted.Client(clientaddr.Parse(r.RemoteAddr), r.Header.Values(clientaddr.ForwardedFor))
}

// clientText is client for people, logs and counters.
func (a *API) clientText(r *http.Request) string {
	if ip := a.client(r); ip.IsValid() {
		return ip.String()
	}
	return r.RemoteAddr
}
