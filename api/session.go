package api

import (
	"context"
	"encoding/json"
	"net/http"
	"net/url"
	"time"
)

// Session types.
const (
	TypeInteractive = "interactive"
	TypeBatch       = "batch"
	TypeInference   = "inference"
	TypeSystem      = "system"
)

// Session statuses, in life-cycle order.
const (
	StatusPending     = "PENDING"
	StatusScheduled   = "SCHEDULED"
	StatusPreparing   = "PREPARING"
	StatusPulling     = "PULLING"
	StatusPrepared    = "PREPARED"
	StatusCreating    = "CREATING"
	StatusRunning     = "RUNNING"
	StatusRestarting  = "RESTARTING"
	StatusTerminating = "TERMINATING"
	StatusTerminated  = "TERMINATED"
	StatusCancelled   = "CANCELLED"
	StatusError       = "ERROR"
	// StatusTimeout only occurs in a create reply: maxWaitSeconds passed, the session goes on starting.
	StatusTimeout = "TIMEOUT"
)

// Results of a batch session.
const (
	ResultUndefined = "UNDEFINED"
	ResultSuccess   = "SUCCESS"
	ResultFailure   = "FAILURE"
)

// Ended reports whether nothing follows the status.
func Ended(status string) bool {
	return status == StatusTerminated || status == StatusCancelled || status == StatusError
}

// SessionConfig is the part of a create request that describes the containers.
type SessionConfig struct {
	Environ      map[string]string `json:"environ,omitempty"`
	Resources    map[string]string `json:"resources,omitempty"`
	ResourceOpts map[string]string `json:"resource_opts,omitempty"`
	// Preset names a preset that gives the amounts that Resources do not name.
	Preset       string   `json:"preset,omitempty"`
	ScalingGroup string   `json:"scalingGroup,omitempty"`
	PreopenPorts []int    `json:"preopen_ports,omitempty"`
	AgentList    []string `json:"agentList,omitempty"`
	// Mounts are folders, by name or id, each optionally with /sub/dir. MountMap gives them targets below /home/work or
	// absolute ones, MountOptions narrows what the session may do; the keys are the texts of Mounts.
	Mounts       []string               `json:"mounts,omitempty"`
	MountMap     map[string]string      `json:"mount_map,omitempty"`
	MountOptions map[string]MountOption `json:"mount_options,omitempty"`
}

// MountOption is how one folder is mounted.
type MountOption struct {
	Type       string `json:"type,omitempty"`       // bind
	Permission string `json:"permission,omitempty"` // ro, rw or wd; "" is what the caller may do
}

// CreateSession is the body of POST /session. Zero values take the manager's defaults.
type CreateSession struct {
	// Name has 4 to 64 characters of letters, digits, '_', '-' and '.', none of the last two at an end.
	Name         string `json:"name"`
	Image        string `json:"image"`
	Architecture string `json:"architecture,omitempty"`
	Type         string `json:"type,omitempty"`
	Group        string `json:"group,omitempty"`
	Domain       string `json:"domain,omitempty"`
	Tag          string `json:"tag,omitempty"`
	// EnqueueOnly answers at once instead of waiting until the session runs.
	EnqueueOnly bool `json:"enqueueOnly"`
	// MaxWaitSeconds bounds the wait; 0 waits until the session runs or fails.
	MaxWaitSeconds int `json:"maxWaitSeconds"`
	// ReuseIfExists answers with a live session of the same name and image instead of refusing.
	ReuseIfExists  bool   `json:"reuseIfExists"`
	StartupCommand string `json:"startupCommand,omitempty"`
	// BootstrapScript is run once in the container before anything else.
	BootstrapScript string `json:"bootstrap_script,omitempty"`
	// StartsAt delays a batch session: an ISO time or a delta such as 10m.
	StartsAt string `json:"starts_at,omitempty"`
	// BatchTimeout bounds a batch session, as in 90s or 2h.
	BatchTimeout string   `json:"batch_timeout,omitempty"`
	Dependencies []string `json:"dependencies,omitempty"`
	CallbackURL  string   `json:"callback_url,omitempty"`
	Priority     *int     `json:"priority,omitempty"`
	// LeaseSeconds, if set, has the manager end the session when the client does not renew the lease in time (RenewLease); an
	// extension. A session that is used again keeps what it has.
	LeaseSeconds int `json:"lease_seconds,omitempty"`
	// Preemptible sessions may end for ones of higher priority where the resource group allows it; nil means yes.
	Preemptible *bool `json:"is_preemptible,omitempty"`
	// RerunOnAgentLoss lets a batch session start again elsewhere when its agent is lost, although its command may have run.
	RerunOnAgentLoss bool `json:"rerun_on_agent_loss,omitempty"`
	// Retries is how often a batch session starts again elsewhere when a device that it holds breaks, at most 10; an extension.
	Retries int `json:"retries,omitempty"`
	// FailIfImpossible refuses a session that no agent is large enough for now; else it waits for one.
	FailIfImpossible bool `json:"fail_if_impossible,omitempty"`

	ClusterSize int    `json:"clusterSize,omitempty"`
	ClusterMode string `json:"clusterMode,omitempty"`
	// Roles are containers besides those that ClusterSize counts; an extension.
	Roles  []SessionRole `json:"roles,omitempty"`
	Config SessionConfig `json:"config"`
}

