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

const (
	// resetPatience bounds the work of a reset.
	resetPatience = 30 * time.Second
	// rotatePatience bounds the time in which all stored secrets are sealed again.
	rotatePatience = 10 * time.Minute
)

func newAdmin() *cobra.Command {
	c := &cobra.Command{Use: "admin", Short: "Do what needs the machine of the manager: lost passwords, joins, keys"}
	c.AddCommand(newResetPassword(), newJoinToken(), newCertificate(), newStorageKey(), newRotateMasterKey())
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

func newRotateMasterKey() *cobra.Command {
	var dirFlag, config, step string
	var asJSON bool
	c := &cobra.Command{
		Use: "rotate-master-key", Short: "Replace the key that seals stored secrets", Args: cobra.NoArgs,
		Long: "Replace the master key and seal every stored secret again with the new one. Managers go on\n" +
			"meanwhile. A rotation that was cut off is finished by running the command again.\n\n" +
			"With several managers each of them has a copy of master.key, and every step is followed by a copy:\n" +
			"  prepare   adds a new key that only opens; then copy master.key to all managers\n" +
			"  use       seals with the new key and seals everything again; then copy master.key\n" +
			"  finish    seals what was left and drops the old key; then copy master.key",
		Example: "  berth admin rotate-master-key\n  berth admin rotate-master-key --config manager.toml --step prepare",
		RunE: func(cmd *cobra.Command, _ []string) (err error) {
			ctx, cancel := context.WithTimeout(cmd.Context(), rotatePatience)
			defer cancel()
			var done platform.Rotation
			if config != "" {
				var s platform.Settings
				if s, _, err = platform.LoadSettings(config, platform.RoleManager, cmd.ErrOrStderr()); err == nil {
					done, err = platform.RotateMasterKeyInDatabase(ctx, s.Manager, step)
				}
			} else {
				var dir platform.StateDir
				if dir, err = platform.FindStateDir(dirFlag); err == nil {
					done, err = platform.RotateMasterKey(ctx, dir, step)
				}
			}
			if err != nil {
				return err
			}
			if asJSON {
				return printJSON(cmd, done)
			}
			if done.Prepared != "" {
				fmt.Fprintf(cmd.OutOrStdout(), "key %s seals, key %s is prepared\n", done.Key, done.Prepared)
				return nil
			}
			fmt.Fprintf(cmd.OutOrStdout(), "key %s seals; %d stored secrets were sealed again\n", done.Key, done.Resealed)
			return nil
		},
	}
	c.Flags().StringVar(&dirFlag, "state-dir", "", "directory of the cluster")
	c.Flags().StringVar(&config, "config", "", "TOML file of a manager that runs alone")
	c.Flags().StringVar(&step, "step", "all", "all, or with several managers one of prepare, use, finish")
	c.Flags().BoolVar(&asJSON, "json", false, "print JSON for programs")
	c.MarkFlagsMutuallyExclusive("state-dir", "config")
	return c
}
