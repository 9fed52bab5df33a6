package tenancy

import (
	"context"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"berth.dev/berth/api"
	"berth.dev/berth/api/admin"
	"berth.dev/berth/internal/cli/frame"
)

func (a *verbs) newProject() *cobra.Command {
	return frame.Group("project", "Let users of a domain work together",
		"Make projects, change them, say who belongs to them, and close them. Administrators of a domain do so in it, superadmins\n"+
			"everywhere. "+
			"An administrator of a project says who belongs to it. Projects are named by name or id; --domain tells equal names apart.",
		a.newProjectCreate(), a.newProjectList(), a.newProjectInfo(), a.newProjectSet(), a.newProjectRemove(),
		a.newProjectMove(), a.newPurge("project"),
		a.newProjectMembers())
}

// domainFlag adds --domain to a command.
func domainFlag(cmd *cobra.Command, domain *string, help string) *cobra.Command {
	cmd.Flags().StringVar(domain, "domain", "", help)
	return cmd
}

const domainHelp = "domain of the project (default: any that you may see)"

func (a *verbs) newProjectCreate() *cobra.Command {
	o := &shareOptions{}
	domain, policy, kind := "", "", ""
	cmd := &cobra.Command{
		Use: "create NAME", Short: "Make a project",
		Long:    "Make a project without members and print its id.",
		Example: "  berth project create lasers --domain physics --total cpu=16\n  berth project create models --type model-store",
		Args:    frame.Args(cobra.ExactArgs(1)),
		RunE: a.Run(func(ctx context.Context, cmd *cobra.Command, c *api.Client, args []string) error {
			change, err := o.change(cmd.Flags())
			if err != nil {
				return err
			}
			if policy != "" {
				change["resource_policy"] = policy
			}
			if kind != "" {
				change["type"] = kind
			}
			if domain == "" {
				own, err := admin.GetDomain(ctx, c, "")
				if err != nil {
					return err
				}
				domain = own.Name
			}
			id, err := admin.CreateProject(ctx, c, args[0], domain, change)
			if err != nil {
				return err
			}
			frame.Say(cmd, "project %s is there", args[0])
			_, err = fmt.Fprintln(cmd.OutOrStdout(), id)
			return err
		}),
	}
	o.flags(cmd.Flags())
	cmd.Flags().StringVar(&policy, "policy", "", "resource policy of projects")
	cmd.Flags().StringVar(&kind, "type", "", "general or model-store")
	return domainFlag(cmd, &domain, "domain (default: your own)")
}

func (a *verbs) newProjectList() *cobra.Command {
	var asJSON bool
	domain := ""
	cmd := &cobra.Command{
		Use: "list", Short: "List projects",
		Long:    "List the projects that you may see: those that you are in, those of your domain if you administer it, all for superadmins.",
		Example: "  berth project list --domain physics",
		Args:    frame.Args(cobra.NoArgs),
		RunE: a.Run(func(ctx context.Context, cmd *cobra.Command, c *api.Client, _ []string) error {
			all, err := admin.ListProjects(ctx, c, domain)
			if err != nil {
				return err
			}
			if asJSON {
				return frame.PrintJSON(cmd.OutOrStdout(), all)
			}
			t := frame.Table{Titles: []string{"NAME", "DOMAIN", "TYPE", "STATUS", "TOTAL", "ID"}}
			for _, p := range all {
				t.Rows = append(t.Rows, []string{p.Name, p.Domain, typeName(p.Type), activity(p.Active), limits(p.Slots), p.ID})
			}
			return t.Write(cmd.OutOrStdout(), a.Colour(cmd.OutOrStdout()))
		}),
	}
	frame.JSONFlag(cmd, &asJSON)
	return domainFlag(cmd, &domain, "those of this domain alone")
}

func typeName(t string) string { return strings.ReplaceAll(strings.ToLower(t), "_", "-") }

func (a *verbs) newProjectInfo() *cobra.Command {
	var asJSON bool
	domain := ""
	cmd := &cobra.Command{
		Use: "info PROJECT", Short: "Show a project",
		Long:    "Show what is known of a project.",
		Example: "  berth project info lasers",
		Args:    frame.Args(cobra.ExactArgs(1)),
		RunE: a.Run(func(ctx context.Context, cmd *cobra.Command, c *api.Client, args []string) error {
			p, err := admin.GetProject(ctx, c, args[0], domain)
			if err != nil {
				return err
			}
			if asJSON {
				return frame.PrintJSON(cmd.OutOrStdout(), p)
			}
			t := frame.Table{Titles: []string{"WHAT", "VALUE"}, Rows: [][]string{
				{"name", p.Name}, {"id", p.ID}, {"domain", p.Domain}, {"type", typeName(p.Type)}, {"description", p.Description},
				{"status", activity(p.Active)}, {"total", limits(p.Slots)}, {"folder hosts", hostLines(p.Hosts)}, {"policy", p.Policy},
				{"resource groups", strings.Join(p.ResourceGroups, ", ")}, {"integration id", p.IntegrationID}, {"since", p.CreatedAt},
			}}
			return t.Write(cmd.OutOrStdout(), a.Colour(cmd.OutOrStdout()))
		}),
	}
	frame.JSONFlag(cmd, &asJSON)
	return domainFlag(cmd, &domain, domainHelp)
}

