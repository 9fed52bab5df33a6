package folder

import (
	"context"
	"fmt"

	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/fault"
	"berth.dev/berth/internal/manager/audit"
	"berth.dev/berth/internal/manager/authz"
	"berth.dev/berth/internal/manager/store"
	"berth.dev/berth/internal/wire/storage"
)

// QuotaScope tells what a scope holds on a host; scope is user:<uuid> or project:<uuid>. The actor's own, those of the
// actor's projects and those that the actor administrates are told.
func (s *Service) QuotaScope(ctx context.Context, a authz.Actor, host, scope string) (Quota, error) {
	if err := authz.Authenticated(a); err != nil {
		return Quota{}, err
	}
	sc, err := cluster.ParseQuotaScope(scope)
	if err != nil {
		return Quota{}, err
	}
	if err := s.maySeeScope(ctx, a, sc); err != nil {
		return Quota{}, err
	}
	return s.quota(ctx, host, sc)
}

func (s *Service) maySeeScope(ctx context.Context, a authz.Actor, sc cluster.QuotaScope) error {
	o := authz.Object{Name: sc.String()}
	if sc.Kind == cluster.ProjectScope {
		p, err := s.d.Tenancy.FindProject(ctx, sc.ID, a.Domain)
		if err != nil && !fault.Is(err, fault.NotFound) {
			return err
		}
		o.Project, o.Domain = cluster.ProjectID(p.ID), p.DomainName
	} else {
		u, err := s.d.Store.UserByRef(ctx, sc.ID)
		if err != nil && !store.Missing(err) {
			return fmt.Errorf("find user %s: %w", sc.ID, err)
		}
		o.Owner, o.OwnerRole, o.Domain = cluster.UserID(u.ID), authz.Role(u.Role), u.DomainName
	}
	return authz.QuotaScopes.Check(a, authz.See, o) // superadmins and monitors see scopes whose owners are gone, too
}

func (s *Service) quota(ctx context.Context, host string, sc cluster.QuotaScope) (Quota, error) {
	v, err := s.knownHost(host)
	if err != nil {
		return Quota{}, err
	}
	out := Quota{Host: host, Scope: sc}
	row, err := s.d.Store.GetScope(ctx, host, sc.String())
	if err != nil && !store.Missing(err) {
		return out, fmt.Errorf("read scope %s: %w", sc, err)
	}
	out.Own = row.OwnBytes != nil
	n, err := s.d.Store.CountScopeFolders(ctx, host, sc.String())
	if err != nil {
		return out, fmt.Errorf("count folders of scope %s: %w", sc, err)
	}
	out.Folders = int(n)
	var r storage.ScopeReply
	err = s.d.Proxies.Do(ctx, v.proxy, "GET", storage.PathScope, storage.ScopeRequest{Volume: v.Name, Scope: sc.String()}, &r)
	switch {
	case fault.Is(err, fault.NotFound): // nobody made it yet
		out.UsedBytes = new(int64)
		out.LimitBytes = row.OwnBytes
		return out, nil
	case err != nil:
		return out, fmt.Errorf("read scope %s on %s: %w", sc, host, err)
	}
	out.UsedBytes, out.LowerBound = r.UsedBytes, r.LowerBound
	if r.LimitBytes != nil && *r.LimitBytes >= 0 {
		out.LimitBytes = r.LimitBytes
	}
	return out, nil
}

// SetQuotaScope limits a scope on a host (superadmins).
func (s *Service) SetQuotaScope(ctx context.Context, a authz.Actor, host, scope string, bytes int64) (_ Quota, err error) {
	ctx, end := audit.Begin(ctx, s.d.Store, a, "quota.set", host+" "+scope)
	defer end(&err)
	if err := authz.QuotaScopes.Need(a, authz.Administer, authz.Object{}, "limit what scopes hold"); err != nil {
		return Quota{}, err
	}
	if bytes < 0 {
		return Quota{}, fault.Invalidf("a scope cannot be limited to %d bytes", bytes).WithNext("give 0 or more; to take a limit away, unset it")
	}
	return s.limitScope(ctx, host, scope, &bytes)
}

