package service

import (
	"context"
	"io"
	"net/http"
	"time"

	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/fault"
	"berth.dev/berth/internal/manager/authz"
	"berth.dev/berth/internal/manager/seal"
)

// The signatures below are agreed; bodies are being filled in, file by file.
var errNotBuilt = fault.Unavailablef("not built yet")

type Nodes struct{ s *Service }

// ---- session_create.go

// CreateSession is a request for a session, as texts where the wire has texts. Zero values mean the wire's defaults.
type CreateSession struct {
	Name           string
	Image          string // reference or alias
	Architecture   string // "" means x86_64
	Type           cluster.SessionType
	Project        string // name or id; "" means default
	Domain         string // "" means the owner's
	Tag            *string
	NoReuse        bool // refuse instead of returning a live session of that name
	StartupCommand string
	// BootstrapScript nil means the keypair's.
	BootstrapScript *string
	OwnerAccessKey  cluster.AccessKey
	StartsAt        string // ISO time or a delta such as 10m
	ClusterSize     int
	ClusterMode     string
	Dependencies    []string // ids or names
	CallbackURL     string
	Priority        *int
	BatchTimeout    time.Duration
	Environ         map[string]string
	Resources       map[string]string // slot -> amount as written
	ResourceOpts    map[string]string // shmem
	ResourceGroup   string            // "" means the first allowed one
	PreopenPorts    []int
	Agents          []string
	Mounts          []string // names or ids of folders, in any of the wire's three forms
}

// CreatedSession answers CreateSession; Created is false when a live session was reused.
type CreatedSession struct {
	ID           cluster.SessionID
	Name         string
	Status       cluster.Status
	ServicePorts []ServicePort
	Created      bool
}

func (s *Service) CreateSession(ctx context.Context, a Actor, r CreateSession) (CreatedSession, error) {
	return CreatedSession{}, errNotBuilt
}

// ---- session_wait.go

// Until says what WaitSession waits for.
type Until int

const (
	// UntilStarted: RUNNING or final.
	UntilStarted Until = iota
	// UntilEnded: final.
	UntilEnded
)

// SessionState is what a waiter learns.
type SessionState struct {
	ID           cluster.SessionID
	Name         string
	Status       cluster.Status
	StatusInfo   string
	Result       cluster.Result
	ExitCode     *int // of the main kernel
	ServicePorts []ServicePort
}

// WaitSession waits for a session; timeout 0 waits as long as ctx lives. TimedOut says that the state
// is not there yet; that is no error.
func (s *Service) WaitSession(ctx context.Context, a Actor, id cluster.SessionID, until Until, timeout time.Duration) (st SessionState, timedOut bool, err error) {
	return st, false, errNotBuilt
}

// ---- session_find.go

// FindSession finds a session by id (any state) or by name (live ones of the owner; owner "" is the actor).
func (s *Service) FindSession(ctx context.Context, a Actor, ref string, owner cluster.AccessKey) (*Session, error) {
	return nil, errNotBuilt
}

// MatchSessions lists live sessions of the actor whose id or name begins with the prefix.
func (s *Service) MatchSessions(ctx context.Context, a Actor, prefix string) ([]SessionBrief, error) {
	return nil, errNotBuilt
}

// SessionFilter narrows ListSessions on top of ListQuery.
type SessionFilter struct {
	ListQuery
	Statuses  []string // wire names; unknown ones are ignored
	AccessKey cluster.AccessKey
	Domain    string
	Project   cluster.ProjectID
	Type      cluster.SessionType
}

// ListSessions lists what the actor may see: own sessions, of the domain for its administrators, all for superadmins.
func (s *Service) ListSessions(ctx context.Context, a Actor, f SessionFilter) (Page[*Session], error) {
	return Page[*Session]{}, errNotBuilt
}

// SessionsByID reads several sessions for a data loader; those that the actor may not see are absent.
func (s *Service) SessionsByID(ctx context.Context, a Actor, ids []cluster.SessionID) (map[cluster.SessionID]*Session, error) {
	return nil, errNotBuilt
}

// KernelsFilter selects kernels: those of a session, or live ones of an agent.
type KernelsFilter struct {
	Session cluster.SessionID
	Agent   cluster.AgentID
	Kernel  cluster.KernelID
	ListQuery
}

