package agent

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"time"

	"berth.dev/berth/internal/agent/data"
	"berth.dev/berth/internal/agent/device/cuda"
	"berth.dev/berth/internal/agent/diskguard"
	"berth.dev/berth/internal/agent/loopdisk"
	"berth.dev/berth/internal/agent/network"
	"berth.dev/berth/internal/chassis"
	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/diskspace"
	"berth.dev/berth/internal/fault"
)

// Config is an agent's configuration. See DefaultConfig for the defaults.
type Config struct {
	// ID names the agent in its cluster: letters, digits, '-', '_' and '.'; at most 64 characters.
	ID string
	// Manager is the host:port of the manager's agent port. Managers, where it is set, takes its place and names several: the
	// agent is connected to one of them and goes to the next when that one is gone.
	Manager  string
	Managers []string
	// JoinToken, or the file that holds it, lets the agent join; it is needed once.
	JoinToken     chassis.Secret
	JoinTokenFile string
	// StateDir holds the node's key, the ledger and, unless ScratchDir is set, the kernels' directories.
	StateDir   string
	ScratchDir string
	// Volumes are the paths of folders' volumes on this node, by host: "local:volume1" = "/mnt/volume1". A volume that is not
	// named is looked for where its storage proxy announced it.
	Volumes map[string]string
	// Region is proposed at the first registration. ResourceGroup is that of an agent in the manager's own process; others go where their
	// join token says.
	ResourceGroup string
	Region        string
	// ReservedCPU cores and ReservedMem bytes are kept for the host. A negative ReservedMem
	// means a tenth of the memory, at most 512 MiB.
	ReservedCPU int
	ReservedMem Bytes
	// CPUOvercommit is how many sessions' cores one core of the host stands for; 1 gives every
	// session cores of its own. Memory is never overcommitted.
	CPUOvercommit int
	// MockDevices is a TOML file that describes accelerators which do not exist, for tests and demonstrations; "" means none.
	MockDevices string
	// CDIDevices are TOML files, and directories of them, that describe devices with a specification of the Container Device Interface.
	CDIDevices []string
	// ROCm says whether AMD GPUs are offered: "auto" where the host has some, "on" or "off".
	ROCm string `config:"rocm"`
	// CUDA says which NVIDIA GPUs of this host are given out, and how.
	CUDA cuda.Config
	// MinFree is how much of the scratch disk must be free for a kernel to be created.
	MinFree Bytes
	// Disk bounds what kernels may write on this host.
	Disk DiskConfig
	// UID and GID are the session's user inside containers when the manager names none.
	UID, GID int
	// Users are the user numbers of this host that sessions get for themselves, one each.
	Users UsersConfig
	// SampleInterval is the time between two metrics samples.
	SampleInterval time.Duration
	// DeviceInterval is the time between two looks for devices.
	DeviceInterval time.Duration
	// MaxCreating bounds how many kernels are created at the same time.
	MaxCreating int
	// RunnerLogLevel is debug, info, warn or error.
	RunnerLogLevel string
	// SocketFile is where the agent answers doctor on this host; "" means agent.sock in StateDir.
	SocketFile string
	// DataListen is the host:port where app proxies of other hosts reach the sessions' apps, with node certificates; port 0
	// chooses a free one and "off" opens none. DataAdvertise is the host or host:port that they are told, if it is another.
	DataListen    string
	DataAdvertise string
	// HostPorts are the TCP ports, FIRST-LAST, that are leased to sessions in the network of this host; "" runs none there. Two agents of
	// one host need different ones.
	HostPorts string
	// Network is the network of sessions and the fence around it.
	Network network.Config
}

// DiskConfig bounds what kernels may write on this host, and says when its disks count as low and as full.
type DiskConfig struct {
	// Scratch is how much one kernel may have in its home, /tmp and /var/tmp; 0 means no bound.
	Scratch Bytes
	// Method is how that is held: "loop", by a file system of the kernel's own on a file, "watch", by ending a kernel that exceeds it,
	// or "auto", the first where it works.
	Method string
	// Ahead is how many such file systems are made before they are needed.
	Ahead int
	// Layer is how much one kernel may write elsewhere in its container's file system; it is watched. 0 means no bound.
	Layer Bytes
	// Below LowPercent of a disk and LowBytes, whichever is less, no kernels are started; below FullPercent and FullBytes those that
	// grew most are ended. Zero leaves the other of the two alone.
	LowPercent, FullPercent int
	LowBytes, FullBytes     Bytes
	// Interval is the time between two looks at the disks.
	Interval time.Duration
}

