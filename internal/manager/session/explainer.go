package session

import (
	"context"
	"time"

	"berth.dev/berth/internal/cluster"
)

// Explainer asks the scheduler why a session waits, where a request would start, and what the queues hold.
// scheduling.Planner satisfies it on every manager: the leader answers from its memory, another one from a
// copy that is about a second old at most. It checks no permission and changes nothing.
type Explainer interface {
	// Explain says why a session waits. A session that does not wait has Status and Text, but no Reason.
	// NotFound when there is no such session.
	Explain(ctx context.Context, session cluster.SessionID) (Explanation, error)
	// DryRun plans a session without adding it: Placements when it would start now, else why not.
	DryRun(ctx context.Context, request PlanRequest) (Explanation, error)
	// Status describes every resource group's queue, by name.
	Status(ctx context.Context) ([]GroupStatus, error)
}

// Explanation says why a session waits, or where it would start.
type Explanation struct {
	Session cluster.SessionID // "" for a dry run
	Group   string            // the resource group
	Status  cluster.Status    // "" for a dry run
	// Reason is one word: "capacity", "quota", "dependency" and so on; "" when nothing holds it back.
	Reason string
	// Text is one sentence for people.
	Text string
	// Rejected counts agents per filter that refused; Shortfall is what the best agent lacks.
	Rejected  map[string]int
	Shortfall cluster.Slots
	// Position is the 1-based place in the group's queue of Queue sessions; 0 for a dry run that would start.
	Position, Queue int
	// Estimate is when it starts at the latest, if running sessions end when they declared; zero is unknown.
	Estimate time.Time
	// Remedies are what would let it start now, each a sentence.
	Remedies []string
	// Elsewhere names other resource groups that have room now. Those that the owner may use are told as remedies; nobody is
	// told of others.
	Elsewhere []string
	// Placements are where a dry run's containers would start, in the order of the request's kernels.
	Placements []PlannedKernel
	// Mounts are the folders that a dry run's containers would see, automatic ones included.
	Mounts []cluster.FolderMount
	// AsOf is the instant that all of this describes.
	AsOf time.Time
}

// PlannedKernel is where one container of a dry run would start.
type PlannedKernel struct {
	Agent cluster.AgentID
	// Devices are the amounts per slot and device.
	Devices map[cluster.SlotName]map[string]cluster.Amount
}

// PlanRequest is a session that does not exist, as the scheduler sees it.
type PlanRequest struct {
	Group       string
	Type        cluster.SessionType
	AccessKey   cluster.AccessKey
	User        cluster.UserID
	Project     cluster.ProjectID
	Domain      string
	Priority    int
	StartsAt    time.Time     // zero: any time
	Lifetime    time.Duration // a batch timeout; zero: unknown
	SingleNode  bool
	Designated  []cluster.AgentID
	DependsOn   []cluster.SessionID
	Volumes     []string // hosts of its folders, in order
	Kernels     []PlanKernel
	Preemptible bool
}

// PlanKernel is one container of a PlanRequest.
type PlanKernel struct {
	Role         string // "", main and sub: none
	Slots        cluster.Slots
	Architecture string
	Image        string
	Isolation    cluster.Isolation // the least that its accelerators must offer
}

// GroupStatus describes the queue of one resource group.
type GroupStatus struct {
	Name   string
	Active bool
	// Scheduler and Placement are the policies in effect. Warning is set when the stored policy cannot be
	// used and these are the last good ones instead.
	Scheduler, Placement string
	Warning              string
	Pending              int
	Reasons              map[string]int // pending sessions by reason, as of the last pass
	Running              int            // live sessions, that are not waiting
	Agents, UsableAgents int
	// Leader says whether this manager's own scheduler answers. If so, LastPass is when it last looked at the queues, and Drift
	// counts the differences from the database that it had to correct: anything but 0 is a defect.
	Leader   bool
	LastPass time.Time
	Drift    int
}
