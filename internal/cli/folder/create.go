package folder

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"

	"berth.dev/berth/api"
	"berth.dev/berth/internal/cli/frame"
)

func (a *verbs) newFolderCreate() *cobra.Command {
	var n api.NewFolder
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "create NAME",
		Short: "Make a folder",
		Long: `Make a folder of your own, or with --project one of a project, and print its id.

Folders whose name begins with a dot are mounted below /home/work in all your sessions.`,
		Example: "  berth folder create data\n  berth folder create models --project research --usage-mode model --permission ro",
		Args:    frame.Args(cobra.ExactArgs(1)),
		RunE: a.Run(func(ctx context.Context, cmd *cobra.Command, c *api.Client, args []string) error {
			n.Name = args[0]
			f, err := c.CreateFolder(ctx, n)
			if err != nil {
				return frame.Hint(err, "berth folder list, berth folder hosts")
			}
			if asJSON {
				return frame.PrintJSON(cmd.OutOrStdout(), f)
			}
			_, err = fmt.Fprintln(cmd.OutOrStdout(), f.ID)
			return err
		}),
	}
	s := cmd.Flags()
	s.StringVar(&n.Host, "host", "", "volume to keep it on, as berth folder hosts lists them (default: the cluster's)")
	s.StringVar(&n.Group, "project", "", "project that shall own it; for administrators")
	s.BoolVar(&n.Cloneable, "cloneable", false, "others who can read it may copy it")
	usageModeFlag(cmd, &n.UsageMode, "general")
	permissionFlag(cmd, &n.Permission, api.PermReadWrite, "what sessions and project members may do")
	frame.JSONFlag(cmd, &asJSON)
	return cmd
}
