package tenancy

import (
	"context"
	"fmt"
	"strconv"

	"github.com/spf13/cobra"

	"berth.dev/berth/api"
	"berth.dev/berth/api/admin"
	"berth.dev/berth/internal/cli/frame"
)

// newInfo makes a verb that shows one thing: find returns it, and its properties in words.
func (a *verbs) newInfo(
	what, short, example, long string, find func(context.Context, *api.Client, string) (any, [][]string, error),
) *cobra.Command {
	asJSON := false
	cmd := &cobra.Command{
		Use: "info " + what, Short: short, Long: long, Example: example, Args: frame.Args(cobra.ExactArgs(1)),
		RunE: a.Run(func(ctx context.Context, cmd *cobra.Command, c *api.Client, args []string) error {
			one, rows, err := find(ctx, c, args[0])
			if err != nil {
				return err
			}
			if asJSON {
				return frame.PrintJSON(cmd.OutOrStdout(), one)
			}
			t := frame.Table{Titles: []string{"WHAT", "VALUE"}, Rows: rows}
			return t.Write(cmd.OutOrStdout(), a.Colour(cmd.OutOrStdout()))
		}),
	}
	frame.JSONFlag(cmd, &asJSON)
	return cmd
}

func (a *verbs) newKeypairInfo() *cobra.Command {
	return a.newInfo("ACCESS-KEY", "Show a keypair", "  berth keypair info AKIAIOSFODNN7EXAMPLE",
		"Show what is known of a keypair; its secret is not shown.",
		func(ctx context.Context, c *api.Client, key string) (any, [][]string, error) {
			all, err := admin.Keypairs(ctx, c, "", "access_key == "+strconv.Quote(key))
			if err != nil {
				return nil, nil, err
			}
			if len(all) == 0 {
				return nil, nil, fmt.Errorf("there is no keypair %s, or none that you may see", key)
			}
			k := all[0]
			return k, [][]string{{"access key", k.AccessKey}, {"user", k.User}, {"status", keypairStatus(k)}, {"policy", k.Policy},
				{"requests in 15 minutes", strconv.Itoa(k.RateLimit)}, {"most sessions", strconv.Itoa(k.ConcurrencyLimit)},
				{"sessions", strconv.Itoa(k.ConcurrencyUsed)}, {"last used", textOr(k.LastUsed, "never")}, {"since", k.CreatedAt}}, nil
		})
}

func (a *verbs) newPolicyInfo() *cobra.Command {
	kind := ""
	cmd := a.newInfo("POLICY", "Show a resource policy", "  berth policy info default --kind user", "Show the limits of a resource policy.",
		func(ctx context.Context, c *api.Client, name string) (any, [][]string, error) {
			all, err := admin.Policies(ctx, c, admin.PolicyKind(kind))
			if err != nil {
				return nil, nil, err
			}
			for _, p := range all {
				if p.Name() != name {
					continue
				}
				rows := [][]string{}
				for _, limit := range sortedNames(p) {
					if p[limit] != nil {
						rows = append(rows, []string{limit, fmt.Sprint(p[limit])})
					}
				}
				return p, rows, nil
			}
			return nil, nil, fmt.Errorf("there is no policy %s of %ss, or none that you may see", name, kind)
		})
	kindFlag(cmd, &kind)
	return cmd
}

func (a *verbs) newGroupInfo() *cobra.Command {
	return a.newInfo("GROUP", "Show a resource group", "  berth resource-group info default",
		"Show a resource group. \"berth scheduler policy\" shows how it is served.",
		func(ctx context.Context, c *api.Client, name string) (any, [][]string, error) {
			all, err := c.ResourceGroups(ctx)
			if err != nil {
				return nil, nil, err
			}
			for _, g := range all {
				if g.Name == name {
					return g, [][]string{{"name", g.Name}, {"status", activity(g.IsActive)}, {"scheduler", g.Scheduler},
						{"description", textOr(g.Description, "")}}, nil
				}
			}
			return nil, nil, fmt.Errorf("there is no resource group %s, or none that you may see", name)
		})
}
