// Package runtime is the contract between the agent and whatever runs containers on its
// host. Implementations: docker (the real engine) and fake (in memory, with fault
// injection); both pass the conformance suite in runtime/conformance.
//
// The runtime holds no policy: it does not decide what should run. Container labels
// are the truth after a restart: everything in Spec.Identity can be read back by List.
package runtime

import (
	"context"
	"io"
	"net"
	"net/netip"
	"time"

	"berth.dev/berth/internal/cluster"
)

// Phase is how far a container got, as the runtime sees it.
type Phase string

// The phases. There is no phase for "gone": such a container is absent from List.
const (
	PhaseCreated Phase = "created"
	PhaseRunning Phase = "running"
	PhaseExited  Phase = "exited"
)

// Identity is what labels carry; it alone must suffice to re-adopt a container.
type Identity struct {
	Cluster    string // id of the cluster (state directory); containers of others are invisible
	Agent      cluster.AgentID
	Kernel     cluster.KernelID
	Session    cluster.SessionID
	Generation int64
	// Allocation is the compact JSON of alloc.Allocation.
	Allocation string
	// Address is the one that the agent gave to the container, "" when the engine connects it.
	Address string
	// HostNetwork: the container is in the network of its host.
	HostNetwork bool
	// Schema is the version of the label set, now 1.
	Schema int
}

// Mount is one bind mount.
type Mount struct {
	Source, Target string
	ReadOnly       bool
}

// DeviceNode is one device file of the host, such as /dev/nvidia0, and where the container finds it.
type DeviceNode struct {
	Source, Target string
	// Permissions are letters of "rwm": read, write, make a node of it.
	Permissions string
}

// Network is one network that a container joins, by the name under which the engine knows it.
type Network struct{ Name string }

// NetworkDefault is the engine's own network, which containers join when no other is named. Containers of NetworkNone get no
// interface from the engine; those of NetworkHost are in the network of the host, and in no other.
const (
	NetworkDefault = "default"
	NetworkNone    = "none"
	NetworkHost    = "host"
)

// Ulimit is a soft and hard limit; the docker runtime clamps both to what the engine itself may use.
type Ulimit struct {
	Name       string
	Soft, Hard int64
}

// Spec is everything needed to create a container. Entry replaces the image's entrypoint and command.
type Spec struct {
	Identity   Identity
	Image      string // reference as the runtime knows it
	Digest     string // expected image id or manifest digest; empty means any
	Hostname   string
	Entry      []string
	Env        []string // K=V, added to the image's own
	WorkingDir string
	Mounts     []Mount
	Tmpfs      map[string]string // target -> options
	CPUSet     []int             // host core numbers
	MemoryMax  int64             // bytes; swap is never added
	ShmSize    int64             // bytes; 0 means 64 MiB
	PidsLimit  int64             // 0 means 4096
	Ulimits    []Ulimit
	CapAdd     []string // on top of the runtime's minimal set
	StopSignal string
	ExtraHosts []string // "name:ip"
	// Devices are device files; CDI are devices that the engine injects by their specification of the Container Device
	// Interface, by names such as "nvidia.com/gpu=0". The host must have all of them.
	Devices []DeviceNode
	CDI     []string
	// Groups are additional groups of PID 1, by number: those that own device files. Never 0.
	Groups []int
	// Networks are joined before PID 1 starts, in this order; none means NetworkDefault.
	Networks []Network
	// Resolvers answer names; none means those that the engine chooses.
	Resolvers []netip.Addr
}

// Observed is one container of this agent, running or exited.
type Observed struct {
	Identity   Identity
	ID         string
	Phase      Phase
	Pid        int // host pid of PID 1 while running
	ExitCode   int // valid in PhaseExited; 128+Signal when a signal ended it
	Signal     int // signal that ended it, 0 when none; engines tell it only by ExitCode
	OOMKilled  bool
	Error      string // engine's error when it could not be started
	StartedAt  time.Time
	FinishedAt time.Time
	// SizeRW is not collected; images of commits are measured by Commit.
}

// Hint says that something may have changed for one kernel (or for all, when Kernel is
// empty). Hints may be lost, doubled or late: the receiver must look with List or Inspect.
type Hint struct {
	Kernel cluster.KernelID
	OOM    bool
}

// PullProgress is one step of a pull; Total is 0 while unknown.
type PullProgress struct {
	Current, Total int64 // bytes over all layers
	Message        string
}

