package main

import (
	"context"
	"path/filepath"

	"github.com/spf13/cobra"

	"berth.dev/berth/internal/chassis"
	"berth.dev/berth/internal/platform"
)

func newManager() *cobra.Command {
	var path string
	c := &cobra.Command{
		Use: "manager", Short: "Run the manager role alone, on external PostgreSQL, Redis and etcd", Args: cobra.NoArgs,
		Long: "Run the manager role alone. It needs PostgreSQL 15+, Redis 7 (or Valkey) and etcd 3.4+;\n" +
			"`berth config print --role manager` shows every setting.",
		Example: "  berth manager --config manager.toml",
		RunE: func(cmd *cobra.Command, _ []string) error {
			s, log, err := platform.LoadSettings(path, platform.RoleManager, cmd.ErrOrStderr())
			if err != nil {
				return err
			}
			ctx, stop := chassis.SignalContext(cmd.Context())
			defer stop()
			return platform.RunManager(ctx, s, log, nil)
		},
	}
	c.Flags().StringVar(&path, "config", "", "TOML file")
	c.AddCommand(newManagerJoin())
	return c
}

func newManagerJoin() *cobra.Command {
	var path, file string
	c := &cobra.Command{
		Use: "join", Short: "Let this host's manager join a cluster that has managers", Args: cobra.NoArgs,
		Long: "Get the cluster's master key, once, with a token that was made on the host of another manager by\n" +
			"`berth admin join-token create --role manager`. The configuration names the cluster's database, and a state\n" +
			"directory without a master key. Start the manager afterwards.",
		Example: "  berth manager join --config manager.toml --token-file /etc/berth/join-token",
		RunE: func(cmd *cobra.Command, _ []string) error {
			s, _, err := platform.LoadSettings(path, platform.RoleManager, cmd.ErrOrStderr())
			if err != nil {
				return err
			}
			ctx, cancel := context.WithTimeout(cmd.Context(), joinPatience)
			defer cancel()
			if err := platform.JoinManagers(ctx, s.Manager, file); err != nil {
				return err
			}
			say(cmd, "joined; the master key is in the state directory. Start: berth manager --config %s", path)
			return nil
		},
	}
	c.Flags().StringVar(&path, "config", "", "TOML file")
	c.Flags().StringVar(&file, "token-file", "", "file with the join token")
	_, _ = c.MarkFlagRequired("config"), c.MarkFlagRequired("token-file") // they fail for unknown flags only
	return c
}

func newStorage() *cobra.Command {
	var path string
	c := &cobra.Command{
		Use: "storage", Short: "Run the storage role alone: a proxy in front of volumes", Args: cobra.NoArgs,
		Long: "Run a storage proxy. It needs etcd 3.4+, where it announces itself to the managers, the secret\n" +
			"that it shares with them, and volumes that are mounted on this host;\n" +
			"`berth config print --role storage` shows every setting.",
		Example: "  berth storage --config storage.toml",
		RunE: func(cmd *cobra.Command, _ []string) error {
			s, log, err := platform.LoadSettings(path, platform.RoleStorage, cmd.ErrOrStderr())
			if err != nil {
				return err
			}
			ctx, stop := chassis.SignalContext(cmd.Context())
			defer stop()
			return platform.RunStorage(ctx, s, log)
		},
	}
	c.Flags().StringVar(&path, "config", "", "TOML file")
	return c
}

func newAppProxy() *cobra.Command {
	var path string
	c := &cobra.Command{
		Use: "appproxy", Short: "Run the app proxy role alone: the way of visitors to apps of sessions", Args: cobra.NoArgs,
		Long: "Run an app proxy. It joins the managers named in the file with a token of `berth admin join-token` and keeps a copy of\n" +
			"what they publish; `berth config print --role appproxy` shows every setting.",
		Example: "  berth appproxy --config appproxy.toml",
		RunE: func(cmd *cobra.Command, _ []string) error {
			s, log, err := platform.LoadSettings(path, platform.RoleAppProxy, cmd.ErrOrStderr())
			if err != nil {
				return err
			}
			ctx, stop := chassis.SignalContext(cmd.Context())
			defer stop()
			return platform.RunAppProxy(ctx, s, log)
		},
	}
	c.Flags().StringVar(&path, "config", "", "TOML file")
	return c
}

func newWebServer() *cobra.Command {
	var path, static string
	c := &cobra.Command{
		Use: "webserver", Short: "Run the web server role alone: logins of browsers, and the files of a web interface", Args: cobra.NoArgs,
		Long: "Run a web server in front of the managers named in the file. It keeps nothing, so any number of them may run;\n" +
			"the managers' manager.trusted_proxies must name it. `berth config print --role webserver` shows every setting.",
		Example: "  berth webserver --config webserver.toml\n  berth webserver --config webserver.toml --static-dir /srv/webui",
		RunE: func(cmd *cobra.Command, _ []string) error {
			s, log, err := platform.LoadSettings(path, platform.RoleWebServer, cmd.ErrOrStderr())
			if err != nil {
				return err
			}
			if static != "" {
				if s.WebServer.StaticDir, err = filepath.Abs(static); err != nil {
					return err
				}
			}
			ctx, stop := chassis.SignalContext(cmd.Context())
			defer stop()
			return platform.RunWebServer(ctx, s, log)
		},
	}
	c.Flags().StringVar(&path, "config", "", "TOML file")
	c.Flags().StringVar(&static, "static-dir", "", "directory with the files of a web interface (webserver.static_dir)")
	return c
}

// addAgentRole gives the client's noun "agent" its second life: with --config it runs the role.
func addAgentRole(root *cobra.Command) {
	for _, c := range root.Commands() {
		if c.Name() != "agent" {
			continue
		}
		var path string
		c.Short = "Look at worker hosts, or run the agent role"
		c.Long += "\n\nWith --config it runs the agent role on this host: it joins the manager named in the\n" +
			"file and runs sessions on the container engine."
		c.Example = "  berth agent list\n  berth agent --config agent.toml"
		c.Flags().StringVar(&path, "config", "", "run the agent role with this TOML file")
		client := c.RunE
		c.RunE = func(cmd *cobra.Command, args []string) error {
			if !cmd.Flags().Changed("config") {
				return client(cmd, args)
			}
			s, log, err := platform.LoadSettings(path, platform.RoleAgent, cmd.ErrOrStderr())
			if err != nil {
				return err
			}
			ctx, stop := chassis.SignalContext(cmd.Context())
			defer stop()
			return platform.RunAgent(ctx, s, log)
		}
	}
}
