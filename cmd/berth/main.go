// Command berth is the one binary of Berth: it runs the roles of a cluster (up, manager, agent, storage, appproxy)
// and speaks to one as a client. It only chooses and wires; what a role does is in its package.
package main

import (
	"context"
	"fmt"
	"os"

	"github.com/spf13/cobra"

	"berth.dev/berth/internal/chassis"
	"berth.dev/berth/internal/cli"
	"berth.dev/berth/internal/cli/frame"
	"berth.dev/berth/internal/fault"
)

func main() {
	os.Exit(frame.Execute(context.Background(), newRoot(), explain))
}

func newRoot() *cobra.Command {
	build := chassis.Build()
	root := &cobra.Command{
		Use:   "berth",
		Short: "Turn machines into on-demand compute sessions",
		Long: "Berth turns machines into on-demand compute sessions.\n\n" +
			"Start a cluster on this machine with `berth up`, then run code with\n" +
			"`berth run python -c 'print(6*7)'`.",
		Version:           build.Version,
		SilenceErrors:     true,
		SilenceUsage:      true,
		CompletionOptions: cobra.CompletionOptions{HiddenDefaultCmd: false},
	}
	root.SetVersionTemplate("berth " + build.String() + "\n")
	root.AddGroup(&cobra.Group{ID: "client", Title: "Sessions, folders and images:"}, &cobra.Group{ID: "server", Title: "Clusters:"})
	for _, c := range cli.Commands(build.Version) {
		c.GroupID = "client"
		root.AddCommand(c)
	}
	addAgentRole(root)
	for _, c := range []*cobra.Command{newUp(), newDown(), newStatus(), newDoctor(), newAdmin(), newManager(), newStorage(), newAppProxy(),
		newWebServer(), newConfig(), newSim(), newVersion()} {
		c.GroupID = "server"
		root.AddCommand(c)
	}
	return root
}

// explain gives the advice and the exit code of faults, which only server verbs return.
func explain(err error) (next string, code int) {
	next = fault.NextOf(err)
	switch fault.KindOf(err) {
	case fault.NotFound:
		code = frame.ExitNotFound
	case fault.Denied, fault.Unauthenticated:
		code = frame.ExitDenied
	case fault.Unavailable, fault.Timeout:
		code = frame.ExitUnavailable
	case fault.Invalid:
		code = frame.ExitUsage
	}
	return next, code
}

func newVersion() *cobra.Command {
	var asJSON bool
	c := &cobra.Command{
		Use: "version", Short: "Print what this binary was built from", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if asJSON {
				return printJSON(cmd, chassis.Build())
			}
			fmt.Fprintln(cmd.OutOrStdout(), "berth", chassis.Build())
			return nil
		},
	}
	c.Flags().BoolVar(&asJSON, "json", false, "print JSON for programs")
	return c
}

// say writes talk to standard error; data goes to standard output.
func say(cmd *cobra.Command, format string, args ...any) {
	fmt.Fprintf(cmd.ErrOrStderr(), format+"\n", args...)
}

// sayer is say for functions that know no commands.
func sayer(cmd *cobra.Command) func(format string, args ...any) {
	return func(format string, args ...any) { say(cmd, format, args...) }
}
