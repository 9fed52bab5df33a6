package run

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path"
	"strings"
	"time"
)

// Config is the file that the agent mounts for the runner (its path is the runner's only
// argument). It holds a token, so it belongs to root with mode 0600. Paths are those
// seen inside the container.
type Config struct {
	Version int `json:"version"`
	// Token must come with every request; at least 16 bytes.
	Token    string `json:"token"`
	KernelID string `json:"kernel_id"`
	// Dir is the directory shared with the agent, writable for the runner and searchable for
	// the session's user (mode 0711). The runner makes in it: run.sock, result.json, the markers
	// started and ended, spill files, and user/, which belongs to the session's user. Keep it short: socket paths end at 107 bytes.
	Dir string `json:"dir"`
	// Socket and ResultFile default to run.sock and result.json in Dir.
	Socket     string `json:"socket,omitempty"`
	ResultFile string `json:"result_file,omitempty"`

	SessionType string        `json:"session_type"` // interactive, batch, inference, system
	Runtime     RuntimeConfig `json:"runtime"`
	User        User          `json:"user"`
	// WorkDir is where commands start; empty means the user's home.
	WorkDir string `json:"work_dir,omitempty"`
	// Env wins over the image's environment and over the runner's defaults.
	Env map[string]string `json:"env,omitempty"`
	// Cores is how many cores the kernel got; 0 means unknown.
	Cores int `json:"cores,omitempty"`
	// Memory is what the kernel may use in bytes; 0 means unknown. It is only told to people.
	Memory int64 `json:"memory,omitempty"`
	// Bootstrap is the text of a script run once as the user before the first command.
	Bootstrap string `json:"bootstrap,omitempty"`
	// Batch is the command of a batch session; nil otherwise.
	Batch *BatchCommand `json:"batch,omitempty"`
	// Prestart starts the interpreter of query mode with the container instead of with the
	// first cell: a faster first cell for more CPU per session.
	Prestart bool `json:"prestart,omitempty"`
	// Apps are what the image's label ai.backend.service-ports and the session declare.
	Apps []AppPort `json:"apps,omitempty"`
	// AuthorizedKeys are lines in the format of OpenSSH whose owners may log in to app sshd, besides the key that the runner
	// makes for the session (id_container in the home directory).
	AuthorizedKeys []string `json:"authorized_keys,omitempty"`
	// Confine says that the agent sends control groups for the processes of the user (PathConfine) before the first may start.
	Confine bool `json:"confine,omitempty"`
	// AwaitNetwork: the agent connects the container after its start; nothing of the session's runs before.
	AwaitNetwork bool `json:"await_network,omitempty"`
	// HostPorts are leased to the kernel in the network of its host, which it is in then: no port but these counts as the session's, and
	// only while its user listens there.
	HostPorts []int `json:"host_ports,omitempty"`
	// Peers is what the kernel has in common with the others of its session; nil where it is the only one.
	Peers    *PeersConfig `json:"peers,omitempty"`
	Limits   Limits       `json:"limits"`
	LogLevel string       `json:"log_level,omitempty"` // debug, info, warn, error; default info
}

// PeersConfig is for one of several kernels of a session. The agent says who the others are with PathPeers; nothing of the session's runs
// before all of them do.
type PeersConfig struct {
	// Name is the kernel's own: main1, sub1, ...
	Name string `json:"name"`
	// Secret is known to the kernels of the session alone, at least MinToken bytes. The keys with which they log in to each other come
	// of it.
	Secret string `json:"secret"`
	// Hosts is the file of names, ClientConfig the one that OpenSSH's client reads for everybody. They default to those of Debian.
	Hosts        string `json:"hosts,omitempty"`
	ClientConfig string `json:"client_config,omitempty"`
	// Port is where the SSH server for the others listens, by default PeerPort.
	Port int `json:"port,omitempty"`
	// WaitMS is how long the session's commands wait for the others, by default two hours.
	WaitMS int64 `json:"wait_ms,omitempty"`
}

// PeerPort is where the kernels of one session reach each other by SSH.
const PeerPort = 2200

// RuntimeConfig comes from the image labels; empty fields are found by looking.
type RuntimeConfig struct {
	Type string `json:"type,omitempty"` // label ai.backend.runtime-type
	Path string `json:"path,omitempty"` // label ai.backend.runtime-path
}