func (s *Service) ListKernels(ctx context.Context, a Actor, f KernelsFilter) (Page[Kernel], error) {
	return Page[Kernel]{}, errNotBuilt
}

// ---- session_history.go

// SessionMove is one step of a session's history.
type SessionMove struct {
	Seq      int64
	Kernel   cluster.KernelID // "" for the session itself
	Event    cluster.EventName
	From, To cluster.Status
	Reason   cluster.Reason
	Detail   string
	ExitCode *int
	At       time.Time
}

func (s *Service) SessionHistory(ctx context.Context, a Actor, ref string, owner cluster.AccessKey) (*Session, []SessionMove, error) {
	return nil, nil, errNotBuilt
}

// DependencyNode is a session with those that it depends on.
type DependencyNode struct {
	ID            cluster.SessionID
	Name          string
	Status        cluster.Status
	StatusChanged time.Time
	DependsOn     []*DependencyNode
}

func (s *Service) DependencyGraph(ctx context.Context, a Actor, ref string, owner cluster.AccessKey) (*DependencyNode, error) {
	return nil, errNotBuilt
}

// ---- session_destroy.go

// DestroyOptions say how far a destroy goes.
type DestroyOptions struct {
	Owner     cluster.AccessKey
	Forced    bool
	Recursive bool // with everything that depends on it
}

// DestroyedSession is the answer for one session; Stats may be empty.
type DestroyedSession struct {
	ID     cluster.SessionID
	Name   string
	Status cluster.Status // after the request: CANCELLED, TERMINATING or TERMINATED
	Stats  map[string]any
}

// DestroySession asks for the end of a session and answers at once. The first item is the named session.
func (s *Service) DestroySession(ctx context.Context, a Actor, ref string, o DestroyOptions) ([]DestroyedSession, error) {
	return nil, errNotBuilt
}

// ---- session_manage.go

func (s *Service) RenameSession(ctx context.Context, a Actor, ref string, owner cluster.AccessKey, name string) error {
	return errNotBuilt
}

// RestartSession replaces the containers of a RUNNING session by fresh ones of the next generation on the same agents.
func (s *Service) RestartSession(ctx context.Context, a Actor, ref string, owner cluster.AccessKey) (cluster.SessionID, error) {
	return "", errNotBuilt
}

// ModifySession changes name or priority; nil leaves a field as it is.
func (s *Service) ModifySession(ctx context.Context, a Actor, id cluster.SessionID, name *string, priority *int) (*Session, error) {
	return nil, errNotBuilt
}

// SessionLogs opens the log of a kernel ("" is the main kernel), live from its agent or the kept end of it.
// With follow it goes on until the container ends. The caller closes it.
func (s *Service) SessionLogs(ctx context.Context, a Actor, ref string, owner cluster.AccessKey, kernel cluster.KernelID, follow bool) (io.ReadCloser, error) {
	return nil, errNotBuilt
}

// CommitSession makes an image or archive of a session's main kernel in the background; filename may be "".
func (s *Service) CommitSession(ctx context.Context, a Actor, ref string, owner cluster.AccessKey, filename string) (Task, error) {
	return Task{}, errNotBuilt
}

// CommitStatus says whether a commit is going on: "ready" or "ongoing".
func (s *Service) CommitStatus(ctx context.Context, a Actor, ref string, owner cluster.AccessKey) (status string, kernel cluster.KernelID, err error) {
	return "", "", errNotBuilt
}

// Apps lists the apps of the main kernel.
func (s *Service) Apps(ctx context.Context, a Actor, ref string, owner cluster.AccessKey) ([]ServicePort, error) {
	return nil, errNotBuilt
}

// ---- session_events.go

// Event is one event of a session or kernel for SSE. Seq resumes a broken stream.
type Event struct {
	Seq            int64
	Name           cluster.EventName
	SessionID      cluster.SessionID
	SessionName    string
	OwnerAccessKey cluster.AccessKey
	Reason         cluster.Reason
	Status         cluster.Status
	ExitCode       *int
	At             time.Time
	// Kernel facts; Kernel is "" for session events.
	Kernel      cluster.KernelID
	ClusterRole string
	ClusterIdx  int
}

