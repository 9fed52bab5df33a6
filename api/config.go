package api

import (
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"

	"berth.dev/berth/api/endpoint"
	"berth.dev/berth/api/pin"
	"berth.dev/berth/api/profile"
)

// Names of the environment variables that configure a client.
const (
	EnvEndpoint  = "BACKEND_ENDPOINT"
	EnvAccessKey = "BACKEND_ACCESS_KEY"
	EnvSecretKey = "BACKEND_SECRET_KEY"
	EnvToken     = "BERTH_TOKEN"
	EnvLogin     = "BERTH_LOGIN"
	EnvDomain    = "BACKEND_DOMAIN"
	EnvGroup     = "BACKEND_GROUP"
	EnvStateDir  = "BERTH_STATE_DIR"
)

// ClientEnvFile is the file of a state directory that holds the client's configuration.
const ClientEnvFile = "client.env"

// ErrNotConfigured means that neither the environment nor a state directory names a cluster.
var ErrNotConfigured = errors.New("no cluster is configured")

// Secret is text that must not be shown; every way of printing it hides it.
type Secret string

const redacted = "[redacted]"

// String hides the secret.
func (Secret) String() string { return redacted }

// GoString hides the secret.
func (Secret) GoString() string { return redacted }

// LogValue hides the secret.
func (Secret) LogValue() slog.Value { return slog.StringValue(redacted) }

// MarshalText hides the secret.
func (Secret) MarshalText() ([]byte, error) { return []byte(redacted), nil }

// Config says which cluster a client talks to, and as whom.
type Config struct {
	// Endpoint is the base URL of the manager, such as http://127.0.0.1:8090.
	Endpoint string `json:"endpoint"`
	// Others are those of further managers of the same cluster. When one does not answer, the client goes on with the next one.
	Others []string `json:"other_endpoints,omitempty"`
	// AccessKey and SecretKey are the keypair; both empty means anonymous.
	AccessKey string `json:"access_key"`
	SecretKey Secret `json:"-"`
	// Token is an API token, which counts instead of the keypair. Whoever reads the traffic has it: use it by https.
	Token Secret `json:"-"`
	// Login is the token of a login at a web server, whose /func is the endpoint then. It counts instead of the keypair, too.
	Login Secret `json:"-"`
	// Domain and Group (the project) are where sessions are created.
	Domain string `json:"domain"`
	Group  string `json:"group"`
	// Fingerprint pins the certificate authority of the manager: "sha256:" and 64 hex digits. Empty: the system's authorities count.
	Fingerprint string `json:"ca_fingerprint,omitempty"`
	// Profile is the name of the profile that it came from, if any.
	Profile string `json:"profile,omitempty"`
	// Source tells the reader where the configuration came from.
	Source string `json:"source"`
}

// Validate reports what is missing or malformed.
func (c Config) Validate() error {
	if c.Endpoint == "" {
		return fmt.Errorf("%s is not set: %w", EnvEndpoint, ErrNotConfigured)
	}
	for _, e := range append([]string{c.Endpoint}, c.Others...) {
		if _, err := endpoint.Parse(e); err != nil {
			return err
		}
	}
	if len(c.Others) >= endpoint.Max {
		return fmt.Errorf("%s names %d managers; at most %d are used", EnvEndpoint, 1+len(c.Others), endpoint.Max)
	}
	if c.Fingerprint != "" {
		if _, err := pin.Parse(c.Fingerprint); err != nil {
			return err
		}
	}
	if (c.AccessKey == "") != (c.SecretKey == "") {
		return fmt.Errorf("%s and %s must be set together", EnvAccessKey, EnvSecretKey)
	}
	return nil
}

// Lookup says where LoadConfig looks.
type Lookup struct {
	// Getenv reads the environment; nil stands for os.Getenv.
	Getenv func(string) string
	// StateDir, when set, makes its client.env win over the environment.
	StateDir string
	// Profile, when set, makes the profile of that name win over the environment. The environment may name it as well.
	Profile string
	// Endpoint, when set, replaces the endpoints found. Like the variable it may name several, with commas between them.
	Endpoint string
	// Root says whether the process runs as the super user, which moves the default state directory.
	Root bool
	// Home is the user's home directory; it may be empty for Root.
	Home string
}

