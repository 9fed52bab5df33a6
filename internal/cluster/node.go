package cluster

import (
	"encoding/json"
	"time"
)

// Phase is how far an agent has brought a kernel; it never goes back within one generation.
type Phase int

// The phases, in order. PhaseUnknown is never reported.
const (
	PhaseUnknown Phase = iota
	PhasePreparing
	PhasePulling
	PhasePrepared
	PhaseCreating
	PhaseRunning
	PhaseTerminating
	PhaseEnded
)

// Status is the kernel status that the phase stands for; an ended kernel's status
// depends on how it ended and is Terminated here.
func (p Phase) Status() Status {
	switch p {
	case PhasePreparing:
		return Preparing
	case PhasePulling:
		return Pulling
	case PhasePrepared:
		return Prepared
	case PhaseCreating:
		return Creating
	case PhaseRunning:
		return Running
	case PhaseTerminating:
		return Terminating
	case PhaseEnded:
		return Terminated
	}
	return ""
}

// NodeHello is how an agent introduces itself when it connects.
type NodeHello struct {
	Agent         AgentID
	BootID        string
	Version       string
	ResourceGroup string // seed at first registration only; "" means the default group
	Region        string
	Addr          string // the agent's address as the manager sees it, for people
	Serial        string // of the node certificate
	HighestEpoch  int64  // that the agent ever saw; the new one must be higher
}

// OrdersAge says that an agent has been sent the desired state of so long ago.
type OrdersAge struct {
	Agent AgentID
	Age   time.Duration
}

// NodeFacts describe a node; the newest revision wins.
type NodeFacts struct {
	Revision     int64
	Architecture string
	Hostname     string
	Capacity     Slots
	SlotKinds    map[SlotName]SlotKind
	// Devices is a JSON array of alloc.Device, kept as text here because this package knows no devices.
	Devices     json.RawMessage
	Images      []NodeImage
	Engine      string
	EngineOK    bool
	EngineError string
	Warnings    []string
	// HungVolumes are hosts ("proxy:volume") whose file systems do not answer on this node, in order.
	HungVolumes []string
	// DiskProblem says why the node gets no more kernels for want of disk; "" when it may.
	DiskProblem string
	// Conditions are what an operator should know of the node.
	Conditions []Condition
	// DataAddress (host:port) and DataSocket (a path on the node's host) are where the node's data port is; "" for none.
	DataAddress string
	DataSocket  string
	// NetworkAddress is where other nodes reach this one for networks of sessions; "" when it cannot have any.
	NetworkAddress string
	// TunnelKey and TunnelPort are of its end of encrypted tunnels to other nodes; "" and 0 when it has no key. TunnelProblem says why it
	// carries no encrypted networks now; "" when it may.
	TunnelKey     string
	TunnelPort    int
	TunnelProblem string
}

// LabelCustomizedOwner says whose session an image was made of: "user:<id>".
const LabelCustomizedOwner = "ai.backend.customized-image.owner"

// LabelSessionFiles says whether an image that was made of a session holds files of the user of sessions: NoSessionFiles or SessionFiles.
// Images that agents made before they looked do not have it.
const (
	LabelSessionFiles = "ai.backend.customized-image.user-files"
	NoSessionFiles    = "none"
	SessionFiles      = "some"
)

// NodeImage is an image present on a node.
type NodeImage struct {
	Reference    string
	Digest       string
	Architecture string
	SizeBytes    int64
	Labels       map[string]string
}

// Of the log of an ended kernel the last LogTailLines lines are kept, and of those the last LogTailBytes bytes.
const (
	LogTailLines = 20_000
	LogTailBytes = 1 << 20
)

// KernelObservation is what an agent says about one kernel of one generation.
type KernelObservation struct {
	Kernel     KernelID
	Session    SessionID
	Generation int64
	Phase      Phase
	Reason     Reason // of the end
	Detail     string // in words; before the end: what it waits for
	ExitCode   *int
	Signal     int
	OOMKilled  bool // before the end: processes of the kernel were killed for want of memory, and it goes on
	// Failed: could not be created or started; RetryElsewhere: another agent may succeed. Both together promise of a batch session that
	// nothing of its command was started here.
	// AgentsFault: it failed for something of the agent's making (its disk, its engine, its network), whatever the session.
	Failed, RetryElsewhere, AgentsFault bool
	StartedAt, EndedAt                  time.Time // zero when unknown
	ContainerID                         string
	Allocation                          string // JSON of alloc.Allocation
	LogTail                             string
	// HostEndpoint is where the other kernels of its session reach its SSH server (ADDRESS:PORT), in the network of its host; "" elsewhere.
	HostEndpoint string
	// Batch: ExitCode is the result of the batch job; TimedOut: the job ran out of its time.
	Batch, TimedOut bool
}

