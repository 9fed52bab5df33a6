package cli

import (
	"context"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"berth.dev/berth/api"
)

func (a *app) newFolderHosts() *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:     "hosts",
		Short:   "List the volumes that folders can be kept on",
		Long:    "List the volumes on which you may do something with folders, how full they are and what is wrong with them.",
		Example: "  berth folder hosts",
		Args:    args(cobra.NoArgs),
		RunE: a.run(func(ctx context.Context, cmd *cobra.Command, c *api.Client, _ []string) error {
			hosts, err := c.FolderHosts(ctx)
			if err != nil {
				return err
			}
			if asJSON {
				return printJSON(cmd.OutOrStdout(), hosts)
			}
			if len(hosts) == 0 {
				say(cmd, "there is no volume that you may use; berth status tells whether a storage proxy runs")
				return nil
			}
			t := table{titles: []string{"HOST", "DEFAULT", "BACKEND", "USED", "CAPABILITIES", "PROBLEM"}}
			for _, h := range hosts {
				used := ""
				if p, ok := h.UsedPercent(); ok {
					used = strconv.FormatFloat(p, 'f', 0, 64) + " %"
				}
				t.rows = append(t.rows, []string{h.Name, map[bool]string{true: "yes"}[h.Default], h.Backend, used, strings.Join(h.Capabilities, " "), h.Problem})
			}
			return t.write(cmd.OutOrStdout(), a.colour(cmd.OutOrStdout()))
		}),
	}
	jsonFlag(cmd, &asJSON)
	return cmd
}
