// Package appproxy is the role that lets visitors reach apps inside sessions: it wires the copy of the manager's circuits
// (control), the decision who may pass (circuit), the engine that carries bytes (forward), the way to agents (agents) and the
// proxy's own pages (front) to listeners. It keeps no state but its key, its certificates and what managers told it.
package appproxy

import (
	"fmt"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"time"

	"berth.dev/berth/internal/appproxy/forward"
	"berth.dev/berth/internal/chassis"
	"berth.dev/berth/internal/clientaddr"
	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/fault"
	"berth.dev/berth/internal/wire/proxy"
)

// Config is an app proxy's configuration. See DefaultConfig for the defaults.
type Config struct {
	// Name is what resource groups name it by. Several processes may share a name when they have the same addresses and
	// settings and stand behind one load balancer.
	Name string
	// Node names this process among those of the name; empty means the host's name.
	Node string
	// Managers are the host:port of managers' agent ports.
	Managers []string
	// JoinToken, or the file that holds it, lets the proxy join; it is needed once.
	JoinToken     chassis.Secret
	JoinTokenFile string
	// StateDir holds the node's key, certificates that the proxy makes or gets itself, and the socket for doctor.
	StateDir string
	// Listen is the host:port of the shared listener: the base URL and all apps with a host name of their own. Empty turns the
	// app proxy of `berth up` off.
	Listen string
	// URL is how clients reach the shared listener; empty means its address.
	URL string `config:"url"`
	// Domain gives each app a host name of its own, LABEL.DOMAIN; a wildcard record must lead there. Empty turns that off.
	// DomainURL is how clients reach it where that is not scheme and port of URL: https://apps.example.org:8443.
	Domain    string
	DomainURL string `config:"domain_url"`
	Ports     PortsConfig
	// Prefer is the mode of apps whose launcher does not choose, subdomain or port; empty means the first there is.
	Prefer string
	TLS    TLSConfig `config:"tls"`
	// HSTS tells browsers that come by TLS to reach the host name by TLS alone for a year, at every port. That needs a name of its own
	// in URL, a certificate that browsers trust, and no apps on plain ports of that name or of Domain.
	HSTS bool `config:"hsts"`
	// TrustedProxies are the addresses or prefixes of proxies in front whose X-Forwarded-For and -Proto are believed.
	TrustedProxies []string
	// Secret, or the file that holds it, lets other services make launch tokens (/v2/conf). Without one nobody may.
	Secret     chassis.Secret
	SecretFile string
	// TicketLife bounds how long a visitor's cookie is good.
	TicketLife time.Duration
	Limits     LimitsConfig
	// SocketFile is where the proxy answers doctor on this host; "" means appproxy.sock in StateDir.
	SocketFile string
}

// PortsConfig gives apps ports of their own. Raw TCP apps always need one.
type PortsConfig struct {
	// From and To bound the ports; 0 turns the mode off.
	From, To int
	// Bind is the address they are opened on, Host the name that clients are told for it.
	Bind string
	Host string
	// TLS serves HTTP apps on ports with the certificate too.
	TLS bool `config:"tls"`
}

// TLSConfig is the shared listener's certificate. One of the three ways at most.
type TLSConfig struct {
	// Cert and Key are PEM files, read again when they change. They should hold the domain's wildcard.
	Cert string
	Key  string
	// SelfSigned makes a certificate in StateDir, for use on one machine or a closed network.
	SelfSigned bool
	ACME       ACMEConfig `config:"acme"`
}

// ACMEConfig gets certificates for the host of URL and each app's host name from an ACME authority.
type ACMEConfig struct {
	Enabled bool
	// Email is told when something is wrong with the certificates. Directory is the authority's URL; empty is Let's Encrypt.
	Email     string
	Directory string
	// HTTPListen serves port 80: the authority's questions, and a redirect to https for everybody else; empty for none.
	HTTPListen string `config:"http_listen"`
}

// Bytes is an amount; in configuration files a number of bytes or a text such as "100m".
type Bytes int64

// UnmarshalText reads a number of bytes or a text such as "1.5g".
func (b *Bytes) UnmarshalText(text []byte) error {
	n, err := cluster.ParseBytes(string(text))
	*b = Bytes(n)
	return err
}