// EventFilter selects events. Session "" means all that the actor may see.
type EventFilter struct {
	Session  string // id or name
	Owner    cluster.AccessKey
	Sessions bool // events of sessions
	Kernels  bool // events of kernels
	After    int64
	// FromNow starts with the next event; otherwise events after After are replayed first.
	FromNow bool
}

// Events streams events until ctx ends or the reader is too slow: then the channel is closed and the
// reader may resume with the last Seq it saw.
func (s *Service) Events(ctx context.Context, a Actor, f EventFilter) (<-chan Event, error) {
	return nil, errNotBuilt
}

// ---- runner.go

// Runner is the way to the process that serves a kernel. Requests are relative to the runner ("/execute"); it is
// an http.RoundTripper that ignores scheme and host.
type Runner struct {
	Session *Session
	Kernel  Kernel
	streams Streams
}

// Runner authorises the actor, checks that the session is RUNNING, counts the query and opens the way to the main kernel's runner.
func (s *Service) Runner(ctx context.Context, a Actor, ref string, owner cluster.AccessKey) (*Runner, error) {
	return nil, errNotBuilt
}

// RoundTrip sends the request to /kernels/<id>/runner<path> on the kernel's agent.
func (r *Runner) RoundTrip(req *http.Request) (*http.Response, error) { return nil, errNotBuilt }

// Upgrade opens a full-duplex stream to the runner.
func (r *Runner) Upgrade(ctx context.Context, path string, header http.Header) (io.ReadWriteCloser, error) {
	return nil, errNotBuilt
}

// ---- agents.go

// Agent is a node as administrators see it.
type Agent struct {
	ID            cluster.AgentID
	Status        cluster.AgentStatus
	StatusChanged time.Time
	Region        string
	ResourceGroup string
	Schedulable   bool
	Addr          string
	FirstContact  time.Time
	LostAt        *time.Time
	LastSeen      time.Time
	Version       string
	Architecture  string
	Capacity      cluster.Slots
	Occupied      cluster.Slots
	SlotKinds     map[cluster.SlotName]cluster.SlotKind
	Devices       []map[string]any
	Engine        string
	EngineOK      bool
	EngineError   string
	Warnings      []string
	Live          map[string]float64 // nil when unknown: cpu_util, mem ...
}

// AgentFilter narrows ListAgents.
type AgentFilter struct {
	ListQuery
	Status        string // "" means all
	ResourceGroup string
}

func (s *Service) ListAgents(ctx context.Context, a Actor, f AgentFilter) (Page[*Agent], error) {
	return Page[*Agent]{}, errNotBuilt
}
func (s *Service) GetAgent(ctx context.Context, a Actor, id cluster.AgentID) (*Agent, error) {
	return nil, errNotBuilt
}

// SetAgentsSchedulable includes or excludes agents from scheduling.
func (s *Service) SetAgentsSchedulable(ctx context.Context, a Actor, ids []cluster.AgentID, schedulable bool) error {
	return errNotBuilt
}

// ---- images.go

// Image is an image that sessions may run.
type Image struct {
	ID           cluster.ImageID
	Reference    string
	Registry     string
	RegistryType string
	Project      string
	Name         string // without registry and tag
	Tag          string
	Architecture string
	Digest       string
	SizeBytes    int64
	Labels       map[string]string
	Aliases      []string
	Status       string
	CreatedAt    time.Time
	LastUsedAt   *time.Time
	// Min and Max are per session; absent means no bound.
	Min, Max cluster.Slots
	Agents   []cluster.AgentID // that have it
}

func (s *Service) ListImages(ctx context.Context, a Actor, q ListQuery) (Page[*Image], error) {
	return Page[*Image]{}, errNotBuilt
}

// GetImage finds an image by id, reference or alias; architecture "" means any.
func (s *Service) GetImage(ctx context.Context, a Actor, ref, architecture string) (*Image, error) {
	return nil, errNotBuilt
}
func (s *Service) AliasImage(ctx context.Context, a Actor, alias, target, architecture string) error {
	return errNotBuilt
}
func (s *Service) DealiasImage(ctx context.Context, a Actor, alias string) error { return errNotBuilt }
func (s *Service) ForgetImage(ctx context.Context, a Actor, ref, architecture string) (*Image, error) {
	return nil, errNotBuilt
}

// ---- groups.go

