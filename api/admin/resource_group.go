package admin

import (
	"context"
	"errors"

	"berth.dev/berth/api"
)

// ResourceGroupChange is what is set of a resource group, by the names of the wire's input.
type ResourceGroupChange map[string]any

// SetResourceGroup makes a resource group, or changes one that is there.
func SetResourceGroup(ctx context.Context, c *api.Client, name string, create bool, change ResourceGroupChange) error {
	field, input := "modify_scaling_group", "ModifyScalingGroupInput"
	if create {
		field, input = "create_scaling_group", "CreateScalingGroupInput"
	}
	return c.Mutate(ctx, field, `mutation($name:String!,$props:`+input+`!){`+field+`(name:$name,props:$props){ok msg}}`,
		map[string]any{"name": name, "props": change})
}

// DeleteResourceGroup deletes a resource group that nothing names any more.
func DeleteResourceGroup(ctx context.Context, c *api.Client, name string) error {
	return c.Mutate(ctx, "delete_scaling_group", `mutation($name:String!){delete_scaling_group(name:$name){ok msg}}`,
		map[string]any{"name": name})
}

// GroupUser is who may use a resource group; one field is set. Project is an id.
type GroupUser struct{ Domain, Project, Keypair string }

// AllowResourceGroup lets somebody use a resource group, or no longer.
func AllowResourceGroup(ctx context.Context, c *api.Client, name string, u GroupUser, allow bool) error {
	verb := "associate"
	if !allow {
		verb = "disassociate"
	}
	with, arg, kind, value := "", "", "String!", ""
	switch {
	case u.Domain != "":
		with, arg, value = "domain", "domain", u.Domain
	case u.Project != "":
		with, arg, kind, value = "user_group", "user_group", "UUID!", u.Project
	case u.Keypair != "":
		with, arg, value = "keypair", "access_key", u.Keypair
	default:
		return errors.New("a domain, a project or a keypair must be named")
	}
	field := verb + "_scaling_group_with_" + with
	return c.Mutate(ctx, field, `mutation($name:String!,$to:`+kind+`){`+field+`(scaling_group:$name,`+arg+`:$to){ok msg}}`,
		map[string]any{"name": name, "to": value})
}
