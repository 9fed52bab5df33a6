package cli

import (
	"context"

	"github.com/spf13/cobra"

	"berth.dev/berth/api"
)

type whoamiOptions struct {
	app  *app
	json bool
}

// whoami is what berth whoami prints.
type whoami struct {
	api.Config
	User    string    `json:"user"`
	Policy  string    `json:"resource_policy"`
	Admin   bool      `json:"is_admin"`
	Roles   api.Roles `json:"roles"`
	Manager api.Hello `json:"manager"`
}

func (a *app) newWhoami() *cobra.Command {
	o := &whoamiOptions{app: a}
	cmd := &cobra.Command{
		Use:     "whoami",
		Short:   "Show which cluster is used, and as whom",
		Long:    "Show which cluster is used, where that was configured, and as whom. The secret key is never shown.",
		Example: "  berth whoami --json",
		Args:    args(cobra.NoArgs),
		RunE: a.run(func(ctx context.Context, cmd *cobra.Command, c *api.Client, _ []string) error {
			return o.run(ctx, cmd, c)
		}),
	}
	jsonFlag(cmd, &o.json)
	return cmd
}

func (o *whoamiOptions) run(ctx context.Context, cmd *cobra.Command, c *api.Client) error {
	w := whoami{Config: c.Config()}
	var err error
	if w.Manager, err = c.Hello(ctx); err != nil {
		return err
	}
	k, err := c.Keypair(ctx)
	if err != nil {
		return err
	}
	w.User, w.Policy, w.Admin = k.User, k.ResourcePolicy, k.IsAdmin
	if w.Roles, err = c.Roles(ctx); err != nil {
		return err
	}
	if o.json {
		return printJSON(cmd.OutOrStdout(), w)
	}
	var f fields
	f.add("endpoint", w.Endpoint)
	f.add("configured by", w.Source)
	f.add("access key", w.AccessKey)
	f.add("user", w.User)
	f.add("role", w.Roles.Global)
	f.add("domain", w.Domain)
	f.add("project", w.Group)
	f.add("resource policy", w.Policy)
	f.add("manager", w.Manager.Manager+" (API "+w.Manager.Version+")")
	return f.write(cmd.OutOrStdout(), o.app.colour(cmd.OutOrStdout()))
}
