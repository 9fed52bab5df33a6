package cli

import (
	"context"
	"fmt"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"

	"berth.dev/berth/api"
	"berth.dev/berth/internal/cli/frame"
)

type sessionDownloadOptions struct{ dest, kernel string }

func (a *verbs) newSessionDownload() *cobra.Command {
	o := &sessionDownloadOptions{}
	cmd := &cobra.Command{
		Use:     "download SESSION PATH...",
		Short:   "Copy files out of a session",
		Long:    "Copy files and directories from /home/work of a running session and print what was written.",
		Example: "  berth session download mylab model.bin results --dest out",
		Args:    frame.Args(cobra.MinimumNArgs(2)),
		RunE:    a.Run(o.run),
	}
	cmd.Flags().StringVar(&o.dest, "dest", ".", "directory to write to; it is made when missing")
	_ = cmd.MarkFlagDirname("dest")
	frame.KernelFlag(cmd, &o.kernel)
	return cmd
}

func (o *sessionDownloadOptions) run(ctx context.Context, cmd *cobra.Command, c *api.Client, args []string) error {
	if err := os.MkdirAll(o.dest, 0o755); err != nil {
		return fmt.Errorf("make directory: %w", err)
	}
	root, err := os.OpenRoot(o.dest)
	if err != nil {
		return fmt.Errorf("open directory: %w", err)
	}
	defer root.Close()
	err = c.DownloadFiles(ctx, frame.InKernel(args[0], o.kernel), args[1:], root, func(name string, _ int64) {
		fmt.Fprintln(cmd.OutOrStdout(), filepath.Join(o.dest, filepath.FromSlash(name)))
	})
	if err != nil && api.IsNotFound(err) {
		return frame.Hint(err, "berth session ls %s", args[0])
	}
	return err
}