// Tombstone names an ended kernel that its agent may forget.
type Tombstone struct {
	Kernel     KernelID
	Generation int64
}

// DesiredKernel is what should be true of one kernel on an agent. With Stop the spec may be nil.
type DesiredKernel struct {
	Kernel     KernelID
	Session    SessionID
	Generation int64
	Stop       bool
	Force      bool
	Grace      time.Duration
	StopReason Reason
	// Egress, Withheld and AuthorizedKeys may change while the kernel runs; the specification does not.
	Egress Egress
	// Withheld are the folders that its container may no longer have as they were mounted, in the order of their ids.
	Withheld []Withheld
	// AuthorizedKeys are the lines of the owner's SSH keys, which may log in; nil says nothing about them, and empty admits none.
	AuthorizedKeys []string
	// Network is what the kernels of its session have in common; nil where it is the only one. Who its members are and where they run may
	// change, addresses do not.
	Network *SessionNetwork
	// HostPeers are all kernels of its session where these run in the network of their hosts. They may change while the kernel runs.
	HostPeers []HostPeer
	// AllRun says of one of several kernels that all of its session run. It may change while the kernel runs.
	AllRun bool
	Spec   *KernelSpec
}

// Withheld is a folder that the owner of a session has lost a right to while the session mounts it.
type Withheld struct {
	Folder FolderID `json:"folder"`
	Name   string   `json:"name"`
	Scope  string   `json:"scope"`
	// ReadOnly: it stays, and cannot be changed any more. Otherwise it is taken away.
	ReadOnly bool `json:"read_only,omitempty"`
}

// When agents pull images of registries. PullTag pulls no name that is on the host already.
const (
	PullDigest = "digest"
	PullTag    = "tag"
	PullNone   = "none"
)

// KernelSpec is everything an agent needs to create a kernel.
type KernelSpec struct {
	Image           string
	ImageDigest     string
	ImageLabels     map[string]string
	RegistryType    string // "local" is never pulled
	RegistryAuth    string // never logged
	AutoPull        string // when images of registries are pulled: PullDigest, PullTag or PullNone
	Hostname        string
	Hosts           []string // "name:ip"
	Env             map[string]string
	Slots           Slots
	Allocation      string // JSON of alloc.Allocation; "" lets the agent choose
	ShmBytes        int64
	UID, GID        int // -1 lets the agent choose its default
	ExtraGIDs       []int
	SessionName     string
	SessionType     SessionType
	RuntimeType     string
	RuntimePath     string
	StartupCommand  string
	BatchTimeout    time.Duration // 0 means none
	BootstrapScript string
	Dotfiles        []Dotfile
	PreopenPorts    []int
	ServicePorts    string // the image's label text
	ClusterRole     string
	ClusterIdx      int
	LocalRank       int
	Mounts          []FolderMount
	// PeerSecret is known to the kernels of the session alone; "" where there is one. It is never logged.
	PeerSecret string
	// HostNetwork: the kernel runs in the network of its agent's host, with ports that the agent leases to it.
	HostNetwork bool
}

// RunsJob reports whether the kernel runs the command of a batch session: its main kernel does. The others are there for it, and end
// with it.
func (s *KernelSpec) RunsJob() bool {
	return s.SessionType == Batch && (s.ClusterRole == "" || s.ClusterRole == RoleMain)
}

// RoleMain is the role of a session's first kernel.
const RoleMain = "main"

// RoleSub is the role of the kernels that a session has besides its main one without naming a role.
const RoleSub = "sub"

// Dotfile is a small file that is put into every container of its owner.
type Dotfile struct {
	Path string `json:"path"`
	Perm string `json:"perm"`
	Data string `json:"data"`
}

// String names the spec without its secrets it is what logs print.
func (s KernelSpec) String() string { return "spec of " + s.SessionName + " (" + s.Image + ")" }
