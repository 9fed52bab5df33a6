package cli

import (
	"github.com/spf13/cobra"

	"berth.dev/berth/api"
	"berth.dev/berth/internal/cli/frame"
)

func (a *verbs) newImage() *cobra.Command {
	return frame.Group(
		"image", "Look at images, name them and import them",
		"Look at the images that sessions can be made of, give them short names, and decide which of them there are.",
		a.newImageList(), a.newImageAlias(), a.newImageInspect(), a.newImageImport(), a.newImageUnknown(), a.newImageRemove(),
	)
}

// imageHint points at the list of images when one was not found.
func imageHint(err error) error {
	if api.IsNotFound(err) {
		return frame.Hint(err, "berth image list")
	}
	return err
}
