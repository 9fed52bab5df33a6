package httpapi

import (
	"context"

	"berth.dev/berth/api"
	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/manager/authz"
	"berth.dev/berth/internal/manager/httpapi/params"
	"berth.dev/berth/internal/manager/tenancy"
)

func (a *API) dotfileRoutes() {
	for base, scope := range map[string]func(*params.Set) tenancy.DotfileScope{
		"/user-config": func(p *params.Set) tenancy.DotfileScope { return tenancy.DotfileScope{Owner: owner(p)} },
		"/domain-config": func(p *params.Set) tenancy.DotfileScope {
			return tenancy.DotfileScope{Domain: p.Need("domain")}
		},
		"/group-config": func(p *params.Set) tenancy.DotfileScope {
			return tenancy.DotfileScope{Project: p.Need("group"), ProjectDomain: p.Text("domain", "")}
		},
	} {
		path := base + "/dotfiles"
		a.handle(unfrozen, a.putDotfile(scope, a.tenancy.CreateDotfile), "POST "+path)
		a.handle(unfrozen, a.putDotfile(scope, a.tenancy.UpdateDotfile), "PATCH "+path)
		a.handle(signedOnly, a.getDotfiles(scope), "GET "+path)
		a.handle(unfrozen, a.deleteDotfile(scope), "DELETE "+path)
	}
	a.handle(signedOnly, a.bootstrapScript, "GET /user-config/bootstrap-script")
	a.handle(unfrozen, a.setBootstrapScript, "POST /user-config/bootstrap-script")
}

type putDotfile = func(context.Context, authz.Actor, tenancy.DotfileScope, cluster.Dotfile) error

func (a *API) putDotfile(scopeOf func(*params.Set) tenancy.DotfileScope, put putDotfile) handler {
	return func(c *call) error {
		p, err := c.params()
		if err != nil {
			return err
		}
		scope := scopeOf(p)
		f := cluster.Dotfile{Path: p.Need("path"), Perm: p.Need("permission|perm"), Data: p.Text("data", "")}
		if err := p.Err(); err != nil {
			return err
		}
		if err := put(c.ctx(), c.actor, scope, f); err != nil {
			return err
		}
		return c.ok(api.Empty{})
	}
}

func (a *API) getDotfiles(scopeOf func(*params.Set) tenancy.DotfileScope) handler {
	return func(c *call) error {
		p, err := c.params()
		if err != nil {
			return err
		}
		scope, path := scopeOf(p), p.Text("path", "")
		if err := p.Err(); err != nil {
			return err
		}
		if path != "" {
			f, err := a.tenancy.GetDotfile(c.ctx(), c.actor, scope, path)
			if err != nil {
				return err
			}
			return c.ok(api.Dotfile{Path: f.Path, Perm: f.Perm, Permission: f.Perm, Data: f.Data})
		}
		files, err := a.tenancy.ListDotfiles(c.ctx(), c.actor, scope)
		if err != nil {
			return err
		}
		list := make([]api.Dotfile, 0, len(files))
		for _, f := range files {
			list = append(list, api.Dotfile{Path: f.Path, Permission: f.Perm, Data: f.Data})
		}
		return c.ok(list)
	}
}

func (a *API) deleteDotfile(scopeOf func(*params.Set) tenancy.DotfileScope) handler {
	return func(c *call) error {
		p, err := c.params()
		if err != nil {
			return err
		}
		scope, path := scopeOf(p), p.Need("path")
		if err := p.Err(); err != nil {
			return err
		}
		if err := a.tenancy.DeleteDotfile(c.ctx(), c.actor, scope, path); err != nil {
			return err
		}
		return c.ok(api.Done{Success: true})
	}
}

func (a *API) bootstrapScript(c *call) error {
	script, err := a.tenancy.BootstrapScript(c.ctx(), c.actor)
	if err != nil {
		return err
	}
	return c.ok(script)
}

func (a *API) setBootstrapScript(c *call) error {
	p, err := c.params()
	if err != nil {
		return err
	}
	script := p.Text("script", "")
	if err := p.Err(); err != nil {
		return err
	}
	if err := a.tenancy.SetBootstrapScript(c.ctx(), c.actor, script); err != nil {
		return err
	}
	return c.ok(api.Empty{})
}
