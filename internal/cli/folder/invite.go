package folder

import (
	"context"
	"errors"
	"strings"

	"github.com/spf13/cobra"

	"berth.dev/berth/api"
	"berth.dev/berth/internal/cli/frame"
)

func (a *verbs) newFolderInvite() *cobra.Command {
	var permission string
	cmd := &cobra.Command{
		Use:   "invite FOLDER EMAIL...",
		Short: "Offer a folder of yours to other users",
		Long: "Offer a folder of yours to other users. They can use it once they have accepted with berth folder " +
			"invitations accept.",
		Example:           "  berth folder invite data ada@example.org --permission ro",
		Args:              frame.Args(cobra.MinimumNArgs(2)),
		ValidArgsFunction: a.completeFolders(""),
		RunE: a.Run(func(ctx context.Context, cmd *cobra.Command, c *api.Client, args []string) error {
			invited, err := c.InviteToFolder(ctx, args[0], permission, args[1:])
			err = frame.Hint(err, "check the addresses and the name of the folder: berth folder list")
			if err == nil && len(invited) == 0 {
				err = frame.Hint(
					errors.New("nobody was invited: no such users, or they were invited before"),
					"berth folder invitations --sent, berth folder share %s", args[0],
				)
			}
			return sayDone(cmd, err, "invited %s to folder %s", strings.Join(invited, ", "), args[0])
		}),
	}
	permissionFlag(cmd, &permission, api.PermReadWrite, "what they may do")
	return cmd
}
