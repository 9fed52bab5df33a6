package api

import (
	"context"
	"strconv"
	"strings"
)

// Session is a session as lists show it. Its members are what a list asks for: a new one needs no other change here.
type Session struct {
	ID            string   `json:"id"`
	Name          string   `json:"name"`
	Type          string   `json:"type"`
	Image         string   `json:"image"`
	Status        string   `json:"status"`
	StatusInfo    string   `json:"status_info"`
	StatusChanged string   `json:"status_changed,omitempty"`
	Result        string   `json:"result"`
	AccessKey     string   `json:"access_key"`
	User          string   `json:"user_email,omitempty"`
	Domain        string   `json:"domain_name,omitempty"`
	Project       string   `json:"group_name,omitempty"`
	ResourceGroup string   `json:"scaling_group,omitempty"`
	ClusterSize   int      `json:"cluster_size,omitempty"`
	Tag           *string  `json:"tag"`
	Priority      *int     `json:"priority,omitempty"`
	CreatedAt     string   `json:"created_at"`
	TerminatedAt  *string  `json:"terminated_at"`
	Slots         JSONText `json:"occupying_slots"`
}

// SessionDetails is a session with what its description shows besides.
type SessionDetails struct {
	Session
	StatusData   JSONText    `json:"status_data,omitempty"`
	Command      *string     `json:"startup_command,omitempty"`
	Containers   []Container `json:"containers,omitempty"`
	Dependencies []SessionID `json:"dependencies,omitempty"`
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
	ExitCode    *int     `json:"exit_code"`
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

var (
	sessionListQuery = `query($limit:Int!,$offset:Int!,$status:String,$filter:String,$order:String){
		compute_session_list(limit:$limit,offset:$offset,status:$status,filter:$filter,order:$order){items{` +
		selection[Session]() + `} total_count}}`
	sessionQuery = `query($id:UUID!){compute_session(id:$id){` + selection[SessionDetails]() + `}}`
)

// Sessions lists sessions that the caller may see.
func (c *Client) Sessions(ctx context.Context, f SessionFilter) ([]Session, error) {
	statuses := f.Statuses
	if len(statuses) == 0 {
		statuses = LiveStatuses
	}
	vars := map[string]any{"status": strings.Join(statuses, ","), "order": "-created_at"}
	if f.Name != "" {
		vars["filter"] = "name == " + strconv.Quote(f.Name)
	}
	return list[Session](ctx, c, "compute_session_list", sessionListQuery, vars, f.Limit)
}

// Session describes a session by its id, ended or not, with its containers.
func (c *Client) Session(ctx context.Context, id string) (SessionDetails, error) {
	var out struct {
		S *SessionDetails `json:"compute_session"`
	}
	if err := c.GraphQL(ctx, sessionQuery, map[string]any{"id": id}, &out); err != nil {
		return SessionDetails{}, err
	}
	if out.S == nil {
		return SessionDetails{}, notFound("compute_session", "session %s does not exist", id)
	}
	return *out.S, nil
}
