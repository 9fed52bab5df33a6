package tenancy

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/spf13/cobra"

	"berth.dev/berth/api"
	"berth.dev/berth/api/admin"
	"berth.dev/berth/internal/cli/frame"
)

// maxTenancy bounds a file that describes a tenancy; the manager takes no larger one.
const maxTenancy = 4 << 20

func (a *verbs) newTenancy() *cobra.Command {
	return frame.Group("tenancy", "Keep domains, projects, users and policies in a file",
		"Write domains, projects, users, policies and resource groups as a file, see how the cluster differs from one, and make it\n"+
			"as the file says. What the file does not name stays as it is. Superadmins do so for everything, administrators of a domain\n"+
			"for its projects and users.",
		a.newTenancyExport(), a.newTenancyDiff(), a.newTenancyApply())
}

func (a *verbs) newTenancyExport() *cobra.Command {
	domain := ""
	cmd := &cobra.Command{
		Use: "export", Short: "Write the tenancy as a file",
		Long: "Write domains, projects, users, policies and resource groups to standard output, as YAML. The file has no secrets, no\n" +
			"deleted users and no service accounts. --domain leaves one domain with its projects and users.",
		Example: "  berth tenancy export > org.yaml\n  berth tenancy export --domain physics > physics.yaml",
		Args:    frame.Args(cobra.NoArgs),
		RunE: a.Run(func(ctx context.Context, cmd *cobra.Command, c *api.Client, _ []string) error {
			text, err := admin.ExportTenancy(ctx, c, domain, admin.TenancyYAML)
			if err != nil {
				return err
			}
			_, err = io.WriteString(cmd.OutOrStdout(), text)
			return err
		}),
	}
	return domainFlag(cmd, &domain, "this domain alone")
}

// readTenancy reads a file, "-" is standard input.
func readTenancy(cmd *cobra.Command, name string) (text string, err error) {
	in := cmd.InOrStdin()
	if name != "-" {
		f, err := os.Open(name)
		if err != nil {
			return "", fmt.Errorf("read the file: %w", err)
		}
		defer func() { _ = f.Close() }()
		in = f
	}
	b, err := io.ReadAll(io.LimitReader(in, maxTenancy+1))
	if err != nil {
		return "", fmt.Errorf("read the file: %w", err)
	}
	if len(b) > maxTenancy {
		return "", frame.Usage(fmt.Errorf("%s is larger than %d MiB: split it", name, maxTenancy>>20))
	}
	return string(b), nil
}

// differences asks for a plan and prints it, a line for each change; talk goes to standard error.
func differences(ctx context.Context, cmd *cobra.Command, c *api.Client, r admin.TenancyRequest, asJSON bool) (admin.TenancyPlan, error) {
	p, err := admin.PlanTenancy(ctx, c, r)
	if err != nil {
		return p, err
	}
	if asJSON {
		return p, frame.PrintJSON(cmd.OutOrStdout(), p)
	}
	for _, n := range p.Notes {
		frame.Say(cmd, "note: %s", n)
	}
	for _, change := range p.Changes {
		for _, line := range change.Words {
			if _, err := fmt.Fprintln(cmd.OutOrStdout(), line); err != nil {
				return p, err
			}
		}
	}
	frame.Say(cmd, "%s", p.Summary)
	return p, nil
}

func (a *verbs) newTenancyDiff() *cobra.Command {
	asJSON, prune := false, false
	cmd := &cobra.Command{
		Use: "diff FILE", Short: "Say what apply would change",
		Long: "Say what apply would change, a line for each change: + is made, ~ is changed, - is taken away. Nothing is changed.\n" +
			"FILE - is standard input.",
		Example: "  berth tenancy diff org.yaml",
		Args:    frame.Args(cobra.ExactArgs(1)),
		RunE: a.Run(func(ctx context.Context, cmd *cobra.Command, c *api.Client, args []string) error {
			text, err := readTenancy(cmd, args[0])
			if err != nil {
				return err
			}
			_, err = differences(ctx, cmd, c, admin.TenancyRequest{Format: admin.TenancyYAML, Text: text, Prune: prune}, asJSON)
			return err
		}),
	}
	pruneFlag(cmd, &prune)
	frame.JSONFlag(cmd, &asJSON)
	return cmd
}

