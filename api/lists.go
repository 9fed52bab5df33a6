package api

import (
	"context"
	"encoding/json"
	"slices"
	"strconv"
	"strings"
)

// Session is a session as lists and details show it.
type Session struct {
	ID            string      `json:"id"`
	Name          string      `json:"name"`
	Type          string      `json:"type"`
	Image         string      `json:"image"`
	Status        string      `json:"status"`
	StatusInfo    string      `json:"status_info"`
	StatusData    JSONText    `json:"status_data,omitempty"`
	StatusChanged string      `json:"status_changed,omitempty"`
	Result        string      `json:"result"`
	AccessKey     string      `json:"access_key"`
	User          string      `json:"user_email,omitempty"`
	Domain        string      `json:"domain_name,omitempty"`
	Project       string      `json:"group_name,omitempty"`
	ResourceGroup string      `json:"scaling_group,omitempty"`
	Tag           *string     `json:"tag"`
	Priority      *int        `json:"priority,omitempty"`
	CreatedAt     string      `json:"created_at"`
	TerminatedAt  *string     `json:"terminated_at"`
	Slots         JSONText    `json:"occupying_slots"`
	Command       *string     `json:"startup_command,omitempty"`
	Containers    []Container `json:"containers,omitempty"`
	Dependencies  []SessionID `json:"dependencies,omitempty"`
}

// SessionID names a session.
type SessionID struct {
	ID   string `json:"id"`
	Name string `json:"name"`
}

// Container is one kernel of a session.
type Container struct {
	ID          string   `json:"id"`
	Role        string   `json:"cluster_role"`
	Idx         int      `json:"cluster_idx"`
	Hostname    string   `json:"cluster_hostname"`
	Image       string   `json:"image"`
	Status      string   `json:"status"`
	StatusInfo  string   `json:"status_info"`
	Agent       *string  `json:"agent"`
	ContainerID *string  `json:"container_id"`
	Slots       JSONText `json:"occupied_slots"`
}

// SessionFilter selects sessions.
type SessionFilter struct {
	// Statuses is empty for the live ones.
	Statuses []string
	// Name selects sessions of exactly this name.
	Name string
	// Limit is the most sessions to return; 0 = all. The newest come first.
	Limit int
}

// LiveStatuses are those of sessions that have not ended.
var LiveStatuses = []string{
	StatusPending, StatusScheduled, StatusPreparing, StatusPulling, StatusPrepared, StatusCreating,
	StatusRunning, StatusRestarting, StatusTerminating,
}

// EndedStatuses are those of sessions that have ended.
var EndedStatuses = []string{StatusTerminated, StatusCancelled, StatusError}

const sessionFields = `id name type image status status_info status_changed result access_key user_email domain_name group_name ` +
	`scaling_group tag priority created_at terminated_at occupying_slots`

// Sessions lists sessions that the caller may see.
func (c *Client) Sessions(ctx context.Context, f SessionFilter) ([]Session, error) {
	const q = `query($limit:Int!,$offset:Int!,$status:String,$filter:String,$order:String){
		compute_session_list(limit:$limit,offset:$offset,status:$status,filter:$filter,order:$order){items{` + sessionFields + `} total_count}}`
	statuses := f.Statuses
	if len(statuses) == 0 {
		statuses = LiveStatuses
	}
	vars := map[string]any{"status": strings.Join(statuses, ","), "order": "-created_at"}
	if f.Name != "" {
		vars["filter"] = "name == " + strconv.Quote(f.Name)
	}
	return list[Session](ctx, c, "compute_session_list", q, vars, f.Limit)
}

// Session describes a session by its id, ended or not, with its containers.
func (c *Client) Session(ctx context.Context, id string) (Session, error) {
	const q = `query($id:UUID!){compute_session(id:$id){` + sessionFields + ` status_data startup_command
		containers{id cluster_role cluster_idx cluster_hostname image status status_info agent container_id occupied_slots}
		dependencies{id name}}}`
	var out struct {
		S *Session `json:"compute_session"`
	}
	if err := c.GraphQL(ctx, q, map[string]any{"id": id}, &out); err != nil {
		return Session{}, err
	}
	if out.S == nil {
		return Session{}, notFound("compute_session", "session %s does not exist", id)
	}
	return *out.S, nil
}

// Agent is a worker host.
type Agent struct {
	ID            string   `json:"id"`
	Status        string   `json:"status"`
	StatusChanged *string  `json:"status_changed"`
	Architecture  string   `json:"architecture"`
	ResourceGroup string   `json:"scaling_group"`
	Region        *string  `json:"region"`
	Schedulable   bool     `json:"schedulable"`
	Addr          *string  `json:"addr"`
	Version       *string  `json:"version"`
	FirstContact  string   `json:"first_contact"`
	LostAt        *string  `json:"lost_at"`
	CPUPercent    *float64 `json:"cpu_cur_pct"`
	MemBytes      *float64 `json:"mem_cur_bytes"`
	Available     JSONText `json:"available_slots"`
	Occupied      JSONText `json:"occupied_slots"`
	Hardware      JSONText `json:"hardware_metadata,omitempty"`
	LiveStat      JSONText `json:"live_stat,omitempty"`
}

const agentFields = `id status status_changed architecture scaling_group region schedulable addr version first_contact lost_at ` +
	`cpu_cur_pct mem_cur_bytes available_slots occupied_slots`

