package cli

import (
	"context"

	"github.com/spf13/cobra"

	"berth.dev/berth/api"
	"berth.dev/berth/internal/cli/frame"
)

type schedulerNetworkOptions struct {
	app    *verbs
	egress string
	json   bool
}

func (a *verbs) newSchedulerNetwork() *cobra.Command {
	o := &schedulerNetworkOptions{app: a}
	cmd := &cobra.Command{
		Use:   "network GROUP",
		Short: "Show or change what sessions of a resource group may reach",
		Long: `Show what sessions of a resource group may reach from inside, or change it with --egress.
A change holds for sessions that run, within moments: connections that it does not include end.

  open                the internet, and no private address that the agent's operator did not list
  proxy:ADDRESS:PORT  the HTTP proxy at that IPv4 address and nothing else, names included
  none                nothing

Visitors reach the apps of a session under every policy.`,
		Example: `  berth scheduler network default
  berth scheduler network gpus --egress none
  berth scheduler network gpus --egress proxy:10.0.0.5:3128`,
		Args: frame.Args(cobra.ExactArgs(1)),
		RunE: a.Run(func(ctx context.Context, cmd *cobra.Command, c *api.Client, args []string) error {
			return o.run(ctx, cmd, c, args[0])
		}),
	}
	cmd.Flags().StringVar(&o.egress, "egress", "", "open, none or proxy:ADDRESS:PORT")
	frame.JSONFlag(cmd, &o.json)
	return cmd
}

func (o *schedulerNetworkOptions) run(ctx context.Context, cmd *cobra.Command, c *api.Client, group string) error {
	var n api.GroupNetwork
	var err error
	if cmd.Flags().Changed("egress") {
		n, err = c.SetGroupNetwork(ctx, group, o.egress)
	} else {
		n, err = c.GroupNetwork(ctx, group)
	}
	if err != nil {
		if api.IsNotFound(err) {
			return frame.Hint(err, "berth scheduler status")
		}
		return err
	}
	if o.json {
		return frame.PrintJSON(cmd.OutOrStdout(), n)
	}
	var f frame.Fields
	f.Add("resource group", n.ResourceGroup)
	f.Add("egress", n.Egress)
	f.Add("networks between agents", map[bool]string{true: "encrypted", false: "in clear"}[n.EncryptedNetworks])
	return f.Write(cmd.OutOrStdout(), o.app.Colour(cmd.OutOrStdout()))
}