// The values of Config.ROCm.
const (
	ROCmAuto = "auto"
	ROCmOn   = "on"
	ROCmOff  = "off"
)

// The values of DiskConfig.Method.
const (
	DiskAuto  = "auto"
	DiskLoop  = "loop"
	DiskWatch = "watch"
)

func (c DiskConfig) limits() diskguard.Limits {
	return diskguard.Limits{
		Low:     diskspace.Mark{Percent: c.LowPercent, Bytes: int64(c.LowBytes)},
		Full:    diskspace.Mark{Percent: c.FullPercent, Bytes: int64(c.FullBytes)},
		Scratch: int64(c.Scratch), Layer: int64(c.Layer),
	}
}

func (c DiskConfig) validate() error {
	switch c.Method {
	case DiskAuto, DiskLoop, DiskWatch:
	default:
		return fault.Invalidf("agent.disk.method is %q", c.Method).WithNext("use %q, %q or %q", DiskAuto, DiskLoop, DiskWatch)
	}
	if c.Scratch != 0 && c.Scratch < loopdisk.MinSize {
		return fault.Invalidf("agent.disk.scratch is %d bytes", int64(c.Scratch)).
			WithNext("set it to %d MiB or more, or to 0 for no bound", loopdisk.MinSize>>20)
	}
	if c.Layer < 0 || c.LowBytes < 0 || c.FullBytes < 0 {
		return fault.Invalidf("an amount of agent.disk is below zero").WithNext("set it to zero or more")
	}
	if c.LowPercent < 0 || c.LowPercent > 90 || c.FullPercent < 0 || c.FullPercent > 90 {
		return fault.Invalidf("agent.disk.low_percent is %d and full_percent %d", c.LowPercent, c.FullPercent).WithNext("choose between 0 and 90")
	}
	if c.Ahead < 0 || c.Ahead > 256 {
		return fault.Invalidf("agent.disk.ahead is %d", c.Ahead).WithNext("choose between 0 and 256")
	}
	if c.Interval < 50*time.Millisecond {
		return fault.Invalidf("looking at the disks every %s is too often", c.Interval).WithNext("set agent.disk.interval to 1s or more")
	}
	return nil
}

// Bytes is an amount of memory or disk; in configuration files a number of bytes or a
// text such as "512m".
type Bytes int64

// UnmarshalText reads a number of bytes or a text such as "1.5g"; "-1" is kept.
func (b *Bytes) UnmarshalText(text []byte) error {
	if string(text) == "-1" {
		*b = -1
		return nil
	}
	n, err := cluster.ParseBytes(string(text))
	*b = Bytes(n)
	return err
}

// MarshalText writes the number of bytes.
func (b Bytes) MarshalText() ([]byte, error) { return fmt.Appendf(nil, "%d", int64(b)), nil }

// DefaultConfig returns the defaults: an agent named after this host.
func DefaultConfig() Config {
	host, err := os.Hostname()
	if err != nil || host == "" {
		host = "localhost"
	}
	host = strings.Trim(regexp.MustCompile(`[^A-Za-z0-9._-]+`).ReplaceAllString(host, "-"), "-.")
	return Config{
		ID: ("i-" + host)[:min(64, len(host)+2)], Manager: "127.0.0.1:8082", StateDir: "/var/lib/berth/agent",
		ReservedMem: -1, CPUOvercommit: 1, MinFree: 256 << 20, UID: 9001, GID: 9001, ROCm: ROCmAuto,
		Users:          UsersConfig{First: 2_000_000, Count: 65_536},
		SampleInterval: 5 * time.Second, DeviceInterval: 10 * time.Second, MaxCreating: 16, RunnerLogLevel: "warn",
		DataListen: ":0", HostPorts: "30000-31999", Network: network.DefaultConfig(), CUDA: cuda.DefaultConfig(),
		Disk: DiskConfig{Scratch: 10 << 30, Method: DiskAuto, Ahead: 4, Layer: 10 << 30, LowPercent: 10, LowBytes: 6 << 30, FullPercent: 5,
			FullBytes: 3 << 30, Interval: time.Second},
	}
}

// managers are the addresses of managers' agent ports.
func (c Config) managers() []string {
	if len(c.Managers) > 0 {
		return c.Managers
	}
	return []string{c.Manager}
}