// SessionRole is some containers of a session that have a label and may have an image and amounts of their own. What is not said is as
// for the session.
type SessionRole struct {
	// Name has 1 to 32 of a-z, 0-9 and -, and begins with a letter; main is taken, and sub where ClusterSize is not 1.
	Name         string            `json:"name"`
	Count        int               `json:"count"`
	Image        string            `json:"image,omitempty"`
	Architecture string            `json:"architecture,omitempty"`
	Resources    map[string]string `json:"resources,omitempty"`
	ResourceOpts map[string]string `json:"resource_opts,omitempty"`
	// Environ comes over the session's, variable by variable.
	Environ map[string]string `json:"environ,omitempty"`
	// BootstrapScript is run in the place of the session's; nil is the session's, an empty one none.
	BootstrapScript *string `json:"bootstrap_script,omitempty"`
}

// ServicePort is an app inside a session.
type ServicePort struct {
	Name             string   `json:"name"`
	Protocol         string   `json:"protocol"`
	Ports            []int    `json:"ports"`
	URLTemplate      string   `json:"url_template,omitempty"`
	AllowedArguments []string `json:"allowed_arguments,omitempty"`
	AllowedEnvs      []string `json:"allowed_envs,omitempty"`
}

// CreatedSession is the answer to a create request.
type CreatedSession struct {
	ID           string        `json:"sessionId"`
	Name         string        `json:"sessionName"`
	Status       string        `json:"status"`
	ServicePorts []ServicePort `json:"servicePorts"`
	// OldServicePorts are the same for older clients.
	OldServicePorts []ServicePort `json:"service_ports"`
	// Created is false when a live session was reused.
	Created bool `json:"created"`
	// StatusInfo says more of the status of a session that was waited for.
	StatusInfo string `json:"statusInfo,omitempty"`
}

// CreateSession asks for a session. Unless EnqueueOnly is set the call lasts until the
// session runs, fails or MaxWaitSeconds have passed; only ctx bounds it further.
func (c *Client) CreateSession(ctx context.Context, s CreateSession) (CreatedSession, error) {
	r := request{method: http.MethodPost, path: "/session", json: c.withHome(s), timeout: quickTimeout}
	if !s.EnqueueOnly {
		r.timeout = 24 * time.Hour
	}
	var out CreatedSession
	err := c.call(ctx, r, &out)
	return out, err
}

// withHome fills in whose project the session is for.
func (c *Client) withHome(s CreateSession) CreateSession {
	if s.Group == "" {
		s.Group = c.cfg.Group
	}
	if s.Domain == "" {
		s.Domain = c.cfg.Domain
	}
	return s
}

