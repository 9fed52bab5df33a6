package admin

import (
	"context"
	"fmt"
	"net/url"

	"berth.dev/berth/api"
)

// PurgeOptions say how far a purge goes. Shared removes a user's folders that others have a share of, too; Contents is for domains.
type PurgeOptions struct{ EndSessions, Shared, Contents bool }

// PurgePlan is what a purge, or making inactive, would do; Refusal says why it would be refused, "" when it would not.
type PurgePlan struct {
	Name    string      `json:"name"`
	Domain  string      `json:"domain_name"`
	Items   []PurgeItem `json:"items"`
	Refusal string      `json:"refusal"`
}

// PurgeItem is one kind of thing that a purge concerns; Names are the first of them.
type PurgeItem struct {
	What  string   `json:"what"`
	Count int      `json:"count"`
	Names []string `json:"names"`
	Fate  string   `json:"fate"`
}

// PurgeTask is a purge that is not done.
type PurgeTask struct {
	Task    string `json:"task_id"`
	Kind    string `json:"kind"`
	Name    string `json:"name"`
	Domain  string `json:"domain_name"`
	Message string `json:"message"`
	Done    int64  `json:"done"`
}

// PreviewPurge says what a purge of a user (by email), project (by id) or domain would do. It changes nothing.
func PreviewPurge(ctx context.Context, c *api.Client, kind, ref string, o PurgeOptions) (PurgePlan, error) {
	var out struct {
		Plan PurgePlan `json:"purge_preview"`
	}
	return out.Plan, c.GraphQL(ctx, `query($kind:String!,$ref:String!,$shared:Boolean,$contents:Boolean,$end:Boolean){
purge_preview(kind:$kind,ref:$ref,purge_shared_vfolders:$shared,contents:$contents,end_sessions:$end){
name domain_name refusal items{what count names fate}}}`,
		map[string]any{"kind": kind, "ref": ref, "shared": o.Shared, "contents": o.Contents, "end": o.EndSessions}, &out)
}

// The ends that PreviewEnd tells of.
const (
	Inactive = "inactive"
	Purged   = "purged"
)

// PreviewEnd says what becomes of what a user (by email), project (by name or id) or domain has when it is made inactive, or purged with
// the options. It changes nothing.
func PreviewEnd(ctx context.Context, c *api.Client, end, kind, ref string, o PurgeOptions) (PurgePlan, error) {
	q := url.Values{"end": {end}, "kind": {kind}, "ref": {ref}}
	for name, on := range map[string]bool{"end_sessions": o.EndSessions, "purge_shared_vfolders": o.Shared, "contents": o.Contents} {
		if on {
			q.Set(name, "true")
		}
	}
	var out PurgePlan
	return out, c.Get(ctx, "/tenancy/preview", q, &out)
}

// Purge begins to forget a user, project or domain with all that they own; it goes on in the background.
func Purge(ctx context.Context, c *api.Client, kind, ref string, o PurgeOptions) error {
	vars := map[string]any{"ref": ref, "end": o.EndSessions}
	switch kind {
	case "user":
		return c.Mutate(ctx, "purge_user", `mutation($ref:String!,$props:PurgeUserInput!){purge_user(email:$ref,props:$props){ok msg}}`,
			map[string]any{"ref": ref, "props": map[string]any{"purge_shared_vfolders": o.Shared, "end_sessions": o.EndSessions}})
	case "project":
		return c.Mutate(ctx, "purge_group", `mutation($ref:UUID!,$end:Boolean){purge_group(gid:$ref,end_sessions:$end){ok msg}}`, vars)
	case "domain":
		vars["contents"] = o.Contents
		return c.Mutate(ctx, "purge_domain",
			`mutation($ref:String!,$contents:Boolean,$end:Boolean){purge_domain(name:$ref,contents:$contents,end_sessions:$end){ok msg}}`, vars)
	}
	return fmt.Errorf("%s cannot be purged", kind)
}

// Purges lists the purges that are not done.
func Purges(ctx context.Context, c *api.Client) ([]PurgeTask, error) {
	var out struct {
		Purges []PurgeTask `json:"purges"`
	}
	return out.Purges, c.GraphQL(ctx, `query{purges{task_id kind name domain_name message done}}`, nil, &out)
}