func pruneFlag(cmd *cobra.Command, prune *bool) {
	cmd.Flags().BoolVar(prune, "prune", false, "make inactive what the file's lists of domains, projects, users and resource groups leave out")
}

// applyOptions are how changes are carried out.
type applyOptions struct {
	yes, dryRun, letters bool
	passwords            string
}

func (o *applyOptions) flags(cmd *cobra.Command) {
	f := cmd.Flags()
	f.BoolVarP(&o.yes, "yes", "y", false, "do not ask")
	f.BoolVar(&o.dryRun, "dry-run", false, "say what would change, and change nothing")
	f.StringVar(&o.passwords, "passwords", "", "make passwords of new users and write them to this new file, which its owner alone reads")
	f.BoolVar(&o.letters, "letters", false, "have e-mails sent to new users, with which they set a password")
}

// carryOut shows the differences, asks, and makes them so.
func (o *applyOptions) carryOut(ctx context.Context, cmd *cobra.Command, c *api.Client, r admin.TenancyRequest) (err error) {
	if o.passwords != "" && o.letters {
		return frame.Usage(errors.New("new users get a password or an e-mail: use --passwords or --letters"))
	}
	p, err := differences(ctx, cmd, c, r, false)
	if err != nil || o.dryRun || len(p.Changes) == 0 {
		return err
	}
	if !o.yes {
		if !frame.IsTerminal(cmd.InOrStdin()) || !frame.IsTerminal(cmd.ErrOrStderr()) {
			return frame.Usage(errors.New("nobody can be asked here: look at the differences with --dry-run, then use --yes"))
		}
		question := fmt.Sprintf("Carry out these %d changes?", len(p.Changes))
		if r.Prune {
			question = fmt.Sprintf("Carry out these %d changes, and make inactive what the file leaves out?", len(p.Changes))
		}
		if err := frame.Confirm(cmd, false, question); err != nil {
			return err
		}
	}
	var book *passwordBook
	if o.passwords != "" {
		if book, err = newPasswordBook(o.passwords); err != nil {
			return err
		}
		defer func() { err = errors.Join(err, book.close()) }()
	}
	done, already, failed := 0, 0, 0
	err = admin.ApplyTenancy(ctx, c, p.Changes, func(step []admin.TenancyChange) error {
		for i := range step {
			step[i].Letter = o.letters && step[i].NewUser()
		}
		return book.write(step)
	}, func(change admin.TenancyChange, r admin.TenancyResult) {
		switch r.State {
		case "done":
			done++
		case "already":
			already++
		default:
			failed++
			frame.Say(cmd, "not done: %s %s: %s", change.Kind, change.Name, r.Error)
			if r.Next != "" {
				frame.Say(cmd, "    next: %s", r.Next)
			}
		}
	})
	if err != nil {
		frame.Say(cmd, "%d of %d changes are carried out", done+already, len(p.Changes))
		return frame.Hint(err, cmd.CommandPath()+" again: what is done stays done")
	}
	if failed > 0 {
		return frame.Hint(fmt.Errorf("%d of %d changes were not carried out", failed, len(p.Changes)),
			cmd.CommandPath()+" again, with --dry-run")
	}
	frame.Say(cmd, "all %d changes are carried out", len(p.Changes))
	return nil
}

func (a *verbs) newTenancyApply() *cobra.Command {
	o := &applyOptions{}
	prune := false
	cmd := &cobra.Command{
		Use: "apply FILE", Short: "Make the tenancy as a file says",
		Long: "Show the differences, ask, and carry them out in steps. Applying twice changes nothing; after an interruption apply again.\n" +
			"What somebody else changed in the meantime is not overwritten. A list of members, of networks or of who may use a resource\n" +
			"group is the whole list; other things that the file does not name stay. --prune makes them inactive, and removes nothing.",
		Example: "  berth tenancy apply org.yaml\n  berth tenancy apply org.yaml --prune --dry-run",
		Args:    frame.Args(cobra.ExactArgs(1)),
		RunE: a.Run(func(ctx context.Context, cmd *cobra.Command, c *api.Client, args []string) error {
			text, err := readTenancy(cmd, args[0])
			if err != nil {
				return err
			}
			return o.carryOut(ctx, cmd, c, admin.TenancyRequest{Format: admin.TenancyYAML, Text: text, Prune: prune})
		}),
	}
	o.flags(cmd)
	pruneFlag(cmd, &prune)
	return cmd
}