// SessionInfo is the answer of GET /session/{s}. The second group of fields are
// extensions; they are empty when another implementation answers.
type SessionInfo struct {
	Domain         string   `json:"domainName"`
	GroupID        string   `json:"groupId"`
	UserID         string   `json:"userId"`
	Lang           string   `json:"lang"` // the same as Image
	Image          string   `json:"image"`
	Architecture   string   `json:"architecture"`
	Registry       string   `json:"registry"`
	Tag            *string  `json:"tag"`
	ContainerID    *string  `json:"containerId"`
	Occupied       JSONText `json:"occupiedSlots"`
	Occupying      JSONText `json:"occupyingSlots"`
	Requested      JSONText `json:"requestedSlots"`
	OccupiedShares JSONText `json:"occupiedShares"` // {}
	Environ        JSONText `json:"environ"`
	ResourceOpts   JSONText `json:"resourceOpts"`
	Status         string   `json:"status"`
	StatusInfo     string   `json:"statusInfo"`
	StatusData     JSONText `json:"statusData"`
	AgeMillis      float64  `json:"age"`
	CreatedAt      string   `json:"creationTime"`
	TerminatedAt   *string  `json:"terminationTime"`
	NumQueries     int64    `json:"numQueriesExecuted"`
	LastStat       JSONText `json:"lastStat"`
	IdleChecks     JSONText `json:"idleChecks"` // of IdleCheck, by type
	MountNames     []string `json:"mounts"`

	ID            string   `json:"sessionId"`
	Name          string   `json:"sessionName"`
	Type          string   `json:"sessionType"`
	GroupName     string   `json:"groupName"`
	UserEmail     string   `json:"userEmail"`
	Result        string   `json:"result"`
	ExitCode      *int     `json:"exitCode"`
	AgentIDs      []string `json:"agentIds"`
	ResourceGroup string   `json:"scalingGroup"`
	ClusterMode   string   `json:"clusterMode"`
	ClusterSize   int      `json:"clusterSize"`
	Priority      int      `json:"priority"`
	// Mounts are the folders in its containers.
	Mounts []SessionMount `json:"vfolder_mounts"`
	// Kernels are its containers, the main one first.
	Kernels []SessionKernel `json:"kernels"`
}

// SessionKernel is a container of a session in SessionInfo.
type SessionKernel struct {
	ID         string `json:"kernelId"`
	Role       string `json:"clusterRole"`
	Idx        int    `json:"clusterIdx"`
	Hostname   string `json:"clusterHostname"`
	Status     string `json:"status"`
	StatusInfo string `json:"statusInfo"`
	ExitCode   *int   `json:"exitCode"` // nil before its end
	Image      string `json:"image"`
	// Requested are the slots that it asks for, and holds while it lives.
	Requested JSONText `json:"requestedSlots"`
}

// PullProgress is the member "pull" of StatusData while an image is being pulled.
type PullProgress struct {
	Image   string `json:"image"`
	Current int64  `json:"current"` // bytes
	Total   int64  `json:"total"`   // bytes; 0 = unknown
}

// Pull returns the progress of the pull, when one is going on.
func (s SessionInfo) Pull() (PullProgress, bool) {
	var d struct {
		Pull *PullProgress `json:"pull"`
	}
	if json.Unmarshal(s.StatusData, &d) != nil || d.Pull == nil {
		return PullProgress{}, false
	}
	return *d.Pull, true
}

// Reason says why the session is in its state: the scheduler's explanation while it
// waits for a place, what went wrong when it failed, else StatusInfo.
func (s SessionInfo) Reason() string {
	var d struct {
		Scheduler struct {
			Msg string `json:"msg"`
		} `json:"scheduler"`
		Error struct {
			Repr string `json:"repr"`
		} `json:"error"`
	}
	switch err := json.Unmarshal(s.StatusData, &d); {
	case err != nil:
	case s.Status == StatusPending && d.Scheduler.Msg != "":
		return d.Scheduler.Msg
	case s.Status == StatusError && d.Error.Repr != "":
		return s.StatusInfo + ": " + d.Error.Repr
	}
	return s.StatusInfo
}

