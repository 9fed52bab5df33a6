package cli

import (
	"context"
	"strings"

	"github.com/spf13/cobra"

	"berth.dev/berth/api"
	"berth.dev/berth/internal/cli/frame"
)

type whoamiOptions struct {
	app  *verbs
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

func (a *verbs) newWhoami() *cobra.Command {
	o := &whoamiOptions{app: a}
	cmd := &cobra.Command{
		Use:     "whoami",
		Short:   "Show which cluster is used, and as whom",
		Long:    "Show which cluster is used, where that was configured, and as whom. The secret key is never shown.",
		Example: "  berth whoami --json",
		Args:    frame.Args(cobra.NoArgs),
		RunE: a.Run(func(ctx context.Context, cmd *cobra.Command, c *api.Client, _ []string) error {
			return o.run(ctx, cmd, c)
		}),
	}
	frame.JSONFlag(cmd, &o.json)
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
		return frame.PrintJSON(cmd.OutOrStdout(), w)
	}
	var f frame.Fields
	f.Add("endpoint", strings.Join(append([]string{w.Endpoint}, w.Others...), ", "))
	f.Add("configured by", w.Source)
	f.Add("access key", w.AccessKey)
	f.Add("user", w.User)
	f.Add("role", w.Roles.Global)
	f.Add("domain", w.Domain)
	f.Add("project", w.Group)
	f.Add("resource policy", w.Policy)
	f.Add("manager", w.Manager.Manager+" (API "+w.Manager.Version+")")
	return f.Write(cmd.OutOrStdout(), o.app.Colour(cmd.OutOrStdout()))
}
