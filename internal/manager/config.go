package manager

import (
	"net"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"berth.dev/berth/internal/certs"
	"berth.dev/berth/internal/chassis"
	"berth.dev/berth/internal/clientaddr"
	"berth.dev/berth/internal/fault"
	"berth.dev/berth/internal/manager/audit/syslog"
	"berth.dev/berth/internal/manager/authz"
	"berth.dev/berth/internal/manager/graphapi"
	"berth.dev/berth/internal/manager/httpapi/throttle"
	agentlink "berth.dev/berth/internal/manager/link/agent"
	"berth.dev/berth/internal/manager/mail"
	"berth.dev/berth/internal/manager/metric"
	"berth.dev/berth/internal/manager/reconcile"
	"berth.dev/berth/internal/manager/session/scheduling"
	"berth.dev/berth/internal/manager/tenancy/openid"
	wirestorage "berth.dev/berth/internal/wire/storage"
)

// Config is everything an operator may set about the manager role.
type Config struct {
	// ID names this manager among others; empty means the host's name.
	ID string
	// Listen is the host:port of the API.
	Listen string
	// URL is how clients reach the API; empty means Listen. Set it where TLS ends at a reverse proxy, or the certificate is for a name.
	URL string `config:"url"`
	// TLS is the certificate of Listen. Without one the API speaks plain HTTP.
	TLS certs.Config `config:"tls"`
	// PlainHTTP says that plain HTTP on an address that others reach is meant, because a reverse proxy adds TLS.
	PlainHTTP bool `config:"plain_http"`
	// TrustedProxies are the addresses or prefixes of reverse proxies in front of Listen whose X-Forwarded-For is believed. Empty: none.
	TrustedProxies []string
	// RequireBodyDigest refuses changes of clients that do not sign the body: all but ours. Official clients can then only read.
	RequireBodyDigest bool
	// HSTS tells browsers that saw the API by TLS to reach its host name by TLS alone for a year, at every port. It is sent with a
	// certificate that browsers trust: from files or by ACME.
	HSTS bool `config:"hsts"`
	// StateDir holds the master key.
	StateDir string
	Postgres PostgresConfig
	Redis    RedisConfig
	Etcd     EtcdConfig
	// Agents is the port that agents dial.
	Agents    agentlink.Config
	Reconcile ReconcileConfig
	// SessionNetworks are the addresses of the networks that sessions of several kernels have.
	SessionNetworks scheduling.NetworkConfig
	Idle            IdleConfig
	// Metrics is how much history of use is kept.
	Metrics   metric.Config
	Callbacks CallbackConfig
	// AnonymousRate is how many requests without a signature a client address (of IPv6 the /64) may send this manager in 15 minutes.
	AnonymousRate int
	// SignUp says where strangers may make accounts: nowhere by default.
	SignUp SignUpConfig `config:"signup"`
	// Mail is the SMTP server for e-mails about passwords and invitations.
	Mail mail.Config
	// AuditSyslog is the syslog receiver that gets the audit log.
	AuditSyslog syslog.Config
	// MailLink is where readers of e-mails go, such as https://berth.example.org/{kind}?token={token}. Empty: the page of the first of
	// WebOrigins; without one, e-mails hold the token alone.
	MailLink string
	// Directory is an LDAP directory whose people log in here.
	Directory DirectoryConfig
	// SCIM are identity providers that write users and groups by SCIM 2.0, by name.
	SCIM map[string]SCIMConfig `config:"scim"`
	// OTPRoles are the roles whose users have to have a one-time password at a login: superadmin, admin, user or monitor. Who has none
	// enrols at the next login.
	OTPRoles []string `config:"otp_roles"`
	// WebOrigins are the web servers' addresses as browsers know them, such as https://berth.example.org: identity providers send people back
	// there, and passkeys are made for the host of the first.
	WebOrigins []string
	// OIDC are identity providers by name, which people log in at.
	OIDC map[string]openid.Config `config:"oidc"`
	// Login bounds logins by password.
	Login   LoginConfig
	Storage StorageConfig
	Wire    WireConfig
	// Streams bounds what callers may hold open on this manager.
	Streams throttle.Limits
	// GraphQL bounds what GraphQL requests may ask for.
	GraphQL graphapi.Config `config:"graphql"`
}

