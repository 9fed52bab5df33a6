package tenancy

import (
	"context"
	"errors"
	"fmt"
	"strconv"

	"github.com/spf13/cobra"

	"berth.dev/berth/api"
	"berth.dev/berth/api/admin"
	"berth.dev/berth/internal/cli/frame"
)

func (a *verbs) newResourceGroup() *cobra.Command {
	return frame.Group("resource-group", "Sets of agents, and who may use them",
		"Make resource groups, change them, and say which domains, projects and keypairs may use them. Scheduling policies are set with\n"+
			"\"berth scheduler policy\", what sessions reach with \"berth scheduler network\".",
		a.newGroupList(), a.newGroupInfo(), a.newGroupWrite(true), a.newGroupWrite(false), a.newGroupAllow(true), a.newGroupAllow(false),
		a.newGroupRemove())
}

func (a *verbs) newGroupList() *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use: "list", Short: "List resource groups",
		Long:    "List the resource groups that you may use, all for superadmins.",
		Example: "  berth resource-group list",
		Args:    frame.Args(cobra.NoArgs),
		RunE: a.Run(func(ctx context.Context, cmd *cobra.Command, c *api.Client, _ []string) error {
			all, err := c.ResourceGroups(ctx)
			if err != nil {
				return err
			}
			if asJSON {
				return frame.PrintJSON(cmd.OutOrStdout(), all)
			}
			t := frame.Table{Titles: []string{"RESOURCE GROUP", "STATUS", "SCHEDULER", "DESCRIPTION"}}
			for _, g := range all {
				status := "active"
				if !g.IsActive {
					status = "inactive"
				}
				t.Rows = append(t.Rows, []string{g.Name, status, g.Scheduler, textOr(g.Description, "")})
			}
			return t.Write(cmd.OutOrStdout(), a.Colour(cmd.OutOrStdout()))
		}),
	}
	frame.JSONFlag(cmd, &asJSON)
	return cmd
}

// newGroupWrite makes create and set.
func (a *verbs) newGroupWrite(create bool) *cobra.Command {
	var description, scheduler string
	var active, public, hostNetwork, encrypted bool
	use, short, example := "set GROUP", "Change a resource group", "  berth resource-group set gpus --active=false"
	if create {
		use, short, example = "create GROUP", "Make a resource group", "  berth resource-group create gpus --scheduler fair-share"
	}
	cmd := &cobra.Command{
		Use: use, Short: short, Long: short + ". Nothing new starts in one that is not active; what runs there runs on.", Example: example,
		Args: frame.Args(cobra.ExactArgs(1)),
		RunE: a.Run(func(ctx context.Context, cmd *cobra.Command, c *api.Client, args []string) error {
			change := admin.ResourceGroupChange{}
			if create {
				change = admin.ResourceGroupChange{"driver": "static", "scheduler": scheduler}
			}
			for flag, field := range map[string]struct {
				name  string
				value any
			}{"description": {"description", description}, "scheduler": {"scheduler", scheduler}, "active": {"is_active", active},
				"public": {"is_public", public}, "host-network": {"use_host_network", hostNetwork},
				"encrypted-networks": {"encrypted_networks", encrypted}} {
				if cmd.Flags().Changed(flag) {
					change[field.name] = field.value
				}
			}
			if len(change) == 0 {
				return frame.Usage(errors.New("nothing is said that should change; " + strconv.Quote(cmd.CommandPath()+" --help") + " lists the flags"))
			}
			if err := admin.SetResourceGroup(ctx, c, args[0], create, change); err != nil {
				return err
			}
			frame.Say(cmd, "resource group %s is set", args[0])
			return nil
		}),
	}
	f := cmd.Flags()
	f.StringVar(&description, "description", "", "a note")
	f.StringVar(&scheduler, "scheduler", "fifo", "order of waiting sessions")
	f.BoolVar(&active, "active", true, "whether sessions start there")
	f.BoolVar(&public, "public", true, "whether it is for sessions of users; otherwise for private ones alone")
	f.BoolVar(&hostNetwork, "host-network", false, "whether its sessions may ask for the network of their hosts, which isolates them less")
	f.BoolVar(&encrypted, "encrypted-networks", false, "whether networks of sessions are encrypted between agents, for sessions that begin")
	return cmd
}

func (a *verbs) newGroupAllow(allow bool) *cobra.Command {
	var u admin.GroupUser
	use, short, said := "allow GROUP", "Let a domain, project or keypair use a resource group", "may use"
	if !allow {
		use, short, said = "disallow GROUP", "Take away the use of a resource group", "may not use"
	}
	cmd := &cobra.Command{
		Use: use, Short: short, Long: short + ". What runs there runs on.",
		Example: "  berth resource-group " + use[:len(use)-len("GROUP")] + "gpus --project physics",
		Args:    frame.Args(cobra.ExactArgs(1)),
		RunE: a.Run(func(ctx context.Context, cmd *cobra.Command, c *api.Client, args []string) error {
			if u.Project != "" {
				there, err := admin.Projects(ctx, c, u.Domain)
				if err != nil {
					return err
				}
				id := ""
				for _, p := range there {
					if p.ID == u.Project || p.Name == u.Project {
						id = p.ID
					}
				}
				if id == "" {
					return fmt.Errorf("there is no project %s, or none that you may see", u.Project)
				}
				u.Project, u.Domain = id, ""
			}
			if (u.Domain == "") == (u.Project == "") && u.Keypair == "" {
				return frame.Usage(errors.New("name a domain, a project or a keypair"))
			}
			if err := admin.AllowResourceGroup(ctx, c, args[0], u, allow); err != nil {
				return err
			}
			frame.Say(cmd, "%s%s%s %s resource group %s", u.Domain, u.Project, u.Keypair, said, args[0])
			return nil
		}),
	}
	cmd.Flags().StringVar(&u.Domain, "domain", "", "a domain; with --project the domain of the project")
	cmd.Flags().StringVar(&u.Project, "project", "", "a project, by name or id")
	cmd.Flags().StringVar(&u.Keypair, "keypair", "", "an access key")
	return cmd
}

func (a *verbs) newGroupRemove() *cobra.Command {
	return &cobra.Command{
		Use: "rm GROUP", Short: "Delete a resource group",
		Long:    "Delete a resource group that no agent and no session names any more.",
		Example: "  berth resource-group rm gpus",
		Args:    frame.Args(cobra.ExactArgs(1)),
		RunE: a.Run(func(ctx context.Context, cmd *cobra.Command, c *api.Client, args []string) error {
			if err := admin.DeleteResourceGroup(ctx, c, args[0]); err != nil {
				return err
			}
			frame.Say(cmd, "resource group %s is gone", args[0])
			return nil
		}),
	}
}