// ResourceGroup is a set of agents with one scheduling policy.
type ResourceGroup struct {
	Name           string
	Description    *string
	IsActive       bool
	IsPublic       bool
	CreatedAt      time.Time
	WsproxyAddr    *string
	Driver         string
	DriverOpts     map[string]any
	Scheduler      string
	SchedulerOpts  map[string]any
	UseHostNetwork bool
}

// AllowedResourceGroups lists the active groups that the actor may use with a project (name or id; "" is any of the actor's).
func (s *Service) AllowedResourceGroups(ctx context.Context, a Actor, project string) ([]*ResourceGroup, error) {
	return nil, errNotBuilt
}

// ListResourceGroups lists all groups for superadmins, allowed ones otherwise; active nil means both.
func (s *Service) ListResourceGroups(ctx context.Context, a Actor, active *bool) ([]*ResourceGroup, error) {
	return nil, errNotBuilt
}
func (s *Service) GetResourceGroup(ctx context.Context, a Actor, name string) (*ResourceGroup, error) {
	return nil, errNotBuilt
}

// Preset is a named amount of resources.
type Preset struct {
	Name         string
	Slots        cluster.Slots
	SharedMemory *int64
	Allocatable  bool // only from CheckPresets
}

func (s *Service) Presets(ctx context.Context, a Actor) ([]Preset, error) { return nil, errNotBuilt }

// GroupUse is the use of one resource group.
type GroupUse struct{ Using, Remaining cluster.Slots }

// PresetCheck tells what the actor could start. Absent slots of limits are unlimited.
type PresetCheck struct {
	KeypairLimits, KeypairUsing cluster.Slots
	GroupLimits, GroupUsing     cluster.Slots
	GroupRemaining              cluster.Slots // of the chosen resource groups together
	ResourceGroups              map[string]GroupUse
	Presets                     []Preset
}

func (s *Service) CheckPresets(ctx context.Context, a Actor, project, resourceGroup string) (PresetCheck, error) {
	return PresetCheck{}, errNotBuilt
}

// ---- keypairs.go, tenancy.go

// Keypair is an access key with its owner. The secret is set only for the owner and superadmins.
type Keypair struct {
	AccessKey       cluster.AccessKey
	SecretKey       seal.Secret
	UserID          cluster.UserID
	UserEmail       string // the wire's user_id
	UserFullName    string
	Domain          string
	Projects        []string // names
	IsActive        bool
	IsAdmin         bool
	ResourcePolicy  string
	RateLimit       int
	NumQueries      int64
	ConcurrencyUsed int
	CreatedAt       time.Time
	ModifiedAt      time.Time
	LastUsed        *time.Time
	SSHPublicKey    string
	Dotfiles        []cluster.Dotfile
	BootstrapScript string
}

// KeypairFilter narrows ListKeypairs.
type KeypairFilter struct {
	ListQuery
	Active *bool
	Domain string
	Email  string
}

// GetKeypair returns a keypair; key "" is the actor's own.
func (s *Service) GetKeypair(ctx context.Context, a Actor, key cluster.AccessKey) (*Keypair, error) {
	return nil, errNotBuilt
}
func (s *Service) ListKeypairs(ctx context.Context, a Actor, f KeypairFilter) (Page[*Keypair], error) {
	return Page[*Keypair]{}, errNotBuilt
}

// KeypairPolicy is a keypair resource policy. An absent slot of TotalSlots is unlimited.
type KeypairPolicy struct {
	Name                  string
	CreatedAt             time.Time
	DefaultForUnspecified string
	TotalSlots            cluster.Slots
	MaxSessionLifetime    int
	MaxConcurrentSessions int
	MaxConcurrentSFTP     int
	MaxPendingSessions    *int
	MaxPendingSlots       cluster.Slots
	MaxPriority           *int
	MaxContainers         int
	IdleTimeout           int64
	AllowedHosts          map[string]any
}

// GetKeypairPolicy returns a policy; name "" is that of the actor's keypair.
func (s *Service) GetKeypairPolicy(ctx context.Context, a Actor, name string) (*KeypairPolicy, error) {
	return nil, errNotBuilt
}
func (s *Service) ListKeypairPolicies(ctx context.Context, a Actor) ([]*KeypairPolicy, error) {
	return nil, errNotBuilt
}

