package cli

import (
	"context"
	"path"
	"slices"
	"strings"

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
			"Other agents offer them where they have the same content. A name with * stands for all images of the agent that are not in\n" +
			"the catalogue as they are there. Superadmins only.",
		Example: "  berth image unknown\n  berth image import berth/python:latest --agent gpu-1\n  berth image import 'berth/*' --agent gpu-1",
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
	refs, err := o.expand(ctx, c, args)
	if err != nil {
		return err
	}
	if len(refs) == 0 {
		frame.Say(cmd, "agent %s has nothing of that name which is not in the catalogue", o.agent)
	}
	for _, ref := range refs {
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

// expand puts the agent's images in the place of names with *.
func (o *imageImportOptions) expand(ctx context.Context, c *api.Client, args []string) ([]string, error) {
	if !slices.ContainsFunc(args, func(ref string) bool { return strings.Contains(ref, "*") }) {
		return args, nil
	}
	known, err := c.UnknownImages(ctx)
	if err != nil {
		return nil, err
	}
	var out []string
	for _, ref := range args {
		if !strings.Contains(ref, "*") {
			out = append(out, ref)
			continue
		}
		for _, i := range known {
			match, err := path.Match(ref, i.Reference)
			if err != nil {
				return nil, frame.Usage(err)
			}
			if match && i.Agent == o.agent {
				out = append(out, i.Reference)
			}
		}
	}
	return out, nil
}
