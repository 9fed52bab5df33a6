package transfer

import (
	"net"
	"net/http"
)

// ConnOf is the connection of a request.
func ConnOf(r *http.Request) *net.TCPConn { return connOf(r) }
