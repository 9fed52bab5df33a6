package tenancy

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"berth.dev/berth/api"
	"berth.dev/berth/api/admin"
	"berth.dev/berth/internal/cli/frame"
)

func (a *verbs) newKeypair() *cobra.Command {
	return frame.Group("keypair", "What users sign with",
		"Make keypairs, replace them with an overlap, change their limits and delete them. Everybody replaces their own; the rest is for\n"+
			"administrators.",
		a.newKeypairList(), a.newKeypairInfo(), a.newKeypairCreate(), a.newKeypairRotate(), a.newKeypairSet(), a.newKeypairRemove())
}

func (a *verbs) newKeypairList() *cobra.Command {
	var asJSON bool
	var user, filter string
	cmd := &cobra.Command{
		Use: "list", Short: "List keypairs",
		Long:    "List the keypairs that you may see: your own, those of your domain if you administer it, all for superadmins.",
		Example: "  berth keypair list --user ada@example.org",
		Args:    frame.Args(cobra.NoArgs),
		RunE: a.Run(func(ctx context.Context, cmd *cobra.Command, c *api.Client, _ []string) error {
			all, err := admin.Keypairs(ctx, c, user, filter)
			if err != nil {
				return err
			}
			if asJSON {
				return frame.PrintJSON(cmd.OutOrStdout(), all)
			}
			t := frame.Table{Titles: []string{"ACCESS KEY", "USER", "STATUS", "POLICY", "RATE", "SESSIONS", "LAST USED"}}
			for _, k := range all {
				t.Rows = append(t.Rows, []string{k.AccessKey, k.User, keypairStatus(k), k.Policy, strconv.Itoa(k.RateLimit),
					strconv.Itoa(k.ConcurrencyUsed), textOr(k.LastUsed, "never")})
			}
			return t.Write(cmd.OutOrStdout(), a.Colour(cmd.OutOrStdout()))
		}),
	}
	cmd.Flags().StringVar(&user, "user", "", "email address of a user")
	cmd.Flags().StringVar(&filter, "filter", "", `a condition, such as 'is_active == false'`)
	frame.JSONFlag(cmd, &asJSON)
	return cmd
}

func keypairStatus(k admin.Keypair) string {
	switch {
	case k.IsActive && k.ExpiresAt != nil:
		return "ends " + *k.ExpiresAt
	case !k.IsActive && k.ReplacedBy != nil:
		return "replaced by " + *k.ReplacedBy
	case !k.IsActive:
		return "inactive"
	case k.IsMain:
		return "main"
	}
	return "active"
}

func textOr(p *string, none string) string {
	if p == nil {
		return none
	}
	return *p
}

// keypairOptions are what administrators set.
type keypairOptions struct {
	policy           string
	rate, concurrent int
	active           bool
}

func (o *keypairOptions) flags(cmd *cobra.Command) {
	f := cmd.Flags()
	f.StringVar(&o.policy, "policy", "default", "keypair resource policy")
	f.IntVar(&o.rate, "rate-limit", 10_000, "requests in 15 minutes; 0 is no limit")
	f.IntVar(&o.concurrent, "max-sessions", 0, "live sessions that are started with it, besides what policies say; 0 is no limit")
	f.BoolVar(&o.active, "active", true, "whether it may be used")
}

func (o *keypairOptions) change(cmd *cobra.Command, all bool) admin.KeypairChange {
	out := admin.KeypairChange{}
	for flag, field := range map[string]struct {
		name  string
		value any
	}{"policy": {"resource_policy", o.policy}, "rate-limit": {"rate_limit", o.rate}, "max-sessions": {"concurrency_limit", o.concurrent},
		"active": {"is_active", o.active}} {
		if all || cmd.Flags().Changed(flag) {
			out[field.name] = field.value
		}
	}
	return out
}

// printKeypair shows a new keypair as what a shell sets; its secret is shown nowhere else.
func printKeypair(cmd *cobra.Command, k admin.Keypair, asJSON bool) error {
	if asJSON {
		return frame.PrintJSON(cmd.OutOrStdout(), k)
	}
	_, err := fmt.Fprintf(cmd.OutOrStdout(), "%s=%s\n%s=%s\n", api.EnvAccessKey, k.AccessKey, api.EnvSecretKey, k.SecretKey)
	return err
}

