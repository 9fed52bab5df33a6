package tenancy

import (
	"bufio"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"berth.dev/berth/api"
	"berth.dev/berth/api/admin"
	"berth.dev/berth/internal/cli/frame"
)

func (a *verbs) newUser() *cobra.Command {
	return frame.Group("user", "Let people use the cluster, and shut them out",
		"Make users, change them, and shut them out. Administrators of a domain do so for its users, superadmins for all.",
		a.newUserCreate(), a.newUserList(), a.newUserInfo(), a.newUserSet(), a.newUserRemove(), a.newPurge("user"),
		a.newUserImport(), a.newUserExport())
}

// userOptions are what can be set of a user.
type userOptions struct {
	username, fullName, description, role, status, policy string
	projects, from                                        []string
	passwordStdin                                         bool
}

func (o *userOptions) flags(cmd *cobra.Command) {
	f := cmd.Flags()
	f.StringVar(&o.username, "username", "", "another name than the email address")
	f.StringVar(&o.fullName, "full-name", "", "what people call them")
	f.StringVar(&o.description, "description", "", "a note")
	f.StringVar(&o.role, "role", "", "user, admin (of the domain), monitor or superadmin")
	f.StringVar(&o.policy, "policy", "", "resource policy of users")
	f.StringArrayVar(&o.projects, "project", nil, "project of the domain, by name or id (repeatable; replaces all; \"\" for none)")
	f.StringArrayVar(&o.from, "from", nil, "address or network that they may come from (repeatable; replaces all; \"\" for every)")
	f.BoolVar(&o.passwordStdin, "password-stdin", false, "read the password from standard input")
}

// change is what the flags that were given set.
func (o *userOptions) change(ctx context.Context, cmd *cobra.Command, c *api.Client, domain string) (admin.UserChange, error) {
	out := admin.UserChange{}
	for flag, field := range map[string]struct {
		name  string
		value any
	}{
		"username": {"username", o.username}, "full-name": {"full_name", o.fullName}, "description": {"description", o.description},
		"role": {"role", o.role}, "status": {"status", o.status}, "policy": {"resource_policy", o.policy},
		"from": {"allowed_client_ip", o.from},
	} {
		if cmd.Flags().Changed(flag) {
			out[field.name] = field.value
		}
	}
	if o.passwordStdin {
		password, err := readPassword(cmd.InOrStdin())
		if err != nil {
			return nil, err
		}
		out["password"] = password
	}
	if !cmd.Flags().Changed("project") {
		return out, nil
	}
	there, err := admin.Projects(ctx, c, domain)
	if err != nil {
		return nil, err
	}
	ids := []string{}
	for _, ref := range o.projects {
		if ref == "" {
			continue
		}
		id := ""
		for _, p := range there {
			if p.ID == ref || p.Name == ref {
				id = p.ID
			}
		}
		if id == "" {
			return nil, fmt.Errorf("there is no project %s in domain %s, or none that you may see", ref, domain)
		}
		ids = append(ids, id)
	}
	out["group_ids"] = ids
	return out, nil
}

// maxPassword bounds what is read of a password.
const maxPassword = 1024

func readPassword(in io.Reader) (string, error) {
	line, err := bufio.NewReader(io.LimitReader(in, maxPassword)).ReadString('\n')
	if err != nil && !errors.Is(err, io.EOF) {
		return "", fmt.Errorf("read the password: %w", err)
	}
	if line = strings.TrimRight(line, "\r\n"); line == "" {
		return "", frame.Usage(errors.New("standard input has no password"))
	}
	return line, nil
}

func (a *verbs) newUserCreate() *cobra.Command {
	o := &userOptions{}
	domain := ""
	cmd := &cobra.Command{
		Use: "create EMAIL", Short: "Make a user",
		Long: "Make a user with a first keypair. Without --password-stdin the command makes a password and prints it; it is shown nowhere else.",
		Example: "  berth user create ada@example.org --full-name 'Ada Lovelace' --project default\n" +
			"  pass show boss | berth user create boss@example.org --role admin --domain physics --password-stdin",
		Args: frame.Args(cobra.ExactArgs(1)),
		RunE: a.Run(func(ctx context.Context, cmd *cobra.Command, c *api.Client, args []string) error {
			change, err := o.change(ctx, cmd, c, domain)
			if err != nil {
				return err
			}
			if domain != "" {
				change["domain_name"] = domain
			}
			shown := ""
			if !o.passwordStdin {
				shown = rand.Text()
				change["password"] = shown
			}
			if err := admin.CreateUser(ctx, c, args[0], change); err != nil {
				return err
			}
			frame.Say(cmd, "user %s is there", args[0])
			if shown != "" {
				_, err = fmt.Fprintln(cmd.OutOrStdout(), shown)
			}
			return err
		}),
	}
	o.flags(cmd)
	cmd.Flags().StringVar(&domain, "domain", "", "domain (default: your own)")
	return cmd
}