// SessionInfo describes a session by name (live ones only) or id.
func (c *Client) SessionInfo(ctx context.Context, session string) (SessionInfo, error) {
	var out SessionInfo
	err := c.sessionCall(ctx, session, "", request{method: http.MethodGet}, &out)
	return out, err
}

// SessionMatch is a session found by a prefix.
type SessionMatch struct {
	ID     string `json:"id"`
	Name   string `json:"name"`
	Status string `json:"status"`
}

// SessionMatches is the answer of GET /session/_/match.
type SessionMatches struct {
	Matches []SessionMatch `json:"matches"`
}

// MatchSessions finds sessions whose id or name begins with the given text.
func (c *Client) MatchSessions(ctx context.Context, prefix string) ([]SessionMatch, error) {
	var out SessionMatches
	err := c.call(ctx, request{method: http.MethodGet, path: "/session/_/match", query: url.Values{"id": {prefix}}}, &out)
	return out.Matches, err
}

// DestroyOptions says how a session is ended.
type DestroyOptions struct {
	// Forced ends a session in states that otherwise refuse to be ended.
	Forced bool
	// Recursive also ends the sessions that depend on this one.
	Recursive bool
	// NoWait answers at once; else the answer comes when the containers are gone, or after ten seconds.
	NoWait bool
}

// SessionStats are the status and the measurements of a session that was ended, by name.
type SessionStats map[string]any

// DestroyedSession is the answer of DELETE /session/{s}; with recursive it is a list of SessionStats.
type DestroyedSession struct {
	Stats SessionStats `json:"stats"`
}

// DirectAccess is how a system session is reached; the answer about all others is Empty.
type DirectAccess struct {
	Role        string `json:"kernel_role"`
	SessionType string `json:"session_type"`
	PublicHost  string `json:"public_host"`
	SSHDPorts   []int  `json:"sshd_ports"`
}

// WaitReply is the answer of GET /session/{s}/wait.
type WaitReply struct {
	ID         string `json:"id"`
	Name       string `json:"name"`
	Status     string `json:"status"`
	StatusInfo string `json:"statusInfo"`
	Result     string `json:"result"`
	ExitCode   *int   `json:"exitCode"`
	TimedOut   bool   `json:"timedOut"`
}

// StatusHistory tells when a session reached its statuses.
type StatusHistory struct {
	// Result has the first time of every status, in small letters; nil for those that it did not reach.
	Result map[string]*string `json:"result"`
	// Moves is the whole history; an extension.
	Moves []SessionMove `json:"moves"`
	// Reached has the first time of every status that the session reached, by the status's name; its items are members of the answer.
	Reached map[string]string `json:"-"`
}

// MarshalJSON puts the items of Reached beside the other members.
func (h StatusHistory) MarshalJSON() ([]byte, error) {
	all := map[string]any{"result": h.Result, "moves": h.Moves}
	for status, at := range h.Reached {
		all[status] = at
	}
	return json.Marshal(all)
}

// UnmarshalJSON is the reverse of MarshalJSON.
func (h *StatusHistory) UnmarshalJSON(raw []byte) error {
	type plain StatusHistory
	if err := json.Unmarshal(raw, (*plain)(h)); err != nil {
		return err
	}
	var all map[string]json.RawMessage
	if err := json.Unmarshal(raw, &all); err != nil {
		return err
	}
	h.Reached = map[string]string{}
	for name, value := range all {
		var at string
		if name != "result" && name != "moves" && json.Unmarshal(value, &at) == nil {
			h.Reached[name] = at
		}
	}
	return nil
}

// SessionMove is a step in the life of a session or, with Kernel, of one of its containers.
type SessionMove struct {
	Seq      int64  `json:"seq"`
	Kernel   string `json:"kernel"`
	Event    string `json:"event"`
	From     string `json:"from"`
	To       string `json:"to"`
	Reason   string `json:"reason"`
	Detail   string `json:"detail"`
	ExitCode *int   `json:"exitCode"`
	At       string `json:"at"` // ISO time
}

