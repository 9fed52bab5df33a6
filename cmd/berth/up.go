package main

import (
	"fmt"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"berth.dev/berth/internal/chassis"
	"berth.dev/berth/internal/fault"
	"berth.dev/berth/internal/platform"
)

// upFlags are what `berth up` was asked for.
type upFlags struct {
	stateDir  string
	staticDir string
	config    string
	ports     string
	detach    bool
	// child marks the process that a detaching `up` started; its log is a file.
	child bool
}

func newUp() *cobra.Command {
	var f upFlags
	c := &cobra.Command{
		Use: "up", Short: "Start a whole cluster on this machine", Args: cobra.NoArgs,
		Long: "Start every role in one process: PostgreSQL, etcd and Redis, the manager, a storage proxy, an app proxy and an agent that\n" +
			"drives this machine's container engine. Stops at Ctrl-C or `berth down`; running containers\n" +
			"are left alone and taken over again by the next start.",
		Example: "  berth up --detach\n  berth up --state-dir /tmp/second --ports auto",
		RunE: func(cmd *cobra.Command, _ []string) error {
			if f.ports != platform.PortsAuto && f.ports != platform.PortsFixed {
				return fault.Invalidf("--ports is %q", f.ports).WithNext("use --ports auto or --ports fixed")
			}
			dir, err := platform.FindStateDir(f.stateDir)
			if err != nil {
				return err
			}
			if f.detach {
				return detach(cmd, dir, f)
			}
			return runUp(cmd, dir, f)
		},
	}
	c.Flags().StringVar(&f.stateDir, "state-dir", "",
		"directory of the cluster (default $BERTH_STATE_DIR, else /var/lib/berth for root, ~/.local/state/berth for others)")
	c.Flags().StringVar(&f.config, "config", "", "TOML file")
	c.Flags().StringVar(&f.staticDir, "static-dir", "", "directory with the files of a web interface, such as the official one's bundle")
	c.Flags().StringVar(&f.ports, "ports", platform.PortsAuto,
		"auto picks free ports and keeps them; fixed uses 8081 for the API and 6001 for agents")
	c.Flags().BoolVar(&f.detach, "detach", false, "return once the cluster is up and leave it running; the log goes to DIR/berth.log")
	c.Flags().BoolVar(&f.child, "detached-child", false, "")
	if err := c.Flags().MarkHidden("detached-child"); err != nil {
		panic(err) // the flag is defined one line above
	}
	return c
}

func summarize(dir platform.StateDir, r platform.Report) string {
	env, _ := platform.ReadEnvFile(dir.ClientEnv()) // written by ourselves a moment ago
	flag := ""
	if def, err := platform.FindStateDir(""); err != nil || def != dir {
		flag = " --state-dir " + string(dir)
	}
	password := env["BERTH_ADMIN_PASSWORD"]
	if password == "" {
		password = "(set earlier)"
	}
	var b strings.Builder
	fmt.Fprintf(&b, "Berth %s is up.\n", r.Version)
	fmt.Fprintf(&b, "  API         %s\n", r.API)
	fmt.Fprintf(&b, "  TLS         %s\n", r.TLS)
	fmt.Fprintf(&b, "  agent port  %s\n", r.Agents)
	fmt.Fprintf(&b, "  storage     %s\n", r.Storage)
	if r.Web != "" {
		fmt.Fprintf(&b, "  web         %s\n", r.Web)
	}
	if r.Apps != nil {
		fmt.Fprintf(&b, "  apps        %s\n", appsLine(*r.Apps))
	}
	fmt.Fprintf(&b, "  login       %s  %s\n", r.Email, password)
	fmt.Fprintf(&b, "  client.env  %s\n", dir.ClientEnv())
	for _, n := range r.Notes {
		fmt.Fprintf(&b, "  note        %s\n", n)
	}
	fmt.Fprintf(&b, "Try: berth run%s python -c 'print(6*7)'", flag)
	return b.String()
}

func runUp(cmd *cobra.Command, dir platform.StateDir, f upFlags) error {
	out := cmd.ErrOrStderr()
	if f.child {
		file, err := platform.DetachedLog(dir)
		if err != nil {
			return err
		}
		defer file.Close()
		out = file
	}
	s, log, err := platform.LoadSettings(f.config, platform.RoleUp, out)
	if err != nil {
		return err
	}
	if f.staticDir != "" {
		if s.WebServer.StaticDir, err = filepath.Abs(f.staticDir); err != nil {
			return err
		}
	}
	ctx, stop := chassis.SignalContext(cmd.Context())
	defer stop()
	o := platform.Options{Ports: f.ports, Log: log, Say: sayer(cmd), Show: func(r platform.Report) {
		fmt.Fprintln(cmd.OutOrStdout(), summarize(dir, r))
	}}
	if f.child {
		// Standard output is the log here; the process that waits for us shows the login.
		o.Show = func(platform.Report) { log.Info("the cluster is up", "state_dir", string(dir)) }
		o.Say = func(format string, args ...any) { log.Info(fmt.Sprintf(format, args...)) }
	}
	return platform.Up(ctx, dir, s, o)
}

// detach starts `berth up` again in the background and waits until the cluster is up.
func detach(cmd *cobra.Command, dir platform.StateDir, f upFlags) error {
	// What can be known before is said here, where somebody reads it.
	if _, _, err := platform.LoadSettings(f.config, platform.RoleUp, cmd.ErrOrStderr()); err != nil {
		return err
	}
	args := []string{"up", "--detached-child", "--state-dir", string(dir), "--ports", f.ports}
	if f.config != "" {
		args = append(args, "--config", f.config)
	}
	if f.staticDir != "" {
		args = append(args, "--static-dir", f.staticDir)
	}
	ctx, stop := chassis.SignalContext(cmd.Context())
	defer stop()
	r, err := platform.Detach(ctx, dir, args, sayer(cmd))
	if err != nil {
		return err
	}
	fmt.Fprintln(cmd.OutOrStdout(), summarize(dir, r))
	return nil
}
