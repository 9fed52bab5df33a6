package session

import (
	"time"

	"berth.dev/berth/internal/cluster"
)

// Session is a session with its kernels as its readers see it. Lists are never nil.
type Session struct {
	ID              cluster.SessionID
	Name            string
	Type            cluster.SessionType
	Priority        int
	ClusterMode     string
	ClusterSize     int
	Domain          string
	ProjectID       cluster.ProjectID
	ProjectName     string
	UserID          cluster.UserID
	UserEmail       string
	UserFullName    string
	AccessKey       cluster.AccessKey
	ResourceGroup   string
	Image           string // canonical reference
	Architecture    string // of the main kernel
	Registry        string
	Tag             *string
	Status          cluster.Status
	StatusInfo      string
	StatusData      map[string]any
	StatusChanged   time.Time
	Result          cluster.Result
	RequestedSlots  cluster.Slots
	OccupyingSlots  cluster.Slots // of live placed kernels
	ResourceOpts    map[string]string
	Environ         map[string]string
	StartupCommand  *string
	BootstrapScript *string
	CallbackURL     *string
	BatchTimeout    time.Duration
	StartsAt        *time.Time
	CreatedAt       time.Time
	ScheduledAt     *time.Time
	StartedAt       *time.Time
	EndedAt         *time.Time
	NumQueries      int64
	AgentIDs        []cluster.AgentID
	DependsOn       []Brief
	Mounts          []cluster.FolderMount
	Kernels         []Kernel // ordered by local rank; the first is the main kernel
}

// Brief names a session.
type Brief struct {
	ID        cluster.SessionID
	Name      string
	Status    cluster.Status
	CreatedAt time.Time
}

// MainKernel returns the kernel that executes code.
func (s *Session) MainKernel() *Kernel {
	if len(s.Kernels) == 0 {
		return nil
	}
	return &s.Kernels[0]
}

// Kernel is one container of a session.
type Kernel struct {
	ID              cluster.KernelID
	SessionID       cluster.SessionID
	ClusterRole     string
	ClusterIdx      int
	LocalRank       int
	ClusterHostname string
	Image           string
	Architecture    string
	Registry        string
	Agent           cluster.AgentID // "" while not placed
	AgentAddr       string
	Generation      int64
	Status          cluster.Status
	StatusInfo      string
	StatusData      map[string]any
	StatusChanged   time.Time
	Deadline        *time.Time
	RequestedSlots  cluster.Slots
	OccupiedSlots   cluster.Slots // the requested slots while the kernel holds them
	ContainerID     string
	ExitCode        *int
	Signal          *int
	OOMKilled       bool
	ServicePorts    []ServicePort
	PreopenPorts    []int
	CreatedAt       time.Time
	ScheduledAt     *time.Time
	StartedAt       *time.Time
	EndedAt         *time.Time
	LastStat        map[string]any
	LiveStat        map[string]float64 // nil when unknown
}

// ServicePort is an app inside a kernel.
type ServicePort struct {
	Name             string   `json:"name"`
	Protocol         string   `json:"protocol"` // tcp, http, preopen, pty, vnc, rdp
	Ports            []int    `json:"ports"`
	URLTemplate      string   `json:"url_template,omitempty"`
	AllowedArguments []string `json:"allowed_arguments,omitempty"`
	AllowedEnvs      []string `json:"allowed_envs,omitempty"`
}

// Age is how long the session has existed, or existed until its end.
func (s *Session) Age(now time.Time) time.Duration {
	if s.EndedAt != nil {
		return s.EndedAt.Sub(s.CreatedAt)
	}
	return now.Sub(s.CreatedAt)
}
