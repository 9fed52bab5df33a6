package admin

import (
	"context"
	"fmt"
	"slices"

	"berth.dev/berth/api"
)

// Project is a group of users of one domain. Slots and Hosts are texts of JSON objects, as those of Domain.
type Project struct {
	ID             string   `json:"id"`
	Name           string   `json:"name"`
	Description    string   `json:"description"`
	Active         bool     `json:"is_active"`
	Domain         string   `json:"domain_name"`
	Type           string   `json:"type"` // GENERAL or MODEL_STORE
	Slots          string   `json:"total_resource_slots"`
	Hosts          string   `json:"allowed_vfolder_hosts"`
	Policy         string   `json:"resource_policy"`
	ResourceGroups []string `json:"scaling_groups"`
	IntegrationID  string   `json:"integration_id"`
	CreatedAt      string   `json:"created_at"`
}

// Member is a user of a project.
type Member struct {
	UUID     string `json:"uuid"`
	Email    string `json:"email"`
	FullName string `json:"full_name"`
	Status   string `json:"status"`
	Admin    bool   `json:"is_admin"`
}

// ProjectChange is what is set of a project, by the names of the wire's input; what is missing stays as it is.
type ProjectChange map[string]any

const projectFields = `id name description is_active domain_name type total_resource_slots allowed_vfolder_hosts resource_policy
scaling_groups integration_id created_at`

// ListProjects lists the projects that the caller may see, of one domain or ("") of all.
func ListProjects(ctx context.Context, c *api.Client, domain string) ([]Project, error) {
	var out struct {
		Projects []Project `json:"groups"`
	}
	return out.Projects, c.GraphQL(ctx, `query($domain:String){groups(domain_name:$domain){`+projectFields+`}}`,
		map[string]any{"domain": domain}, &out)
}

// GetProject finds a project by id or by name; domain "" is any that the caller may see.
func GetProject(ctx context.Context, c *api.Client, ref, domain string) (Project, error) {
	all, err := ListProjects(ctx, c, domain)
	if err != nil {
		return Project{}, err
	}
	all = slices.DeleteFunc(all, func(p Project) bool { return p.ID != ref && p.Name != ref })
	switch len(all) {
	case 0:
		return Project{}, fmt.Errorf("there is no project %s, or none that you may see", ref)
	case 1:
		return all[0], nil
	}
	return Project{}, fmt.Errorf("domains %s and %s both have a project %s; name the domain or the id", all[0].Domain, all[1].Domain, ref)
}

// CreateProject makes a project in a domain and returns its id.
func CreateProject(ctx context.Context, c *api.Client, name, domain string, change ProjectChange) (id string, err error) {
	props := ProjectChange{"domain_name": domain}
	for k, v := range change {
		props[k] = v
	}
	err = c.Mutate(ctx, "create_group", `mutation($name:String!,$props:GroupInput!){create_group(name:$name,props:$props){ok msg}}`,
		map[string]any{"name": name, "props": props})
	if err != nil {
		return "", err
	}
	p, err := GetProject(ctx, c, name, domain)
	return p.ID, err
}

// ModifyProject changes a project.
func ModifyProject(ctx context.Context, c *api.Client, id string, change ProjectChange) error {
	return c.Mutate(ctx, "modify_group", `mutation($gid:UUID!,$props:ModifyGroupInput!){modify_group(gid:$gid,props:$props){ok msg}}`,
		map[string]any{"gid": id, "props": change})
}

// DeleteProject deactivates a project; what belongs to it stays.
func DeleteProject(ctx context.Context, c *api.Client, id string) error {
	return c.Mutate(ctx, "delete_group", `mutation($gid:UUID!){delete_group(gid:$gid){ok msg}}`, map[string]any{"gid": id})
}

// Members lists who belongs to a project.
func Members(ctx context.Context, c *api.Client, id string) ([]Member, error) {
	var out struct {
		Members []Member `json:"group_members"`
	}
	return out.Members, c.GraphQL(ctx, `query($gid:UUID!){group_members(gid:$gid){uuid email full_name status is_admin}}`,
		map[string]any{"gid": id}, &out)
}

// ChangeMembers adds (mode add), removes (remove), makes administrators of the project (appoint) or ends that (dismiss); users are
// named by id or email address.
func ChangeMembers(ctx context.Context, c *api.Client, id, mode string, users []string) error {
	return ModifyProject(ctx, c, id, ProjectChange{"user_update_mode": mode, "user_uuids": users})
}
