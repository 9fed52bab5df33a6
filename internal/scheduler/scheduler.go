// Package scheduler decides which session runs where. Plan is a pure function from a
// Snapshot to Decisions: no store, no network, no clock, no randomness. The caller
// commits the decisions with a re-check and retries what was refused with fresher state.
package scheduler

import (
	"time"

	"berth.dev/berth/internal/alloc"
	"berth.dev/berth/internal/cluster"
)

// Agent is one agent as the scheduler sees it.
type Agent struct {
	ID           cluster.AgentID
	Architecture string
	Schedulable  bool
	Alive        bool
	// Problem says why the agent gets no sessions now, in words; "" when it may. Probe: sessions failed there before, and one may
	// try it; nothing else is placed there in the same pass.
	Problem string
	Probe   cluster.Probe
	Devices []alloc.Device
	// Images are references known to be present. They break ties; a kernel whose image is Local runs nowhere else.
	Images map[string]bool
	// Hung names volumes of folders that do not answer there, in order.
	Hung []string
	// Unencrypted says why the agent carries no encrypted networks of sessions, in words; "" when it does.
	Unencrypted string
}

// Session is a session with its kernels, waiting or running.
type Session struct {
	ID         cluster.SessionID
	Name       string
	Type       cluster.SessionType
	Owner      Owner
	Priority   int // 0 to 100, larger first
	EnqueuedAt time.Time
	StartsAt   time.Time // zero: any time
	// Lifetime is how long the session runs at most once it has started; zero: unknown.
	Lifetime time.Duration
	// Waiting is set when a dependency is not yet satisfied; its text names it.
	Waiting string
	Kernels []Kernel
	// SingleNode forces all kernels onto one agent.
	SingleNode bool
	// Private sessions (SFTP, system) count against Quota.Private and nothing else.
	Private bool
	// Preemptible sessions may be ended for ones of higher priority, if the group allows it.
	Preemptible bool
	// Companions relates this session's place to that of others.
	Companions Companions
	// Designated restricts the agents; empty means any.
	Designated []cluster.AgentID
	// Volumes are those that its folders lie on, in order; it starts noRoom where one of them hangs.
	Volumes []string
	// Connected sessions have kernels that reach each other over agents. Encrypted ones have a network already that is encrypted.
	Connected, Encrypted bool
	// Failed lists agents that just failed this session; they are tried last.
	Failed []cluster.AgentID
}

// Companions are sessions that want to be near to or apart from each other.
type Companions struct {
	// Name is equal for companions; empty: none.
	Name string
	// Apart wants different agents, otherwise the same.
	Apart bool
	// Strict waits rather than start elsewhere.
	Strict bool
}

// Kernel is one container to place.
type Kernel struct {
	ID           cluster.KernelID
	Role         string // "" when it has none; words name it
	Slots        cluster.Slots
	Architecture string
	Image        string
	// Local says that no registry has Image: the kernel runs only where the image is present.
	Local bool
	// Models are the acceptable models of accelerators; empty means any.
	Models []string
	// Isolation is the least isolation from others that its accelerators must offer; empty means any.
	Isolation cluster.Isolation
}

// Running is a live session with the place of each kernel that still holds something.
type Running struct {
	Session
	StartedAt  time.Time
	Placements []Placement
}

// Owner is who pays for a session.
type Owner struct {
	AccessKey cluster.AccessKey
	User      cluster.UserID
	Project   cluster.ProjectID
	Domain    string
}

// Scopes are the owners whose quotas the session counts against.
func (o Owner) Scopes() [4]Scope {
	return [4]Scope{
		{ScopeKeypair, string(o.AccessKey)}, {ScopeUser, string(o.User)},
		{ScopeProject, string(o.Project)}, {ScopeDomain, o.Domain},
	}
}

// Scope names somebody with a quota.
type Scope struct {
	Kind ScopeKind
	ID   string
}

// ScopeKind is a kind of owner.
type ScopeKind string

// The kinds of owners.
const (
	ScopeKeypair ScopeKind = "keypair"
	ScopeUser    ScopeKind = "user"
	ScopeProject ScopeKind = "project"
	ScopeDomain  ScopeKind = "domain"
	// ScopeMember is a user in a project: ID is that of MemberScope.
	ScopeMember ScopeKind = "member"
	// ScopeLevel is a node of the tree of quotas: ID is its path.
	ScopeLevel ScopeKind = "quota"
)

// MemberScope names a user in a project.
func MemberScope(project cluster.ProjectID, user cluster.UserID) Scope {
	return Scope{ScopeMember, string(project) + "/" + string(user)}
}

// Quota limits what an owner's live sessions hold together, in all resource groups.
type Quota struct {
	// Name is how people know the owner: an address, a project's name.
	Name string
	// Slots limits sums; a slot that is absent is unlimited.
	Slots cluster.Slots
	// Sessions and Private limit the count of live sessions; negative is unlimited.
	Sessions, Private int
	Closed            bool // the owner is not active and starts nothing
}

// Usage is what an owner's live sessions hold.
type Usage struct {
	Slots             cluster.Slots
	Sessions, Private int
}

// Decision is the outcome for one session: Placements when it starts, Hold when it waits.
type Decision struct {
	Session    cluster.SessionID
	Placements []Placement
	Hold       *Explanation
	// Preempt are the victims that must end before the session can start; Hold is set too.
	Preempt []cluster.SessionID
}

// Placement puts a kernel on an agent with chosen devices.
type Placement struct {
	Kernel     cluster.KernelID
	Agent      cluster.AgentID
	Allocation alloc.Allocation
}

// Reason is the dominant cause of waiting.
type Reason string

// The reasons why a session waits.
const (
	WaitsForStartTime   Reason = "start-time"
	WaitsForDependency  Reason = "dependency"
	WaitsForQuota       Reason = "quota"            // sums of slots of an owner
	WaitsForConcurrency Reason = "concurrency"      // the count of an owner's live sessions
	WaitsForOwner       Reason = "inactive"         // its domain, project, user or keypair is not active
	WaitsForAgent       Reason = "no-agent"         // no agent of that architecture, alive and schedulable
	WaitsForCapacity    Reason = "capacity"         // fits an empty agent, not now
	TooBig              Reason = "too-big"          // fits no agent even when empty
	WaitsForDevices     Reason = "devices"          // sums fit, single devices do not
	WaitsBehind         Reason = "behind-the-queue" // held so that an earlier session is not delayed
	WaitsForVictims     Reason = "preempting"       // its place is being cleared
	WaitsForPass        Reason = "not-considered"   // the scheduler has not come to it yet
)

// Explanation says why a session waits, in words and numbers.
type Explanation struct {
	Reason Reason
	// Text is one sentence for people.
	Text string
	// Rejected counts agents per filter: "architecture", "not-schedulable", "lost", "cpu", "mem", "designated", "hung-volume",
	// "condition", "image".
	Rejected map[string]int
	// Shortfall is what the best agent lacks, per slot.
	Shortfall cluster.Slots
	// Position is the 1-based place in the group's queue.
	Position int
	// Estimate is when it can start at the latest if running sessions end when they declared;
	// zero where no estimate can be made.
	Estimate time.Time
	// Remedies are what would let it start now, each a sentence: "ask for 3 cpu at most".
	Remedies []string
	// Elsewhere names other resource groups that have room for it now, whether or not its owner may use them.
	Elsewhere []string
}
