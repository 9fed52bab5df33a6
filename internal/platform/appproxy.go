package platform

import (
	"context"
	"fmt"
	"path/filepath"

	"berth.dev/berth/internal/appproxy"
	"berth.dev/berth/internal/chassis"
)

// appProxyConfig is the configuration of the cluster's own app proxy. What the operator configured stays.
func (p *platform) appProxyConfig() appproxy.Config {
	cfg, d := p.settings.AppProxy, appproxy.DefaultConfig()
	cfg.Listen = p.at.AppProxy
	cfg.Managers = []string{reachable(p.manager.AgentAddr())}
	if cfg.StateDir == d.StateDir {
		cfg.StateDir = p.dir.Path("appproxy")
	}
	if cfg.SocketFile == "" {
		cfg.SocketFile = filepath.Join(filepath.Dir(p.dir.controlSocket()), "appproxy.sock")
	}
	if cfg.Ports.From == d.Ports.From && cfg.Ports.To == d.Ports.To {
		cfg.Ports.From, cfg.Ports.To = p.at.AppPorts, p.at.AppPorts+appPorts-1
	}
	return cfg
}

func (p *platform) buildAppProxy(ctx context.Context) (_ *chassis.Group, err error) {
	if p.settings.AppProxy.Listen == "" {
		return chassis.NewGroup(p.log)
	}
	p.phase("starting the app proxy")
	cfg := p.appProxyConfig()
	if cfg.JoinToken, err = p.manager.Admit(ctx, RoleAppProxy, cfg.Name, "", cfg.StateDir); err != nil {
		return nil, fmt.Errorf("let the app proxy join: %w", err)
	}
	proxy, err := appproxy.New(cfg, appproxy.Deps{Build: chassis.Build(), Log: p.log.With("part", "appproxy")})
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
