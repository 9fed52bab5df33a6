package main

import (
	"context"
	"fmt"
	"hash/fnv"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strconv"

	"github.com/spf13/cobra"

	"berth.dev/berth/internal/appproxy"
	"berth.dev/berth/internal/chassis"
	"berth.dev/berth/internal/fault"
)

func newAppProxy() *cobra.Command {
	var path string
	c := &cobra.Command{
		Use: "appproxy", Short: "Run the app proxy role alone: the way of visitors to apps of sessions", Args: cobra.NoArgs,
		Long: "Run an app proxy. It joins the managers named in the file with their join token and keeps a copy of\n" +
			"what they publish; `berth config print --role appproxy` shows every setting.",
		Example: "  berth appproxy --config appproxy.toml",
		RunE: func(cmd *cobra.Command, _ []string) error {
			s, log, err := loadSettings(path, roleAppProxy, cmd.ErrOrStderr())
			if err != nil {
				return err
			}
			ctx, stop := chassis.SignalContext(cmd.Context())
			defer stop()
			return runAppProxy(ctx, s, log)
		},
	}
	c.Flags().StringVar(&path, "config", "", "TOML file")
	return c
}

func runAppProxy(ctx context.Context, s settings, log *slog.Logger) error {
	if err := os.MkdirAll(s.AppProxy.StateDir, 0o700); err != nil {
		return fmt.Errorf("make state directory: %w", err)
	}
	release, err := stateDir(s.AppProxy.StateDir).lock()
	if err != nil {
		return err
	}
	defer release()
	proxy, err := appproxy.New(s.AppProxy, appproxy.Deps{Build: chassis.Build(), Log: log})
	if err != nil {
		return err
	}
	health := chassis.NewHealth()
	health.Check("appproxy", proxy.Ready)
	services := proxy.Services()
	var parts []string
	for _, service := range services {
		parts = append(parts, service.Name())
	}
	greet := chassis.NewService("greeter", chassis.Hooks{Start: func(context.Context) error {
		log.Info("app proxy listens", "proxy", proxy.Name(), "url", proxy.URL(), "version", chassis.Build().Version)
		return nil
	}}).After(parts...)
	services = append(services, greet)
	if s.Admin.Listen != "" {
		services = append(services, chassis.NewAdminServer(s.Admin, health, log).Service)
	}
	return runGroup(ctx, log, health, services)
}

// appsLine is the app proxy in `berth status`.
func appsLine(s appproxy.Status) string {
	text := s.URL
	if s.Domain != "" {
		text += ", *." + s.Domain
	}
	if s.Ports != "" {
		text += ", ports " + s.Ports
	}
	text += fmt.Sprintf("; %d published, %d connections", s.Circuits, s.Connections)
	if s.Problem != "" {
		text += "  NOT WELL: " + s.Problem
	}
	return text
}

func fromAppProxy(in []appproxy.Finding) []Finding {
	var out []Finding
	for _, f := range in {
		out = append(out, Finding{Warning: f.Warning, Kind: f.Kind, Object: f.Object, Problem: f.Problem, Next: f.Next})
	}
	return out
}

// apps asks an app proxy that runs alone on this machine.
func (c *checkup) apps(ctx context.Context, file string, cfg appproxy.Config) {
	ctx, cancel := context.WithTimeout(ctx, rowsPatience)
	defer cancel()
	found, err := appproxy.AskFindings(ctx, cfg)
	switch {
	case fault.Is(err, fault.Unavailable):
		c.add(Finding{Warning: true, Kind: "app proxy", Object: cfg.Name, Problem: "it does not run: " + err.Error(), Next: "berth appproxy --config " + file})
	case err != nil:
		c.add(Finding{Kind: "app proxy", Object: cfg.Name, Problem: err.Error(), Next: fault.NextOf(err)})
	default:
		c.Running = true
		c.Findings = append(c.Findings, fromAppProxy(found)...)
	}
}

// appPorts is how many ports the app proxy of `berth up` has for apps, where the operator does not say.
const appPorts = 96

// chooseAppPorts finds the first of appPorts ports that look free, below those that the kernel gives to anybody. Clusters side
// by side begin their search at different places, and each keeps what it found.
func chooseAppPorts(remembered int, dir string) int {
	const first, last, step = 10400, 29900, 100
	h := fnv.New32a()
	_, _ = h.Write([]byte(dir)) // never fails
	start := int(h.Sum32()) % ((last - first) / step)
	candidates := []int{remembered}
	for i := range 20 {
		candidates = append(candidates, first+(start+i)%((last-first)/step)*step)
	}
	for _, base := range candidates {
		if base > 0 && looksFree(base, base+appPorts/2, base+appPorts-1) {
			return base
		}
	}
	return candidates[1] // ports that are taken are told of when an app wants one
}

func looksFree(ports ...int) bool {
	for _, port := range ports {
		ln, err := net.Listen("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(port)))
		if err != nil {
			return false
		}
		_ = ln.Close() // only tried
	}
	return true
}

// appProxyConfig is the configuration of the cluster's own app proxy. What the operator configured stays.
func (p *platform) appProxyConfig() appproxy.Config {
	cfg, d := p.settings.AppProxy, appproxy.DefaultConfig()
	cfg.Listen = p.at.AppProxy
	cfg.Managers = []string{reachable(p.manager.manager.AgentAddr())}
	cfg.JoinTokenFile = p.dir.joinToken()
	if cfg.StateDir == d.StateDir {
		cfg.StateDir = p.dir.path("appproxy")
	}
	if cfg.SocketFile == "" {
		cfg.SocketFile = filepath.Join(filepath.Dir(p.dir.controlSocket()), "appproxy.sock")
	}
	if cfg.Ports.From == d.Ports.From && cfg.Ports.To == d.Ports.To {
		cfg.Ports.From, cfg.Ports.To = p.at.AppPorts, p.at.AppPorts+appPorts-1
	}
	return cfg
}

func (p *platform) buildAppProxy(context.Context) (*chassis.Group, error) {
	if p.settings.AppProxy.Listen == "" {
		return chassis.NewGroup(p.log)
	}
	p.phase("starting the app proxy")
	proxy, err := appproxy.New(p.appProxyConfig(), appproxy.Deps{Build: chassis.Build(), Log: p.log.With("part", "appproxy")})
	if err != nil {
		return nil, err
	}
	services := proxy.Services()
	p.health.Watch(services...)
	p.health.Check("appproxy", proxy.Ready)
	var parts []string
	for _, service := range services {
		parts = append(parts, service.Name())
	}
	remember := chassis.NewService("appproxy-address", chassis.Hooks{Start: func(context.Context) error {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.apps = proxy
		p.bound.AppProxy = proxy.Addr()
		status := proxy.Status()
		p.report.Apps = &status
		if err := p.dir.rememberPorts(p.bound); err != nil {
			return fmt.Errorf("remember ports: %w", err)
		}
		return nil
	}}).After(parts...)
	return chassis.NewGroup(p.log, append(services, remember)...)
}
