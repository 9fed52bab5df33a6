package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/user"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"berth.dev/berth/internal/fault"
	"berth.dev/berth/internal/platform"
)

// joinPatience bounds one command about joining.
const joinPatience = 30 * time.Second

// joinsFlags are the flags that choose the cluster.
type joinsFlags struct {
	dir, config string
	json        bool
}

func (f *joinsFlags) add(c *cobra.Command) {
	c.Flags().StringVar(&f.dir, "state-dir", "", "directory of the cluster")
	c.Flags().StringVar(&f.config, "config", "", "TOML file of a manager that runs alone")
	c.Flags().BoolVar(&f.json, "json", false, "print JSON for programs")
	c.MarkFlagsMutuallyExclusive("state-dir", "config")
}

// with calls do with the way to the cluster: its control socket, or with --config its database.
func (f *joinsFlags) with(cmd *cobra.Command, do func(ctx context.Context, j platform.Joins) error) error {
	ctx, cancel := context.WithTimeout(cmd.Context(), joinPatience)
	defer cancel()
	if f.config != "" {
		s, _, err := platform.LoadSettings(f.config, platform.RoleManager, cmd.ErrOrStderr())
		if err != nil {
			return err
		}
		j, done, err := platform.JoinsInDatabase(ctx, s.Manager)
		if err != nil {
			return err
		}
		defer done()
		return do(ctx, j)
	}
	dir, err := platform.FindStateDir(f.dir)
	if err != nil {
		return err
	}
	j, err := platform.JoinsOf(dir)
	if err != nil {
		return err
	}
	return do(ctx, j)
}

func newJoinToken() *cobra.Command {
	c := &cobra.Command{
		Use: "join-token", Short: "Let an agent or app proxy join the cluster",
		Long: "Make, list and revoke join tokens. A token lets one agent or app proxy of one name join once, within its\n" +
			"time. Every replica of an app proxy needs its own. It needs no account, only the right to use the state\n" +
			"directory of a running cluster, or with --config the manager's configuration, master key and database.",
	}
	c.AddCommand(newJoinTokenCreate(), newJoinTokenList(), newJoinTokenRevoke())
	return c
}

func newJoinTokenCreate() *cobra.Command {
	var f joinsFlags
	var out string
	q := platform.NewJoinToken{}
	c := &cobra.Command{
		Use: "create", Short: "Make a join token and print it", Args: cobra.NoArgs,
		Long: "Make a join token and print it; nobody can read it again later. Put it into the file that\n" +
			"agent.join_token_file or appproxy.join_token_file of the joining host names, or into --out on this one.\n" +
			"A manager joins by `berth manager join`; its token carries the cluster's master key.\n\n" +
			"A host that has joined before comes back by its key and needs none. --replace says that another machine,\n" +
			"or the same one after its state directory was lost, takes the place of the one that is known: an agent\n" +
			"must be stopped before, and of an app proxy the certificates of all replicas end.",
		Example: "  berth admin join-token create --role agent --name i-gpu-01\n" +
			"  berth admin join-token create --role appproxy --name eu1 --expires 15m --out /etc/berth/join-token\n" +
			"  berth admin join-token create --role agent --name i-gpu-01 --replace --config manager.toml\n" +
			"  berth admin join-token create --role manager --name manager-2 --config manager.toml --out join-token",
		RunE: func(cmd *cobra.Command, _ []string) error {
			q.By = operator()
			if q.Role == platform.RoleManager {
				return inviteManager(cmd, f, q, out)
			}
			return f.with(cmd, func(ctx context.Context, j platform.Joins) error {
				made, err := j.Create(ctx, q)
				if err != nil {
					return err
				}
				if out != "" {
					if err := writeToken(out, made.Text); err != nil {
						return errors.Join(err, j.Revoke(ctx, made.ID))
					}
					made.Text = ""
				}
				return printToken(cmd, f.json, made)
			})
		},
	}
	f.add(c)
	c.Flags().StringVar(&q.Role, "role", "", "what joins: agent, appproxy or manager")
	c.Flags().StringVar(&q.Name, "name", "", "id of the agent or manager, or name of the app proxy")
	c.Flags().BoolVar(&q.Replace, "replace", false, "take the place of the one of that name that is known")
	c.Flags().DurationVar(&q.Life, "expires", time.Hour, "how long the token may be used, at most 168h")
	c.Flags().StringVar(&out, "out", "", "write the token to a new file of mode 0600 instead")
	_, _ = c.MarkFlagRequired("role"), c.MarkFlagRequired("name") // they fail for unknown flags only
	return c
}

// printToken prints a token unless its text was written to a file.
func printToken(cmd *cobra.Command, json bool, made platform.MadeJoinToken) error {
	if json {
		return printJSON(cmd, made)
	}
	say(cmd, "join token %s for %s %s, to be used once before %s", made.ID, made.Role, made.Name, localTime(made.Expires))
	if made.Text != "" {
		fmt.Fprintln(cmd.OutOrStdout(), made.Text)
	}
	return nil
}