// DependencyNode is a session with the sessions that it waits for.
type DependencyNode struct {
	ID            string           `json:"session_id"`
	Name          string           `json:"session_name"`
	Status        string           `json:"status"` // such as KernelStatus.RUNNING
	StatusChanged string           `json:"status_changed"`
	DependsOn     []DependencyNode `json:"depends_on"`
}

// DestroySession ends a session. It returns the statistics that the manager answers.
func (c *Client) DestroySession(ctx context.Context, session string, o DestroyOptions) (json.RawMessage, error) {
	q := url.Values{}
	if o.Forced {
		q.Set("forced", "true")
	}
	if o.Recursive {
		q.Set("recursive", "true")
	}
	if o.NoWait {
		q.Set("wait", "0")
	}
	var out json.RawMessage
	err := c.sessionCall(ctx, session, "", request{method: http.MethodDelete, query: q, timeout: slowTimeout}, &out)
	return out, err
}

// RestartSession stops the containers of a session and starts them again in place.
func (c *Client) RestartSession(ctx context.Context, session string) error {
	return c.sessionCall(ctx, session, "", request{method: http.MethodPatch, timeout: slowTimeout}, nil)
}

// RenameSession gives a running session another name.
func (c *Client) RenameSession(ctx context.Context, session, name string) error {
	return c.sessionCall(ctx, session, "rename", request{method: http.MethodPost, query: url.Values{"name": {name}}}, nil)
}

// InterruptSession interrupts the code that the session runs.
func (c *Client) InterruptSession(ctx context.Context, session string) error {
	return c.sessionCall(ctx, session, "interrupt", request{method: http.MethodPost}, nil)
}

// InterruptRun interrupts one run of a session and no other.
func (c *Client) InterruptRun(ctx context.Context, session, runID string) error {
	return c.sessionCall(ctx, session, "interrupt", request{method: http.MethodPost, query: url.Values{"runId": {runID}}}, nil)
}

// LeaseRequest is the body of PUT /session/{s}/lease; 0 seconds give the lease back.
type LeaseRequest struct {
	Seconds int `json:"seconds"`
}

// RenewLease says that the client which holds a session is still there.
func (c *Client) RenewLease(ctx context.Context, session string, length time.Duration) error {
	r := request{method: http.MethodPut, json: LeaseRequest{Seconds: int(length / time.Second)}}
	return c.sessionCall(ctx, session, "lease", r, nil)
}

// CommitSession saves the container's file system as an image archive. It returns the
// id of the background task, which TaskEvents follows.
func (c *Client) CommitSession(ctx context.Context, session, filename string) (string, error) {
	q := url.Values{}
	if filename != "" {
		q.Set("filename", filename)
	}
	var out CommitStarted
	err := c.sessionCall(ctx, session, "commit", request{method: http.MethodPost, query: q, timeout: slowTimeout}, &out)
	return out.TaskID, err
}

// Completion is the answer to a completion request.
type Completion struct {
	Status      string   `json:"status"`
	Completions []string `json:"completions"`
	RunID       string   `json:"runId,omitempty"`
}

// CompletionReply is the answer to a completion request.
type CompletionReply struct {
	Result Completion `json:"result"`
}

// CompleteRequest is the body of POST /session/{s}/complete.
type CompleteRequest struct {
	Code    string          `json:"code"`
	Options CompleteOptions `json:"options"`
}

// CompleteOptions are the place in the code: the cursor, its line, and what follows it.
type CompleteOptions struct {
	Row  int    `json:"row"`
	Col  int    `json:"col"`
	Line string `json:"line"`
	Post string `json:"post"`
}

// Complete asks the interpreter how the code could go on at the given place.
func (c *Client) Complete(ctx context.Context, session, code string, row, col int, line, post string) (Completion, error) {
	var out CompletionReply
	body := CompleteRequest{Code: code, Options: CompleteOptions{Row: row, Col: col, Line: line, Post: post}}
	err := c.sessionCall(ctx, session, "complete", request{method: http.MethodPost, json: body}, &out)
	return out.Result, err
}
