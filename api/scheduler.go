package api

import (
	"context"
	"encoding/json"
	"net/http"
	"net/url"
)

// Explanation says why a session waits, or what would become of one. It is an extension of Berth.
type Explanation struct {
	// DryRun is set when nothing was created; Session then names a live session that would be used again.
	DryRun  bool   `json:"dryRun,omitempty"`
	Session string `json:"sessionId,omitempty"`
	Name    string `json:"sessionName,omitempty"`
	Status  string `json:"status,omitempty"`
	// Waits is false for what runs, has ended or would start at once.
	Waits         bool   `json:"waits"`
	ResourceGroup string `json:"scalingGroup,omitempty"`
	// Reason is one word, such as capacity or quota; "" when nothing holds it back.
	Reason string `json:"reason"`
	// Msg is one sentence for people.
	Msg string `json:"msg"`
	// Rejected counts the agents that each filter refused; Shortfall is what the best agent lacks per slot.
	Rejected  map[string]int    `json:"rejectedAgents,omitempty"`
	Shortfall map[string]string `json:"shortfall,omitempty"`
	// Position is the 1-based place among the Queue waiting sessions of the resource group; 0 is none.
	Position int `json:"position,omitempty"`
	Queue    int `json:"queue,omitempty"`
	// Estimate is when it starts at the latest, as far as running sessions have declared their ends.
	Estimate *string `json:"estimate,omitempty"`
	// Remedies are what would let it start now, each a sentence.
	Remedies []string `json:"remedies,omitempty"`
	// Placements are where the containers of a dry run would start.
	Placements []PlannedKernel `json:"placements,omitempty"`
	// Mounts are the folders that they would see, those that are mounted by themselves included.
	Mounts []SessionMount `json:"mounts,omitempty"`
	// AsOf is the instant that all of this describes.
	AsOf string `json:"asOf"`
}

// SessionMount is a folder, or a directory of it, inside the containers of a session.
type SessionMount struct {
	Folder     string `json:"id"`
	Name       string `json:"name"`
	Host       string `json:"host"` // proxy:volume
	UsageMode  string `json:"usage_mode"`
	Permission string `json:"permission"` // ro, rw or wd
	Subpath    string `json:"subpath"`    // "." is all of the folder
	Target     string `json:"target"`     // absolute
}

// PlannedKernel is where one container would start.
type PlannedKernel struct {
	Agent string `json:"agent"`
	// Devices are amounts per slot and device.
	Devices map[string]map[string]string `json:"devices"`
}

// ExplainSession says why a session waits. What does not wait has a Msg and no Reason.
func (c *Client) ExplainSession(ctx context.Context, session string) (Explanation, error) {
	var out Explanation
	err := c.sessionCall(ctx, session, "explain", request{method: http.MethodGet}, &out)
	return out, err
}

// DryRun checks a create request as CreateSession would and says what would become of it. Nothing is created.
func (c *Client) DryRun(ctx context.Context, s CreateSession) (Explanation, error) {
	var out Explanation
	err := c.call(
		ctx, request{method: http.MethodPost, path: "/session", query: url.Values{"dry_run": {"true"}}, json: c.withHome(s)}, &out,
	)
	return out, err
}

// AgentWork is how an agent stands and what it still holds.
type AgentWork struct {
	ID            string `json:"id"`
	Status        string `json:"status"`
	Schedulable   bool   `json:"schedulable"`
	ResourceGroup string `json:"scaling_group"`
	// Conditions are what an operator should know, those that keep sessions away first.
	Conditions []AgentCondition `json:"conditions,omitempty"`
	// SessionCount counts all sessions; Sessions are the oldest 1,000.
	SessionCount int            `json:"session_count"`
	Sessions     []AgentSession `json:"sessions"`
}

// AgentSession is a session that holds something on an agent.
type AgentSession struct {
	ID        string `json:"id"`
	Name      string `json:"name"`
	Type      string `json:"type"`
	Status    string `json:"status"`
	User      string `json:"user_email"`
	AccessKey string `json:"access_key"`
	CreatedAt string `json:"created_at"`
	// EndsBy is when a batch session's timeout ends it.
	EndsBy     *string `json:"ends_by"`
	Containers int     `json:"containers"`
	// Devices are amounts per slot and device.
	Devices map[string]map[string]string `json:"devices,omitempty"`
}

func agentPath(id string) string { return "/resource/agents/" + url.PathEscape(id) }

// AgentWork describes what an agent holds (superadmins).
func (c *Client) AgentWork(ctx context.Context, id string) (AgentWork, error) {
	var out AgentWork
	err := c.call(ctx, request{method: http.MethodGet, path: agentPath(id)}, &out)
	return out, err
}

