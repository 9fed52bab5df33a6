// Package syslog sends the audit log to a syslog receiver, in the format of RFC 5424 with the entry as JSON. How far it got is a row of the
// database: nothing is lost when managers or the receiver restart, and after a failure entries may come twice, with the same id.
package syslog

import (
	"net"
	"net/url"
	"path/filepath"
	"strings"

	"berth.dev/berth/internal/fault"
)

// Config is the receiver.
type Config struct {
	// Address is udp://HOST:PORT, tcp://HOST:PORT, tls://HOST:PORT or unix:///PATH (datagrams, as /dev/log takes them); empty: none.
	Address string
	// CA is a file of PEM certificates that verify a receiver by TLS; empty: the system's.
	CA string `config:"ca"`
	// Facility is the number of the syslog facility; 13 is the audit log's.
	Facility int
	// MaxMessage bounds one message in bytes. Of an entry that is longer the changed rows are left out.
	MaxMessage int
}

const (
	leastMessage = 4 << 10
	mostMessage  = 1 << 20
	// mostDatagram is what a datagram of UDP holds.
	mostDatagram = 60 << 10
)

// DefaultConfig returns the documented defaults.
func DefaultConfig() Config { return Config{Facility: 13, MaxMessage: 60 << 10} }

// Validate reports the first value that cannot be used.
func (c Config) Validate() error {
	if c.Facility < 0 || c.Facility > 23 {
		return fault.Invalidf("audit_syslog.facility is %d", c.Facility).WithNext("choose between 0 and 23")
	}
	if c.MaxMessage < leastMessage || c.MaxMessage > mostMessage {
		return fault.Invalidf("audit_syslog.max_message is %d", c.MaxMessage).
			WithNext("choose between %d and %d bytes", leastMessage, mostMessage)
	}
	if c.Address == "" {
		if c.CA != "" {
			return fault.Invalidf("audit_syslog.ca is set without an address").WithNext("set audit_syslog.address to tls://HOST:PORT")
		}
		return nil
	}
	scheme, place, err := c.split()
	if err != nil {
		return err
	}
	switch {
	case scheme != "tls" && c.CA != "":
		return fault.Invalidf("audit_syslog.ca is for receivers by TLS").WithNext("set audit_syslog.address to tls://%s, or remove it", place)
	case scheme == "udp" && c.MaxMessage > mostDatagram:
		return fault.Invalidf("audit_syslog.max_message is %d, more than a datagram holds", c.MaxMessage).
			WithNext("choose at most %d, or tcp://", mostDatagram)
	}
	return nil
}

// split returns the kind of the receiver and its host:port or path.
func (c Config) split() (scheme, place string, err error) {
	bad := func() (string, string, error) {
		return "", "", fault.Invalidf("audit_syslog.address %q is no receiver", c.Address).
			WithNext("write udp://HOST:PORT, tcp://HOST:PORT, tls://HOST:PORT or unix:///PATH")
	}
	u, err := url.Parse(c.Address)
	if err != nil || u.User != nil || u.RawQuery != "" || u.Fragment != "" {
		return bad()
	}
	switch u.Scheme {
	case "udp", "tcp", "tls":
		host, port, err := net.SplitHostPort(u.Host)
		if err != nil || host == "" || port == "" || strings.Trim(u.Path, "/") != "" {
			return bad()
		}
		return u.Scheme, u.Host, nil
	case "unix":
		if u.Host != "" || !filepath.IsAbs(u.Path) {
			return bad()
		}
		return u.Scheme, u.Path, nil
	}
	return bad()
}
