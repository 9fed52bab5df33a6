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
	ScalingGroup string            `json:"scalingGroup,omitempty"`
	PreopenPorts []int             `json:"preopen_ports,omitempty"`
	AgentList    []string          `json:"agentList,omitempty"`
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
	// Preemptible sessions may end for ones of higher priority where the resource group allows it; nil means yes.
	Preemptible *bool         `json:"is_preemptible,omitempty"`
	ClusterSize int           `json:"clusterSize,omitempty"`
	ClusterMode string        `json:"clusterMode,omitempty"`
	Config      SessionConfig `json:"config"`
}

// ServicePort is an app inside a session.
type ServicePort struct {
	Name             string          `json:"name"`
	Protocol         string          `json:"protocol"`
	Ports            []int           `json:"ports"`
	URLTemplate      string          `json:"url_template,omitempty"`
	AllowedArguments json.RawMessage `json:"allowed_arguments,omitempty"`
	AllowedEnvs      json.RawMessage `json:"allowed_envs,omitempty"`
}

// CreatedSession is the answer to a create request.
type CreatedSession struct {
	ID           string        `json:"sessionId"`
	Name         string        `json:"sessionName"`
	Status       string        `json:"status"`
	ServicePorts []ServicePort `json:"servicePorts"`
	// Created is false when a live session was reused.
	Created bool `json:"created"`
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
	Domain        string   `json:"domainName"`
	GroupID       string   `json:"groupId"`
	UserID        string   `json:"userId"`
	Image         string   `json:"image"`
	Architecture  string   `json:"architecture"`
	Registry      string   `json:"registry"`
	Tag           *string  `json:"tag"`
	ContainerID   *string  `json:"containerId"`
	Occupied      JSONText `json:"occupiedSlots"`
	Occupying     JSONText `json:"occupyingSlots"`
	Requested     JSONText `json:"requestedSlots"`
	Environ       JSONText `json:"environ"`
	ResourceOpts  JSONText `json:"resourceOpts"`
	Status        string   `json:"status"`
	StatusInfo    string   `json:"statusInfo"`
	StatusData    JSONText `json:"statusData"`
	AgeMillis     float64  `json:"age"`
	CreatedAt     string   `json:"creationTime"`
	TerminatedAt  *string  `json:"terminationTime"`
	NumQueries    int64    `json:"numQueriesExecuted"`
	LastStat      JSONText `json:"lastStat"`
	IdleChecks    JSONText `json:"idleChecks"`
	ID            string   `json:"sessionId,omitempty"`
	Name          string   `json:"sessionName,omitempty"`
	Type          string   `json:"sessionType,omitempty"`
	Result        string   `json:"result,omitempty"`
	ExitCode      *int     `json:"exitCode,omitempty"`
	AgentIDs      []string `json:"agentIds,omitempty"`
	ResourceGroup string   `json:"scalingGroup,omitempty"`
	ClusterSize   int      `json:"clusterSize,omitempty"`
	Priority      *int     `json:"priority,omitempty"`
	// Mounts are the folders in its containers.
	Mounts []SessionMount `json:"vfolder_mounts,omitempty"`
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

// MatchSessions finds sessions whose id or name begins with the given text.
func (c *Client) MatchSessions(ctx context.Context, prefix string) ([]SessionMatch, error) {
	var out struct {
		Matches []SessionMatch `json:"matches"`
	}
	err := c.call(ctx, request{method: http.MethodGet, path: "/session/_/match", query: url.Values{"id": {prefix}}}, &out)
	return out.Matches, err
}

// DestroyOptions says how a session is ended.
type DestroyOptions struct {
	// Forced ends a session in states that otherwise refuse to be ended.
	Forced bool
	// Recursive also ends the sessions that depend on this one.
	Recursive bool
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

// CommitSession saves the container's file system as an image archive. It returns the
// id of the background task, which TaskEvents follows.
func (c *Client) CommitSession(ctx context.Context, session, filename string) (string, error) {
	q := url.Values{}
	if filename != "" {
		q.Set("filename", filename)
	}
	var out struct {
		TaskID string `json:"bgtask_id"`
	}
	err := c.sessionCall(ctx, session, "commit", request{method: http.MethodPost, query: q, timeout: slowTimeout}, &out)
	return out.TaskID, err
}

// Completion is the answer to a completion request.
type Completion struct {
	Status      string          `json:"status"`
	Completions json.RawMessage `json:"completions"`
}

// Complete asks the interpreter how the code could go on at the given place.
func (c *Client) Complete(ctx context.Context, session, code string, row, col int, line, post string) (Completion, error) {
	var out struct {
		Result Completion `json:"result"`
	}
	body := map[string]any{"code": code, "options": map[string]any{"row": row, "col": col, "line": line, "post": post}}
	err := c.sessionCall(ctx, session, "complete", request{method: http.MethodPost, json: body}, &out)
	return out.Result, err
}

// JSONText is a JSON value that the wire carries as text inside a string. It also
// accepts the bare value, and is written as one, so that readers of our output need
// not decode twice.
type JSONText json.RawMessage

// UnmarshalJSON takes a string holding JSON, a bare value, or null.
func (t *JSONText) UnmarshalJSON(b []byte) error {
	var s string
	if json.Unmarshal(b, &s) == nil {
		if s == "" {
			*t = JSONText("null")
			return nil
		}
		if !json.Valid([]byte(s)) {
			*t = append(JSONText(nil), b...)
			return nil
		}
		b = []byte(s)
	}
	*t = append(JSONText(nil), b...)
	return nil
}

// MarshalJSON writes the bare value.
func (t JSONText) MarshalJSON() ([]byte, error) {
	if len(t) == 0 {
		return []byte("null"), nil
	}
	return t, nil
}

// Map returns the members of an object, nil when the value is no object. Values that
// are not strings come as their JSON text.
func (t JSONText) Map() map[string]string {
	var raw map[string]json.RawMessage
	if json.Unmarshal(t, &raw) != nil {
		return nil
	}
	m := make(map[string]string, len(raw))
	for k, v := range raw {
		var s string
		if json.Unmarshal(v, &s) != nil {
			s = string(v)
		}
		m[k] = s
	}
	return m
}

// String is the bare JSON text.
func (t JSONText) String() string { return string(t) }
