// Package storage is the storage role: a proxy in front of volumes, with an API for managers, one for clients
// (package transfer), background tasks (package task) and its announcement in etcd.
package storage

import (
	"fmt"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"time"

	"berth.dev/berth/internal/chassis"
	"berth.dev/berth/internal/clientaddr"
	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/fault"
	wire "berth.dev/berth/internal/wire/storage"
)

// Config is a storage proxy's configuration. See DefaultConfig for the defaults.
type Config struct {
	// Proxy is the name that hosts of folders begin with (proxy:volume). Several nodes may share a name, when they
	// have the same volumes and the same secret.
	Proxy string
	// Node names this process among those of the proxy; empty means the host's name.
	Node string
	// ClientListen is where clients transfer files, ManagerListen where managers ask; host:port.
	ClientListen  string
	ManagerListen string
	// ClientURL and ManagerURL are how others reach them; empty means the addresses that they listen on.
	ClientURL  string
	ManagerURL string
	// StateDir remembers which file systems the volumes are, so that a missing mount is noticed after a restart too.
	StateDir string
	// Secret, or the file that holds it, is the key of this proxy (`berth admin storage-key`), the same for all its nodes. The secret of
	// the managers works too, and is the key of every proxy: it is for a proxy on a manager's host.
	Secret     chassis.Secret
	SecretFile string
	Etcd       EtcdConfig
	TLS        TLSConfig `config:"tls"`
	// UID and GID own the files on volumes, when the proxy runs as root.
	UID int `config:"uid"`
	GID int `config:"gid"`
	// MaxUploadSize bounds one uploaded file.
	MaxUploadSize Bytes
	// Reserve is how many bytes of each volume's file system transfers and copies leave free; at most a twentieth of it.
	Reserve Bytes
	// TokenLife is how long an upload's token is good, at least.
	TokenLife time.Duration
	// UploadExpiry is how long an unfinished upload is kept after its last byte.
	UploadExpiry time.Duration
	// ReapRate is how many deleted files and directories of one volume leave the disk in a second.
	ReapRate int
	// TasksPerVolume is how many clones, imports and the like this node runs at once on one volume.
	TasksPerVolume int
	// TrustedProxies are the addresses or prefixes of reverse proxies in front of ClientListen whose X-Forwarded-For is believed.
	TrustedProxies []string
	// HSTS tells browsers that used ClientListen by TLS to reach its host name by TLS alone for a year, at every port.
	HSTS bool `config:"hsts"`
	// AllowedOrigins are the origins of browsers that may transfer files; none means all, because tokens authorize.
	AllowedOrigins []string
	// SFTPGroups are the resource groups of SFTP sessions near these volumes.
	SFTPGroups   []string `config:"sftp_groups"`
	ObjectStores ObjectStoreConfig
	Volumes      map[string]VolumeConfig
}

// VolumeConfig is one volume.
type VolumeConfig struct {
	// Backend is posix (any mounted file system), xfs or cephfs.
	Backend string
	// Path is where it is mounted, the same on all nodes of the proxy.
	Path string
	// Options are the backend's own.
	Options map[string]string
}

// EtcdConfig is where the proxy announces itself to managers.
type EtcdConfig struct {
	Endpoints []string
	Prefix    string
}

// TLSConfig is the certificate of both listeners; the files are read again when they change. Empty means plain HTTP.
type TLSConfig struct {
	Cert string
	Key  string
}

// ObjectStoreConfig says which object stores folders may be imported from and exported to.
type ObjectStoreConfig struct {
	// AllowPrivate lets users name addresses of private networks and of this host.
	AllowPrivate bool
	// AllowHTTP lets users name object stores without TLS.
	AllowHTTP bool `config:"allow_http"`
}

// Bytes is an amount; in configuration files a number of bytes or a text such as "100g".
type Bytes int64

