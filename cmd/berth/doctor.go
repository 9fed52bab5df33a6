package main

import (
	"fmt"

	"github.com/spf13/cobra"

	"berth.dev/berth/internal/chassis"
	"berth.dev/berth/internal/cli/frame"
	"berth.dev/berth/internal/platform"
	"berth.dev/berth/internal/platform/doctor"
)

func newDoctor() *cobra.Command {
	var dirFlag, config string
	var asJSON bool
	c := &cobra.Command{
		Use: "doctor", Short: "Look for leaks and name the versions of everything", Args: cobra.NoArgs,
		Long: "Look for containers, directories, mounts, sockets, processes and rows without an owner, and\n" +
			"name the versions of the engine and the kernel. Works on a running and on a stopped cluster;\n" +
			"with --config on those roles of that file that run alone on this machine.\n" +
			"Exits 1 when something is wrong.",
		Example: "  berth doctor\n  berth doctor --config berth.toml",
		RunE: func(cmd *cobra.Command, _ []string) (err error) {
			var found doctor.Checkup
			if config != "" {
				loaded, err := chassis.LoadFile(platform.DefaultSettings(), config, nil)
				if err != nil {
					return err
				}
				found = doctor.ExamineRoles(cmd.Context(), config, loaded.Value)
			} else {
				dir, err := platform.FindStateDir(dirFlag)
				if err != nil {
					return err
				}
				found = doctor.Examine(cmd.Context(), dir)
			}
			if asJSON {
				err = printJSON(cmd, found)
			} else {
				printCheckup(cmd, found)
			}
			if err == nil && found.Sick() {
				err = &frame.ExitError{Code: frame.ExitFailure}
			}
			return err
		},
	}
	c.Flags().StringVar(&dirFlag, "state-dir", "", "directory of the cluster")
	c.Flags().StringVar(&config, "config", "", "TOML file of roles that run alone")
	c.Flags().BoolVar(&asJSON, "json", false, "print JSON for programs")
	c.MarkFlagsMutuallyExclusive("state-dir", "config")
	return c
}

func printCheckup(cmd *cobra.Command, c doctor.Checkup) {
	w := cmd.OutOrStdout()
	for _, k := range []string{"berth", "kernel", "cgroup", "engine", "engine api", "storage", "postgresql", "etcd", "redis"} {
		if v := c.Versions[k]; v != "" {
			fmt.Fprintf(w, "%-11s %s\n", k, v)
		}
	}
	for _, f := range c.Findings {
		mark := "WRONG"
		if f.Warning {
			mark = "note "
		}
		fmt.Fprintf(w, "%s  %s %s: %s\n", mark, f.Kind, f.Object, f.Problem)
		if f.Next != "" {
			fmt.Fprintf(w, "       next: %s\n", f.Next)
		}
	}
	state := "running"
	if !c.Running {
		state = "stopped"
	}
	what := "cluster in " + c.StateDir + " is"
	if c.Config != "" {
		what = "roles of " + c.Config + " are"
	}
	health := "well"
	if c.Sick() {
		health = "not well"
	}
	say(cmd, "The %s %s %s.", state, what, health)
}
