package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/spf13/cobra"

	"berth.dev/berth/internal/platform"
)

// resetPatience bounds the work of a reset.
const resetPatience = 30 * time.Second

func newAdmin() *cobra.Command {
	c := &cobra.Command{Use: "admin", Short: "Administer a cluster from the host of its manager"}
	c.AddCommand(newResetPassword(), newJoinToken(), newCertificate())
	return c
}

func newResetPassword() *cobra.Command {
	var dirFlag, config string
	var asJSON bool
	c := &cobra.Command{
		Use: "reset-password", Short: "Give the first administrator a new password", Args: cobra.NoArgs,
		Long: "Give the first administrator a new, random password, print it and put it into client.env.\n" +
			"It needs no account, only the right to use the state directory of a running cluster, or with\n" +
			"--config the manager's configuration and database. Keypairs stay as they are.",
		Example: "  berth admin reset-password\n  berth admin reset-password --config manager.toml",
		RunE: func(cmd *cobra.Command, _ []string) (err error) {
			ctx, cancel := context.WithTimeout(cmd.Context(), resetPatience)
			defer cancel()
			var l platform.Login
			var dir platform.StateDir
			if config != "" {
				var s platform.Settings
				if s, _, err = platform.LoadSettings(config, platform.RoleManager, cmd.ErrOrStderr()); err == nil {
					dir = platform.StateDir(s.Manager.StateDir)
					l, err = platform.ResetPasswordInDatabase(ctx, s.Manager)
				}
			} else if dir, err = platform.FindStateDir(dirFlag); err == nil {
				l, err = platform.ResetPassword(ctx, dir)
			}
			if err != nil {
				return err
			}
			// The old password has gone: the new one is shown whatever becomes of the file.
			switch err := l.Keep(dir.ClientEnv()); {
			case errors.Is(err, os.ErrNotExist):
			case err != nil:
				say(cmd, "note: %s keeps the old password: %v", dir.ClientEnv(), err)
			}
			if asJSON {
				return printJSON(cmd, l)
			}
			fmt.Fprintf(cmd.OutOrStdout(), "%s  %s\n", l.Email, l.Password)
			return nil
		},
	}
	c.Flags().StringVar(&dirFlag, "state-dir", "", "directory of the cluster")
	c.Flags().StringVar(&config, "config", "", "TOML file of a manager that runs alone")
	c.Flags().BoolVar(&asJSON, "json", false, "print JSON for programs")
	c.MarkFlagsMutuallyExclusive("state-dir", "config")
	return c
}
