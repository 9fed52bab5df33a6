package admin

import (
	"context"
	"fmt"
	"time"

	"berth.dev/berth/api"
)

// Keypair is what a user signs with. The secret is only there when it was just made.
type Keypair struct {
	AccessKey        string  `json:"access_key"`
	SecretKey        string  `json:"secret_key,omitempty"`
	User             string  `json:"user_id"`
	IsActive         bool    `json:"is_active"`
	IsAdmin          bool    `json:"is_admin"`
	IsMain           bool    `json:"is_main"`
	Policy           string  `json:"resource_policy"`
	RateLimit        int     `json:"rate_limit"`
	ConcurrencyLimit int     `json:"concurrency_limit"`
	ConcurrencyUsed  int     `json:"concurrency_used"`
	CreatedAt        string  `json:"created_at"`
	LastUsed         *string `json:"last_used"`
	ExpiresAt        *string `json:"expires_at"`
	ReplacedBy       *string `json:"replaced_by"`
}

// KeypairChange is what is set of a keypair, by the names of the wire's input; what is missing stays as it is.
type KeypairChange map[string]any

const keypairFields = `access_key user_id is_active is_admin is_main resource_policy rate_limit concurrency_limit concurrency_used
created_at last_used expires_at replaced_by`

// Keypairs lists the keypairs that the caller may see, of one user unless email is empty.
func Keypairs(ctx context.Context, c *api.Client, email, filter string) ([]Keypair, error) {
	const q = `query($limit:Int!,$offset:Int!,$filter:String,$email:String){keypair_list(limit:$limit,offset:$offset,filter:$filter,
email:$email,order:"user_id"){total_count items{` + keypairFields + `}}}`
	all := []Keypair{}
	for {
		var out struct {
			Page struct {
				Items []Keypair `json:"items"`
				Total int       `json:"total_count"`
			} `json:"keypair_list"`
		}
		vars := map[string]any{"limit": maxPage, "offset": len(all), "filter": filter, "email": email}
		if err := c.GraphQL(ctx, q, vars, &out); err != nil {
			return nil, err
		}
		all = append(all, out.Page.Items...)
		if len(out.Page.Items) == 0 || len(all) >= min(out.Page.Total, maxListed) {
			return all, nil
		}
	}
}

// made reads the answer of a mutation that makes a keypair.
func made(ctx context.Context, c *api.Client, field, query string, vars map[string]any) (Keypair, error) {
	var out map[string]struct {
		OK      bool     `json:"ok"`
		Msg     string   `json:"msg"`
		Keypair *Keypair `json:"keypair"`
	}
	if err := c.GraphQL(ctx, query, vars, &out); err != nil {
		return Keypair{}, err
	}
	r := out[field]
	if !r.OK || r.Keypair == nil {
		return Keypair{}, fmt.Errorf("%s", r.Msg)
	}
	return *r.Keypair, nil
}

// CreateKeypair makes another keypair of a user; change has resource_policy and rate_limit.
func CreateKeypair(ctx context.Context, c *api.Client, user string, change KeypairChange) (Keypair, error) {
	return made(ctx, c, "create_keypair", `mutation($user:String!,$props:KeyPairInput!){create_keypair(user_id:$user,props:$props){ok msg
keypair{secret_key `+keypairFields+`}}}`, map[string]any{"user": user, "props": change})
}

// RotateKeypair replaces a keypair ("" is the caller's), which holds for the overlap.
func RotateKeypair(ctx context.Context, c *api.Client, key string, overlap time.Duration) (Keypair, error) {
	return made(ctx, c, "rotate_keypair", `mutation($key:String,$overlap:Int){rotate_keypair(access_key:$key,overlap:$overlap){ok msg
keypair{secret_key `+keypairFields+`}}}`, map[string]any{"key": key, "overlap": int(overlap / time.Second)})
}

// ModifyKeypair changes a keypair.
func ModifyKeypair(ctx context.Context, c *api.Client, key string, change KeypairChange) error {
	return c.Mutate(ctx, "modify_keypair", `mutation($key:String!,$props:ModifyKeyPairInput!){modify_keypair(access_key:$key,props:$props){
ok msg}}`, map[string]any{"key": key, "props": change})
}

// DeleteKeypair deletes a keypair for good.
func DeleteKeypair(ctx context.Context, c *api.Client, key string) error {
	return c.Mutate(ctx, "delete_keypair", `mutation($key:String!){delete_keypair(access_key:$key){ok msg}}`, map[string]any{"key": key})
}
