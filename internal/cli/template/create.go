package template

import (
	"context"
	"fmt"
	"io"
	"os"

	"github.com/spf13/cobra"

	"berth.dev/berth/api"
	"berth.dev/berth/api/template"
	"berth.dev/berth/internal/cli/frame"
)

// maxFile bounds what is read of a file: managers take as much.
const maxFile = 1 << 20

// document reads a file, "-" is standard input.
func document(cmd *cobra.Command, name string) (string, error) {
	src := cmd.InOrStdin()
	if name != "-" {
		f, err := os.Open(name)
		if err != nil {
			return "", fmt.Errorf("read the template: %w", err)
		}
		defer func() { _ = f.Close() }() // it was only read
		src = f
	}
	text, err := io.ReadAll(io.LimitReader(src, maxFile+1))
	if err != nil {
		return "", fmt.Errorf("read the template: %w", err)
	}
	if len(text) > maxFile {
		return "", fmt.Errorf("%s has more than %d bytes", name, maxFile)
	}
	return string(text), nil
}

func (v *verbs) newCreate() *cobra.Command {
	var ofCluster bool
	cmd := &cobra.Command{
		Use:   "create FILE",
		Short: "Store templates",
		Long: `Store the templates of a file (- is standard input) for your project and print their ids. The file holds JSON or YAML:

  apiVersion: "6"
  kind: taskTemplate
  metadata: {name: train}
  spec:
    kernel: {image: python, run: {startupCommand: python3 train.py}}
    sessionType: batch
    resources: {cpu: 2, mem: 4g}
    mounts: {data: /home/work/data}`,
		Example: "  berth template create train.yaml",
		Args:    frame.Args(cobra.ExactArgs(1)),
		RunE: v.Run(func(ctx context.Context, cmd *cobra.Command, c *api.Client, args []string) error {
			text, err := document(cmd, args[0])
			if err != nil {
				return err
			}
			made, err := template.Create(ctx, c, kind(ofCluster), template.Request{Payload: text, Project: c.Config().Group})
			if err != nil {
				return err
			}
			for _, m := range made {
				if _, err := fmt.Fprintln(cmd.OutOrStdout(), m.ID); err != nil {
					return err
				}
			}
			return nil
		}),
	}
	kindFlag(cmd, &ofCluster)
	return cmd
}

func (v *verbs) newReplace() *cobra.Command {
	var ofCluster bool
	cmd := &cobra.Command{
		Use:     "replace TEMPLATE FILE",
		Short:   "Write a template anew",
		Long:    "Write a template anew from a file (- is standard input). Sessions that were started from it stay as they are.",
		Example: "  berth template replace train train.yaml",
		Args:    frame.Args(cobra.ExactArgs(2)),
		RunE: v.Run(func(ctx context.Context, cmd *cobra.Command, c *api.Client, args []string) error {
			text, err := document(cmd, args[1])
			if err != nil {
				return err
			}
			if err := template.Replace(ctx, c, kind(ofCluster), args[0], text); err != nil {
				return frame.Hint(err, "berth template list --all")
			}
			frame.Say(cmd, "template %s is written anew", args[0])
			return nil
		}),
	}
	kindFlag(cmd, &ofCluster)
	return cmd
}
