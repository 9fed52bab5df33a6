package folder

import (
	"context"
	"fmt"
	"slices"

	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/fault"
	"berth.dev/berth/internal/manager/audit"
	"berth.dev/berth/internal/manager/authz"
	"berth.dev/berth/internal/manager/tenancy"
)

// HostPermissions are permissions by host, as policies list them.
type HostPermissions map[string][]HostPermission

// check refuses what names no host or no permission. Hosts need not be there now.
func (h HostPermissions) check() (map[string]any, error) {
	out := make(map[string]any, len(h))
	for host, list := range h {
		if _, err := cluster.ParseVolumeHost(host); err != nil {
			return nil, err
		}
		for _, one := range list {
			if !slices.Contains(AllPermissions(), one) {
				return nil, fault.Invalidf("%.60q is no permission on folder hosts", string(one)).WithNext("use one of %v", AllPermissions())
			}
		}
		slices.Sort(list)
		out[host] = slices.Compact(list)
	}
	return out, nil
}

// AllowInDomain replaces what a domain allows on hosts (superadmins).
func (s *Service) AllowInDomain(ctx context.Context, a authz.Actor, domain string, hosts HostPermissions) (err error) {
	ctx, end := audit.Begin(ctx, s.d.Store, a, "domain.allow-folder-hosts", domain)
	defer end(&err)
	if err := authz.Domains.Need(a, authz.Administer, authz.Object{}, "change what domains allow"); err != nil {
		return err
	}
	allowed, err := hosts.check()
	if err != nil {
		return err
	}
	n, err := s.d.Store.SetHostsOfDomain(ctx, domain, allowed)
	if err != nil {
		return fmt.Errorf("change the folder hosts of domain %s: %w", domain, err)
	}
	if n == 0 {
		return authz.NotFound("domain", domain)
	}
	return nil
}

// AllowInProject replaces what a project allows on hosts, besides its domain (administrators of the domain).
func (s *Service) AllowInProject(ctx context.Context, a authz.Actor, project string, hosts HostPermissions) (err error) {
	ctx, end := audit.Begin(ctx, s.d.Store, a, "project.allow-folder-hosts", project)
	defer end(&err)
	if err := authz.Authenticated(a); err != nil {
		return err
	}
	p, err := s.d.Tenancy.VisibleProject(ctx, a, project, a.Domain)
	if err != nil {
		return err
	}
	if err := authz.Projects.Check(a, authz.Change, tenancy.ProjectObject(p, project)); err != nil {
		return err
	}
	allowed, err := hosts.check()
	if err != nil {
		return err
	}
	if _, err := s.d.Store.SetHostsOfProject(ctx, p.ID, allowed); err != nil {
		return fmt.Errorf("change the folder hosts of project %s: %w", p.Name, err)
	}
	return nil
}