// IdleConfig says what counts as use of a session.
type IdleConfig struct {
	// WorkIsUse counts the work of a session's processes (CPU, accelerators, disk and network) as use, although nobody types anything.
	WorkIsUse bool
}

// SignUpConfig says where strangers may make accounts.
type SignUpConfig struct {
	// Domains are those in which they may.
	Domains []string
	// Active lets them in at once; otherwise an administrator of the domain has to set the status active.
	Active bool
}

// PostgresConfig is the database.
type PostgresConfig struct {
	// DSN is a connection URL; it may hold a password.
	DSN chassis.Secret
	// MaxConns bounds the connections; 0 means four for each CPU, at least 8 and at most 16.
	MaxConns int32
}

// conns is how many connections the manager may open. More than a small machine has use for would cost it the start, which opens them
// all, and some 3 MiB of PostgreSQL's memory each.
func (c PostgresConfig) conns(cpus int) int32 {
	if c.MaxConns > 0 {
		return c.MaxConns
	}
	return int32(min(max(4*cpus, 8), 16))
}

// RedisConfig is the cache for rate limits and live figures.
type RedisConfig struct {
	// Address is host:port or an absolute path of a unix socket.
	Address  string
	Password chassis.Secret
}

// EtcdConfig is where managers elect their leader.
type EtcdConfig struct {
	Endpoints []string
	Prefix    string
}

// StorageConfig is how managers prove themselves to storage proxies.
type StorageConfig struct {
	// Secret, or the file that holds it, is the one that the storage proxies have in storage.secret.
	// Empty: there are no folders.
	Secret     chassis.Secret
	SecretFile string
}

// minSecret is the length that storage proxies ask for, too.
const minSecret = 16

// secret reads the shared secret; it is empty when none is configured.
func (c StorageConfig) secret() (chassis.Secret, error) {
	if c.SecretFile == "" {
		return c.Secret, nil
	}
	raw, err := os.ReadFile(c.SecretFile)
	if err != nil {
		return chassis.Secret{}, fault.Invalidf("the secret of storage proxies cannot be read").WithCause(err).
			WithNext("correct manager.storage.secret_file")
	}
	text := strings.TrimSpace(string(raw))
	if len(text) < minSecret {
		return chassis.Secret{}, shortSecret()
	}
	return chassis.NewSecret(text), nil
}

// StorageKey is the key of one storage proxy, as its configuration takes it in storage.secret.
func (c StorageConfig) StorageKey(proxy string) (string, error) {
	secret, err := c.secret()
	switch {
	case err != nil:
		return "", err
	case secret.IsZero():
		return "", fault.Invalidf("manager.storage.secret is not set").WithNext("set it, or manager.storage.secret_file, for all " +
			"managers alike")
	case proxy == "" || len(proxy) > 64 || strings.ContainsAny(proxy, ":/ "):
		return "", fault.Invalidf("%q is no name of a storage proxy", proxy).WithNext("use the name of storage.proxy")
	}
	return wirestorage.KeysOf(secret.Reveal(), proxy).Text()
}

func shortSecret() error {
	return fault.Invalidf("the secret of storage proxies is shorter than %d characters", minSecret).
		WithNext("make one with: head -c 32 /dev/urandom | base64")
}

// ReconcileConfig says how patient the control loops are.
type ReconcileConfig struct {
	// Debounce gathers hints before a scheduling pass.
	Debounce time.Duration
	// Resync is the time between scheduling passes without any hint.
	Resync time.Duration
	// Sweep is the time between looks at leases and deadlines.
	Sweep time.Duration
	// LostGrace is how long a LOST agent may return before its kernels end.
	LostGrace time.Duration
	// EventRetention is how long the history of ended sessions is kept; 0 keeps it for ever.
	EventRetention time.Duration
	// SessionRetention is how long ended sessions themselves are kept, with their kernels and logs; 0 keeps them for ever.
	SessionRetention time.Duration
	// TaskRetention is how long background tasks are kept that came to an end; 0 keeps them for ever.
	TaskRetention time.Duration
	// AuditRetention is how long entries of the audit log are kept; 0 keeps them for ever.
	AuditRetention time.Duration
	// UsageRetention is how long intervals of the usage ledger are kept; 0 keeps them for ever.
	UsageRetention time.Duration
	// LeaderTTL is the lease of the leader in seconds; a dead leader is replaced after it.
	LeaderTTL int
}