// Image is an image present on the host.
type Image struct {
	ID           string // content id, "sha256:..."
	References   []string
	Digests      []string // "name@sha256:..." of the registries it came from
	Architecture string   // wire names: x86_64, aarch64
	SizeBytes    int64
	Labels       map[string]string
	Entrypoint   []string
	Cmd          []string
	User         string
	Env          []string
	Volumes      []string // directories for which engines make a volume of its own
	CreatedAt    time.Time
}

// Commit says what image to make of a container.
type Commit struct {
	Reference string
	Labels    map[string]string // added to those of the container's image
	// MaxBytes is how large the image may be; 0 is no limit.
	MaxBytes int64
	// User has the files that the session wrote belong to another number in the image, which gets the label cluster.LabelSessionFiles.
	// The zero value leaves them, and the labels, as they are.
	User LayerUser
}

// LayerUser are the numbers that own what a session writes into its container's own file system.
type LayerUser struct {
	Session int // while it runs
	Image   int // in images that are made of it
}

// FileOwners is implemented by runtimes that change the owners of a session's files while an image is made of it.
type FileOwners interface {
	// TakeBack gives a running container the files back that a commit changed which did not end. Doing it for nothing is no error.
	TakeBack(ctx context.Context, o Observed, u LayerUser) error
}

// Info describes the engine.
type Info struct {
	Name, Version, APIVersion string
	CgroupVersion             int
	Architecture              string
	StorageDriver             string
	// CDI are the directories of specifications of the Container Device Interface that it reads; none means that it knows none.
	CDI      []string
	Warnings []string // limits that had to be lowered, features missing
}

// LogOptions selects container log output.
type LogOptions struct {
	Follow bool
	Tail   int // lines; 0 means all
	Since  time.Time
}

// Stats are cumulative counters and gauges read from the host's cgroups and /proc. A nil
// pointer means unknown, which is never zero.
type Stats struct {
	At          time.Time
	CPUUsedNs   *int64
	CPUWaitNs   *int64 // time in which at least one process that wanted to run had to wait for a core
	MemoryBytes *int64 // usage minus inactive file cache
	MemoryPeak  *int64
	IOReadBytes *int64
	IOWriteByte *int64
	NetRxBytes  *int64
	NetTxBytes  *int64
	Pids        *int64
	OOMKills    *int64
}

// The reasons that faults of every runtime carry, beside their kinds.
const (
	// ReasonEngine: the engine does not answer (Unavailable).
	ReasonEngine = "engine-unavailable"
	// ReasonContainer: the kernel has no container here (NotFound).
	ReasonContainer = "container-not-found"
	// ReasonImage: the image is not on this host (NotFound): pull it.
	ReasonImage = "image-not-found"
	// ReasonPull: the registry or the way to it failed; the kind says how.
	ReasonPull = "image-pull-failed"
	// ReasonDigest: the image is there with another content than expected (Conflict).
	ReasonDigest = "image-digest-mismatch"
	// ReasonImageSize: the image would be larger than it may be (Exhausted).
	ReasonImageSize = "image-too-large"
	// ReasonImageUse: a container or another image needs the image (Conflict).
	ReasonImageUse = "image-in-use"
	// ReasonGeneration: a container of another generation is there (Conflict).
	ReasonGeneration = "other-generation"
	// ReasonDisk: the engine's disk is full (Exhausted).
	ReasonDisk = "disk-full"
	// ReasonDevice: the host has no such device, or the engine cannot inject it (NotFound).
	ReasonDevice = "device-not-found"
	// ReasonNetwork: the engine has no such network (NotFound).
	ReasonNetwork = "network-not-found"
)

