package service

import (
	"context"
	"time"

	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/fault"
	"berth.dev/berth/internal/manager/authz"
	"berth.dev/berth/internal/manager/seal"
)

// The signatures below are agreed; bodies are being filled in, file by file.
var errNotBuilt = fault.Unavailablef("not built yet")

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