// User is a person.
type User struct {
	ID                 cluster.UserID
	Username           string
	Email              string
	NeedPasswordChange bool
	FullName           string
	Description        string
	Status             string
	StatusInfo         *string
	CreatedAt          time.Time
	ModifiedAt         time.Time
	Domain             string
	Role               authz.Role
	ResourcePolicy     string
	Projects           []Project
	AllowedClientIP    []string
	TOTPActivated      bool
	SudoSession        bool
	MainAccessKey      cluster.AccessKey
}

// UserFilter narrows ListUsers.
type UserFilter struct {
	ListQuery
	Status  string
	Project cluster.ProjectID
	Domain  string
}

// GetUser finds a user by email or id; "" is the actor.
func (s *Service) GetUser(ctx context.Context, a Actor, ref string) (*User, error) {
	return nil, errNotBuilt
}
func (s *Service) ListUsers(ctx context.Context, a Actor, f UserFilter) (Page[*User], error) {
	return Page[*User]{}, errNotBuilt
}

// Domain is a tenant.
type Domain struct {
	Name              string
	Description       *string
	IsActive          bool
	CreatedAt         time.Time
	ModifiedAt        time.Time
	TotalSlots        cluster.Slots
	AllowedHosts      map[string]any
	AllowedRegistries []string
	IntegrationID     *string
}

// GetDomain returns a domain; "" is the actor's own.
func (s *Service) GetDomain(ctx context.Context, a Actor, name string) (*Domain, error) {
	return nil, errNotBuilt
}
func (s *Service) ListDomains(ctx context.Context, a Actor) ([]*Domain, error) {
	return nil, errNotBuilt
}

// Project is a group of users of one domain.
type Project struct {
	ID            cluster.ProjectID
	Name          string
	Description   *string
	IsActive      bool
	CreatedAt     time.Time
	ModifiedAt    time.Time
	Domain        string
	TotalSlots    cluster.Slots
	AllowedHosts  map[string]any
	IntegrationID *string
	Type          string
}

// GetProject finds a project by id or by name within a domain ("" is the actor's).
func (s *Service) GetProject(ctx context.Context, a Actor, ref, domain string) (*Project, error) {
	return nil, errNotBuilt
}

// ListProjects lists projects of a domain ("" is the actor's; superadmins get all): those that the actor may see.
func (s *Service) ListProjects(ctx context.Context, a Actor, domain string) ([]*Project, error) {
	return nil, errNotBuilt
}

// ---- dotfiles.go

// DotfileScope says whose dotfiles are meant: exactly one of the fields is set, or none for the actor's keypair.
type DotfileScope struct {
	Owner         cluster.AccessKey
	Domain        string
	Project       string // name or id; with ProjectDomain
	ProjectDomain string
}

func (s *Service) ListDotfiles(ctx context.Context, a Actor, scope DotfileScope) ([]cluster.Dotfile, error) {
	return nil, errNotBuilt
}
func (s *Service) GetDotfile(ctx context.Context, a Actor, scope DotfileScope, path string) (cluster.Dotfile, error) {
	return cluster.Dotfile{}, errNotBuilt
}
func (s *Service) CreateDotfile(ctx context.Context, a Actor, scope DotfileScope, f cluster.Dotfile) error {
	return errNotBuilt
}
func (s *Service) UpdateDotfile(ctx context.Context, a Actor, scope DotfileScope, f cluster.Dotfile) error {
	return errNotBuilt
}
func (s *Service) DeleteDotfile(ctx context.Context, a Actor, scope DotfileScope, path string) error {
	return errNotBuilt
}
func (s *Service) BootstrapScript(ctx context.Context, a Actor) (string, error) {
	return "", errNotBuilt
}
func (s *Service) SetBootstrapScript(ctx context.Context, a Actor, script string) error {
	return errNotBuilt
}

// ---- settings.go

// Announcement is shown to everybody (public).
func (s *Service) Announcement(ctx context.Context) (enabled bool, message string, err error) {
	return false, "", errNotBuilt
}
func (s *Service) SetAnnouncement(ctx context.Context, a Actor, enabled bool, message *string) error {
	return errNotBuilt
}

// ManagerStatus is "running" or "frozen" with the number of live sessions.
type ManagerStatus struct {
	Status         string
	ActiveSessions int
}

func (s *Service) ManagerStatus(ctx context.Context, a Actor) (ManagerStatus, error) {
	return ManagerStatus{}, errNotBuilt
}

