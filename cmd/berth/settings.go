package main

import (
	"github.com/spf13/cobra"

	"berth.dev/berth/internal/chassis"
	"berth.dev/berth/internal/fault"
	"berth.dev/berth/internal/platform"
)

func newConfig() *cobra.Command {
	c := &cobra.Command{Use: "config", Short: "Print or check the configuration of a role"}
	var path, role string
	c.PersistentFlags().StringVar(&path, "config", "", "TOML file")
	c.PersistentFlags().StringVar(&role, "role", platform.RoleUp, "role to look at: up, manager, agent, storage, appproxy or webserver")
	load := func() (*chassis.Config[platform.Settings], error) {
		switch role {
		case platform.RoleUp, platform.RoleManager, platform.RoleAgent, platform.RoleStorage, platform.RoleAppProxy,
			platform.RoleWebServer:
		default:
			return nil, fault.Invalidf("there is no role %q", role).WithNext("use --role up, manager, agent, storage, appproxy or webserver")
		}
		return chassis.LoadFile(platform.DefaultSettings(), path, nil)
	}
	c.AddCommand(&cobra.Command{
		Use: "print", Short: "Print the effective configuration as TOML, secrets redacted", Args: cobra.NoArgs,
		Long: "Print the effective configuration: defaults, then the file, then environment variables\n" +
			"BERTH_<SECTION>__<KEY>. Values that are not defaults say where they come from.",
		RunE: func(cmd *cobra.Command, _ []string) error {
			cfg, err := load()
			if err != nil {
				return err
			}
			return cfg.Print(cmd.OutOrStdout(), platform.SectionsOf(role)...)
		},
	}, &cobra.Command{
		Use: "check", Short: "Check a configuration and say what is wrong with it", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			cfg, err := load()
			if err != nil {
				return err
			}
			if err := cfg.Value.Check(role); err != nil {
				return err
			}
			say(cmd, "The configuration for `berth %s` is good.", role)
			return nil
		},
	})
	return c
}