// LoadConfig finds the cluster to talk to.
//
// A state directory that is named explicitly wins; then a profile that is; then the
// environment; then the profile in use; then the client.env of the default state
// directory. Keys are never mixed: an environment that names a part of a cluster must
// name all of it. ErrNotConfigured is returned when nothing names a cluster.
func LoadConfig(l Lookup) (Config, error) {
	getenv := l.Getenv
	if getenv == nil {
		getenv = os.Getenv
	}
	values, source, err := l.values(getenv)
	if err != nil {
		return Config{}, err
	}
	c := Config{
		AccessKey:   values(EnvAccessKey),
		SecretKey:   Secret(values(EnvSecretKey)),
		Token:       Secret(values(EnvToken)),
		Login:       Secret(values(EnvLogin)),
		Domain:      or(getenv(EnvDomain), values(EnvDomain), "default"),
		Group:       or(getenv(EnvGroup), values(EnvGroup), "default"),
		Source:      source,
		Fingerprint: or(getenv(pin.Env), values(pin.Env)),
	}
	if name, ok := strings.CutPrefix(source, fromProfile); ok {
		c.Profile = name
	}
	c.Endpoint, c.Others = endpoint.Split(or(l.Endpoint, values(EnvEndpoint)))
	if err := c.Validate(); err != nil {
		return Config{}, fmt.Errorf("configure client from %s: %w", source, err)
	}
	return c, nil
}

// DefaultStateDir returns the state directory used when none is named.
func (l Lookup) DefaultStateDir() string {
	getenv := l.Getenv
	if getenv == nil {
		getenv = os.Getenv
	}
	switch {
	case getenv(EnvStateDir) != "":
		return getenv(EnvStateDir)
	case l.Root:
		return "/var/lib/berth"
	case l.Home != "":
		return filepath.Join(l.Home, ".local", "state", "berth")
	}
	return ""
}

// fromProfile begins the source of what a profile says.
const fromProfile = "profile "

// Profiles is where the user's profiles are kept.
func (l Lookup) Profiles() profile.Store {
	getenv := l.Getenv
	if getenv == nil {
		getenv = os.Getenv
	}
	return profile.StoreOf(getenv, l.Home)
}

// profile reads the profile that is named, or the one in use; nil when there is none.
func (l Lookup) profile(name string) (profile.Values, string, error) {
	store := l.Profiles()
	if name == "" {
		var err error
		if name, err = store.Current(); err != nil || name == "" {
			return nil, "", err
		}
	}
	v, err := store.Get(name)
	if err != nil {
		return nil, "", fmt.Errorf("read profile %s: %w", name, err)
	}
	return v, fromProfile + name, nil
}

func (l Lookup) values(getenv func(string) string) (func(string) string, string, error) {
	if l.StateDir == "" {
		name := or(l.Profile, getenv(profile.Env))
		for _, part := range []string{EnvEndpoint, EnvAccessKey, EnvSecretKey, EnvToken, EnvLogin} {
			if name == "" && getenv(part) != "" {
				return getenv, "the environment", nil
			}
		}
		if v, source, err := l.profile(name); err != nil || v != nil {
			return v.Get, source, err
		}
	}
	dir := or(l.StateDir, l.DefaultStateDir())
	if dir == "" {
		return getenv, "the environment", nil
	}
	path := filepath.Join(dir, ClientEnvFile)
	v, err := profile.ReadFile(path)
	switch {
	case errors.Is(err, fs.ErrNotExist) && l.Endpoint != "":
		return getenv, "the command line", nil
	case errors.Is(err, fs.ErrNotExist):
		return nil, "", fmt.Errorf("%s does not exist: %w", path, ErrNotConfigured)
	case err != nil:
		return nil, "", fmt.Errorf("read client configuration: %w", err)
	}
	return v.Get, path, nil
}

func or(values ...string) string {
	for _, v := range values {
		if v != "" {
			return v
		}
	}
	return ""
}

func deref(p *string) string {
	if p == nil {
		return ""
	}
	return *p
}
