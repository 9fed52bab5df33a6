package webserver

import (
	"net/netip"
	"sync"

	"berth.dev/berth/internal/clientaddr"
)

// places counts the requests under way.
type places struct {
	all, each int

	mu    sync.Mutex
	taken int
	of    map[netip.Addr]int // none is kept at zero
}

// take takes a place; the caller calls leave. Without one it says whether the address has too many, or all together.
func (p *places) take(client netip.Addr) (leave func(), own, ok bool) {
	client = clientaddr.Network(client)
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.of[client] >= p.each {
		return nil, true, false
	}
	if p.taken >= p.all {
		return nil, false, false
	}
	if p.of == nil {
		p.of = map[netip.Addr]int{}
	}
	p.taken++
	p.of[client]++
	return func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.taken--
		if p.of[client]--; p.of[client] <= 0 {
			delete(p.of, client)
		}
	}, false, true
}