// Agents lists worker hosts of a status; "" stands for ALIVE.
func (c *Client) Agents(ctx context.Context, status string) ([]Agent, error) {
	const q = `query($limit:Int!,$offset:Int!,$status:String){
		agent_list(limit:$limit,offset:$offset,status:$status){items{` + agentFields + `} total_count}}`
	return list[Agent](ctx, c, "agent_list", q, map[string]any{"status": or(status, "ALIVE")}, 0)
}

// Agent describes one worker host.
func (c *Client) Agent(ctx context.Context, id string) (Agent, error) {
	const q = `query($id:String!){agent(agent_id:$id){` + agentFields + ` hardware_metadata live_stat}}`
	var out struct {
		A *Agent `json:"agent"`
	}
	if err := c.GraphQL(ctx, q, map[string]any{"id": id}, &out); err != nil {
		return Agent{}, err
	}
	if out.A == nil {
		return Agent{}, notFound("agent", "agent %s does not exist", id)
	}
	return *out.A, nil
}

// Image is an image that sessions can be made of.
type Image struct {
	ID           string      `json:"id,omitempty"`
	Name         string      `json:"name"`
	Project      string      `json:"project"`
	Registry     string      `json:"registry"`
	Architecture string      `json:"architecture"`
	Tag          string      `json:"tag"`
	Digest       *string     `json:"digest"`
	SizeBytes    json.Number `json:"size_bytes"`
	Aliases      []string    `json:"aliases"`
	Labels       []KeyValue  `json:"labels,omitempty"`
}

// KeyValue is a label.
type KeyValue struct {
	Key   string `json:"key"`
	Value string `json:"value"`
}

// LocalRegistry is the registry of images that agents have without having pulled them;
// it is no part of their reference.
const LocalRegistry = "local"

// Reference is the canonical name of the image.
func (i Image) Reference() string {
	ref := i.Name + ":" + i.Tag
	if i.Project != "" && !strings.HasPrefix(ref, i.Project+"/") {
		ref = i.Project + "/" + ref
	}
	if i.Registry != "" && i.Registry != LocalRegistry {
		ref = i.Registry + "/" + ref
	}
	return ref
}

// Images lists all images with their labels.
func (c *Client) Images(ctx context.Context) ([]Image, error) {
	const q = `query{images{id name project registry architecture tag digest size_bytes aliases labels{key value}}}`
	var out struct {
		Images []Image `json:"images"`
	}
	if err := c.GraphQL(ctx, q, nil, &out); err != nil {
		return nil, err
	}
	if out.Images == nil {
		out.Images = []Image{}
	}
	return out.Images, nil
}

// FindImage finds an image by reference, name, name:tag or alias.
func (c *Client) FindImage(ctx context.Context, ref string) (Image, error) {
	all, err := c.Images(ctx)
	if err != nil {
		return Image{}, err
	}
	for _, i := range all {
		full := i.Reference()
		if ref == full || ref == strings.TrimSuffix(full, ":"+i.Tag) || ref == i.ID || slices.Contains(i.Aliases, ref) {
			return i, nil
		}
	}
	return Image{}, notFound("images", "image %s does not exist", ref)
}

// AliasImage gives an image a short name.
func (c *Client) AliasImage(ctx context.Context, alias, target string) error {
	const q = `mutation($alias:String!,$target:String!){alias_image(alias:$alias,target:$target){ok msg}}`
	return c.mutate(ctx, "alias_image", q, map[string]any{"alias": alias, "target": target})
}

// DealiasImage takes a short name away.
func (c *Client) DealiasImage(ctx context.Context, alias string) error {
	const q = `mutation($alias:String!){dealias_image(alias:$alias){ok msg}}`
	return c.mutate(ctx, "dealias_image", q, map[string]any{"alias": alias})
}

// Keypair is what a caller signs with; the secret is not asked for.
type Keypair struct {
	AccessKey       string `json:"access_key"`
	User            string `json:"user_id"`
	IsActive        bool   `json:"is_active"`
	IsAdmin         bool   `json:"is_admin"`
	ResourcePolicy  string `json:"resource_policy"`
	RateLimit       int    `json:"rate_limit"`
	ConcurrencyUsed int    `json:"concurrency_used"`
	CreatedAt       string `json:"created_at"`
}

// Keypair describes the caller's own keypair.
func (c *Client) Keypair(ctx context.Context) (Keypair, error) {
	const q = `query{keypair{access_key user_id is_active is_admin resource_policy rate_limit concurrency_used created_at}}`
	var out struct {
		K *Keypair `json:"keypair"`
	}
	if err := c.GraphQL(ctx, q, nil, &out); err != nil {
		return Keypair{}, err
	}
	if out.K == nil {
		return Keypair{}, notFound("keypair", "keypair %s does not exist", c.cfg.AccessKey)
	}
	return *out.K, nil
}

// ResourceGroup is a set of agents with one scheduling policy.
type ResourceGroup struct {
	Name        string  `json:"name"`
	Description *string `json:"description"`
	IsActive    bool    `json:"is_active"`
	IsPublic    bool    `json:"is_public"`
	CreatedAt   *string `json:"created_at"`
	Driver      string  `json:"driver"`
	Scheduler   string  `json:"scheduler"`
}

// ResourceGroups lists the resource groups; callers need to be administrators.
func (c *Client) ResourceGroups(ctx context.Context) ([]ResourceGroup, error) {
	const q = `query{scaling_groups{name description is_active is_public created_at driver scheduler}}`
	var out struct {
		G []ResourceGroup `json:"scaling_groups"`
	}
	err := c.GraphQL(ctx, q, nil, &out)
	return out.G, err
}
