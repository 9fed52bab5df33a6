package api

import "context"

// Keypair is what a caller signs with; the secret is not asked for.
type Keypair struct {
	AccessKey       string `json:"access_key"`
	User            string `json:"user_id"`
	IsActive        bool   `json:"is_active"`
	IsAdmin         bool   `json:"is_admin"`
	ResourcePolicy  string `json:"resource_policy"`
	RateLimit       int    `json:"rate_limit"`
	ConcurrencyUsed int    `json:"concurrency_used"`
	CreatedAt       string `json:"created_at"`
}

var keypairQuery = `query{keypair{` + selection[Keypair]() + `}}`

// Keypair describes the caller's own keypair.
func (c *Client) Keypair(ctx context.Context) (Keypair, error) {
	var out struct {
		K *Keypair `json:"keypair"`
	}
	if err := c.GraphQL(ctx, keypairQuery, nil, &out); err != nil {
		return Keypair{}, err
	}
	if out.K == nil {
		return Keypair{}, notFound("keypair", "keypair %s does not exist", c.cfg.AccessKey)
	}
	return *out.K, nil
}