// DefaultReconcileConfig returns the documented defaults.
func DefaultReconcileConfig() ReconcileConfig {
	s := scheduling.DefaultConfig()
	return ReconcileConfig{
		Debounce: s.Debounce, Resync: s.Resync, Sweep: time.Second, LostGrace: 5 * time.Minute, EventRetention: 180 * 24 * time.Hour,
		SessionRetention: 365 * 24 * time.Hour, TaskRetention: 30 * 24 * time.Hour,
		AuditRetention: 2 * 365 * 24 * time.Hour, UsageRetention: 5 * 366 * 24 * time.Hour,
		LeaderTTL: reconcile.DefaultConfig().LeaderTTL,
	}
}

// Validate checks the ranges.
func (c ReconcileConfig) Validate() error {
	for _, v := range []struct {
		name       string
		value      time.Duration
		least, top time.Duration
	}{
		{"debounce", c.Debounce, 0, time.Second},
		{"resync", c.Resync, time.Second, time.Hour},
		{"sweep", c.Sweep, 10 * time.Millisecond, time.Minute},
		{"lost_grace", c.LostGrace, time.Second, 24 * time.Hour},
		{"event_retention", c.EventRetention, 0, 100 * 365 * 24 * time.Hour},
		{"session_retention", c.SessionRetention, 0, 100 * 365 * 24 * time.Hour},
		{"task_retention", c.TaskRetention, 0, 100 * 365 * 24 * time.Hour},
		{"audit_retention", c.AuditRetention, 0, 100 * 365 * 24 * time.Hour},
		{"usage_retention", c.UsageRetention, 0, 100 * 365 * 24 * time.Hour},
	} {
		if v.value < v.least || v.value > v.top {
			return fault.Invalidf("reconcile.%s is %s", v.name, v.value).WithNext("choose between %s and %s", v.least, v.top)
		}
	}
	// What a session used is added up by the day, and a client may look at what has just ended.
	if c.SessionRetention > 0 && c.SessionRetention < 24*time.Hour {
		return fault.Invalidf("reconcile.session_retention is %s", c.SessionRetention).WithNext("choose a day at least, or 0 for ever")
	}
	return reconcile.Config{LeaderTTL: c.LeaderTTL}.Validate()
}

// CallbackConfig says where callbacks of sessions and webhooks of notices may go.
type CallbackConfig struct {
	// AllowPrivate lets them go to private and loopback addresses.
	AllowPrivate bool
}

// WireConfig is what the version probe answers; empty values mean the built-in ones.
type WireConfig struct {
	APIVersion     string
	ManagerVersion string
}

// DefaultConfig returns the documented defaults. Addresses of external services have none.
func DefaultConfig() Config {
	return Config{
		Listen: "127.0.0.1:8081", StateDir: "/var/lib/berth",
		Etcd: EtcdConfig{Prefix: "/berth"}, Agents: agentlink.DefaultConfig(), Reconcile: DefaultReconcileConfig(),
		SessionNetworks: scheduling.DefaultNetworkConfig(),
		Login:           defaultLoginConfig(), Directory: defaultDirectoryConfig(), AuditSyslog: syslog.DefaultConfig(),
		Idle: IdleConfig{WorkIsUse: true}, Metrics: metric.DefaultConfig(),
		AnonymousRate: 1000, Streams: throttle.DefaultLimits(), GraphQL: graphapi.DefaultConfig(),
	}
}