// UnmarshalText reads a number of bytes or a text such as "1.5g".
func (b *Bytes) UnmarshalText(text []byte) error {
	n, err := cluster.ParseBytes(string(text))
	*b = Bytes(n)
	return err
}

// MarshalText writes the number of bytes.
func (b Bytes) MarshalText() ([]byte, error) { return fmt.Appendf(nil, "%d", int64(b)), nil }

// DefaultConfig returns the defaults. Volumes, secret and etcd have none.
func DefaultConfig() Config {
	return Config{
		Proxy: "local", ClientListen: "127.0.0.1:6021", ManagerListen: "127.0.0.1:6022", StateDir: "/var/lib/berth/storage",
		Etcd: EtcdConfig{Prefix: "/berth"}, UID: 9001, GID: 9001, MaxUploadSize: 100 << 30, Reserve: 1 << 30, TokenLife: 24 * time.Hour,
		UploadExpiry: 24 * time.Hour, ReapRate: 5000, TasksPerVolume: 4,
	}
}

var (
	validName   = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$`)
	minSecret   = 16
	maxVolumes  = 64
	maxReapRate = 1_000_000
)

// Validate reports the first value that cannot be used. The secret and the volumes are checked by New, because
// `berth up` brings them.
func (c Config) Validate() error {
	if !validName.MatchString(c.Proxy) {
		return fault.Invalidf("storage.proxy is %q", c.Proxy).
			WithNext("use up to 64 letters, digits, '-', '_' and '.', beginning with a letter or digit")
	}
	if c.Node != "" && !validName.MatchString(c.Node) {
		return fault.Invalidf("storage.node is %q", c.Node).
			WithNext("use up to 64 letters, digits, '-', '_' and '.', beginning with a letter or digit")
	}
	for key, addr := range map[string]string{"client_listen": c.ClientListen, "manager_listen": c.ManagerListen} {
		if _, port, err := net.SplitHostPort(addr); err != nil || port == "" {
			return fault.Invalidf("storage.%s %q is no address", key, addr).WithNext("set it to host:port, for example 0.0.0.0:6021")
		}
	}
	for key, text := range map[string]string{"client_url": c.ClientURL, "manager_url": c.ManagerURL} {
		if text == "" {
			continue
		}
		u, err := url.Parse(text)
		if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" || u.RawQuery != "" || u.Fragment != "" {
			return fault.Invalidf("storage.%s %q is no address", key, text).WithNext("set it to https://host[:port][/path]")
		}
	}
	if _, err := c.trusted(); err != nil {
		return err
	}
	if !filepath.IsAbs(c.StateDir) {
		return fault.Invalidf("storage.state_dir %q is not an absolute path", c.StateDir).
			WithNext("set it to a directory such as /var/lib/berth/storage")
	}
	if (c.TLS.Cert == "") != (c.TLS.Key == "") {
		return fault.Invalidf("storage.tls has a certificate or a key alone").WithNext("set both cert and key, or neither")
	}
	if c.UID <= 0 || c.GID <= 0 {
		return fault.Invalidf("files cannot belong to user %d:%d", c.UID, c.GID).WithNext("set storage.uid and storage.gid to numbers above zero")
	}
	if c.MaxUploadSize < 1 {
		return fault.Invalidf("storage.max_upload_size is %d", int64(c.MaxUploadSize)).WithNext("set it to a size such as \"100g\"")
	}
	if c.Reserve < 0 {
		return fault.Invalidf("storage.reserve is %d", int64(c.Reserve)).WithNext("set it to zero or more")
	}
	for key, d := range map[string]time.Duration{"token_life": c.TokenLife, "upload_expiry": c.UploadExpiry} {
		if d < time.Minute || d > 30*24*time.Hour {
			return fault.Invalidf("storage.%s is %s", key, d).WithNext("choose between 1m and 720h")
		}
	}
	if c.ReapRate < 1 || c.ReapRate > maxReapRate {
		return fault.Invalidf("storage.reap_rate is %d", c.ReapRate).WithNext("choose between 1 and %d entries a second", maxReapRate)
	}
	if c.TasksPerVolume < 1 || c.TasksPerVolume > 64 {
		return fault.Invalidf("storage.tasks_per_volume is %d", c.TasksPerVolume).WithNext("choose between 1 and 64")
	}
	if len(c.Volumes) > maxVolumes {
		return fault.Invalidf("storage.volumes has %d volumes", len(c.Volumes)).WithNext("run a second proxy for more than %d", maxVolumes)
	}
	paths := map[string]string{}
	for name, v := range c.Volumes {
		if !validName.MatchString(name) {
			return fault.Invalidf("volume name %q cannot be used", name).
				WithNext("use up to 64 letters, digits, '-', '_' and '.', beginning with a letter or digit")
		}
		if drivers[v.Backend] == nil && v.Backend != backendMemory {
			return fault.Invalidf("storage.volumes.%s.backend is %q", name, v.Backend).WithNext("use one of %s", strings.Join(Backends(), ", "))
		}
		if v.Backend != backendMemory && !filepath.IsAbs(v.Path) {
			return fault.Invalidf("storage.volumes.%s.path %q is not an absolute path", name, v.Path).
				WithNext("name the directory where it is mounted")
		}
		if other, twice := paths[filepath.Clean(v.Path)]; twice && v.Backend != backendMemory {
			return fault.Invalidf("volumes %s and %s have the same path", min(name, other), max(name, other)).
				WithNext("give each volume a directory of its own")
		}
		paths[filepath.Clean(v.Path)] = name
	}
	return nil
}

// Complete reports what a proxy of its own lacks although Validate is content.
func (c Config) Complete() error {
	if c.Secret.IsZero() && c.SecretFile == "" {
		return fault.Invalidf("storage.secret is not set").
			WithNext("set storage.secret or storage.secret_file to the secret that the managers have in manager.storage")
	}
	if len(c.Volumes) == 0 {
		return fault.Invalidf("storage.volumes is empty").
			WithNext("add a section such as [storage.volumes.volume1] with backend = \"posix\" and path = \"/mnt/vol1\"")
	}
	return nil
}

// trusted reads TrustedProxies.
func (c Config) trusted() (clientaddr.Trusted, error) {
	return clientaddr.ParseTrusted("storage.trusted_proxies", c.TrustedProxies)
}

// keys reads the proxy's keys: its own, or those of its name that the shared secret stands for.
func (c Config) keys() (wire.Keys, error) {
	text, err := c.secret()
	if err != nil {
		return wire.Keys{}, err
	}
	k, _, err := wire.ReadKeys(text, c.Proxy)
	anew := "make it anew: berth admin storage-key --name " + c.Proxy
	switch {
	case err != nil:
		return k, fault.Invalidf("the key of the storage proxy cannot be used").WithCause(err).WithNext("%s", anew)
	case k.Proxy != c.Proxy:
		return k, fault.Invalidf("storage.secret is the key of storage proxy %s, and this is %s", k.Proxy, c.Proxy).WithNext("%s", anew)
	}
	return k, nil
}

// secret reads what is configured: the proxy's key or the shared secret.
func (c Config) secret() (string, error) {
	text := c.Secret.Reveal()
	if c.SecretFile != "" {
		raw, err := os.ReadFile(c.SecretFile)
		if err != nil {
			return "", fault.Invalidf("the secret of the storage proxy cannot be read").WithCause(err).WithNext("correct storage.secret_file")
		}
		text = strings.TrimSpace(string(raw))
	}
	if len(text) < minSecret {
		return "", fault.Invalidf("the secret of the storage proxy is shorter than %d characters", minSecret).
			WithNext("make one with: head -c 32 /dev/urandom | base64")
	}
	return text, nil
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
	return name[:min(len(name), 64)]
}
