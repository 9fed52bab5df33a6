package cuda

import (
	"fmt"
	"path/filepath"
	"regexp"
	"slices"

	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/fault"
)

// Config is what the operator says about the NVIDIA GPUs of a host.
type Config struct {
	// Enabled is "auto" (GPUs are given out where the helper is there), "on" (an agent without them does not start) or "off".
	Enabled string
	// Fractions offers parts of cards as cuda.shares, beside whole ones.
	Fractions bool
	// Reserve is the memory of each card that its shares leave to the driver.
	Reserve Memory
	// Mask are the UUIDs of cards and MIG instances that are not given out.
	Mask []string
	// Profiles are the MIG profiles whose instances are given out, such as "1g.10gb". None means those that the agent finds when it starts.
	Profiles []string
	// Isolation is the least isolation with which shares are given out: "driver", "cooperative" or "none".
	Isolation string
	// AllowTimeSlicing gives shares out although nothing holds their limits; Isolation must be "none".
	AllowTimeSlicing bool
	// Inject is how containers get devices: "cdi" by specifications of the Container Device Interface, "nodes" by device files and mounts,
	// or "auto", the first where the engine knows it.
	Inject string
	// SpecDir is where the agent writes its own specification. The engine must read it.
	SpecDir string
	// Libraries are the directories in which the driver's libraries are looked for when no specification of NVIDIA's names them.
	Libraries []string
	// MPSControl is the program that controls NVIDIA's MPS, MPSDir the directory of its daemons' sockets.
	MPSControl string
	MPSDir     string
}

// The values of Config.Enabled and Config.Inject.
const (
	Auto  = "auto"
	On    = "on"
	Off   = "off"
	CDI   = "cdi"
	Nodes = "nodes"
)

// DefaultConfig returns the defaults.
func DefaultConfig() Config {
	return Config{
		Enabled: Auto, Reserve: 512 << 20, Isolation: string(Cooperative), Inject: Auto, SpecDir: "/var/run/cdi",
		Libraries:  []string{"/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu", "/usr/lib64", "/usr/lib", "/usr/local/nvidia/lib64"},
		MPSControl: "nvidia-cuda-mps-control", MPSDir: "/run/berth/mps",
	}
}

// Memory is an amount of a card's memory; in configuration files a number of bytes or a text such as "512m".
type Memory int64

// UnmarshalText reads a number of bytes or a text such as "1.5g".
func (m *Memory) UnmarshalText(text []byte) error {
	n, err := cluster.ParseBytes(string(text))
	*m = Memory(n)
	return err
}

// MarshalText writes the number of bytes.
func (m Memory) MarshalText() ([]byte, error) { return fmt.Appendf(nil, "%d", int64(m)), nil }

// maxListed bounds each list of a Config.
const maxListed = 512

var (
	validUUID    = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9-]{0,63}$`)
	validProfile = regexp.MustCompile(`^[0-9]+g\.[0-9]+gb(\+[a-z]+(\.[a-z]+)*)?$`)
)

// Validate reports the first value that cannot be used.
func (c Config) Validate() error {
	if !slices.Contains([]string{Auto, On, Off}, c.Enabled) {
		return fault.Invalidf("agent.cuda.enabled is %q", c.Enabled).WithNext("use %q, %q or %q", Auto, On, Off)
	}
	if !slices.Contains([]string{Auto, CDI, Nodes}, c.Inject) {
		return fault.Invalidf("agent.cuda.inject is %q", c.Inject).WithNext("use %q, %q or %q", Auto, CDI, Nodes)
	}
	if !slices.Contains([]cluster.Isolation{ByDriver, Cooperative, None}, cluster.Isolation(c.Isolation)) {
		return fault.Invalidf("agent.cuda.isolation is %q", c.Isolation).
			WithNext("use %q, %q or %q; for isolation by hardware use MIG, whose instances are no shares", ByDriver, Cooperative, None)
	}
	if c.AllowTimeSlicing && cluster.Isolation(c.Isolation) != None {
		return fault.Invalidf("agent.cuda.allow_time_slicing gives shares without isolation, agent.cuda.isolation asks for %q", c.Isolation).
			WithNext("set agent.cuda.isolation to %q, or leave allow_time_slicing out", None)
	}
	if c.Reserve < 0 || c.Reserve > 16<<30 {
		return fault.Invalidf("agent.cuda.reserve is %d bytes", int64(c.Reserve)).WithNext("choose between 0 and 16g")
	}
	if len(c.Mask) > maxListed || len(c.Profiles) > maxListed || len(c.Libraries) > maxListed {
		return fault.Invalidf("a list of agent.cuda has more than %d entries", maxListed)
	}
	for _, id := range c.Mask {
		if !validUUID.MatchString(id) {
			return fault.Invalidf("agent.cuda.mask names %q", id).WithNext("write UUIDs as nvidia-smi -L prints them")
		}
	}
	for _, p := range c.Profiles {
		if !validProfile.MatchString(p) {
			return fault.Invalidf("agent.cuda.profiles names %q", p).WithNext("write profiles as nvidia-smi does, without MIG: 1g.10gb")
		}
	}
	for name, dir := range map[string]string{"spec_dir": c.SpecDir, "mps_dir": c.MPSDir} {
		if !filepath.IsAbs(dir) || filepath.Clean(dir) == "/" {
			return fault.Invalidf("agent.cuda.%s is %q", name, dir).WithNext("write the absolute path of a directory")
		}
	}
	for _, dir := range c.Libraries {
		if !filepath.IsAbs(dir) {
			return fault.Invalidf("agent.cuda.libraries names %q", dir).WithNext("write absolute paths")
		}
	}
	if c.MPSControl == "" {
		return fault.Invalidf("agent.cuda.mps_control is empty").WithNext("name NVIDIA's program nvidia-cuda-mps-control")
	}
	return nil
}
