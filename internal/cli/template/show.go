package template

import (
	"context"

	"github.com/spf13/cobra"

	"berth.dev/berth/api"
	"berth.dev/berth/api/template"
	"berth.dev/berth/internal/cli/frame"
)

func (v *verbs) newShow() *cobra.Command {
	var ofCluster bool
	cmd := &cobra.Command{
		Use:     "show TEMPLATE",
		Short:   "Print a template",
		Long:    "Print the document of a template, given by id or, among your own, by name. What is printed can be stored again.",
		Example: "  berth template show train > train.json",
		Args:    frame.Args(cobra.ExactArgs(1)),
		RunE: v.Run(func(ctx context.Context, cmd *cobra.Command, c *api.Client, args []string) error {
			t, err := template.Get(ctx, c, kind(ofCluster), args[0])
			if err != nil {
				return frame.Hint(err, "berth template list --all")
			}
			return frame.PrintJSON(cmd.OutOrStdout(), t.Template)
		}),
	}
	kindFlag(cmd, &ofCluster)
	return cmd
}

func (v *verbs) newRemove() *cobra.Command {
	var ofCluster bool
	cmd := &cobra.Command{
		Use:     "rm TEMPLATE",
		Short:   "Delete a template",
		Long:    "Delete a template. Sessions that were started from it stay as they are.",
		Example: "  berth template rm train",
		Args:    frame.Args(cobra.ExactArgs(1)),
		RunE: v.Run(func(ctx context.Context, cmd *cobra.Command, c *api.Client, args []string) error {
			if err := template.Delete(ctx, c, kind(ofCluster), args[0]); err != nil {
				return frame.Hint(err, "berth template list --all")
			}
			frame.Say(cmd, "template %s is gone", args[0])
			return nil
		}),
	}
	kindFlag(cmd, &ofCluster)
	return cmd
}
