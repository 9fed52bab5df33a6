// Package template has the client verbs about templates of sessions.
package template

import (
	"github.com/spf13/cobra"

	"berth.dev/berth/api/template"
	"berth.dev/berth/internal/cli/frame"
)

// verbs make the commands of this package.
type verbs struct{ *frame.Frame }

// Commands returns the client verbs about templates.
func Commands(f *frame.Frame) []*cobra.Command {
	v := &verbs{f}
	return []*cobra.Command{frame.Group(
		"template", "Sessions written down once",
		"Keep templates of sessions, and start sessions from them. Members of a project see its templates.",
		v.newList(), v.newCreate(), v.newShow(), v.newReplace(), v.newRemove(), v.newStart(),
	)}
}

// kindFlag adds --cluster, which chooses the kind of template.
func kindFlag(cmd *cobra.Command, ofCluster *bool) {
	cmd.Flags().BoolVar(ofCluster, "cluster", false, "templates of sessions of several kernels")
}

func kind(ofCluster bool) string {
	if ofCluster {
		return template.Cluster
	}
	return template.Session
}
