package graphapi

import (
	"maps"
	"strings"

	"github.com/vektah/gqlparser/v2/ast"

	"berth.dev/berth/internal/fault"
	"berth.dev/berth/internal/manager/graphapi/cost"
)

// Config bounds what one request and one user may ask for.
type Config struct {
	// MaxQueryBytes and MaxVariablesBytes bound the two parts of a request.
	MaxQueryBytes, MaxVariablesBytes int
	// MaxTokens bounds what the parser reads.
	MaxTokens int
	// MaxDepth, MaxFields, MaxRootFields, MaxAliases and MaxCost bound the document with its fragments expanded; cost.Limits explains them.
	MaxDepth, MaxFields, MaxRootFields, MaxAliases, MaxCost int
	// MaxConcurrent bounds the operations of one user that run at one time on this manager; as many again may wait for their turn.
	MaxConcurrent int
	// CostPerMinute bounds the cost of all operations of one user in a minute.
	CostPerMinute int
}

// DefaultConfig returns the documented defaults. The deepest query of the official clients has 8 levels, the longest 9 KB. The widest asks
// for 100 sessions with all fields and containers and costs 16,000.
func DefaultConfig() Config {
	return Config{
		MaxQueryBytes: 100 << 10, MaxVariablesBytes: 256 << 10, MaxTokens: 8_000,
		MaxDepth: 12, MaxFields: 3_000, MaxRootFields: 50, MaxAliases: 300, MaxCost: 40_000,
		MaxConcurrent: 8, CostPerMinute: 3_000_000,
	}
}

// Validate checks the ranges.
func (c Config) Validate() error {
	for _, v := range []struct {
		name              string
		value, least, top int
	}{
		{"max_query_bytes", c.MaxQueryBytes, 10_000, 1 << 20},
		{"max_variables_bytes", c.MaxVariablesBytes, 10_000, 1 << 20},
		{"max_tokens", c.MaxTokens, 1_000, 100_000},
		{"max_depth", c.MaxDepth, 8, 100},
		{"max_fields", c.MaxFields, 500, 100_000},
		{"max_root_fields", c.MaxRootFields, 10, 1_000},
		{"max_aliases", c.MaxAliases, 20, 10_000},
		{"max_cost", c.MaxCost, 20_000, 10_000_000},
		{"max_concurrent", c.MaxConcurrent, 1, 1_000},
		{"cost_per_minute", c.CostPerMinute, 100_000, 1 << 30},
	} {
		if v.value < v.least || v.value > v.top {
			return fault.Invalidf("manager.graphql.%s is %d", v.name, v.value).WithNext("choose between %d and %d", v.least, v.top)
		}
	}
	return nil
}

func (c Config) limits() cost.Limits {
	return cost.Limits{Depth: c.MaxDepth, Fields: c.MaxFields, Roots: c.MaxRootFields, Aliases: c.MaxAliases, Cost: c.MaxCost,
		Nodes: 2 * c.MaxTokens}
}

const (
	// rootPrice is the price of a query to the database.
	rootPrice = 20
	// rootItems is what a list without pages is counted with, unless it is known to be shorter.
	rootItems = 50
)

// prices are those of fields that do more work than to read a member of a row.
var prices = func() cost.Prices {
	p := cost.Prices{
		"ComputeSession.containers": {Items: 2}, "ComputeSession.explanation": {Flat: 50}, "ComputeSession.dependencies": {Items: 2},
		"Agent.compute_containers":         {Flat: 5, Items: 8},
		"Image.labels":                     {Items: 2},
		"Image.resource_limits":            {Items: 2},
		"StorageVolume.performance_metric": {Flat: 50}, // a request to a storage proxy
		"Queries.quota_scope":              {Flat: 50}, // another
		"VirtualFolderConnection.edges":    {},         // counted by the page of the field above
		"Queries.vfolder_nodes":            {Flat: rootPrice, Items: folderPageSize, Page: true},
		"Queries.compute_session_nodes":    {Flat: rootPrice, Items: sessionPageSize, Page: true},
		"ComputeSessionNode.dependents":    {Flat: 5, Items: 2}, "ComputeSessionNode.dependees": {Items: 2},
		"ComputeSessionNode.kernel_nodes": {Items: 2}, "KernelNode.image": {Flat: 2}, "ImageNode.labels": {Items: 2},
		"ComputeSessionConnection.edges": {}, "KernelConnection.edges": {}, // counted by the fields above
		"ComputeContainer.image_object": {Flat: 2}, "ImageNode.resource_limits": {Items: 2}, "User.groups": {Items: 2},
		"Queries.agent_summary_list": {Flat: rootPrice, Items: cost.MaxItems, Page: true, Most: 1000},
	}
	for _, name := range []string{"compute_session_list", "compute_container_list", "agent_list", "keypair_list", "vfolder_list",
		"vfolder_own_list", "vfolder_invited_list", "vfolder_project_list", "storage_volume_list", "user_list", "inference_session_list",
		"agent_nodes", "user_nodes", "group_nodes", "image_nodes", "session_pending_queue", "adminUsersV2", "adminProjectsV2",
		"domainProjectsV2", "scopedAuditLogsV2", "domain_list", "keypair_resource_policy_list", "user_resource_policy_list",
		"project_resource_policy_list"} {
		p["Queries."+name] = cost.Price{Flat: rootPrice, Items: cost.MaxItems, Page: true}
	}
	for _, name := range []string{"keypairs", "agents", "images", "customized_images", "keypair_resource_policies", "scaling_groups",
		"resource_presets", "user_resource_policies", "project_resource_policies", "domains", "groups", "groups_by_name", "group_members",
		"users", "purges", "accessible_scaling_groups"} {
		p["Queries."+name] = cost.Price{Flat: rootPrice, Items: rootItems}
	}
	return p
}()

// pricesOf adds the price of a query to all other fields of the roots.
func pricesOf(schema *ast.Schema) cost.Prices {
	out := cost.Prices{}
	for _, root := range []*ast.Definition{schema.Query, schema.Mutation} {
		for _, f := range root.Fields {
			if !strings.HasPrefix(f.Name, "__") {
				out[root.Name+"."+f.Name] = cost.Price{Flat: rootPrice}
			}
		}
	}
	maps.Copy(out, prices)
	return out
}
