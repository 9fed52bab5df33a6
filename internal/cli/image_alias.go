package cli

import (
	"context"
	"errors"

	"github.com/spf13/cobra"

	"berth.dev/berth/api"
	"berth.dev/berth/internal/cli/frame"
)

type imageAliasOptions struct{ remove bool }

func (a *verbs) newImageAlias() *cobra.Command {
	o := &imageAliasOptions{}
	cmd := &cobra.Command{
		Use:     "alias ALIAS [IMAGE]",
		Short:   "Give an image a short name",
		Long:    "Give an image a short name, or take it away with --remove. Administrators only.",
		Example: "  berth image alias py berth/python:3.11\n  berth image alias --remove py",
		Args:    frame.Args(cobra.RangeArgs(1, 2)),
		RunE:    a.Run(o.run),
	}
	cmd.Flags().BoolVar(&o.remove, "remove", false, "take the short name away")
	return cmd
}

func (o *imageAliasOptions) run(ctx context.Context, cmd *cobra.Command, c *api.Client, args []string) error {
	switch {
	case o.remove && len(args) == 1:
		if err := c.DealiasImage(ctx, args[0]); err != nil {
			return imageHint(err)
		}
		frame.Say(cmd, "%s names no image any more", args[0])
	case !o.remove && len(args) == 2:
		if err := c.AliasImage(ctx, args[0], args[1]); err != nil {
			return imageHint(err)
		}
		frame.Say(cmd, "%s now names %s", args[0], args[1])
	default:
		return frame.Usage(frame.Hint(errors.New("name an alias and an image, or --remove and an alias"), "%s --help", cmd.CommandPath()))
	}
	return nil
}
