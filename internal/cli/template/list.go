package template

import (
	"context"

	"github.com/spf13/cobra"

	"berth.dev/berth/api"
	"berth.dev/berth/api/template"
	"berth.dev/berth/internal/cli/frame"
)

func (v *verbs) newList() *cobra.Command {
	var all, ofCluster, json bool
	cmd := &cobra.Command{
		Use:     "list",
		Short:   "List templates",
		Long:    "List your templates, or all that you may see.",
		Example: "  berth template list --all",
		Args:    frame.Args(cobra.NoArgs),
		RunE: v.Run(func(ctx context.Context, cmd *cobra.Command, c *api.Client, _ []string) error {
			found, err := template.List(ctx, c, kind(ofCluster), all)
			if err != nil {
				return err
			}
			if json {
				return frame.PrintJSON(cmd.OutOrStdout(), found)
			}
			if len(found) == 0 {
				frame.Say(cmd, "there are no templates; make one with: berth template create FILE")
				return nil
			}
			t := frame.Table{Titles: []string{"NAME", "ID", "OWNER", "PROJECT", "CREATED"}}
			for _, f := range found {
				t.Rows = append(t.Rows, []string{f.Name, f.ID, f.UserEmail, f.Project, f.CreatedAt.Local().Format("2006-01-02 15:04")})
			}
			return t.Write(cmd.OutOrStdout(), v.Colour(cmd.OutOrStdout()))
		}),
	}
	cmd.Flags().BoolVar(&all, "all", false, "also those of others that you may see")
	kindFlag(cmd, &ofCluster)
	frame.JSONFlag(cmd, &json)
	return cmd
}
