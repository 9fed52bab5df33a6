package openid

import (
	"net"
	"net/url"
	"os"
	"slices"
	"strings"
	"time"

	"berth.dev/berth/internal/chassis"
	"berth.dev/berth/internal/fault"
	"berth.dev/berth/internal/manager/tenancy/identity"
)

// Config is one identity provider.
type Config struct {
	// Title is what people read; empty means the provider's name.
	Title string
	// Issuer is the address that the provider calls itself, such as https://login.example.org/realms/lab.
	Issuer string
	// ClientID and ClientSecret are what the provider gave this cluster. The secret may stand in a file.
	ClientID         string `config:"client_id"`
	ClientSecret     chassis.Secret
	ClientSecretFile string
	// Scopes are asked for besides openid; by default email and profile.
	Scopes []string
	// GroupsClaim and UsernameClaim are where groups and the user name are: groups and preferred_username by default. A dot leads into a
	// claim that is an object.
	GroupsClaim, UsernameClaim string
	// TrustEmail takes all addresses of the provider for verified.
	TrustEmail bool
	// SecondFactor says that the provider asks for one, so that this cluster does not.
	SecondFactor bool
	// ClockSkew is how far the provider's clock may be off; a minute by default.
	ClockSkew time.Duration
	// TokenAudience lets people in with a token that the provider signed for this audience (/server/token-login). Empty: not at all.
	TokenAudience string
	// Rules say what people become.
	Rules identity.Rules
}

const (
	maxProviders = 32
	maxSkew      = 5 * time.Minute
)

// Validate reports the first provider that cannot be used; origins are the web servers' addresses.
func Validate(providers map[string]Config, origins []string) error {
	if len(providers) > maxProviders {
		return fault.Invalidf("manager.oidc has %d providers", len(providers)).WithNext("configure %d at most", maxProviders)
	}
	for _, o := range origins {
		if u, err := url.Parse(o); err != nil || !secure(u) || u.Path != "" || u.RawQuery != "" || u.User != nil || strings.HasSuffix(o, "#") {
			return fault.Invalidf("manager.web_origins: %q is no origin", o).
				WithNext("write https://host[:port] without a slash at its end, as browsers know the web server; http is for localhost alone")
		}
	}
	if len(providers) > 0 && len(origins) == 0 {
		return fault.Invalidf("manager.web_origins is empty, so no provider knows where to send people back").
			WithNext("name the web server's address, for example [\"https://berth.example.org\"]")
	}
	for name, c := range providers {
		if err := c.validate("manager.oidc."+name, name); err != nil {
			return err
		}
	}
	return nil
}

func (c Config) validate(key, name string) error {
	if err := identity.CheckName(name); err != nil {
		return err
	}
	u, err := url.Parse(c.Issuer)
	switch {
	case err != nil || !secure(u) || u.RawQuery != "" || u.Fragment != "" || u.User != nil:
		return fault.Invalidf("%s.issuer %q is no address", key, c.Issuer).
			WithNext("write https://..., as the provider's issuer says; http is for localhost alone")
	case c.ClientID == "":
		return fault.Invalidf("%s.client_id is empty", key).WithNext("register this cluster at the provider")
	case !c.ClientSecret.IsZero() && c.ClientSecretFile != "":
		return fault.Invalidf("%s has client_secret and client_secret_file", key).WithNext("keep one of them")
	case c.ClockSkew < 0 || c.ClockSkew > maxSkew:
		return fault.Invalidf("%s.clock_skew is %s", key, c.ClockSkew).WithNext("choose between 0 and %s", maxSkew)
	case c.TokenAudience == c.ClientID:
		return fault.Invalidf("%s.token_audience is the client_id", key).
			WithNext("choose another audience, so that tokens of logins at other places are not good here")
	}
	return c.Rules.Validate(key + ".rules")
}

// secure reports whether an address is reached by TLS, or on this machine.
func secure(u *url.URL) bool {
	host := u.Hostname()
	ip := net.ParseIP(host)
	return host != "" && (u.Scheme == "https" || u.Scheme == "http" && (host == "localhost" || ip != nil && ip.IsLoopback()))
}

func (c Config) withDefaults(name string) Config {
	if c.Title == "" {
		c.Title = name
	}
	if c.Scopes == nil {
		c.Scopes = []string{"email", "profile"}
	}
	c.Scopes = append([]string{"openid"}, slices.DeleteFunc(slices.Clone(c.Scopes), func(s string) bool { return s == "openid" })...)
	if c.GroupsClaim == "" {
		c.GroupsClaim = "groups"
	}
	if c.UsernameClaim == "" {
		c.UsernameClaim = "preferred_username"
	}
	if c.ClockSkew == 0 {
		c.ClockSkew = time.Minute
	}
	return c
}

const maxSecretFile = 4 << 10

// secret reads the client's secret; clients without one are public.
func (c Config) secret() (chassis.Secret, error) {
	if c.ClientSecretFile == "" {
		return c.ClientSecret, nil
	}
	raw, err := os.ReadFile(c.ClientSecretFile)
	if err != nil || len(raw) > maxSecretFile {
		return chassis.Secret{}, fault.Invalidf("the client secret in %s cannot be read", c.ClientSecretFile).WithCause(err)
	}
	return chassis.NewSecret(strings.TrimSpace(string(raw))), nil
}
