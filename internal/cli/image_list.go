package cli

import (
	"context"
	"strings"

	"github.com/spf13/cobra"

	"berth.dev/berth/api"
	"berth.dev/berth/internal/cli/frame"
)

type imageListOptions struct {
	app  *verbs
	json bool
}

func (a *verbs) newImageList() *cobra.Command {
	o := &imageListOptions{app: a}
	cmd := &cobra.Command{
		Use:     "list",
		Short:   "List images",
		Long:    "List the images that sessions can be made of.",
		Example: "  berth image list --json",
		Args:    frame.Args(cobra.NoArgs),
		RunE: a.Run(func(ctx context.Context, cmd *cobra.Command, c *api.Client, _ []string) error {
			return o.run(ctx, cmd, c)
		}),
	}
	frame.JSONFlag(cmd, &o.json)
	return cmd
}

func (o *imageListOptions) run(ctx context.Context, cmd *cobra.Command, c *api.Client) error {
	list, err := c.Images(ctx)
	if err != nil {
		return err
	}
	if o.json {
		return frame.PrintJSON(cmd.OutOrStdout(), list)
	}
	if len(list) == 0 {
		frame.Say(cmd, "no images are known; make images builds the base images")
		return nil
	}
	t := frame.Table{Titles: []string{"IMAGE", "ALIASES", "ARCH", "SIZE", "DIGEST"}}
	for _, i := range list {
		t.Rows = append(t.Rows, []string{i.Reference(), strings.Join(i.Aliases, ", "), i.Architecture, imageSize(i), shortDigest(i)})
	}
	return t.Write(cmd.OutOrStdout(), o.app.Colour(cmd.OutOrStdout()))
}

func imageSize(i api.Image) string {
	n, err := i.SizeBytes.Float64()
	if err != nil {
		return ""
	}
	return frame.BytesText(n)
}

func shortDigest(i api.Image) string {
	return shortText(frame.Deref(i.Digest))
}

func shortText(digest string) string { return digest[:min(len(digest), 19)] }