// Runtime runs containers. All methods may be called concurrently, also for one kernel.
// Errors are faults: NotFound for an absent container or image, Conflict when the state
// forbids it, Unavailable when the engine does not answer (retry later), Invalid for a
// spec the engine can never run, Exhausted when a host resource is used up.
type Runtime interface {
	// Info probes the engine.
	Info(ctx context.Context) (Info, error)
	// Ensure creates and starts the container of spec.Identity. Calling it again with the same
	// kernel and generation returns the existing one, started when it was only created; an
	// exited one is returned as it is and never started again. A container of an older
	// generation of that kernel is a Conflict: Remove it first.
	Ensure(ctx context.Context, spec Spec) (Observed, error)
	// Stop asks PID 1 to end and kills the container after grace; a stopped one is no error.
	Stop(ctx context.Context, kernel cluster.KernelID, grace time.Duration) error
	// Remove deletes the container by force with its anonymous volumes; an absent one is no error.
	Remove(ctx context.Context, kernel cluster.KernelID) error
	// Inspect returns one container.
	Inspect(ctx context.Context, kernel cluster.KernelID) (Observed, error)
	// List returns every container of this cluster and agent, exited ones too.
	List(ctx context.Context) ([]Observed, error)
	// Watch sends hints until ctx ends, reconnecting by itself; after every reconnect it sends
	// a hint without kernel. The channel is closed when ctx ends.
	Watch(ctx context.Context) <-chan Hint
	// Logs streams the container's combined output, oldest first.
	Logs(ctx context.Context, kernel cluster.KernelID, opt LogOptions) (io.ReadCloser, error)
	// Commit makes an image of the container's file system.
	Commit(ctx context.Context, kernel cluster.KernelID, c Commit) (Image, error)
	// RemoveImage deletes the image of that id with its name. It is Conflict while a container uses it or another image is made of
	// it; an absent one is no error, and of one that has other names too only this name is taken away.
	RemoveImage(ctx context.Context, reference, id string) error
	// Pull fetches an image; progress may be nil. Error items of the stream are errors; when
	// digest is not empty the result must match it.
	Pull(ctx context.Context, reference, digest string, progress func(PullProgress)) (Image, error)
	// Images lists images on the host; Image returns one by reference or id.
	Images(ctx context.Context) ([]Image, error)
	Image(ctx context.Context, reference string) (Image, error)
	// ReadImageFile returns one regular file of an image's file system without starting it
	// (used for /etc/passwd and /etc/group overlays); NotFound when absent. At most max bytes.
	ReadImageFile(ctx context.Context, reference, path string, limit int64) ([]byte, error)
	// LinksInImage returns, for each of the absolute paths, the first symbolic link that lies on it in an image, the path itself
	// included; "" where there is none.
	LinksInImage(ctx context.Context, reference string, paths []string) (map[string]string, error)
	// Stats reads the container's counters from the host directly, without asking the engine.
	Stats(ctx context.Context, o Observed) (Stats, error)
	// Close releases connections; containers are untouched.
	Close() error
}

// LayerUse is what a container wrote into its own file system.
type LayerUse struct {
	Dir   string // the layer's, on this host
	Bytes int64
	// Complete is false when there are more files than were counted: Bytes is then the least that it can be.
	Complete bool
	// Written is what its processes wrote to all file systems since they began; -1 when that is unknown.
	Written int64
}

// Disks is implemented by runtimes whose containers write to disks of this host.
type Disks interface {
	// DataDir is where the engine keeps images and layers, "" while that is unknown.
	DataDir(ctx context.Context) string
	// Layer measures the layer of a running container and counts no more than the given number of files.
	Layer(ctx context.Context, o Observed, files int) (LayerUse, error)
}

// EngineProcess is implemented by runtimes whose engine is a process of this host: mounts that the agent makes are of
// use only where that process sees them.
type EngineProcess interface {
	// EnginePID returns the engine's process, 0 when it is unknown.
	EnginePID(ctx context.Context) (int, error)
}

// MountHolder is implemented by runtimes that change the mounts of running containers themselves (fake), because no process of this host
// is in them. It does what host.Host says of Withhold.
type MountHolder interface {
	Withhold(ctx context.Context, kernel cluster.KernelID, list []cluster.Withheld) error
}

// BridgeSpec describes the bridge network of an agent.
type BridgeSpec struct {
	// Name is the network's, Interface that of the bridge on the engine's host.
	Name, Interface string
	// Subnets are tried in order when the network has to be made; the first that the engine takes is the network's.
	Subnets []netip.Prefix
	// Renew makes the network anew although the engine has it: its bridge is broken.
	Renew bool
}

// BridgeHolder is implemented by runtimes whose engine can hold a bridge network for the agent: the engine routes it and
// translates its addresses, and keeps containers on it from each other.
type BridgeHolder interface {
	// EnsureBridge makes the network unless it exists, and returns its subnet.
	EnsureBridge(ctx context.Context, spec BridgeSpec) (netip.Prefix, error)
	// RemoveBridge removes the network; an absent one is no error.
	RemoveBridge(ctx context.Context, name string) error
}

// RunnerDialer is implemented by runtimes that host the runner themselves (fake) instead of
// through a socket file in the kernel's directory.
type RunnerDialer interface {
	DialRunner(ctx context.Context, kernel cluster.KernelID) (net.Conn, error)
}