// MarshalText writes the number of bytes.
func (b Bytes) MarshalText() ([]byte, error) { return fmt.Appendf(nil, "%d", int64(b)), nil }

// LimitsConfig bounds what visitors may do. 0 means without limit, except for header_bytes and the times.
type LimitsConfig struct {
	HeaderBytes Bytes
	// BodyBytes bounds one request to an app, where its circuit does not say.
	BodyBytes Bytes
	// HeaderTimeout is from a request's first byte to the end of its head, StallTimeout ends transfers that do not move.
	HeaderTimeout time.Duration
	IdleTimeout   time.Duration
	StallTimeout  time.Duration
	// ResponseTimeout is from the request to the beginning of the app's answer.
	ResponseTimeout time.Duration
	// OpenIdle ends WebSockets and raw connections on which nothing moves, Lifetime every connection; 0 means never.
	OpenIdle              time.Duration
	Lifetime              time.Duration
	Connections           int
	ConnectionsPerCircuit int
	ConnectionsPerAddress int
	// Requests per second; bursts of twice that pass.
	RequestsPerCircuit float64
	RequestsPerUser    float64
	RequestsPerAddress float64
}

// DefaultConfig returns the defaults: both modes, on this machine alone.
func DefaultConfig() Config {
	f := forward.DefaultConfig()
	return Config{
		Name: "local", Managers: []string{"127.0.0.1:8082"}, StateDir: "/var/lib/berth/appproxy",
		Listen: "127.0.0.1:10200", Domain: "apps.localhost",
		Ports: PortsConfig{From: 10205, To: 10300, Bind: "127.0.0.1", Host: "127.0.0.1"}, TicketLife: 12 * time.Hour,
		Limits: LimitsConfig{
			HeaderBytes: Bytes(f.HeaderBytes), BodyBytes: Bytes(f.BodyBytes), HeaderTimeout: f.HeaderTimeout, IdleTimeout: f.IdleTimeout,
			StallTimeout: f.StallTimeout, ResponseTimeout: f.ResponseTimeout, OpenIdle: f.OpenIdle, Lifetime: f.Lifetime,
			Connections: f.Connections, ConnectionsPerCircuit: f.ConnectionsPerCircuit, ConnectionsPerAddress: f.ConnectionsPerAddress,
			RequestsPerCircuit: f.RequestsPerCircuit, RequestsPerUser: f.RequestsPerUser, RequestsPerAddress: f.RequestsPerAddress,
		},
	}
}

