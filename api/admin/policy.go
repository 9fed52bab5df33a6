package admin

import (
	"context"
	"fmt"

	"berth.dev/berth/api"
)

// PolicyKind is whom a resource policy limits.
type PolicyKind string

// The kinds of policies.
const (
	OfKeypairs PolicyKind = "keypair"
	OfUsers    PolicyKind = "user"
	OfProjects PolicyKind = "project"
)

// Policy is a resource policy by the names of the wire.
type Policy map[string]any

// Name is the policy's name.
func (p Policy) Name() string { return fmt.Sprint(p["name"]) }

// fields are what a kind has.
func (k PolicyKind) fields() (string, error) {
	switch k {
	case OfKeypairs:
		return `name default_for_unspecified total_resource_slots max_session_lifetime max_concurrent_sessions max_concurrent_sftp_sessions
max_containers_per_session max_pending_session_count max_pending_session_resource_slots max_priority idle_timeout allowed_vfolder_hosts
created_at`, nil
	case OfUsers:
		return `name max_vfolder_count max_quota_scope_size max_session_count_per_model_session max_customized_image_count
max_concurrent_logins created_at`, nil
	case OfProjects:
		return `name max_vfolder_count max_quota_scope_size max_network_count created_at`, nil
	}
	return "", fmt.Errorf("there are no policies of kind %q; use keypair, user or project", string(k))
}

// input is the middle of the names of the kind's inputs.
func (k PolicyKind) input() string {
	return map[PolicyKind]string{OfKeypairs: "KeyPair", OfUsers: "User", OfProjects: "Project"}[k]
}

// Policies lists the policies of a kind that the caller may see.
func Policies(ctx context.Context, c *api.Client, k PolicyKind) ([]Policy, error) {
	fields, err := k.fields()
	if err != nil {
		return nil, err
	}
	out := map[string][]Policy{}
	name := string(k) + "_resource_policies"
	err = c.GraphQL(ctx, `query{`+name+`{`+fields+`}}`, nil, &out)
	return out[name], err
}

// SetPolicy makes a policy, or changes one that is there.
func SetPolicy(ctx context.Context, c *api.Client, k PolicyKind, name string, create bool, change Policy) error {
	if _, err := k.fields(); err != nil {
		return err
	}
	verb, input := "modify", "Modify"
	if create {
		verb, input = "create", "Create"
	}
	field := verb + "_" + string(k) + "_resource_policy"
	return c.Mutate(ctx, field, `mutation($name:String!,$props:`+input+k.input()+`ResourcePolicyInput!){`+field+`(name:$name,props:$props){
ok msg}}`, map[string]any{"name": name, "props": change})
}

// DeletePolicy deletes a policy that nobody has.
func DeletePolicy(ctx context.Context, c *api.Client, k PolicyKind, name string) error {
	if _, err := k.fields(); err != nil {
		return err
	}
	field := "delete_" + string(k) + "_resource_policy"
	return c.Mutate(ctx, field, `mutation($name:String!){`+field+`(name:$name){ok msg}}`, map[string]any{"name": name})
}
