package storetest

import (
	"bytes"
	"fmt"
	"net"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// Point is where a connection breaks.
type Point int

// The points, as seen from a statement.
const (
	// Before the server gets it.
	Before Point = iota
	// During its work: the server has got it and nobody waits for the answer.
	During
	// After the server has answered; the answer is lost.
	After
)

// Relay stands between a store and the test's database. It passes everything on until the test breaks it.
type Relay struct {
	t             testing.TB
	from          *pgx.ConnConfig
	network, addr string
	listener      net.Listener
	work          sync.WaitGroup

	mu      sync.Mutex
	refuses bool
	conns   map[*relayed]struct{}
	breaks  []planned
}

// planned is a break that has not come yet.
type planned struct {
	at    Point
	texts [][]byte
	then  func()
}

// relayed is one connection.
type relayed struct {
	near, far net.Conn
	// tail is the end of what was sent, seen are the texts of the first planned break that were sent; both belong to one goroutine.
	tail []byte
	seen int
	// lost, if set, is the break that comes with the next answer; it belongs to the relay's lock.
	lost *planned
}

// NewRelay makes a relay in front of a database of DSN; it ends with the test.
func NewRelay(t testing.TB, dsn string) *Relay {
	t.Helper()
	c, err := pgx.ParseConfig(dsn)
	if err != nil {
		t.Fatalf("read the address of the test's database: %v", err)
	}
	r := &Relay{t: t, from: c, conns: map[*relayed]struct{}{}}
	r.network, r.addr = pgconn.NetworkAddress(c.Host, c.Port)
	if r.listener, err = net.Listen("tcp", "127.0.0.1:0"); err != nil { //nolint:noctx // it ends with the test
		t.Fatal(err)
	}
	r.work.Go(func() {
		for {
			near, err := r.listener.Accept()
			if err != nil {
				return
			}
			r.work.Go(func() { r.serve(near) })
		}
	})
	t.Cleanup(func() {
		_ = r.listener.Close()
		r.Refuse(true)
		r.work.Wait()
	})
	return r
}

// DSN is the address of the database through the relay.
func (r *Relay) DSN() string {
	at := r.listener.Addr().(*net.TCPAddr)
	out := fmt.Sprintf("host=127.0.0.1 port=%d user='%s' dbname=%s sslmode=disable connect_timeout=60", at.Port, r.from.User, r.from.Database)
	if r.from.Password != "" {
		out += fmt.Sprintf(" password='%s'", r.from.Password)
	}
	return out
}

// Refuse breaks all connections and takes no new ones, as if the server were away, until it is called with false.
func (r *Relay) Refuse(on bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.refuses = on
	for c := range r.conns {
		if on {
			c.close()
		}
	}
}

// Break breaks the next connection, once, on which texts are sent one after the other, at the statement of the last one. then, if not
// nil, is called when that has happened. Several breaks come in the order of the calls.
func (r *Relay) Break(at Point, then func(), texts ...string) {
	p := planned{at: at, then: then}
	for _, text := range texts {
		p.texts = append(p.texts, []byte(text))
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.breaks = append(r.breaks, p)
}

// Broken reports whether all breaks have happened.
func (r *Relay) Broken() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.breaks) == 0
}

func (c *relayed) close() {
	_ = c.near.Close()
	_ = c.far.Close()
}

func (r *Relay) serve(near net.Conn) {
	defer near.Close()
	far, err := net.Dial(r.network, r.addr) //nolint:noctx // the server is on this machine
	if err != nil {
		return
	}
	c := &relayed{near: near, far: far}
	defer c.close()
	r.mu.Lock()
	refused := r.refuses
	r.conns[c] = struct{}{}
	r.mu.Unlock()
	defer func() {
		r.mu.Lock()
		delete(r.conns, c)
		r.mu.Unlock()
	}()
	if refused {
		return
	}
	var back sync.WaitGroup
	back.Go(func() {
		defer c.close()
		r.answers(c)
	})
	r.requests(c)
	c.close()
	back.Wait()
}

// cancelCode is in the first message of a connection that only asks the server to cancel a statement of another one, as pgx does when a
// connection breaks. The network of a broken connection does not carry it.
var cancelCode = []byte{4, 210, 22, 46}

// syncMessage ends what a client sends for a statement of the extended protocol.
var syncMessage = []byte{'S', 0, 0, 0, 4}

// requests passes on what the store sends.
func (r *Relay) requests(c *relayed) {
	buf := make([]byte, 64<<10)
	var p planned
	hit := false
	for first := true; ; first = false {
		n, err := c.near.Read(buf)
		if err != nil || first && n == 16 && bytes.Equal(buf[4:8], cancelCode) {
			return
		}
		if !hit || p.at != During {
			p, hit = r.hit(c, buf[:n])
		}
		if hit && p.at == Before {
			c.close()
			p.done()
			return
		}
		if _, err := c.far.Write(buf[:n]); err != nil {
			return
		}
		if hit && p.at == During && bytes.HasSuffix(buf[:n], syncMessage) {
			_ = c.near.Close()
			p.done()
			return
		}
	}
}

// hit finds the first planned break's texts in what was sent, and takes the break out of the plan when all are there.
func (r *Relay) hit(c *relayed, sent []byte) (planned, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.breaks) == 0 {
		return planned{}, false
	}
	p := r.breaks[0]
	all := append(c.tail, sent...)
	for c.seen < len(p.texts) {
		_, rest, found := bytes.Cut(all, p.texts[c.seen])
		if !found {
			c.tail = bytes.Clone(all[max(0, len(all)-len(p.texts[c.seen])+1):])
			return planned{}, false
		}
		all = rest
		c.seen++
	}
	c.tail, c.seen = nil, 0
	r.breaks = r.breaks[1:]
	if p.at == After {
		c.lost = &p
	}
	return p, true
}

func (p planned) done() {
	if p.then != nil {
		p.then()
	}
}

// answers passes on what the server sends.
func (r *Relay) answers(c *relayed) {
	buf := make([]byte, 64<<10)
	for {
		n, err := c.far.Read(buf)
		if err != nil {
			return
		}
		r.mu.Lock()
		lost := c.lost
		r.mu.Unlock()
		if lost != nil {
			c.close()
			lost.done()
			return
		}
		if _, err := c.near.Write(buf[:n]); err != nil {
			return
		}
	}
}