// Frozen reports whether changes are refused (public; cached for a second).
func (s *Service) Frozen(ctx context.Context) (bool, error) { return false, nil }
func (s *Service) SetManagerStatus(ctx context.Context, a Actor, status string) error {
	return errNotBuilt
}

// SlotInfo describes a resource slot.
type SlotInfo struct {
	Name, Description, HumanName, DisplayUnit, DisplayIcon string
	Kind                                                   cluster.SlotKind
	Binary                                                 bool
	RoundLength                                            int
}

// ResourceSlots lists the slots that the cluster knows: the intrinsic ones and what agents have (public).
func (s *Service) ResourceSlots(ctx context.Context) ([]SlotInfo, error) { return nil, errNotBuilt }

// ---- tasks.go

// Task is background work that somebody may watch.
type Task struct {
	ID             string
	Kind           string
	Subject        string
	Status         string // started, done, cancelled, failed
	Message        string
	Current, Total int64
	CreatedAt      time.Time
	UpdatedAt      time.Time
}

func (s *Service) Task(ctx context.Context, a Actor, id string) (Task, error) {
	return Task{}, errNotBuilt
}

// TaskEvents streams states of a task, the final one last, then closes the channel.
func (s *Service) TaskEvents(ctx context.Context, a Actor, id string) (<-chan Task, error) {
	return nil, errNotBuilt
}

// ---- doctor.go

// Finding is something that should not be.
type Finding struct {
	Severity string // error or warning
	Kind     string // stable slug
	Object   string
	Detail   string
	Next     string
}

// Doctor compares the rows with each other (superadmins). No findings means healthy.
func (s *Service) Doctor(ctx context.Context, a Actor) ([]Finding, error) { return nil, errNotBuilt }

// ---- nodes.go

// Register notes that an agent connected and returns its new epoch, higher than any before. Unknown agents are
// added to the resource group of their hello (or default).
func (n *Nodes) Register(ctx context.Context, h cluster.NodeHello) (epoch int64, err error) {
	return 0, errNotBuilt
}

// UpdateFacts stores what a node is. Older revisions of the same epoch and stale epochs are ignored.
func (n *Nodes) UpdateFacts(ctx context.Context, agent cluster.AgentID, epoch int64, f cluster.NodeFacts) error {
	return errNotBuilt
}

// Observe stores what an agent saw of its kernels. It is idempotent and safe against reordering. A full report names
// everything the agent has; desiredSeen says that it reflects the agent's newest desired state, and only then
// are missing kernels held against it. The result names tombstones that the agent may forget.
func (n *Nodes) Observe(ctx context.Context, agent cluster.AgentID, epoch int64, full, desiredSeen bool, list []cluster.KernelObservation) ([]cluster.Tombstone, error) {
	return nil, errNotBuilt
}

// Progress extends the deadline of a pull.
func (n *Nodes) Progress(ctx context.Context, agent cluster.AgentID, kernel cluster.KernelID, generation, current, total int64, message string) error {
	return errNotBuilt
}

// Desired returns everything that should be true of an agent's kernels, ended ones that it must still remove included.
func (n *Nodes) Desired(ctx context.Context, agent cluster.AgentID) ([]cluster.DesiredKernel, error) {
	return nil, errNotBuilt
}

// Touch renews the lease of connected agents.
func (n *Nodes) Touch(ctx context.Context, agents []cluster.AgentID) error { return errNotBuilt }

// Disconnected notes that an agent's stream of that epoch ended; the lease goes on.
func (n *Nodes) Disconnected(ctx context.Context, agent cluster.AgentID, epoch int64) error {
	return errNotBuilt
}

// LoseSilent marks agents LOST whose lease is over, and their kernels; it returns them.
func (n *Nodes) LoseSilent(ctx context.Context, lease time.Duration) ([]cluster.AgentID, error) {
	return nil, errNotBuilt
}

// ExpireLost ends kernels of agents that stayed LOST longer than the grace; it returns how many.
func (n *Nodes) ExpireLost(ctx context.Context, grace time.Duration) (int, error) {
	return 0, errNotBuilt
}

// MissDeadlines acts on kernels whose deadline has passed: a retry elsewhere or the named failure; it returns how many.
func (n *Nodes) MissDeadlines(ctx context.Context) (int, error) { return 0, errNotBuilt }
