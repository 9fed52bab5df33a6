package platform

import (
	"context"
	"fmt"

	"berth.dev/berth/internal/chassis"
	"berth.dev/berth/internal/webserver"
	"berth.dev/berth/internal/webserver/upstream"
	"berth.dev/berth/web"
)

// webServerConfig is the configuration of the cluster's own web server. What the operator configured stays.
func (p *platform) webServerConfig() webserver.Config {
	cfg := p.settings.WebServer
	cfg.Listen = p.at.Web
	if cfg.StateDir == webserver.DefaultConfig().StateDir {
		cfg.StateDir = p.dir.Path("webserver")
	}
	return cfg
}

func (p *platform) buildWebServer(context.Context) (*chassis.Group, error) {
	if p.settings.WebServer.Listen == "" {
		return chassis.NewGroup(p.log)
	}
	server, err := webserver.New(p.webServerConfig(), webserver.Deps{Managers: upstream.Inside(p.inside), Console: web.Console(),
		Registry: p.health.Registry(), Build: chassis.Build(), Log: p.log.With("part", "webserver")})
	if err != nil {
		return nil, err
	}
	services := server.Services()
	p.health.Watch(services...)
	p.health.Check("webserver", server.Ready)
	remember := chassis.NewService("webserver-address", chassis.Hooks{Start: func(context.Context) error {
		if server.Exposed() {
			p.note("WARNING: the web server at %s %s", server.Addr(), exposedProblem)
			p.note("next: %s", webExposedNext)
		}
		p.mu.Lock()
		defer p.mu.Unlock()
		p.web = server
		p.bound.Web = server.Addr()
		p.report.Web = server.URL()
		if err := p.dir.rememberPorts(p.bound); err != nil {
			return fmt.Errorf("remember ports: %w", err)
		}
		return nil
	}}).After(names(services)...)
	return chassis.NewGroup(p.log, append(services, remember)...)
}

const webExposedNext = "set webserver.tls.generated = true, or webserver.tls.cert and .key, or webserver.tls.acme; where a reverse proxy " +
	"adds TLS set webserver.url to its https:// address"

// WebServerFindings are the findings about the way to the web server.
func WebServerFindings(web *webserver.Server) []Finding {
	if web == nil || !web.Exposed() {
		return nil
	}
	return []Finding{{Warning: true, Kind: "plain-http", Object: "web server at " + web.Addr(), Problem: exposedProblem, Next: webExposedNext}}
}
