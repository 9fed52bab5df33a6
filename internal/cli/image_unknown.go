package cli

import (
	"context"

	"github.com/spf13/cobra"

	"berth.dev/berth/api"
	"berth.dev/berth/internal/cli/frame"
)

type imageUnknownOptions struct {
	app  *verbs
	json bool
}

func (a *verbs) newImageUnknown() *cobra.Command {
	o := &imageUnknownOptions{app: a}
	cmd := &cobra.Command{
		Use:     "unknown",
		Short:   "List images that agents have and sessions cannot use",
		Long:    "List images that agents report and that nobody imported, or imported with another content. Superadmins only.",
		Example: "  berth image unknown --json",
		Args:    frame.Args(cobra.NoArgs),
		RunE: a.Run(func(ctx context.Context, cmd *cobra.Command, c *api.Client, _ []string) error {
			return o.run(ctx, cmd, c)
		}),
	}
	frame.JSONFlag(cmd, &o.json)
	return cmd
}

func (o *imageUnknownOptions) run(ctx context.Context, cmd *cobra.Command, c *api.Client) error {
	list, err := c.UnknownImages(ctx)
	if err != nil {
		return err
	}
	if o.json {
		return frame.PrintJSON(cmd.OutOrStdout(), list)
	}
	if len(list) == 0 {
		frame.Say(cmd, "all images that agents have are in the catalogue")
		return nil
	}
	t := frame.Table{Titles: []string{"IMAGE", "AGENT", "ARCH", "SIZE", "DIGEST", "WHY"}}
	for _, i := range list {
		why := "not imported"
		if i.CatalogueDigest != "" {
			why = "the catalogue has " + shortText(i.CatalogueDigest)
		}
		t.Rows = append(t.Rows, []string{i.Reference, i.Agent, i.Architecture, frame.BytesText(float64(i.SizeBytes)), shortText(i.Digest), why})
	}
	return t.Write(cmd.OutOrStdout(), o.app.Colour(cmd.OutOrStdout()))
}
