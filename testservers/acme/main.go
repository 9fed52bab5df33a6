// Command acme is an ACME authority in memory, for tests of what asks one for certificates. It proves names by TLS-ALPN at a port
// of 127.0.0.1, because every name leads there. It speaks plain HTTP: a test puts its own TLS in front and says so with
// X-Forwarded-Proto.
//
//	acme PORT-OF-THE-TLS-LISTENER
//
// It prints its URL on a line of standard output, then the certificate of its root in PEM, then an empty line, and ends when its
// standard input does.
package main

import (
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"os"
	"strconv"

	"github.com/letsencrypt/pebble/v2/ca"
	"github.com/letsencrypt/pebble/v2/db"
	"github.com/letsencrypt/pebble/v2/va"
	"github.com/letsencrypt/pebble/v2/wfe"
	"github.com/miekg/dns"
)

func main() {
	if err := serve(os.Args[1:]); err != nil {
		log.Fatalln("acme:", err)
	}
}

func serve(args []string) error {
	if len(args) != 1 {
		return fmt.Errorf("usage: acme PORT")
	}
	port, err := strconv.Atoi(args[0])
	if err != nil {
		return fmt.Errorf("read the port: %w", err)
	}
	for name, value := range map[string]string{"PEBBLE_VA_NOSLEEP": "1", "PEBBLE_WFE_NONCEREJECT": "0"} {
		if err := os.Setenv(name, value); err != nil {
			return err
		}
	}
	names, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	quiet := log.New(io.Discard, "", 0)
	store := db.NewMemoryStore()
	issuer := ca.New(quiet, store, "", "ecdsa", 0, 1, map[string]ca.Profile{"default": {ValidityPeriod: 7776000}})
	front := wfe.New(quiet, store, va.New(quiet, 1, port, true, names.Addr().String(), store), issuer, nil, true, false, 1, 1)
	go func() {
		log.Fatalln("acme:", (&dns.Server{Listener: names, Handler: dns.HandlerFunc(hereForAll)}).ActivateAndServe())
	}()
	go func() { log.Fatalln("acme:", http.Serve(l, front.Handler())) }()
	fmt.Printf("http://%s\n%s\n", l.Addr(), issuer.GetRootCert(0).PEM())
	_, _ = io.Copy(io.Discard, os.Stdin) // the test is over
	return nil
}

// hereForAll answers that every name is at this machine.
func hereForAll(w dns.ResponseWriter, q *dns.Msg) {
	m := new(dns.Msg)
	m.SetReply(q)
	if q.Question[0].Qtype == dns.TypeA {
		m.Answer = append(m.Answer, &dns.A{
			Hdr: dns.RR_Header{Name: q.Question[0].Name, Rrtype: dns.TypeA, Class: dns.ClassINET}, A: net.IPv4(127, 0, 0, 1),
		})
	}
	_ = w.WriteMsg(m) // a client that left needs none
}