// Validate reports the first value that cannot be used.
func (c Config) Validate() error {
	if c.Listen == "" {
		return fault.Invalidf("manager.listen is empty").WithNext("set it to host:port, for example 0.0.0.0:8081")
	}
	if _, port, err := net.SplitHostPort(c.Listen); err != nil || port == "" {
		return fault.Invalidf("manager.listen %q is no address", c.Listen).WithCause(err).
			WithNext("set it to host:port, for example 0.0.0.0:8081")
	}
	if err := c.TLS.Validate("manager.tls"); err != nil {
		return err
	}
	if u, err := url.Parse(c.URL); c.URL != "" && (err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" ||
		u.RawQuery != "" || u.Fragment != "") {
		return fault.Invalidf("manager.url %q is no address", c.URL).WithNext("set it to https://host[:port]")
	}
	if _, err := c.trusted(); err != nil {
		return err
	}
	if !filepath.IsAbs(c.StateDir) {
		return fault.Invalidf("manager.state_dir %q is not an absolute path",
			c.StateDir).WithNext("set it to a directory such as /var/lib/berth")
	}
	if n := c.Postgres.MaxConns; n != 0 && (n < 4 || n > 1000) {
		return fault.Invalidf("manager.postgres.max_conns is %d", n).WithNext("choose between 4 and 1000, or 0 for what suits this machine")
	}
	if !c.Storage.Secret.IsZero() && len(c.Storage.Secret.Reveal()) < minSecret {
		return shortSecret()
	}
	if err := c.SessionNetworks.Validate(); err != nil {
		return err
	}
	if err := c.AuditSyslog.Validate(); err != nil {
		return err
	}
	if err := c.Metrics.Validate(); err != nil {
		return err
	}
	if err := c.Mail.Validate(); err != nil {
		return err
	}
	if c.MailLink != "" && (!strings.HasPrefix(c.MailLink, "http") || !strings.Contains(c.MailLink, "{token}")) {
		return fault.Invalidf("manager.mail_link %q is no address with {token} in it", c.MailLink)
	}
	if _, err := c.otpRoles(); err != nil {
		return err
	}
	if err := openid.Validate(c.OIDC, c.WebOrigins); err != nil {
		return err
	}
	for name, p := range c.OIDC {
		// Whoever made an account with somebody else's address would share it with them.
		if p.Rules.LinkVerifiedEmail && c.SignUp.Active && slices.Contains(c.SignUp.Domains, p.Rules.Domain) {
			return fault.Invalidf("manager.oidc.%s.rules.link_verified_email trusts addresses of accounts that strangers make", name).
				WithNext("set manager.signup.active = false, or leave link_verified_email out")
		}
	}
	if c.AnonymousRate < 10 || c.AnonymousRate > 10_000_000 {
		return fault.Invalidf("manager.anonymous_rate is %d", c.AnonymousRate).WithNext("choose between 10 and 10000000")
	}
	if err := c.Agents.Validate(); err != nil {
		return err
	}
	if err := c.Streams.Validate(); err != nil {
		return err
	}
	if err := c.Directory.Validate(); err != nil {
		return err
	}
	if _, err := c.provisioners(); err != nil {
		return err
	}
	if err := c.Login.Validate(); err != nil {
		return err
	}
	if err := c.GraphQL.Validate(); err != nil {
		return err
	}
	return c.Reconcile.Validate()
}

// trusted reads TrustedProxies.
func (c Config) trusted() (clientaddr.Trusted, error) {
	return clientaddr.ParseTrusted("manager.trusted_proxies", c.TrustedProxies)
}

// otpRoles reads OTPRoles.
func (c Config) otpRoles() ([]authz.Role, error) {
	var out []authz.Role
	for _, r := range c.OTPRoles {
		switch role := authz.Role(r); role {
		case authz.RoleSuperadmin, authz.RoleAdmin, authz.RoleUser, authz.RoleMonitor:
			out = append(out, role)
		default:
			return nil, fault.Invalidf("manager.otp_roles has %q, which is no role", r).WithNext("use superadmin, admin, user or monitor")
		}
	}
	return out, nil
}

// mailLink is where e-mails lead.
func (c Config) mailLink() string {
	if c.MailLink == "" && len(c.WebOrigins) > 0 {
		return c.WebOrigins[0] + "/server/{kind}?token={token}"
	}
	return c.MailLink
}

func (c Config) id() string {
	if c.ID != "" {
		return c.ID
	}
	name, err := os.Hostname()
	if err != nil || name == "" {
		return "manager"
	}
	return name
}