// inviteManager makes a join token of another manager. It carries the master key, so it is made only beside that.
func inviteManager(cmd *cobra.Command, f joinsFlags, q platform.NewJoinToken, out string) error {
	if f.config == "" {
		return fault.Invalidf("a join token of a manager needs --config").
			WithNext("name the TOML file of the manager of this host; a cluster of berth up has one manager")
	}
	if q.Replace {
		return fault.Invalidf("--replace is for agents and app proxies").WithNext("leave it out")
	}
	s, _, err := platform.LoadSettings(f.config, platform.RoleManager, cmd.ErrOrStderr())
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(cmd.Context(), joinPatience)
	defer cancel()
	made, err := platform.InviteManager(ctx, s.Manager, q)
	if err != nil {
		return err
	}
	if out != "" {
		if err := writeToken(out, made.Text); err != nil {
			return err // nobody has seen the token; it expires
		}
		made.Text = ""
	}
	return printToken(cmd, f.json, made)
}

// writeToken makes a file that only its owner reads. A file that is there is replaced if it is a plain one.
func writeToken(path, text string) error {
	if info, err := os.Lstat(path); err == nil && !info.Mode().IsRegular() {
		return fault.Invalidf("%s is not a plain file", path).WithNext("choose another one")
	} else if err == nil {
		if err := os.Remove(path); err != nil {
			return fmt.Errorf("replace the token file: %w", err)
		}
	} else if !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("write the token file: %w", err)
	}
	w, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return fmt.Errorf("write the token file: %w", err)
	}
	_, err = w.WriteString(text + "\n")
	if err := errors.Join(err, w.Close()); err != nil {
		return fmt.Errorf("write the token file: %w", err)
	}
	return nil
}

// operator is who runs this, for the list of tokens.
func operator() string {
	name := fmt.Sprintf("uid %d", os.Getuid())
	if u, err := user.Current(); err == nil {
		name = u.Username
	}
	if by := os.Getenv("SUDO_USER"); by != "" && len(by) <= 64 {
		name += " (sudo " + by + ")"
	}
	if host, err := os.Hostname(); err == nil {
		name += " on " + host
	}
	return name
}

func localTime(t time.Time) string { return t.Local().Format(time.DateTime) }

func newJoinTokenList() *cobra.Command {
	var f joinsFlags
	c := &cobra.Command{
		Use: "list", Short: "List join tokens and who used them", Args: cobra.NoArgs,
		Long:    "List join tokens, without their secrets. Tokens that expired are listed for a week.",
		Example: "  berth admin join-token list",
		RunE: func(cmd *cobra.Command, _ []string) error {
			return f.with(cmd, func(ctx context.Context, j platform.Joins) error {
				list, err := j.List(ctx)
				if err != nil {
					return err
				}
				if f.json {
					return printJSON(cmd, list)
				}
				w := tabwriter.NewWriter(cmd.OutOrStdout(), 0, 0, 2, ' ', 0)
				fmt.Fprintln(w, "ID\tROLE\tNAME\tSTATUS\tEXPIRES\tUSED\tFROM\tMADE BY")
				for _, t := range list {
					name, used := t.Name, "-"
					if t.Replace {
						name += " (replace)"
					}
					if !t.UsedAt.IsZero() {
						used = localTime(t.UsedAt)
					}
					from := t.UsedFrom
					if from == "" {
						from = "-"
					}
					fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\n", t.ID, t.Role, name, t.Status(time.Now()), localTime(t.Expires), used, from, t.By)
				}
				return w.Flush()
			})
		},
	}
	f.add(c)
	return c
}

func newJoinTokenRevoke() *cobra.Command {
	var f joinsFlags
	c := &cobra.Command{
		Use: "revoke ID", Short: "Make a join token invalid", Args: cobra.ExactArgs(1),
		Long: "Make a join token invalid. Who joined with it before stays; `berth admin certificate revoke` ends that.",
		RunE: func(cmd *cobra.Command, args []string) error {
			return f.with(cmd, func(ctx context.Context, j platform.Joins) error {
				if err := j.Revoke(ctx, args[0]); err != nil {
					return err
				}
				if f.json {
					return printJSON(cmd, struct{}{})
				}
				say(cmd, "join token %s is revoked", args[0])
				return nil
			})
		},
		Example: "  berth admin join-token revoke 3f9c02ab11de",
	}
	f.add(c)
	return c
}

func newCertificate() *cobra.Command {
	c := &cobra.Command{Use: "certificate", Short: "End the certificates of agents and app proxies"}
	var f joinsFlags
	var role, name string
	revoke := &cobra.Command{
		Use: "revoke", Short: "End the certificates of an agent or app proxy", Args: cobra.NoArgs,
		Long: "End the certificates of an agent, or of all replicas of an app proxy. Their connections to managers end\n" +
			"within a heartbeat, and their keys let them in no more. To come back they need their node.crt removed and\n" +
			"a token made with --replace. Sessions on an agent's host go on until the agent is lost for good.",
		Example: "  berth admin certificate revoke --role agent --name i-gpu-01",
		RunE: func(cmd *cobra.Command, _ []string) error {
			return f.with(cmd, func(ctx context.Context, j platform.Joins) error {
				if err := j.RevokeCertificates(ctx, role, name); err != nil {
					return err
				}
				if f.json {
					return printJSON(cmd, struct{}{})
				}
				say(cmd, "the certificates of %s %s are revoked", role, name)
				return nil
			})
		},
	}
	f.add(revoke)
	revoke.Flags().StringVar(&role, "role", "", "agent or appproxy")
	revoke.Flags().StringVar(&name, "name", "", "id of the agent, or name of the app proxy")
	_, _ = revoke.MarkFlagRequired("role"), revoke.MarkFlagRequired("name") // they fail for unknown flags only
	c.AddCommand(revoke)
	return c
}
