package sshd

import (
	"net"
	"slices"
	"sync"
)

// room holds the places of connections. Who has logged in stays; when all places are taken, the one that has been trying to
// log in for the longest time gives way, so that nobody keeps others out by connecting alone.
type room struct {
	mu     sync.Mutex
	taken  int      // places, of those who log in as well
	trying []*place // oldest first
}

// place is one connection's. room.mu guards it.
type place struct {
	conn net.Conn
	lost bool // to another one
}

// enter takes a place; it fails when all are taken by connections that have logged in.
func (r *room) enter(conn net.Conn) (*place, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.taken >= maxConns {
		if len(r.trying) == 0 {
			return nil, false
		}
		oldest := r.trying[0]
		r.trying = slices.Delete(r.trying, 0, 1)
		oldest.lost = true
		_ = oldest.conn.Close() // its server sees that
		r.taken--
	}
	r.taken++
	p := &place{conn: conn}
	r.trying = append(r.trying, p)
	return p, true
}

// stay keeps a place for a connection that has logged in; it fails when the place was lost just before.
func (r *room) stay(p *place) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.trying = slices.DeleteFunc(r.trying, func(o *place) bool { return o == p })
	return !p.lost
}

// leave gives a place back.
func (r *room) leave(p *place) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.trying = slices.DeleteFunc(r.trying, func(o *place) bool { return o == p })
	if !p.lost {
		r.taken--
	}
}
