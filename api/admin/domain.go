package admin

import (
	"context"
	"fmt"

	"berth.dev/berth/api"
)

// Domain is a tenant of the cluster. Slots and Hosts are texts of JSON objects: amounts by slot, permissions by host.
type Domain struct {
	Name          string   `json:"name"`
	Description   string   `json:"description"`
	Active        bool     `json:"is_active"`
	Slots         string   `json:"total_resource_slots"`
	Hosts         string   `json:"allowed_vfolder_hosts"`
	Registries    []string `json:"allowed_docker_registries"`
	IntegrationID string   `json:"integration_id"`
	CreatedAt     string   `json:"created_at"`
}

// DomainChange is what is set of a domain, by the names of the wire's input; what is missing stays as it is.
type DomainChange map[string]any

const domainFields = `name description is_active total_resource_slots allowed_vfolder_hosts allowed_docker_registries
integration_id created_at`

// Domains lists the domains that the caller may see.
func Domains(ctx context.Context, c *api.Client) ([]Domain, error) {
	var out struct {
		Domains []Domain `json:"domains"`
	}
	return out.Domains, c.GraphQL(ctx, `query{domains{`+domainFields+`}}`, nil, &out)
}

// GetDomain describes a domain; "" is the caller's.
func GetDomain(ctx context.Context, c *api.Client, name string) (Domain, error) {
	var out struct {
		Domain *Domain `json:"domain"`
	}
	if err := c.GraphQL(ctx, `query($name:String){domain(name:$name){`+domainFields+`}}`, map[string]any{"name": name}, &out); err != nil {
		return Domain{}, err
	}
	if out.Domain == nil {
		return Domain{}, fmt.Errorf("there is no domain %s, or none that you may see", name)
	}
	return *out.Domain, nil
}

// CreateDomain makes a domain.
func CreateDomain(ctx context.Context, c *api.Client, name string, change DomainChange) error {
	return c.Mutate(ctx, "create_domain", `mutation($name:String!,$props:DomainInput!){create_domain(name:$name,props:$props){ok msg}}`,
		map[string]any{"name": name, "props": change})
}

// ModifyDomain changes a domain.
func ModifyDomain(ctx context.Context, c *api.Client, name string, change DomainChange) error {
	return c.Mutate(ctx, "modify_domain", `mutation($name:String!,$props:ModifyDomainInput!){modify_domain(name:$name,props:$props){ok msg}}`,
		map[string]any{"name": name, "props": change})
}

// DeleteDomain deactivates a domain; what belongs to it stays.
func DeleteDomain(ctx context.Context, c *api.Client, name string) error {
	return c.Mutate(ctx, "delete_domain", `mutation($name:String!){delete_domain(name:$name){ok msg}}`, map[string]any{"name": name})
}