var validID = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$`)

// Validate reports the first value that cannot be used.
func (c Config) Validate() error {
	if !validID.MatchString(c.ID) {
		return fault.Invalidf("agent id %q cannot be used", c.ID).
			WithNext("use up to 64 letters, digits, '-', '_' and '.', beginning with a letter or digit")
	}
	for _, addr := range c.managers() {
		if _, _, err := net.SplitHostPort(addr); err != nil {
			return fault.Invalidf("the manager's address %q cannot be used", addr).WithCause(err).
				WithNext("write host:port, for example 10.0.0.1:8082")
		}
	}
	if c.StateDir == "" {
		return fault.Invalidf("the agent has no state directory").WithNext("set agent.state_dir")
	}
	if c.UID <= 0 || c.GID <= 0 {
		return fault.Invalidf("sessions cannot run as user %d:%d", c.UID, c.GID).WithNext("set agent.uid and agent.gid to numbers above zero")
	}
	if err := c.Users.validate(c.UID); err != nil {
		return err
	}
	if c.ReservedCPU < 0 || c.MinFree < 0 {
		return fault.Invalidf("a reservation is below zero").WithNext("set agent.reserved_cpu and agent.min_free to zero or more")
	}
	if err := c.Disk.validate(); err != nil {
		return err
	}
	if c.CPUOvercommit < 1 || c.CPUOvercommit > 64 {
		return fault.Invalidf("agent.cpu_overcommit is %d", c.CPUOvercommit).WithNext("choose between 1 and 64")
	}
	switch c.ROCm {
	case ROCmAuto, ROCmOn, ROCmOff, "":
	default:
		return fault.Invalidf("agent.rocm is %q", c.ROCm).WithNext("use %q, %q or %q", ROCmAuto, ROCmOn, ROCmOff)
	}
	if c.SampleInterval < 100*time.Millisecond {
		return fault.Invalidf("a sample every %s is too often", c.SampleInterval).WithNext("set agent.sample_interval to 1s or more")
	}
	if c.DeviceInterval < 10*time.Millisecond {
		return fault.Invalidf("looking for devices every %s is too often", c.DeviceInterval).WithNext("set agent.device_interval to 1s or more")
	}
	if c.MaxCreating < 1 {
		return fault.Invalidf("agent.max_creating is %d", c.MaxCreating).WithNext("set it to 1 or more")
	}
	if c.DataListen != "" && c.DataListen != data.Off {
		if _, _, err := net.SplitHostPort(c.DataListen); err != nil {
			return fault.Invalidf("agent.data_listen is %q", c.DataListen).WithCause(err).
				WithNext("write host:port, for example 10.0.0.2:6010, or %q", data.Off)
		}
	}
	if _, port, err := net.SplitHostPort(c.DataAdvertise); err == nil && (port == "" || port == "0") ||
		strings.ContainsAny(c.DataAdvertise, "/ ") {
		return fault.Invalidf("agent.data_advertise is %q", c.DataAdvertise).WithNext("write a host, or host:port as app proxies reach it")
	}
	for host, path := range c.Volumes {
		if _, err := cluster.ParseVolumeHost(host); err != nil {
			return fmt.Errorf("read agent.volumes: %w", err)
		}
		if !filepath.IsAbs(path) {
			return fault.Invalidf("the path %q of volume %s is not absolute", path, host).
				WithNext("set agent.volumes.%q to where the volume is mounted on this node", host)
		}
	}
	if err := c.validateHostPorts(); err != nil {
		return err
	}
	if err := c.Network.Validate(); err != nil {
		return err
	}
	if err := c.CUDA.Validate(); err != nil {
		return err
	}
	switch c.RunnerLogLevel {
	case "debug", "info", "warn", "error":
	default:
		return fault.Invalidf("runner log level %q is none of debug, info, warn, error", c.RunnerLogLevel)
	}
	return nil
}

// Scope is the label that tells the containers of this state directory from those of others on
// the same engine. It depends on the directory's path alone, so a directory that was
// emptied finds its old containers again.
func (c Config) Scope() string {
	dir, err := filepath.Abs(c.StateDir)
	if err != nil {
		dir = c.StateDir
	}
	sum := sha256.Sum256([]byte(filepath.Clean(dir)))
	return hex.EncodeToString(sum[:8])
}

func (c Config) scratchDir() string {
	if c.ScratchDir != "" {
		return c.ScratchDir
	}
	return filepath.Join(c.StateDir, "kernels")
}

// mountDir holds mounts, never files: it is apart from everything that is deleted recursively.
func (c Config) mountDir() string { return filepath.Join(c.StateDir, "mounts") }

func (c Config) ledgerFile() string { return filepath.Join(c.StateDir, "ledger.db") }

// SocketPath is where the agent answers doctor on this host.
func (c Config) SocketPath() string {
	if c.SocketFile != "" {
		return c.SocketFile
	}
	return filepath.Join(c.StateDir, "agent.sock")
}