// User is who commands run as. The passwd and group overlays of the agent name it.
type User struct {
	UID    int    `json:"uid"`
	GID    int    `json:"gid"`
	Groups []int  `json:"groups,omitempty"`
	Name   string `json:"name,omitempty"`  // default work
	Home   string `json:"home,omitempty"`  // default /home/work
	Shell  string `json:"shell,omitempty"` // default: found in the image
}

// BatchCommand is what a batch session runs.
type BatchCommand struct {
	Command string `json:"command"`
	// TimeoutMS ends the command with SIGTERM, then SIGKILL; 0 means no timeout.
	TimeoutMS int64 `json:"timeout_ms,omitempty"`
}

// Limits bound what a session can make the runner keep. Zero values mean the defaults.
type Limits struct {
	OutputMemory int64 `json:"output_memory,omitempty"` // bytes of unread output per run in memory, 1 MiB
	OutputSpill  int64 `json:"output_spill,omitempty"`  // bytes of unread output per run on disk, 64 MiB
	MaxMedia     int64 `json:"max_media,omitempty"`     // bytes of one media item, 8 MiB
	MaxRuns      int   `json:"max_runs,omitempty"`      // runs waiting for their turn, 16
	KeepRuns     int   `json:"keep_runs,omitempty"`     // finished runs kept for their readers, 32
	MaxUpload    int64 `json:"max_upload,omitempty"`    // bytes of one upload, 4 GiB
	MaxFiles     int   `json:"max_files,omitempty"`     // files of one upload, 10,000
	Scrollback   int   `json:"scrollback,omitempty"`    // bytes of a terminal's recent output, 256 KiB
	MaxTerminals int   `json:"max_terminals,omitempty"` // 8
	MaxStreams   int   `json:"max_streams,omitempty"`   // exec and terminal streams at a time, 64
	AbandonMS    int   `json:"abandon_ms,omitempty"`    // a run that waits for its reader may hold up other runs without one, 30,000
	GraceMS      int   `json:"grace_ms,omitempty"`      // SIGTERM to SIGKILL when PID 1 is told to end, 8,000
}

// MinToken is the shortest accepted token in bytes.
const MinToken = 16

// WithDefaults returns the configuration with every default filled in.
func (c Config) WithDefaults() Config {
	str := func(p *string, d string) {
		if *p == "" {
			*p = d
		}
	}
	str(&c.User.Name, "work")
	str(&c.User.Home, "/home/work")
	str(&c.WorkDir, c.User.Home)
	str(&c.SessionType, "interactive")
	str(&c.LogLevel, "info")
	if c.Dir != "" {
		str(&c.Socket, path.Join(c.Dir, "run.sock"))
		str(&c.ResultFile, path.Join(c.Dir, "result.json"))
	}
	if c.Peers != nil {
		p := *c.Peers
		str(&p.Hosts, "/etc/hosts")
		str(&p.ClientConfig, "/etc/ssh/ssh_config.d/50-berth.conf")
		defaultTo(&p.Port, PeerPort)
		defaultTo(&p.WaitMS, (2 * time.Hour).Milliseconds())
		c.Peers = &p
	}
	l := &c.Limits
	defaultTo(&l.OutputMemory, 1<<20)
	defaultTo(&l.OutputSpill, 64<<20)
	defaultTo(&l.MaxMedia, 8<<20)
	defaultTo(&l.MaxRuns, 16)
	defaultTo(&l.KeepRuns, 32)
	defaultTo(&l.MaxUpload, 4<<30)
	defaultTo(&l.MaxFiles, 10_000)
	defaultTo(&l.Scrollback, 256<<10)
	defaultTo(&l.MaxTerminals, 8)
	defaultTo(&l.MaxStreams, 64)
	defaultTo(&l.AbandonMS, 30_000)
	defaultTo(&l.GraceMS, 8_000)
	return c
}

func defaultTo[T int | int64](p *T, d T) {
	if *p == 0 {
		*p = d
	}
}

