// Package webserver is the role that browsers and clients in session mode reach: it turns logins by password into cookies, signs the
// requests of who is logged in and passes them to the managers, and serves the files of a web interface. It keeps nothing: logins are the
// managers', and what it knows of them is forgotten after a second.
package webserver

import (
	"net"
	"net/url"
	"path/filepath"
	"strings"
	"time"

	"berth.dev/berth/internal/certs"
	"berth.dev/berth/internal/clientaddr"
	"berth.dev/berth/internal/fault"
)

// Config is a web server's configuration. See DefaultConfig for the defaults.
type Config struct {
	// Listen is host:port; empty turns the web server of `berth up` off.
	Listen string
	// URL is how browsers reach the server, scheme://host[:port]; empty means as each request says. Behind a reverse proxy set it.
	URL string `config:"url"`
	// Managers are the addresses of the managers' API, such as https://10.0.0.1:8081. In `berth up` it is the one of the process.
	// Their manager.trusted_proxies must name this server, else they take it for the client of everybody.
	Managers []string
	// CAFingerprint pins the certificate authority of the managers; empty means that the system's authorities count.
	CAFingerprint string `config:"ca_fingerprint"`
	// StateDir holds certificates that the server makes or gets itself.
	StateDir string
	TLS      certs.Config `config:"tls"`
	// HSTS tells browsers that come by TLS to reach the host name by TLS alone for a year, at every port of it.
	HSTS bool `config:"hsts"`
	// TrustedProxies are the addresses or prefixes of reverse proxies in front whose X-Forwarded-For and -Proto are believed.
	TrustedProxies []string
	// Domain is the domain of the users who log in here.
	Domain string
	// StaticDir holds the files of a web interface, such as the bundle of the official one. Empty: the console is served.
	StaticDir string
	// UIFile is a TOML file whose sections and values go into /config.toml, which web interfaces read.
	UIFile string `config:"ui_file"`
	// Policy replaces the Content-Security-Policy of the static index.html; {{nonce}} stands for the nonce. "off" sends none.
	Policy string
	// Origins are those of web interfaces elsewhere (https://host[:port]) whose pages may use this server with the user's cookie.
	Origins []string
	Limits  LimitsConfig
}

// LimitsConfig bounds what clients may do.
type LimitsConfig struct {
	// Requests is how many requests may be under way, PerAddress how many from one address (of IPv6, the /64 counts).
	Requests   int
	PerAddress int
	// BodyBytes bounds one request's body on its way to a manager.
	BodyBytes int64
	// StallTimeout ends transfers that do not move.
	StallTimeout time.Duration
}

// DefaultConfig returns the defaults: on this machine alone, with no files.
func DefaultConfig() Config {
	return Config{
		Listen: "127.0.0.1:8090", Managers: []string{"http://127.0.0.1:8081"}, StateDir: "/var/lib/berth/webserver", Domain: "default",
		Limits: LimitsConfig{Requests: 4096, PerAddress: 512, BodyBytes: 8 << 30, StallTimeout: time.Minute},
	}
}

// Complete reports what a web server of its own lacks although Validate is content.
func (c Config) Complete() error {
	if c.Listen == "" {
		return fault.Invalidf("webserver.listen is not set").WithNext("set it to host:port, for example 0.0.0.0:443")
	}
	if len(c.Managers) == 0 {
		return fault.Invalidf("webserver.managers is empty").
			WithNext("set it to the managers' API, a list such as [\"https://10.0.0.1:8081\"]")
	}
	return nil
}

// maxManagers bounds the managers that one request tries.
const maxManagers = 16

// Validate reports the first value that cannot be used. Without an address to listen on there is no web server.
func (c Config) Validate() error {
	if c.Listen == "" {
		return nil
	}
	if _, port, err := net.SplitHostPort(c.Listen); err != nil || port == "" {
		return fault.Invalidf("webserver.listen %q is no address", c.Listen).WithNext("set it to host:port, for example 0.0.0.0:443")
	}
	if c.URL != "" && !isOrigin(c.URL) {
		return fault.Invalidf("webserver.url %q is no address", c.URL).WithNext("set it to https://host[:port], without a path")
	}
	if len(c.Managers) > maxManagers {
		return fault.Invalidf("webserver.managers names %d managers", len(c.Managers)).WithNext("name %d at most", maxManagers)
	}
	for _, m := range c.Managers {
		if !isOrigin(m) {
			return fault.Invalidf("webserver.managers: %q is no address", m).WithNext("write http:// or https://host:port")
		}
	}
	for _, o := range c.Origins {
		if !isOrigin(o) {
			return fault.Invalidf("webserver.origins: %q is no origin", o).WithNext("write https://host[:port], without a path")
		}
	}
	for key, path := range map[string]string{"state_dir": c.StateDir, "static_dir": c.StaticDir, "ui_file": c.UIFile} {
		if path != "" && !filepath.IsAbs(path) {
			return fault.Invalidf("webserver.%s %q is not an absolute path", key, path).WithNext("write the whole path")
		}
	}
	if err := c.TLS.Validate("webserver.tls"); err != nil {
		return err
	}
	if c.TLS.On() && c.StateDir == "" {
		return fault.Invalidf("webserver.state_dir is empty").WithNext("set it to a directory such as /var/lib/berth/webserver")
	}
	if c.HSTS && (!c.TLS.On() || c.TLS.Generated) && !strings.HasPrefix(c.URL, "https://") {
		return fault.Invalidf("webserver.hsts needs a certificate that browsers trust").
			WithNext("set webserver.tls.cert and .key, or webserver.tls.acme, or webserver.url to the https:// address of the proxy in front")
	}
	if c.Domain == "" || len(c.Domain) > 64 {
		return fault.Invalidf("webserver.domain is %q", c.Domain).WithNext("name the domain of the users, for example default")
	}
	if _, err := c.trusted(); err != nil {
		return err
	}
	if strings.ContainsAny(c.Policy, "\r\n") {
		return fault.Invalidf("webserver.policy has more than one line").WithNext("write it in one line")
	}
	return c.Limits.validate()
}

func (l LimitsConfig) validate() error {
	if l.Requests < 1 || l.Requests > 1_000_000 || l.PerAddress < 1 || l.PerAddress > l.Requests {
		return fault.Invalidf("webserver.limits.requests is %d and per_address %d", l.Requests, l.PerAddress).
			WithNext("choose 1 to 1000000, and per_address no larger than requests")
	}
	if l.BodyBytes < 1<<20 {
		return fault.Invalidf("webserver.limits.body_bytes is %d", l.BodyBytes).WithNext("choose a MiB at least")
	}
	if l.StallTimeout < time.Second || l.StallTimeout > time.Hour {
		return fault.Invalidf("webserver.limits.stall_timeout is %s", l.StallTimeout).WithNext("choose between 1s and 1h")
	}
	return nil
}

// isOrigin reports whether a text is scheme://host[:port] of http or https.
func isOrigin(text string) bool {
	u, err := url.Parse(text)
	return err == nil && (u.Scheme == "http" || u.Scheme == "https") && u.Hostname() != "" && strings.Trim(u.Path, "/") == "" &&
		u.RawQuery == "" && u.Fragment == "" && u.User == nil
}

func (c Config) trusted() (clientaddr.Trusted, error) {
	return clientaddr.ParseTrusted("webserver.trusted_proxies", c.TrustedProxies)
}