func (a *verbs) newUserList() *cobra.Command {
	var asJSON bool
	var filter string
	cmd := &cobra.Command{
		Use: "list", Short: "List users",
		Long:    "List the users that you may see: yourself, those of your domain if you administer it, all for superadmins.",
		Example: "  berth user list --filter 'status == \"inactive\"'",
		Args:    frame.Args(cobra.NoArgs),
		RunE: a.Run(func(ctx context.Context, cmd *cobra.Command, c *api.Client, _ []string) error {
			users, err := admin.Users(ctx, c, filter)
			if err != nil {
				return err
			}
			if asJSON {
				return frame.PrintJSON(cmd.OutOrStdout(), users)
			}
			t := frame.Table{Titles: []string{"EMAIL", "NAME", "ROLE", "STATUS", "DOMAIN", "PROJECTS"}}
			for _, u := range users {
				t.Rows = append(t.Rows, []string{u.Email, u.FullName, u.Role, u.Status, u.Domain, projectNames(u)})
			}
			return t.Write(cmd.OutOrStdout(), a.Colour(cmd.OutOrStdout()))
		}),
	}
	cmd.Flags().StringVar(&filter, "filter", "", `a condition, such as 'email ilike "%@example.org"'`)
	frame.JSONFlag(cmd, &asJSON)
	return cmd
}

func projectNames(u admin.User) string {
	names := make([]string, len(u.Projects))
	for i, p := range u.Projects {
		names[i] = p.Name
	}
	return strings.Join(names, ", ")
}

func (a *verbs) newUserInfo() *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use: "info EMAIL", Short: "Show a user",
		Long:    "Show what is known of a user.",
		Example: "  berth user info ada@example.org",
		Args:    frame.Args(cobra.ExactArgs(1)),
		RunE: a.Run(func(ctx context.Context, cmd *cobra.Command, c *api.Client, args []string) error {
			u, err := admin.GetUser(ctx, c, args[0])
			if err != nil {
				return err
			}
			if asJSON {
				return frame.PrintJSON(cmd.OutOrStdout(), u)
			}
			from := "everywhere"
			if len(u.AllowedFrom) > 0 {
				from = strings.Join(u.AllowedFrom, ", ")
			}
			t := frame.Table{Titles: []string{"WHAT", "VALUE"}, Rows: [][]string{
				{"email", u.Email}, {"user name", u.Username}, {"full name", u.FullName}, {"description", u.Description}, {"id", u.UUID},
				{"domain", u.Domain}, {"role", u.Role}, {"status", u.Status}, {"projects", projectNames(u)}, {"policy", u.Policy},
				{"main access key", u.MainAccessKey}, {"may come from", from}, {"since", u.CreatedAt},
			}}
			return t.Write(cmd.OutOrStdout(), a.Colour(cmd.OutOrStdout()))
		}),
	}
	frame.JSONFlag(cmd, &asJSON)
	return cmd
}

func (a *verbs) newUserSet() *cobra.Command {
	o := &userOptions{}
	cmd := &cobra.Command{
		Use: "set EMAIL", Short: "Change a user",
		Long: "Change what the flags name. Who is not active any more is let in nowhere: connections and tokens end within a second,\n" +
			"sessions and folders stay. Nobody changes their own role or status, and one superadmin always stays.",
		Example: "  berth user set ada@example.org --status inactive\n  berth user set ada@example.org --project default --project physics",
		Args:    frame.Args(cobra.ExactArgs(1)),
		RunE: a.Run(func(ctx context.Context, cmd *cobra.Command, c *api.Client, args []string) error {
			domain := ""
			if cmd.Flags().Changed("project") {
				u, err := admin.GetUser(ctx, c, args[0])
				if err != nil {
					return err
				}
				domain = u.Domain
			}
			change, err := o.change(ctx, cmd, c, domain)
			if err != nil {
				return err
			}
			if len(change) == 0 {
				return frame.Usage(errors.New("nothing is said that should change; " + strconv.Quote(cmd.CommandPath()+" --help") + " lists the flags"))
			}
			if err := admin.ModifyUser(ctx, c, args[0], change); err != nil {
				return err
			}
			frame.Say(cmd, "user %s is changed", args[0])
			return nil
		}),
	}
	o.flags(cmd)
	cmd.Flags().StringVar(&o.status, "status", "", "active, inactive, before-verification or deleted")
	return cmd
}

func (a *verbs) newUserRemove() *cobra.Command {
	dry, asJSON := false, false
	cmd := &cobra.Command{
		Use: "rm EMAIL", Short: "Shut a user out for good",
		Long: "Shut a user out for good: no key, password, connection or token of theirs is good any more. Sessions and folders stay, and the\n" +
			"email address stays taken. \"set --status active\" undoes it. --dry-run says before what becomes of what they have.",
		Example: "  berth user rm ada@example.org --dry-run\n  berth user rm ada@example.org",
		Args:    frame.Args(cobra.ExactArgs(1)),
		RunE: a.Run(func(ctx context.Context, cmd *cobra.Command, c *api.Client, args []string) error {
			if done, err := a.previewed(ctx, cmd, c, "user", args[0], dry, asJSON); done {
				return err
			}
			if err := admin.DeleteUser(ctx, c, args[0]); err != nil {
				return err
			}
			frame.Say(cmd, "user %s is shut out; their sessions and folders stay", args[0])
			return nil
		}),
	}
	return previewFlags(cmd, &dry, &asJSON)
}