// Validate reports everything that is wrong with a configuration that has its defaults.
func (c Config) Validate() error {
	var errs []error
	bad := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	if c.Version < MinVersion || c.Version > Version {
		bad("version is %d; this runner reads %d to %d", c.Version, MinVersion, Version)
	}
	if len(c.Token) < MinToken {
		bad("token has %d bytes; at least %d are needed", len(c.Token), MinToken)
	}
	for _, p := range []struct{ name, value string }{{"dir", c.Dir}, {"socket", c.Socket}, {"result_file", c.ResultFile},
		{"user.home", c.User.Home}, {"work_dir", c.WorkDir}} {
		if !path.IsAbs(p.value) {
			bad("%s %q is not an absolute path", p.name, p.value)
		}
	}
	if len(c.Socket) > 107 {
		bad("socket path %q is longer than 107 bytes", c.Socket)
	}
	if c.User.UID < 0 || c.User.GID < 0 {
		bad("user %d:%d is negative", c.User.UID, c.User.GID)
	}
	if p := c.Peers; p != nil && (!PeerName(p.Name) || len(p.Secret) < MinToken || !path.IsAbs(p.Hosts) || !path.IsAbs(p.ClientConfig) ||
		p.Port < 0 || p.Port > 65535 || p.WaitMS < 0) {
		bad("peers: the name, secret, files, port or wait is none")
	}
	switch c.SessionType {
	case "interactive", "inference", "system":
	case "batch":
		if c.Batch == nil || strings.TrimSpace(c.Batch.Command) == "" {
			bad("a batch session needs batch.command")
		}
	default:
		bad("session_type %q is none of interactive, batch, inference, system", c.SessionType)
	}
	l := c.Limits
	for _, n := range []int64{l.OutputMemory, l.OutputSpill, l.MaxMedia, int64(l.MaxRuns), int64(l.KeepRuns), l.MaxUpload, int64(l.MaxFiles),
		int64(l.Scrollback), int64(l.MaxTerminals), int64(l.MaxStreams), int64(l.AbandonMS), int64(l.GraceMS)} {
		if n < 0 {
			bad("a limit is negative: %d", n)
		}
	}
	if c.Batch != nil && c.Batch.TimeoutMS < 0 {
		bad("batch.timeout_ms is negative")
	}
	for k, v := range c.Env {
		if k == "" || strings.ContainsAny(k, "=\x00") || strings.Contains(v, "\x00") {
			bad("env %q cannot be an environment variable", k)
		}
	}
	return errors.Join(errs...)
}

// ExitPeersMissing is the exit code of a runner whose session's other kernels did not run in time: nothing of the session's was started.
const ExitPeersMissing = 76

// StartedFile is the marker that the runner makes durable before it executes the command of a batch session: without it, nothing of
// the command ever ran. EndedFile is what the runner leaves when it ends in good order. Both are beside the result and hold nothing
// that is read.
func (c Config) StartedFile() string { return path.Join(path.Dir(c.ResultFile), StartedName) }

// EndedFile: see StartedFile.
func (c Config) EndedFile() string { return path.Join(path.Dir(c.ResultFile), EndedName) }

// The names of the runner's markers.
const (
	StartedName = "started"
	EndedName   = "ended"
	// UserDirName is the directory below Config.Dir that belongs to the session's user.
	UserDirName = "user"
)

// BatchTimeout returns the timeout of the batch command; 0 means none.
func (c Config) BatchTimeout() time.Duration {
	if c.Batch == nil {
		return 0
	}
	return time.Duration(c.Batch.TimeoutMS) * time.Millisecond
}

// LoadConfig reads the file strictly (an unknown key is an error), fills in defaults and validates.
func LoadConfig(file string) (Config, error) {
	b, err := os.ReadFile(file)
	if err != nil {
		return Config{}, fmt.Errorf("read runner configuration: %w", err)
	}
	var c Config
	d := json.NewDecoder(bytes.NewReader(b))
	d.DisallowUnknownFields()
	if err := d.Decode(&c); err != nil {
		return Config{}, fmt.Errorf("read runner configuration %s: %w", file, err)
	}
	c = c.WithDefaults()
	if err := c.Validate(); err != nil {
		return Config{}, fmt.Errorf("runner configuration %s: %w", file, err)
	}
	return c, nil
}

// WriteConfig writes the file with mode 0600, whole or not at all.
func WriteConfig(file string, c Config) error {
	b, err := json.MarshalIndent(c, "", "  ")
	if err != nil {
		return fmt.Errorf("write runner configuration: %w", err)
	}
	tmp := file + ".new"
	if err := os.WriteFile(tmp, append(b, '\n'), 0o600); err != nil {
		return fmt.Errorf("write runner configuration: %w", err)
	}
	if err := os.Rename(tmp, file); err != nil {
		return fmt.Errorf("write runner configuration: %w", err)
	}
	return nil
}
