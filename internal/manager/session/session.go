package session

import (
	"encoding/json"
	"maps"
	"strconv"
	"time"

	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/manager/authz"
	"berth.dev/berth/internal/manager/store"
	"berth.dev/berth/internal/manager/store/dbgen"
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

// Kernel finds a kernel by its name in the session or its id; "" is the main kernel.
func (s *Session) Kernel(name string) (Kernel, error) {
	if len(s.Kernels) == 0 {
		return Kernel{}, authz.NotFound("kernel", name)
	}
	return kernelOf(s.Kernels, name, s.Name)
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
	ResourceOpts    map[string]string // the session's, with the role's own over them
	OccupiedSlots   cluster.Slots     // the requested slots while the kernel holds them
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

func sessionView(r dbgen.SessionViewsRow) *Session {
	x := r.Session
	v := &Session{
		ID: cluster.SessionID(x.ID), Name: x.Name, Type: x.Type, Priority: int(x.Priority), ClusterMode: x.ClusterMode,
		ClusterSize: int(x.ClusterSize),
		Domain:      x.DomainName, ProjectID: cluster.ProjectID(x.ProjectID), ProjectName: r.ProjectName, UserID: cluster.UserID(x.UserID),
		UserEmail: r.UserEmail, UserFullName: r.UserFullName, AccessKey: cluster.AccessKey(x.AccessKey), ResourceGroup: x.ResourceGroup,
		Image: x.Image, Tag: x.Tag, Status: x.Status, StatusInfo: x.StatusInfo, StatusData: x.StatusData, StatusChanged: x.StatusChanged.UTC(),
		Result: x.Result, RequestedSlots: x.RequestedSlots, OccupyingSlots: cluster.Slots{}, ResourceOpts: x.ResourceOpts, Environ: x.Environ,
		StartupCommand: x.StartupCommand, BootstrapScript: x.BootstrapScript, CallbackURL: x.CallbackUrl, StartsAt: store.UTC(x.StartsAt),
		CreatedAt:   x.CreatedAt.UTC(),
		ScheduledAt: store.UTC(x.ScheduledAt), StartedAt: store.UTC(x.StartedAt), EndedAt: store.UTC(x.EndedAt), NumQueries: x.NumQueries,
		AgentIDs: []cluster.AgentID{}, DependsOn: []Brief{}, Kernels: []Kernel{}, Mounts: []cluster.FolderMount{},
	}
	if err := json.Unmarshal(r.Mounts, &v.Mounts); err != nil {
		v.Mounts = []cluster.FolderMount{} // the database made it of its own columns
	}
	if x.BatchTimeoutMs != nil {
		v.BatchTimeout = time.Duration(*x.BatchTimeoutMs) * time.Millisecond
	}
	return v
}

func kernelView(k dbgen.KernelViewsRow) Kernel {
	v := Kernel{
		ID: cluster.KernelID(k.ID), SessionID: cluster.SessionID(k.SessionID), ClusterRole: k.ClusterRole, ClusterIdx: int(k.ClusterIdx),
		LocalRank: int(k.LocalRank), ClusterHostname: k.ClusterHostname, Image: k.Image, Architecture: k.Architecture, Registry: k.Registry,
		Generation: k.Generation, Status: k.Status, StatusInfo: k.StatusInfo, StatusData: k.StatusData, StatusChanged: k.StatusChanged.UTC(),
		Deadline: store.UTC(k.Deadline), RequestedSlots: k.RequestedSlots,
		OccupiedSlots: cluster.Slots{}, ExitCode: store.Int(k.ExitCode),
		Signal:    store.Int(k.Signal),
		OOMKilled: k.OomKilled, ServicePorts: servicePorts(k.ServicePorts), PreopenPorts: store.Ints(k.PreopenPorts),
		CreatedAt:   k.CreatedAt.UTC(),
		ScheduledAt: store.UTC(k.ScheduledAt), StartedAt: store.UTC(k.StartedAt), EndedAt: store.UTC(k.EndedAt),
	}
	if k.ResourceOpts != nil {
		v.ResourceOpts = optionsOf(k, k.ResourceOpts)
	}
	if k.AgentID != nil {
		v.Agent = cluster.AgentID(*k.AgentID)
	}
	if k.AgentAddr != nil {
		v.AgentAddr = *k.AgentAddr
	}
	if k.ContainerID != nil {
		v.ContainerID = *k.ContainerID
	}
	if k.Status.HoldsSlots() {
		v.OccupiedSlots = k.RequestedSlots
	}
	if len(k.LastStat) > 0 {
		_ = json.Unmarshal(k.LastStat, &v.LastStat) // charts only
	}
	return v
}

// optionsOf are a kernel's resource options: its session's, with what its role has of its own over them.
func optionsOf(k dbgen.KernelViewsRow, session map[string]string) map[string]string {
	if k.ShmemBytes == nil {
		return session
	}
	own := maps.Clone(session)
	if own == nil {
		own = map[string]string{}
	}
	own["shmem"] = strconv.FormatInt(*k.ShmemBytes, 10)
	return own
}
