package cli

import (
	"context"
	"strings"

	"github.com/spf13/cobra"

	"berth.dev/berth/api"
)

type imageListOptions struct {
	app  *app
	json bool
}

func (a *app) newImageList() *cobra.Command {
	o := &imageListOptions{app: a}
	cmd := &cobra.Command{
		Use:     "list",
		Short:   "List images",
		Long:    "List the images that sessions can be made of.",
		Example: "  berth image list --json",
		Args:    args(cobra.NoArgs),
		RunE: a.run(func(ctx context.Context, cmd *cobra.Command, c *api.Client, _ []string) error {
			return o.run(ctx, cmd, c)
		}),
	}
	jsonFlag(cmd, &o.json)
	return cmd
}

func (o *imageListOptions) run(ctx context.Context, cmd *cobra.Command, c *api.Client) error {
	list, err := c.Images(ctx)
	if err != nil {
		return err
	}
	if o.json {
		return printJSON(cmd.OutOrStdout(), list)
	}
	if len(list) == 0 {
		say(cmd, "no images are known; make images builds the base images")
		return nil
	}
	t := table{titles: []string{"IMAGE", "ALIASES", "ARCH", "SIZE", "DIGEST"}}
	for _, i := range list {
		t.rows = append(t.rows, []string{i.Reference(), strings.Join(i.Aliases, ", "), i.Architecture, imageSize(i), shortDigest(i)})
	}
	return t.write(cmd.OutOrStdout(), o.app.colour(cmd.OutOrStdout()))
}

func imageSize(i api.Image) string {
	n, err := i.SizeBytes.Float64()
	if err != nil {
		return ""
	}
	return bytesText(n)
}

func shortDigest(i api.Image) string {
	d := deref(i.Digest)
	if len(d) > 19 {
		d = d[:19]
	}
	return d
}
