package api

import "context"

// Agent is a worker host as lists show it.
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
	// NotDeliveredSince is when the oldest order was given that the agent could not be told of; nil when there is none.
	NotDeliveredSince *string `json:"not_delivered_since"`
}

// AgentDetails is a worker host with what its description shows besides.
type AgentDetails struct {
	Agent
	Hardware JSONText `json:"hardware_metadata,omitempty"`
	LiveStat JSONText `json:"live_stat,omitempty"`
}

var (
	agentListQuery = `query($limit:Int!,$offset:Int!,$status:String){
		agent_list(limit:$limit,offset:$offset,status:$status){items{` + selection[Agent]() + `} total_count}}`
	agentQuery = `query($id:String!){agent(agent_id:$id){` + selection[AgentDetails]() + `}}`
)

// Agents lists worker hosts of a status; "" stands for ALIVE.
func (c *Client) Agents(ctx context.Context, status string) ([]Agent, error) {
	return list[Agent](ctx, c, "agent_list", agentListQuery, map[string]any{"status": or(status, "ALIVE")}, 0)
}

// Agent describes one worker host.
func (c *Client) Agent(ctx context.Context, id string) (AgentDetails, error) {
	var out struct {
		A *AgentDetails `json:"agent"`
	}
	if err := c.GraphQL(ctx, agentQuery, map[string]any{"id": id}, &out); err != nil {
		return AgentDetails{}, err
	}
	if out.A == nil {
		return AgentDetails{}, notFound("agent", "agent %s does not exist", id)
	}
	return *out.A, nil
}
