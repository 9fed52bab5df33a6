// Package ldap asks one LDAP directory (RFC 4511), which is configured: who its people are, in which groups they are, and whether a
// password is somebody's. It changes nothing there and knows no users of the cluster; package tenancy/directory does.
//
// Nothing that a person types becomes a filter or a name unescaped. Connections are encrypted, referrals are not followed, and every
// answer and wait has a bound: what a directory did not tell completely is an error, never a shorter list.
package ldap

import (
	"crypto/tls"
	"crypto/x509"
	"net"
	"net/url"
	"os"
	"regexp"
	"strings"
	"time"

	"github.com/go-ldap/ldap/v3"

	"berth.dev/berth/internal/chassis"
	"berth.dev/berth/internal/fault"
)

// Config is a directory.
type Config struct {
	// URL is ldaps://host[:port] or ldap://host[:port]. With ldap the connection is encrypted by StartTLS.
	URL string `config:"url"`
	// Plain leaves the encryption out. Every password crosses the network readable then.
	Plain bool
	// CAFile are the certificates (PEM) that the server's is checked with; empty: those of the system. ServerName is the name in the
	// server's certificate where it is not the host of URL.
	CAFile, ServerName string
	// BindDN is the account that searches, with Password or the text of PasswordFile. Without one the search is anonymous.
	BindDN       string `config:"bind_dn"`
	Password     chassis.Secret
	PasswordFile string
	// UserBase is where people are searched, UserFilter which entries are people.
	UserBase, UserFilter string
	// LoginAttributes are those that people may type to log in. Each value is one person's.
	LoginAttributes []string
	// The attributes of a person. SubjectAttribute is the id that a renamed person keeps: entryUUID, or objectGUID of Active Directory.
	SubjectAttribute, EmailAttribute, UsernameAttribute, NameAttribute string
	// MemberOf reads the groups of people from the attribute memberOf of their entries. Otherwise groups are searched below GroupBase:
	// entries of GroupFilter whose MemberAttribute holds the name (DN) of the person's entry.
	MemberOf bool
	// GroupBase: a group directly below it is called by its own name (the value of its first part, such as staff), one deeper by its
	// whole DN. With MemberOf, groups elsewhere do not count.
	GroupBase, GroupFilter, MemberAttribute string
	// PageSize is how many entries are asked for at once, MaxEntries how many people or groups a directory may have here.
	PageSize, MaxEntries int
	// Timeout bounds a login, SyncTimeout the reading of the whole directory.
	Timeout, SyncTimeout time.Duration
}

// DefaultConfig returns the documented defaults: those of OpenLDAP with inetOrgPerson and groupOfNames.
func DefaultConfig() Config {
	return Config{UserFilter: "(objectClass=inetOrgPerson)", LoginAttributes: []string{"uid", "mail"}, SubjectAttribute: "entryUUID",
		EmailAttribute: "mail", UsernameAttribute: "uid", NameAttribute: "cn", GroupFilter: "(objectClass=groupOfNames)",
		MemberAttribute: "member", PageSize: 500, MaxEntries: 100_000, Timeout: 10 * time.Second, SyncTimeout: 10 * time.Minute}
}

// attributes are names of attributes as RFC 4512 writes them.
var attributes = regexp.MustCompile(`^[A-Za-z][A-Za-z0-9-]{0,63}$`)