// UnsetQuotaScope takes back what SetQuotaScope set: the policy's limit holds again (superadmins).
func (s *Service) UnsetQuotaScope(ctx context.Context, a authz.Actor, host, scope string) (_ Quota, err error) {
	ctx, end := audit.Begin(ctx, s.d.Store, a, "quota.unset", host+" "+scope)
	defer end(&err)
	if err := authz.QuotaScopes.Need(a, authz.Administer, authz.Object{}, "limit what scopes hold"); err != nil {
		return Quota{}, err
	}
	return s.limitScope(ctx, host, scope, nil)
}

// limitScope writes what shall hold and tells the proxy. When that fails Loop does it later.
func (s *Service) limitScope(ctx context.Context, host, scope string, bytes *int64) (Quota, error) {
	sc, err := cluster.ParseQuotaScope(scope)
	if err != nil {
		return Quota{}, err
	}
	v, err := s.knownHost(host)
	if err != nil {
		return Quota{}, err
	}
	if err := s.d.Store.SetScope(ctx, host, sc.String(), bytes); err != nil {
		return Quota{}, fmt.Errorf("store the limit of scope %s: %w", sc, err)
	}
	want := int64(-1)
	if bytes != nil {
		want = *bytes
	} else if _, want, err = limits(ctx, s.d.Store.Queries, sc.Kind, sc.ID); err != nil {
		return Quota{}, err
	}
	if err := s.applyScope(ctx, cluster.VolumeHost{Proxy: v.proxy, Volume: v.Name}, sc, want); err != nil {
		s.d.Store.Wake(store.TopicFolders)
		return Quota{}, err
	}
	return s.quota(ctx, host, sc)
}

// GetQuota is QuotaScope of a folder's scope; host "" is the folder's.
func (s *Service) GetQuota(ctx context.Context, a authz.Actor, host, ref string) (Quota, error) {
	f, err := s.onHost(ctx, a, host, ref)
	if err != nil {
		return Quota{}, err
	}
	// Who was granted a folder does not learn what else its owner has.
	if err := s.maySeeScope(ctx, a, f.Scope); err != nil {
		if denied := f.needOwner(a, "see the quota of"); denied != nil {
			return Quota{}, denied
		}
		return Quota{}, err
	}
	return s.quota(ctx, f.Host, f.Scope)
}

// SetQuota is SetQuotaScope of a folder's scope.
func (s *Service) SetQuota(ctx context.Context, a authz.Actor, host, ref string, bytes int64) (_ Quota, err error) {
	ctx, end := audit.Begin(ctx, s.d.Store, a, "quota.set", ref)
	defer end(&err)
	if err := authz.QuotaScopes.Need(a, authz.Administer, authz.Object{}, "limit what scopes hold"); err != nil {
		return Quota{}, err
	}
	f, err := s.onHost(ctx, a, host, ref)
	if err != nil {
		return Quota{}, err
	}
	return s.SetQuotaScope(ctx, a, f.Host, f.Scope.String(), bytes)
}

// UnsetQuota is UnsetQuotaScope of a folder's scope.
func (s *Service) UnsetQuota(ctx context.Context, a authz.Actor, host, ref string) (_ Quota, err error) {
	ctx, end := audit.Begin(ctx, s.d.Store, a, "quota.unset", ref)
	defer end(&err)
	if err := authz.QuotaScopes.Need(a, authz.Administer, authz.Object{}, "limit what scopes hold"); err != nil {
		return Quota{}, err
	}
	f, err := s.onHost(ctx, a, host, ref)
	if err != nil {
		return Quota{}, err
	}
	return s.UnsetQuotaScope(ctx, a, f.Host, f.Scope.String())
}
