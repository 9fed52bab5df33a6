package folder

import (
	"context"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"berth.dev/berth/api"
	"berth.dev/berth/internal/cli/frame"
)

func (a *verbs) newFolderHosts() *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:     "hosts",
		Short:   "List the volumes that folders can be kept on",
		Long:    "List the volumes on which you may do something with folders, how full they are and what is wrong with them.",
		Example: "  berth folder hosts",
		Args:    frame.Args(cobra.NoArgs),
		RunE: a.Run(func(ctx context.Context, cmd *cobra.Command, c *api.Client, _ []string) error {
			hosts, err := c.FolderHosts(ctx)
			if err != nil {
				return err
			}
			if asJSON {
				return frame.PrintJSON(cmd.OutOrStdout(), hosts)
			}
			if len(hosts) == 0 {
				frame.Say(cmd, "there is no volume that you may use; berth status tells whether a storage proxy runs")
				return nil
			}
			t := frame.Table{Titles: []string{"HOST", "DEFAULT", "BACKEND", "USED", "CAPABILITIES", "PROBLEM"}}
			for _, h := range hosts {
				used := ""
				if p := h.Usage.Percent; p != nil {
					used = strconv.FormatFloat(*p, 'f', 0, 64) + " %"
				}
				t.Rows = append(
					t.Rows,
					[]string{
						h.Name, map[bool]string{true: "yes"}[h.Default], h.Backend, used, strings.Join(h.Capabilities, " "), h.Problem,
					},
				)
			}
			return t.Write(cmd.OutOrStdout(), a.Colour(cmd.OutOrStdout()))
		}),
	}
	frame.JSONFlag(cmd, &asJSON)
	return cmd
}