var (
	validName   = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{0,51}$`) // with proxy.NamePrefix 64 characters at most
	validDomain = regexp.MustCompile(`^([a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?\.)*[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$`)
)

// Bounds of the configuration.
const (
	maxPorts  = 20_000
	maxDomain = 189 // with a label and a dot 253
	minSecret = 16
)

// Complete reports what a proxy of its own lacks although Validate is content.
func (c Config) Complete() error {
	if c.Listen == "" {
		return fault.Invalidf("appproxy.listen is not set").WithNext("set it to host:port, for example 0.0.0.0:443")
	}
	return nil
}

// Validate reports the first value that cannot be used. Without an address to listen on there is no proxy.
func (c Config) Validate() error {
	if c.Listen == "" {
		return nil
	}
	if !validName.MatchString(c.Name) {
		return fault.Invalidf("appproxy.name is %q", c.Name).
			WithNext("use up to 52 letters, digits, '-', '_' and '.', beginning with a letter or digit")
	}
	if c.Node != "" && !validName.MatchString(c.Node) {
		return fault.Invalidf("appproxy.node is %q", c.Node).
			WithNext("use up to 52 letters, digits, '-', '_' and '.', beginning with a letter or digit")
	}
	if len(c.Managers) == 0 {
		return fault.Invalidf("appproxy.managers is empty").WithNext("set it to the managers' agent ports, a list such as [\"10.0.0.1:8082\"]")
	}
	for _, addr := range c.Managers {
		if host, port, err := net.SplitHostPort(addr); err != nil || host == "" || port == "" {
			return fault.Invalidf("appproxy.managers: %q is no address", addr).WithNext("write host:port, for example 10.0.0.1:8082")
		}
	}
	if !filepath.IsAbs(c.StateDir) {
		return fault.Invalidf("appproxy.state_dir %q is not an absolute path", c.StateDir).
			WithNext("set it to a directory such as /var/lib/berth/appproxy")
	}
	if _, port, err := net.SplitHostPort(c.Listen); err != nil || port == "" {
		return fault.Invalidf("appproxy.listen %q is no address", c.Listen).WithNext("set it to host:port, for example 0.0.0.0:443")
	}
	for key, text := range map[string]string{"url": c.URL, "domain_url": c.DomainURL} {
		if _, err := origin(text); text != "" && err != nil {
			return fault.Invalidf("appproxy.%s %q is no address", key, text).WithNext("set it to https://host[:port], without a path")
		}
	}
	if c.Domain != "" && (!validDomain.MatchString(c.Domain) || len(c.Domain) > maxDomain) {
		return fault.Invalidf("appproxy.domain %q is no domain", c.Domain).
			WithNext("write it in lower case, for example apps.example.org; apps are at LABEL.apps.example.org")
	}
	if u, err := origin(c.DomainURL); c.DomainURL != "" && (err != nil || u.Hostname() != c.Domain) {
		return fault.Invalidf("the host of appproxy.domain_url %q is not appproxy.domain %q", c.DomainURL, c.Domain).
			WithNext("set both to the same domain")
	}
	// An app's host that is the base URL's too could take its place.
	if u, err := origin(c.URL); c.URL != "" && c.Domain != "" && err == nil && strings.HasSuffix(u.Hostname(), "."+c.Domain) {
		return fault.Invalidf("the host of appproxy.url %q lies below appproxy.domain %q, where apps are", c.URL, c.Domain).
			WithNext("use the domain itself or a name beside it")
	}
	if err := c.Ports.validate(c); err != nil {
		return err
	}
	if c.Domain == "" && c.Ports.From == 0 {
		return fault.Invalidf("the app proxy has no way to tell apps apart").
			WithNext("set appproxy.domain, or appproxy.ports.from and .to, or both")
	}
	switch proxy.Mode(c.Prefer) {
	case "":
	case proxy.ModeSubdomain, proxy.ModePort:
		if proxy.Mode(c.Prefer) == proxy.ModePort && c.Ports.From == 0 || proxy.Mode(c.Prefer) == proxy.ModeSubdomain && c.Domain == "" {
			return fault.Invalidf("appproxy.prefer is %q, which is turned off", c.Prefer).
				WithNext("set appproxy.domain or appproxy.ports, or prefer the other mode")
		}
	default:
		return fault.Invalidf("appproxy.prefer is %q", c.Prefer).WithNext("use \"subdomain\" or \"port\"")
	}
	if err := c.TLS.validate(c); err != nil {
		return err
	}
	if err := c.validateHSTS(); err != nil {
		return err
	}
	if _, err := c.trusted(); err != nil {
		return err
	}
	if n := len(c.Secret.Reveal()); n > 0 && n < minSecret {
		return fault.Invalidf("appproxy.secret is shorter than %d characters", minSecret).
			WithNext("make one with: head -c 32 /dev/urandom | base64")
	}
	if c.TicketLife < time.Minute || c.TicketLife > 7*24*time.Hour {
		return fault.Invalidf("appproxy.ticket_life is %s", c.TicketLife).WithNext("choose between 1m and 168h")
	}
	return c.Limits.validate()
}

func (p PortsConfig) validate(c Config) error {
	if p.From == 0 && p.To == 0 {
		return nil
	}
	if p.From < 1 || p.To > 65535 || p.To < p.From || p.To-p.From >= maxPorts {
		return fault.Invalidf("appproxy.ports is %d to %d", p.From, p.To).
			WithNext("choose at most %d ports between 1 and 65535, or 0 and 0 for none", maxPorts)
	}
	if _, port, err := net.SplitHostPort(c.Listen); err == nil {
		if n, err := strconv.Atoi(port); err == nil && n >= p.From && n <= p.To {
			return fault.Invalidf("the port of appproxy.listen, %d, is among appproxy.ports", n).WithNext("choose another one")
		}
	}
	if p.Bind != "" && net.ParseIP(p.Bind) == nil {
		return fault.Invalidf("appproxy.ports.bind %q is no IP address", p.Bind).WithNext("write an address of this host, or 0.0.0.0 for all")
	}
	if p.Host == "" || strings.ContainsAny(p.Host, "/:@?#[] ") && net.ParseIP(p.Host) == nil {
		return fault.Invalidf("appproxy.ports.host %q is no host", p.Host).
			WithNext("set it to the name or address that clients reach this host by")
	}
	if p.TLS && !c.TLS.on() {
		return fault.Invalidf("appproxy.ports.tls needs a certificate").WithNext("set appproxy.tls")
	}
	return nil
}

// validateHSTS refuses what would shut browsers out for a year.
func (c Config) validateHSTS() error {
	if !c.HSTS {
		return nil
	}
	u, err := origin(c.URL)
	if err != nil || u.Scheme != "https" || net.ParseIP(u.Hostname()) != nil {
		return fault.Invalidf("appproxy.hsts needs the name that visitors use, appproxy.url is %q", c.URL).
			WithNext("set appproxy.url to https://NAME[:port]")
	}
	if !c.TLS.on() || c.TLS.SelfSigned {
		return fault.Invalidf("appproxy.hsts needs a certificate that browsers trust").
			WithNext("set appproxy.tls.cert and .key, or appproxy.tls.acme")
	}
	host := strings.ToLower(c.Ports.Host)
	if c.Ports.From > 0 && !c.Ports.TLS &&
		(host == u.Hostname() || c.Domain != "" && (host == c.Domain || strings.HasSuffix(host, "."+c.Domain))) {
		return fault.Invalidf("appproxy.hsts would keep browsers from the apps on plain ports of %s", host).
			WithNext("set appproxy.ports.tls = true, or appproxy.ports.host to another name, or appproxy.hsts = false")
	}
	return nil
}

func (t TLSConfig) on() bool { return t.Cert != "" || t.SelfSigned || t.ACME.Enabled }

func (t TLSConfig) validate(c Config) error {
	if (t.Cert == "") != (t.Key == "") {
		return fault.Invalidf("appproxy.tls has a certificate or a key alone").WithNext("set both cert and key, or neither")
	}
	ways := 0
	for _, on := range []bool{t.Cert != "", t.SelfSigned, t.ACME.Enabled} {
		if on {
			ways++
		}
	}
	if ways > 1 {
		return fault.Invalidf("appproxy.tls says more than one way to a certificate").
			WithNext("keep one of cert and key, self_signed, and acme.enabled")
	}
	if !t.ACME.Enabled {
		return nil
	}
	u, err := origin(c.URL)
	if err != nil || u.Scheme != "https" || net.ParseIP(u.Hostname()) != nil || !strings.Contains(u.Hostname(), ".") {
		return fault.Invalidf("appproxy.tls.acme needs a public name, appproxy.url is %q", c.URL).
			WithNext("set appproxy.url to https://NAME, a name that leads to this host from everywhere")
	}
	if t.ACME.Directory != "" {
		if d, err := url.Parse(t.ACME.Directory); err != nil || d.Scheme != "https" || d.Host == "" {
			return fault.Invalidf("appproxy.tls.acme.directory %q is no https address", t.ACME.Directory).
				WithNext("write the authority's directory URL")
		}
	}
	return nil
}

func (l LimitsConfig) validate() error {
	if l.HeaderBytes < 4<<10 || l.HeaderBytes > 1<<20 {
		return fault.Invalidf("appproxy.limits.header_bytes is %d", int64(l.HeaderBytes)).WithNext("choose between 4k and 1m")
	}
	for key, d := range map[string]time.Duration{
		"header_timeout": l.HeaderTimeout, "idle_timeout": l.IdleTimeout, "stall_timeout": l.StallTimeout, "response_timeout": l.ResponseTimeout,
	} {
		if d < time.Second || d > 24*time.Hour {
			return fault.Invalidf("appproxy.limits.%s is %s", key, d).WithNext("choose between 1s and 24h")
		}
	}
	if l.OpenIdle < 0 || l.Lifetime < 0 || l.BodyBytes < 0 || l.Connections < 0 || l.ConnectionsPerCircuit < 0 ||
		l.ConnectionsPerAddress < 0 ||
		l.RequestsPerCircuit < 0 || l.RequestsPerUser < 0 || l.RequestsPerAddress < 0 {
		return fault.Invalidf("a value of appproxy.limits is below zero").WithNext("write 0 for no limit")
	}
	return nil
}

// origin reads scheme://host[:port].
func origin(text string) (*url.URL, error) {
	u, err := url.Parse(text)
	if err != nil {
		return nil, err
	}
	if u.Scheme != "http" && u.Scheme != "https" || u.Hostname() == "" || strings.Trim(u.Path, "/") != "" || u.RawQuery != "" ||
		u.Fragment != "" || u.User != nil {
		return nil, fmt.Errorf("%q is not scheme://host[:port]", text)
	}
	u.Path, u.Host = "", joinPort(strings.ToLower(u.Hostname()), u.Port(), u.Scheme)
	return u, nil
}

// trusted reads TrustedProxies.
func (c Config) trusted() (clientaddr.Trusted, error) {
	return clientaddr.ParseTrusted("appproxy.trusted_proxies", c.TrustedProxies)
}

// secret reads the secret of /v2/conf; empty when there is none.
func (c Config) secret() (chassis.Secret, error) {
	if c.SecretFile == "" {
		return c.Secret, nil
	}
	raw, err := os.ReadFile(c.SecretFile)
	if err != nil {
		return chassis.Secret{}, fault.Invalidf("the secret of the app proxy cannot be read").WithCause(err).
			WithNext("correct appproxy.secret_file")
	}
	text := strings.TrimSpace(string(raw))
	if len(text) < minSecret {
		return chassis.Secret{}, fault.Invalidf("the secret of the app proxy is shorter than %d characters", minSecret).
			WithNext("make one with: head -c 32 /dev/urandom | base64")
	}
	return chassis.NewSecret(text), nil
}

// token reads the join token as late as possible: the file may appear after the proxy's start.
func (c Config) token() (chassis.Secret, error) {
	if !c.JoinToken.IsZero() || c.JoinTokenFile == "" {
		return c.JoinToken, nil
	}
	raw, err := os.ReadFile(c.JoinTokenFile)
	if err != nil {
		return chassis.Secret{}, fmt.Errorf("read the join token: %w", err)
	}
	return chassis.NewSecret(strings.TrimSpace(string(raw))), nil
}

func (c Config) node() string {
	if c.Node != "" {
		return c.Node
	}
	name, err := os.Hostname()
	name = strings.Trim(regexp.MustCompile(`[^A-Za-z0-9._-]+`).ReplaceAllString(name, "-"), "-.")
	if err != nil || name == "" {
		return "node"
	}
	return name[:min(len(name), 52)]
}

// SocketPath is where the proxy answers doctor on this host.
func (c Config) SocketPath() string {
	if c.SocketFile != "" {
		return c.SocketFile
	}
	return filepath.Join(c.StateDir, "appproxy.sock")
}

// engine is the part of the configuration that the engine reads.
func (c Config) engine(trusted clientaddr.Trusted) forward.Config {
	f, l := forward.DefaultConfig(), c.Limits
	f.HeaderBytes, f.BodyBytes = int(l.HeaderBytes), int64(l.BodyBytes)
	f.HeaderTimeout, f.IdleTimeout, f.StallTimeout, f.ResponseTimeout = l.HeaderTimeout, l.IdleTimeout, l.StallTimeout, l.ResponseTimeout
	f.OpenIdle, f.Lifetime = l.OpenIdle, l.Lifetime
	f.Connections, f.ConnectionsPerCircuit, f.ConnectionsPerAddress = l.Connections, l.ConnectionsPerCircuit, l.ConnectionsPerAddress
	f.RequestsPerCircuit, f.RequestsPerUser, f.RequestsPerAddress = l.RequestsPerCircuit, l.RequestsPerUser, l.RequestsPerAddress
	f.HSTS, f.Trusted = c.HSTS, trusted
	return f
}
