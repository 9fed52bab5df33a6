package cli

import (
	"context"
	"sort"
	"strings"

	"github.com/spf13/cobra"

	"berth.dev/berth/api"
)

type imageInspectOptions struct {
	app  *app
	json bool
}

func (a *app) newImageInspect() *cobra.Command {
	o := &imageInspectOptions{app: a}
	cmd := &cobra.Command{
		Use:     "inspect IMAGE",
		Short:   "Describe an image and its labels",
		Long:    "Describe an image, named by reference or alias, with its labels.",
		Example: "  berth image inspect python --json",
		Args:    args(cobra.ExactArgs(1)),
		RunE: a.run(func(ctx context.Context, cmd *cobra.Command, c *api.Client, args []string) error {
			return o.run(ctx, cmd, c, args[0])
		}),
	}
	jsonFlag(cmd, &o.json)
	return cmd
}

func (o *imageInspectOptions) run(ctx context.Context, cmd *cobra.Command, c *api.Client, ref string) error {
	i, err := c.FindImage(ctx, ref)
	if err != nil {
		return imageHint(err)
	}
	if o.json {
		return printJSON(cmd.OutOrStdout(), i)
	}
	var f fields
	f.add("image", i.Reference())
	f.add("aliases", strings.Join(i.Aliases, ", "))
	f.add("architecture", i.Architecture)
	f.add("digest", deref(i.Digest))
	f.add("size", imageSize(i))
	sort.Slice(i.Labels, func(a, b int) bool { return i.Labels[a].Key < i.Labels[b].Key })
	for _, l := range i.Labels {
		f.add(l.Key, l.Value)
	}
	return f.write(cmd.OutOrStdout(), o.app.colour(cmd.OutOrStdout()))
}