func (a *verbs) newKeypairCreate() *cobra.Command {
	o := &keypairOptions{}
	var asJSON bool
	cmd := &cobra.Command{
		Use: "create USER", Short: "Make another keypair of a user",
		Long: "Make another keypair of a user (email or id) and print it. Its secret is shown nowhere else. The policy of the main keypair\n" +
			"limits the user with all keypairs, that of another one what is started with it, too.",
		Example: "  berth keypair create ada@example.org --policy small --rate-limit 1000",
		Args:    frame.Args(cobra.ExactArgs(1)),
		RunE: a.Run(func(ctx context.Context, cmd *cobra.Command, c *api.Client, args []string) error {
			k, err := admin.CreateKeypair(ctx, c, args[0], o.change(cmd, true))
			if err != nil {
				return err
			}
			return printKeypair(cmd, k, asJSON)
		}),
	}
	o.flags(cmd)
	frame.JSONFlag(cmd, &asJSON)
	return cmd
}

func (a *verbs) newKeypairRotate() *cobra.Command {
	var overlap time.Duration
	var asJSON bool
	cmd := &cobra.Command{
		Use: "rotate [ACCESS_KEY]", Short: "Replace a keypair",
		Long: "Make a keypair that takes over what hangs on another one (your own if none is named): limits, SSH keypair, dotfiles, bootstrap\n" +
			"script, live sessions, and whether it is the main one. The old one holds for the overlap and then ends by itself.",
		Example: "  berth keypair rotate --overlap 24h\n  berth keypair rotate AKIAIOSFODNN7EXAMPLE --overlap 0s",
		Args:    frame.Args(cobra.MaximumNArgs(1)),
		RunE: a.Run(func(ctx context.Context, cmd *cobra.Command, c *api.Client, args []string) error {
			key := ""
			if len(args) == 1 {
				key = args[0]
			}
			k, err := admin.RotateKeypair(ctx, c, key, overlap)
			if err != nil {
				return err
			}
			return printKeypair(cmd, k, asJSON)
		}),
	}
	cmd.Flags().DurationVar(&overlap, "overlap", 24*time.Hour, "how long the old one still holds; 0s ends it at once")
	frame.JSONFlag(cmd, &asJSON)
	return cmd
}

func (a *verbs) newKeypairSet() *cobra.Command {
	o := &keypairOptions{}
	cmd := &cobra.Command{
		Use: "set ACCESS_KEY", Short: "Change a keypair",
		Long: "Change what the flags name. A keypair that is not active is let in nowhere; its sessions run on. Nobody but superadmins\n" +
			"changes their own limits.",
		Example: "  berth keypair set AKIAIOSFODNN7EXAMPLE --active=false",
		Args:    frame.Args(cobra.ExactArgs(1)),
		RunE: a.Run(func(ctx context.Context, cmd *cobra.Command, c *api.Client, args []string) error {
			change := o.change(cmd, false)
			if len(change) == 0 {
				return frame.Usage(errors.New("nothing is said that should change; " +
					strconv.Quote(cmd.CommandPath()+" --help") + " lists the flags"))
			}
			if err := admin.ModifyKeypair(ctx, c, args[0], change); err != nil {
				return err
			}
			frame.Say(cmd, "keypair %s is changed", args[0])
			return nil
		}),
	}
	o.flags(cmd)
	return cmd
}

func (a *verbs) newKeypairRemove() *cobra.Command {
	return &cobra.Command{
		Use: "rm ACCESS_KEY", Short: "Delete a keypair for good",
		Long: "Delete a keypair for good: neither the main one of its user nor the one that you sign with. Its sessions run on and go to the\n" +
			"main keypair.",
		Example: "  berth keypair rm AKIAIOSFODNN7EXAMPLE",
		Args:    frame.Args(cobra.ExactArgs(1)),
		RunE: a.Run(func(ctx context.Context, cmd *cobra.Command, c *api.Client, args []string) error {
			if err := admin.DeleteKeypair(ctx, c, args[0]); err != nil {
				return err
			}
			frame.Say(cmd, "keypair %s is gone", args[0])
			return nil
		}),
	}
}
