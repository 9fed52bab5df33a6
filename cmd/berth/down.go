package main

import (
	"github.com/spf13/cobra"

	"berth.dev/berth/internal/platform"
)

func newDown() *cobra.Command {
	var dirFlag string
	var sessions bool
	c := &cobra.Command{
		Use: "down", Short: "Stop the cluster of this machine", Args: cobra.NoArgs,
		Long: "Stop the cluster. Its containers keep running and are taken over by the next `berth up`,\n" +
			"unless --sessions ends them first.",
		RunE: func(cmd *cobra.Command, _ []string) error {
			dir, err := platform.FindStateDir(dirFlag)
			if err != nil {
				return err
			}
			return platform.Down(cmd.Context(), dir, sessions, sayer(cmd))
		},
	}
	c.Flags().StringVar(&dirFlag, "state-dir", "", "directory of the cluster")
	c.Flags().BoolVar(&sessions, "sessions", false, "end all sessions first and wait until their containers are gone")
	return c
}