// AgentChange is the body of PATCH /resource/agents/{a}; nil leaves a value as it is.
type AgentChange struct {
	Schedulable   *bool   `json:"schedulable,omitempty"`
	ResourceGroup *string `json:"scaling_group,omitempty"`
}

// SetSchedulable cordons an agent (false) or takes it back into scheduling (superadmins). Its sessions stay.
func (c *Client) SetSchedulable(ctx context.Context, id string, schedulable bool) (AgentWork, error) {
	var out AgentWork
	err := c.call(ctx, request{method: http.MethodPatch, path: agentPath(id), json: AgentChange{Schedulable: &schedulable}}, &out)
	return out, err
}

// SchedulerStatus is how the queues of all resource groups stand.
type SchedulerStatus struct {
	// Manager answers; Leader says whether its own scheduler is the one that decides.
	Manager string `json:"manager"`
	Leader  bool   `json:"leader"`
	// LastPass is when the leader last looked at the queues, "" when that is not known; Drift counts what full comparisons
	// with the database had to correct in its memory.
	LastPass string        `json:"last_pass,omitempty"`
	Drift    int           `json:"drift,omitempty"`
	Groups   []GroupStatus `json:"scaling_groups"`
	AsOf     string        `json:"as_of"`
}

// GroupStatus is how the queue of one resource group stands.
type GroupStatus struct {
	Name      string `json:"name"`
	Active    bool   `json:"is_active"`
	Scheduler string `json:"scheduler"`
	Placement string `json:"placement"`
	// Warning says that the stored policy cannot be used and which one is.
	Warning        string            `json:"warning,omitempty"`
	Pending        int               `json:"pending"`
	Reasons        map[string]int    `json:"reasons"`
	Running        int               `json:"running"`
	AgentsAlive    int               `json:"agents_alive"`
	AgentsCordoned int               `json:"agents_cordoned"`
	AgentsLost     int               `json:"agents_lost"`
	Capacity       map[string]string `json:"capacity"`
	Occupied       map[string]string `json:"occupied"`
}

// SchedulerStatus describes all queues (superadmins).
func (c *Client) SchedulerStatus(ctx context.Context) (SchedulerStatus, error) {
	var out SchedulerStatus
	err := c.call(ctx, request{method: http.MethodGet, path: "/manager/scheduler"}, &out)
	return out, err
}

// SchedulingPolicies are the names that resource groups can choose from, the default of each first.
type SchedulingPolicies struct {
	// Orders say which waiting session is next, Placements which agent it gets.
	Orders     []string `json:"orders"`
	Placements []string `json:"placements"`
}

// SchedulingPolicies lists the policies that the manager knows.
func (c *Client) SchedulingPolicies(ctx context.Context) (SchedulingPolicies, error) {
	var out SchedulingPolicies
	err := c.call(ctx, request{method: http.MethodGet, path: "/config/scheduling-policies"}, &out)
	return out, err
}

// SchedulerPolicy is how one resource group schedules, in the wire's words.
type SchedulerPolicy struct {
	ResourceGroup string `json:"name"`
	Active        bool   `json:"is_active"`
	Scheduler     string `json:"scheduler"`
	// Placement is the policy that Options mean, "" when the manager cannot use them.
	Placement string          `json:"placement"`
	Options   json.RawMessage `json:"scheduler_opts"`
}

func policyPath(group string) string {
	return "/scaling-groups/" + url.PathEscape(group) + "/scheduler"
}

// SchedulerPolicy reads the policy of a resource group.
func (c *Client) SchedulerPolicy(ctx context.Context, group string) (SchedulerPolicy, error) {
	var out SchedulerPolicy
	err := c.call(ctx, request{method: http.MethodGet, path: policyPath(group)}, &out)
	return out, err
}

// SchedulerPolicyChange is the body of PATCH /scaling-groups/{sg}/scheduler. Options are a JSON merge patch.
type SchedulerPolicyChange struct {
	Scheduler string         `json:"scheduler,omitempty"`
	Options   map[string]any `json:"scheduler_opts,omitempty"`
}

// SetSchedulerPolicy changes the policy of a resource group (superadmins): the order, when it is not "", and the options
// that are named; a nil value removes one.
func (c *Client) SetSchedulerPolicy(ctx context.Context, group, scheduler string, options map[string]any) (SchedulerPolicy, error) {
	body := SchedulerPolicyChange{Scheduler: scheduler, Options: options}
	var out SchedulerPolicy
	err := c.call(ctx, request{method: http.MethodPatch, path: policyPath(group), json: body}, &out)
	return out, err
}
