package certs

import (
	"fmt"
	"net"
	"net/url"
	"os"
	"strings"

	"berth.dev/berth/internal/chassis"
	"berth.dev/berth/internal/fault"

	"log/slog"
)

// Config says how a server gets its certificate: in one of three ways at most, or not at all.
type Config struct {
	// Cert and Key are PEM files, read again when they change.
	Cert string
	Key  string
	// Generated makes an authority and certificates of its own. Clients pin the authority's fingerprint.
	Generated bool
	// Names are the host names and addresses that clients use, besides those that the server finds out itself. ACME needs one.
	Names []string
	ACME  ACMEConfig `config:"acme"`
}

// ACMEConfig gets certificates for Names from an ACME authority.
type ACMEConfig struct {
	Enabled bool
	// Email is told when something is wrong with the certificates. Directory is the authority's URL; empty is Let's Encrypt.
	Email     string
	Directory string
	// HTTPListen serves port 80 for the authority's questions; empty for none.
	HTTPListen string `config:"http_listen"`
}

// On reports whether the server speaks TLS.
func (c Config) On() bool { return c.Cert != "" || c.Generated || c.ACME.Enabled }

// Validate reports the first value that cannot be used; section is the name of the settings.
func (c Config) Validate(section string) error {
	if (c.Cert == "") != (c.Key == "") {
		return fault.Invalidf("%s has a certificate or a key alone", section).WithNext("set both cert and key, or neither")
	}
	ways := 0
	for _, on := range []bool{c.Cert != "", c.Generated, c.ACME.Enabled} {
		if on {
			ways++
		}
	}
	if ways > 1 {
		return fault.Invalidf("%s says more than one way to a certificate", section).
			WithNext("keep one of cert and key, generated, and acme.enabled")
	}
	for _, name := range c.Names {
		if name == "" || net.ParseIP(name) == nil && strings.ContainsAny(name, "/:@?#[]* ") {
			return fault.Invalidf("%s.names: %q is no host name or address", section, name).WithNext("write names such as berth.example.org")
		}
	}
	if !c.ACME.Enabled {
		return nil
	}
	if len(c.Names) == 0 || net.ParseIP(c.Names[0]) != nil || !strings.Contains(c.Names[0], ".") {
		return fault.Invalidf("%s.acme needs a public name", section).
			WithNext("set %s.names to names that lead to this host from everywhere", section)
	}
	if d, err := url.Parse(c.ACME.Directory); c.ACME.Directory != "" && (err != nil || d.Scheme != "https" || d.Host == "") {
		return fault.Invalidf("%s.acme.directory %q is no https address", section, c.ACME.Directory).
			WithNext("write the authority's directory URL")
	}
	return nil
}

// Open prepares the certificate of a server with its files in dir; found are names that the server found out itself. It returns nil
// when the server speaks no TLS.
func (c Config) Open(section, dir string, found []string, clock chassis.Clock, log *slog.Logger) (*Source, error) {
	if c.On() {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return nil, fmt.Errorf("make the directory of certificates: %w", err)
		}
	}
	switch {
	case c.Cert != "":
		return Files(section, c.Cert, c.Key, clock, log)
	case c.Generated:
		return Generated(dir, append(found, c.Names...), clock, log)
	case c.ACME.Enabled:
		ours := map[string]bool{}
		for _, name := range c.Names {
			ours[strings.ToLower(name)] = true
		}
		return ACME(Authority{Directory: c.ACME.Directory, Email: c.ACME.Email, Dir: dir}, func(host string) bool { return ours[host] },
			clock, log), nil
	}
	return nil, nil
}
