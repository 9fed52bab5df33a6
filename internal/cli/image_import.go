package cli

import (
	"context"

	"github.com/spf13/cobra"

	"berth.dev/berth/api"
	"berth.dev/berth/internal/cli/frame"
)

type imageImportOptions struct{ agent, digest, project string }

func (a *verbs) newImageImport() *cobra.Command {
	o := &imageImportOptions{}
	cmd := &cobra.Command{
		Use:   "import IMAGE...",
		Short: "Let sessions use images that an agent has",
		Long: "Take images that an agent has into the catalogue, with the content and the labels that they have there.\n" +
			"Other agents offer them where they have the same content. Superadmins only.",
		Example: "  berth image unknown\n  berth image import berth/python:latest --agent gpu-1",
		Args:    frame.Args(cobra.MinimumNArgs(1)),
		RunE:    a.Run(o.run),
	}
	cmd.Flags().StringVar(&o.agent, "agent", "", "the agent whose word about the images counts")
	cmd.Flags().StringVar(&o.digest, "digest", "", "the only content that is taken")
	cmd.Flags().StringVar(&o.project, "project", "", "id of the project whose members may use it (default: everybody)")
	_ = cmd.MarkFlagRequired("agent")
	return cmd
}

func (o *imageImportOptions) run(ctx context.Context, cmd *cobra.Command, c *api.Client, args []string) error {
	for _, ref := range args {
		i, err := c.ImportImage(ctx, api.ImageImport{Reference: ref, Agent: o.agent, Digest: o.digest, Project: o.project})
		if err != nil {
			if api.IsNotFound(err) {
				return frame.Hint(err, "berth image unknown")
			}
			return err
		}
		frame.Say(cmd, "imported %s, %s, scope %s", i.Reference, i.Digest, i.Scope)
	}
	return nil
}
