package tenancy

import (
	"context"
	"crypto/rand"
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/spf13/cobra"

	"berth.dev/berth/api"
	"berth.dev/berth/api/admin"
	"berth.dev/berth/internal/cli/frame"
)

// passwordBook is the file of the passwords that were made. They are in it, on the disk, before the manager hears of them.
type passwordBook struct {
	f *os.File
	w *csv.Writer
}

func newPasswordBook(name string) (*passwordBook, error) {
	f, err := os.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if errors.Is(err, os.ErrExist) {
		return nil, frame.Usage(fmt.Errorf("%s is there already, and may hold passwords: name a new file", name))
	}
	if err != nil {
		return nil, fmt.Errorf("make the file of passwords: %w", err)
	}
	b := &passwordBook{f, csv.NewWriter(f)}
	return b, b.w.Write([]string{"email", "password"})
}

// write makes passwords of the new users of a step.
func (b *passwordBook) write(step []admin.TenancyChange) error {
	if b == nil {
		return nil
	}
	for i := range step {
		if !step[i].NewUser() {
			continue
		}
		step[i].Password = rand.Text()
		if err := b.w.Write([]string{step[i].Name, step[i].Password}); err != nil {
			return fmt.Errorf("write the passwords: %w", err)
		}
	}
	b.w.Flush()
	if err := errors.Join(b.w.Error(), b.f.Sync()); err != nil {
		return fmt.Errorf("write the passwords: %w", err)
	}
	return nil
}

func (b *passwordBook) close() error { return b.f.Close() }

func (a *verbs) newUserImport() *cobra.Command {
	o := &applyOptions{}
	cmd := &cobra.Command{
		Use: "import FILE", Short: "Make and change users from a table",
		Long: "Make and change users as a table says (CSV). Its first line names the columns, in any order: email, username, full_name,\n" +
			"description, domain, projects (with | between them; all of the user's), role, status, policy, keypair_policy, allowed_from.\n" +
			"An empty cell leaves a property as it is. The differences are shown first. New users have no password until --letters,\n" +
			"--passwords or an administrator gives them one.",
		Example: "  berth user import users.csv --dry-run\n  berth user import users.csv --passwords new.csv",
		Args:    frame.Args(cobra.ExactArgs(1)),
		RunE: a.Run(func(ctx context.Context, cmd *cobra.Command, c *api.Client, args []string) error {
			text, err := readTenancy(cmd, args[0])
			if err != nil {
				return err
			}
			return o.carryOut(ctx, cmd, c, admin.TenancyRequest{Format: admin.TenancyCSV, Text: text})
		}),
	}
	o.flags(cmd)
	return cmd
}

func (a *verbs) newUserExport() *cobra.Command {
	domain := ""
	cmd := &cobra.Command{
		Use: "export", Short: "Write users as a table",
		Long: "Write the users that you administer to standard output, as CSV that \"import\" reads. A cell that a spreadsheet would take\n" +
			"for a formula begins with an apostrophe, which \"import\" takes away again.",
		Example: "  berth user export > users.csv",
		Args:    frame.Args(cobra.NoArgs),
		RunE: a.Run(func(ctx context.Context, cmd *cobra.Command, c *api.Client, _ []string) error {
			text, err := admin.ExportTenancy(ctx, c, domain, admin.TenancyCSV)
			if err != nil {
				return err
			}
			_, err = io.WriteString(cmd.OutOrStdout(), text)
			return err
		}),
	}
	return domainFlag(cmd, &domain, "those of this domain alone")
}