// Validate reports the first value that cannot be used. name is the key of the configuration.
func (c Config) Validate(name string) error {
	if c.URL == "" {
		return nil
	}
	u, err := url.Parse(c.URL)
	if err != nil || u.Scheme != "ldap" && u.Scheme != "ldaps" || u.Hostname() == "" || u.User != nil || strings.Trim(u.Path, "/") != "" ||
		u.RawQuery != "" {
		return fault.Invalidf("%s.url %q is no address of a directory", name,
			c.URL).WithNext("write ldaps://host, or ldap://host for StartTLS")
	}
	if c.Plain && u.Scheme == "ldaps" {
		return fault.Invalidf("%s.plain and ldaps exclude each other", name).WithNext("leave %s.plain out", name)
	}
	if c.Password.IsZero() == (c.PasswordFile == "") && c.BindDN != "" {
		return fault.Invalidf("%s.bind_dn needs a password", name).WithNext("set one of %s.password_file and %s.password", name, name)
	}
	for _, v := range []struct {
		key, is string
		must    bool
	}{{"bind_dn", c.BindDN, false}, {"user_base", c.UserBase, true}, {"group_base", c.GroupBase, false}} {
		if _, err := ldap.ParseDN(v.is); err != nil || v.must && v.is == "" {
			return fault.Invalidf("%s.%s %q is no name of an entry", name, v.key,
				v.is).WithNext("write for example ou=people,dc=example,dc=org")
		}
	}
	for _, v := range []struct{ key, is string }{{"user_filter", c.UserFilter}, {"group_filter", c.GroupFilter}} {
		if _, err := ldap.CompileFilter(v.is); err != nil {
			return fault.Invalidf("%s.%s %q is no filter", name, v.key,
				v.is).WithCause(err).WithNext("write for example (objectClass=person)")
		}
	}
	named := append([]string{c.SubjectAttribute, c.EmailAttribute, c.UsernameAttribute, c.NameAttribute, c.MemberAttribute},
		c.LoginAttributes...)
	for _, a := range named {
		if !attributes.MatchString(a) {
			return fault.Invalidf("%s: %q is no attribute", name, a).WithNext("write for example mail")
		}
	}
	if n := len(c.LoginAttributes); n == 0 || n > 8 {
		return fault.Invalidf("%s.login_attributes has %d attributes", name, n).WithNext("name 1 to 8, such as uid")
	}
	if c.PageSize < 1 || c.PageSize > 10_000 || c.MaxEntries < 1 || c.MaxEntries > 1_000_000 {
		return fault.Invalidf("%s.page_size or %s.max_entries is out of bounds", name, name).
			WithNext("choose up to 10000 and up to 1000000")
	}
	if c.Timeout < 100*time.Millisecond || c.Timeout > time.Minute || c.SyncTimeout < c.Timeout || c.SyncTimeout > time.Hour {
		return fault.Invalidf("%s.timeout or %s.sync_timeout is out of bounds", name, name).
			WithNext("choose up to a minute for the one and up to an hour for the other")
	}
	return nil
}

// address is where the server is, and whether TLS begins with the first byte.
func (c Config) address() (hostPort string, encrypted bool) {
	u, _ := url.Parse(c.URL) // Validate has read it
	port := u.Port()
	if port == "" {
		port = map[string]string{"ldap": "389", "ldaps": "636"}[u.Scheme]
	}
	return net.JoinHostPort(u.Hostname(), port), u.Scheme == "ldaps"
}

// tls says how the server is verified.
func (c Config) tls() (*tls.Config, error) {
	u, _ := url.Parse(c.URL)
	out := &tls.Config{ServerName: c.ServerName, MinVersion: tls.VersionTLS12}
	if out.ServerName == "" {
		out.ServerName = u.Hostname()
	}
	if c.CAFile == "" {
		return out, nil
	}
	text, err := os.ReadFile(c.CAFile)
	if err != nil {
		return nil, fault.Invalidf("the certificates for the directory cannot be read").WithCause(err).WithNext("correct ca_file")
	}
	out.RootCAs = x509.NewCertPool()
	if !out.RootCAs.AppendCertsFromPEM(text) {
		return nil, fault.Invalidf("%s holds no certificates", c.CAFile).WithNext("write certificates in PEM form there")
	}
	return out, nil
}

// secret is the password of BindDN.
func (c Config) secret() (chassis.Secret, error) {
	if c.PasswordFile == "" {
		return c.Password, nil
	}
	text, err := os.ReadFile(c.PasswordFile)
	if err != nil {
		return chassis.Secret{}, fault.Invalidf("the password for the directory cannot be read").WithCause(err).WithNext("correct " +
			"password_file")
	}
	if s := strings.TrimRight(string(text), "\r\n"); s != "" {
		return chassis.NewSecret(s), nil
	}
	return chassis.Secret{}, fault.Invalidf("%s is empty", c.PasswordFile).WithNext("write the password of bind_dn there")
}
