package cli

import (
	"context"
	"sort"
	"strings"

	"github.com/spf13/cobra"

	"berth.dev/berth/api"
	"berth.dev/berth/internal/cli/frame"
)

type imageInspectOptions struct {
	app  *verbs
	json bool
}

func (a *verbs) newImageInspect() *cobra.Command {
	o := &imageInspectOptions{app: a}
	cmd := &cobra.Command{
		Use:     "inspect IMAGE",
		Short:   "Describe an image and its labels",
		Long:    "Describe an image, named by reference or alias, with its labels.",
		Example: "  berth image inspect python --json",
		Args:    frame.Args(cobra.ExactArgs(1)),
		RunE: a.Run(func(ctx context.Context, cmd *cobra.Command, c *api.Client, args []string) error {
			return o.run(ctx, cmd, c, args[0])
		}),
	}
	frame.JSONFlag(cmd, &o.json)
	return cmd
}

func (o *imageInspectOptions) run(ctx context.Context, cmd *cobra.Command, c *api.Client, ref string) error {
	i, err := c.FindImage(ctx, ref)
	if err != nil {
		return imageHint(err)
	}
	if o.json {
		return frame.PrintJSON(cmd.OutOrStdout(), i)
	}
	var f frame.Fields
	f.Add("image", i.Reference())
	f.Add("aliases", strings.Join(i.Aliases, ", "))
	f.Add("architecture", i.Architecture)
	f.Add("digest", frame.Deref(i.Digest))
	f.Add("size", imageSize(i))
	sort.Slice(i.Labels, func(a, b int) bool { return i.Labels[a].Key < i.Labels[b].Key })
	for _, l := range i.Labels {
		f.Add(l.Key, l.Value)
	}
	return f.Write(cmd.OutOrStdout(), o.app.Colour(cmd.OutOrStdout()))
}
