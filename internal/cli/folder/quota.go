package folder

import (
	"context"
	"fmt"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"berth.dev/berth/api"
	"berth.dev/berth/internal/cli/frame"
)

type folderQuotaOptions struct {
	app   *verbs
	limit string
	json  bool
}

func (a *verbs) newFolderQuota() *cobra.Command {
	o := &folderQuotaOptions{app: a}
	cmd := &cobra.Command{
		Use:   "quota FOLDER",
		Short: "Show or set the limit that a folder counts in",
		Long: `Show how much room a folder may take. The limit is of its quota scope: all folders of the same user or project on the
same volume together. --limit sets it, for administrators.`,
		Example:           "  berth folder quota data\n  berth folder quota data --limit 500g\n  berth folder quota data --limit none",
		Args:              frame.Args(cobra.ExactArgs(1)),
		ValidArgsFunction: a.completeFolders(""),
		RunE: a.Run(func(ctx context.Context, cmd *cobra.Command, c *api.Client, args []string) error {
			return o.run(ctx, cmd, c, args[0])
		}),
	}
	cmd.Flags().StringVar(&o.limit, "limit", "", "limit to set, such as 500g, or none")
	frame.JSONFlag(cmd, &o.json)
	return cmd
}

func (o *folderQuotaOptions) run(ctx context.Context, cmd *cobra.Command, c *api.Client, name string) error {
	limit, err := int64(0), error(nil)
	if o.limit != "" && o.limit != "none" {
		if limit, err = parseBytes(o.limit); err != nil {
			return frame.Usage(frame.Hint(err, "write a size such as 500g or 2t, or none"))
		}
	}
	f, err := c.Folder(ctx, name)
	if err != nil {
		return folderHint(err)
	}
	switch o.limit {
	case "":
	case "none":
		err = c.UnsetFolderQuota(ctx, f.FolderSummary)
	default:
		err = c.SetFolderQuota(ctx, f.FolderSummary, limit)
	}
	if err != nil {
		return err
	}
	q, err := c.FolderQuota(ctx, f.FolderSummary)
	if err != nil {
		return err
	}
	if o.json {
		return frame.PrintJSON(cmd.OutOrStdout(), q)
	}
	var out frame.Fields
	out.Add("scope", f.QuotaScope)
	out.Add("host", f.Host)
	used := bytesOrUnknown(q.UsedBytes)
	if q.LowerBound && used != "" {
		used = "at least " + used
	}
	if used == "" {
		used = "unknown"
	}
	out.Add("used", used)
	limitText := "none"
	if q.LimitBytes != nil {
		limitText = bytesOrUnknown(q.LimitBytes)
	}
	out.Add("limit", limitText)
	return out.Write(cmd.OutOrStdout(), o.app.Colour(cmd.OutOrStdout()))
}

// parseBytes reads a number of bytes with an optional binary unit: 500g, 1.5TiB.
func parseBytes(text string) (int64, error) {
	s := strings.TrimSuffix(strings.TrimSuffix(strings.ToLower(strings.TrimSpace(text)), "b"), "i")
	shift := 0
	if s != "" {
		if i := strings.IndexByte("kmgtp", s[len(s)-1]); i >= 0 {
			s, shift = strings.TrimSpace(s[:len(s)-1]), 10*(i+1)
		}
	}
	n, err := strconv.ParseFloat(s, 64)
	size := n * float64(int64(1)<<shift)
	if err != nil || !(size >= 0 && size <= 1<<60) {
		return 0, fmt.Errorf("%q is no size", text)
	}
	return int64(size), nil
}