func (a *verbs) newProjectSet() *cobra.Command {
	o := &shareOptions{}
	domain, policy, name := "", "", ""
	cmd := &cobra.Command{
		Use: "set PROJECT", Short: "Change a project",
		Long:    "Change what the flags name. Lower totals end no session; waiting ones meet them at once. --active=false is what \"rm\" does.",
		Example: "  berth project set lasers --total cpu=32 --name optics",
		Args:    frame.Args(cobra.ExactArgs(1)),
		RunE: a.Run(func(ctx context.Context, cmd *cobra.Command, c *api.Client, args []string) error {
			change, err := o.change(cmd.Flags())
			if err != nil {
				return err
			}
			if policy != "" {
				change["resource_policy"] = policy
			}
			if name != "" {
				change["name"] = name
			}
			if len(change) == 0 {
				return nothingToChange(cmd)
			}
			p, err := admin.GetProject(ctx, c, args[0], domain)
			if err != nil {
				return err
			}
			if err := admin.ModifyProject(ctx, c, p.ID, change); err != nil {
				return err
			}
			frame.Say(cmd, "project %s is changed", p.Name)
			return nil
		}),
	}
	o.flags(cmd.Flags())
	cmd.Flags().BoolVar(&o.active, "active", true, "whether it starts sessions")
	cmd.Flags().StringVar(&policy, "policy", "", "resource policy of projects")
	cmd.Flags().StringVar(&name, "name", "", "another name")
	return domainFlag(cmd, &domain, domainHelp)
}

func (a *verbs) newProjectRemove() *cobra.Command {
	domain, dry, asJSON := "", false, false
	cmd := &cobra.Command{
		Use: "rm PROJECT", Short: "Close a project",
		Long: "Close a project: it starts no sessions and gets no folders, and the apps of its sessions and the tokens for its folders end\n" +
			"within a second. Sessions run on and everything stays. \"set --active=true\" undoes it. --dry-run says before what becomes of\n" +
			"what it has.",
		Example: "  berth project rm lasers --dry-run\n  berth project rm lasers",
		Args:    frame.Args(cobra.ExactArgs(1)),
		RunE: a.Run(func(ctx context.Context, cmd *cobra.Command, c *api.Client, args []string) error {
			p, err := admin.GetProject(ctx, c, args[0], domain)
			if err != nil {
				return err
			}
			if done, err := a.previewed(ctx, cmd, c, "project", p.ID, dry, asJSON); done {
				return err
			}
			if err := admin.DeleteProject(ctx, c, p.ID); err != nil {
				return err
			}
			frame.Say(cmd, "project %s is closed; its sessions and folders stay", p.Name)
			return nil
		}),
	}
	previewFlags(cmd, &dry, &asJSON)
	return domainFlag(cmd, &domain, domainHelp)
}

func (a *verbs) newProjectMembers() *cobra.Command {
	return frame.Group("members", "Say who belongs to a project",
		"Say who belongs to a project. Users are named by email address or id.",
		a.newMembersList(),
		a.newMembersChange("add PROJECT USER...", "add", "Add members",
			"Add users of the project's domain. --admin makes them administrators of "+
				"the project,\nwho say who belongs to it and see and end its members' sessions.", "is there for",
			"  berth project members add lasers ada@example.org"),
		a.newMembersChange("rm PROJECT USER...", "remove", "Remove members",
			"Remove members. What they run in the project ends, and so do their "+
				"sessions that mount its folders.\n--admin leaves them members who administer it no more.", "is closed to",
			"  berth project members rm lasers ada@example.org"))
}

func (a *verbs) newMembersList() *cobra.Command {
	var asJSON bool
	domain := ""
	cmd := &cobra.Command{
		Use: "list PROJECT", Short: "List members",
		Long:    "List who belongs to a project: for its administrators and those of its domain.",
		Example: "  berth project members list lasers",
		Args:    frame.Args(cobra.ExactArgs(1)),
		RunE: a.Run(func(ctx context.Context, cmd *cobra.Command, c *api.Client, args []string) error {
			p, err := admin.GetProject(ctx, c, args[0], domain)
			if err != nil {
				return err
			}
			members, err := admin.Members(ctx, c, p.ID)
			if err != nil {
				return err
			}
			if asJSON {
				return frame.PrintJSON(cmd.OutOrStdout(), members)
			}
			t := frame.Table{Titles: []string{"EMAIL", "NAME", "STATUS", "ROLE"}}
			for _, m := range members {
				role := "member"
				if m.Admin {
					role = "administrator"
				}
				t.Rows = append(t.Rows, []string{m.Email, m.FullName, m.Status, role})
			}
			return t.Write(cmd.OutOrStdout(), a.Colour(cmd.OutOrStdout()))
		}),
	}
	frame.JSONFlag(cmd, &asJSON)
	return domainFlag(cmd, &domain, domainHelp)
}

func (a *verbs) newMembersChange(use, mode, short, long, said, example string) *cobra.Command {
	domain, office := "", false
	cmd := &cobra.Command{
		Use: use, Short: short, Long: long, Example: example, Args: frame.Args(cobra.MinimumNArgs(2)),
		RunE: a.Run(func(ctx context.Context, cmd *cobra.Command, c *api.Client, args []string) error {
			p, err := admin.GetProject(ctx, c, args[0], domain)
			if err != nil {
				return err
			}
			how := mode
			if office {
				how = map[string]string{"add": "appoint", "remove": "dismiss"}[mode]
			}
			if err := admin.ChangeMembers(ctx, c, p.ID, how, args[1:]); err != nil {
				return err
			}
			if how == "dismiss" {
				said = "is administered no more by"
			}
			frame.Say(cmd, "project %s %s %s", p.Name, said, strings.Join(args[1:], ", "))
			return nil
		}),
	}
	cmd.Flags().BoolVar(&office, "admin", false, "the office of an administrator of the project")
	return domainFlag(cmd, &domain, domainHelp)
}
