package admin

import (
	"context"
	"fmt"

	"berth.dev/berth/api"
)

// User is a person who may use the cluster.
type User struct {
	UUID          string       `json:"uuid"`
	Email         string       `json:"email"`
	Username      string       `json:"username"`
	FullName      string       `json:"full_name"`
	Description   string       `json:"description"`
	Role          string       `json:"role"`
	Status        string       `json:"status"`
	Domain        string       `json:"domain_name"`
	Policy        string       `json:"resource_policy"`
	MainAccessKey string       `json:"main_access_key"`
	AllowedFrom   []string     `json:"allowed_client_ip"`
	Projects      []ProjectRef `json:"groups"`
	CreatedAt     string       `json:"created_at"`
}

// ProjectRef names a project.
type ProjectRef struct {
	ID   string `json:"id"`
	Name string `json:"name"`
}

// UserChange is what is set of a user, by the names of the wire's input; what is missing stays as it is.
type UserChange map[string]any

const userFields = `uuid email username full_name description role status domain_name resource_policy main_access_key
allowed_client_ip groups{id name} created_at`

const (
	// maxPage is the largest page of a list, maxListed bounds a list that asks for everything.
	maxPage   = 100
	maxListed = 100_000
)

// Users lists the users that the caller may see and a filter in the language of lists selects.
func Users(ctx context.Context, c *api.Client, filter string) ([]User, error) {
	const q = `query($limit:Int!,$offset:Int!,$filter:String){user_list(limit:$limit,offset:$offset,filter:$filter,order:"email"){
total_count items{` + userFields + `}}}`
	all := []User{}
	for {
		var out struct {
			Page struct {
				Items []User `json:"items"`
				Total int    `json:"total_count"`
			} `json:"user_list"`
		}
		vars := map[string]any{"limit": maxPage, "offset": len(all), "filter": filter}
		if err := c.GraphQL(ctx, q, vars, &out); err != nil {
			return nil, err
		}
		all = append(all, out.Page.Items...)
		if len(out.Page.Items) == 0 || len(all) >= min(out.Page.Total, maxListed) {
			return all, nil
		}
	}
}

// GetUser describes a user.
func GetUser(ctx context.Context, c *api.Client, email string) (User, error) {
	var out struct {
		User *User `json:"user"`
	}
	if err := c.GraphQL(ctx, `query($email:String){user(email:$email){`+userFields+`}}`, map[string]any{"email": email}, &out); err != nil {
		return User{}, err
	}
	if out.User == nil {
		return User{}, fmt.Errorf("there is no user %s, or none that you may see", email)
	}
	return *out.User, nil
}

// CreateUser makes a user; change has at least a password.
func CreateUser(ctx context.Context, c *api.Client, email string, change UserChange) error {
	return c.Mutate(ctx, "create_user", `mutation($email:String!,$props:UserInput!){create_user(email:$email,props:$props){ok msg}}`,
		map[string]any{"email": email, "props": change})
}

// ModifyUser changes a user.
func ModifyUser(ctx context.Context, c *api.Client, email string, change UserChange) error {
	return c.Mutate(ctx, "modify_user", `mutation($email:String!,$props:ModifyUserInput!){modify_user(email:$email,props:$props){ok msg}}`,
		map[string]any{"email": email, "props": change})
}

// DeleteUser shuts a user out for good; what they own stays.
func DeleteUser(ctx context.Context, c *api.Client, email string) error {
	return c.Mutate(ctx, "delete_user", `mutation($email:String!){delete_user(email:$email){ok msg}}`, map[string]any{"email": email})
}

// Projects lists the projects of a domain that the caller may see.
func Projects(ctx context.Context, c *api.Client, domain string) ([]ProjectRef, error) {
	var out struct {
		Projects []ProjectRef `json:"groups"`
	}
	err := c.GraphQL(ctx, `query($domain:String){groups(domain_name:$domain){id name}}`, map[string]any{"domain": domain}, &out)
	return out.Projects, err
}
