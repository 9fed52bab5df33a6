package graphapi

import (
	"context"
	"strings"

	"berth.dev/berth/internal/fault"
	"berth.dev/berth/internal/manager/folder"
	"berth.dev/berth/internal/manager/graphapi/gqlexec"
	"berth.dev/berth/internal/manager/graphapi/model"
)

type storageVolumes struct{ *resolver }

func (r *resolver) StorageVolume() gqlexec.StorageVolumeResolver { return storageVolumes{r} }

func toVolume(v folder.Volume) *model.StorageVolume {
	proxy, name, _ := strings.Cut(v.ID, ":")
	state := map[string]any{"status": "healthy", "status_info": nil, "metadata": map[string]any{"nodes": v.Nodes}}
	if v.Problem != "" {
		state["status"], state["status_info"] = "unavailable", v.Problem
	}
	m := &model.StorageVolume{
		ID: &v.ID, Backend: &v.Backend, Fsprefix: &v.FSPrefix, Path: &v.Path, Proxy: &proxy, Name: &name,
		Capabilities: texts(v.Capabilities), HardwareMetadata: jsonText(state), Usage: new("{}"),
	}
	if v.CapacityBytes > 0 {
		m.Usage = jsonText(map[string]int64{"capacity_bytes": v.CapacityBytes, "used_bytes": v.UsedBytes})
	}
	return m
}

func (q queries) StorageVolume(ctx context.Context, id *string) (*model.StorageVolume, error) {
	v, err := q.folders.Volume(ctx, q.who(ctx), value(id))
	if fault.Is(err, fault.NotFound) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	return toVolume(v), nil
}

func (q queries) StorageVolumeList(ctx context.Context, limit, offset int, filter, order *string) (*model.StorageVolumeList, error) {
	p, err := q.folders.SearchVolumes(
		ctx, q.who(ctx), folder.SearchQuery{Query: page(filter, order, limit, offset)},
	)
	if err != nil {
		return nil, err
	}
	return &model.StorageVolumeList{Items: convert(p.Items, toVolume), TotalCount: &p.Total}, nil
}

// PerformanceMetric asks the volume's proxy, and only when a client wants it; null when it does not answer.
func (s storageVolumes) PerformanceMetric(ctx context.Context, v *model.StorageVolume) (*string, error) {
	raw, err := s.folders.PerfMetric(ctx, s.who(ctx), value(v.ID))
	switch {
	case fault.Is(err, fault.Unavailable),
		fault.Is(err, fault.Timeout),
		fault.Is(err, fault.NotFound),
		fault.Is(err, fault.Invalid),
		fault.Is(err, fault.Denied):
		return nil, nil
	case err != nil:
		return nil, err
	}
	return new(string(raw)), nil
}

func (q queries) VfolderHostPermissions(ctx context.Context) (*model.PredefinedAtomicPermission, error) {
	all, err := q.folders.PermissionsOfHosts(ctx, q.who(ctx))
	if err != nil {
		return nil, err
	}
	return &model.PredefinedAtomicPermission{VfolderHostPermissionList: texts(all)}, nil
}

func toQuota(q folder.Quota) *model.QuotaScope {
	return &model.QuotaScope{
		ID: globalID(nodeOfScope, q.Host+"/"+q.Scope.String()), QuotaScopeID: q.Scope.String(), StorageHostName: q.Host,
		Details: &model.QuotaDetails{UsageBytes: q.UsedBytes, HardLimitBytes: q.LimitBytes},
	}
}

func (q queries) QuotaScope(ctx context.Context, host, scope string) (*model.QuotaScope, error) {
	found, err := q.folders.QuotaScope(ctx, q.who(ctx), host, scope)
	if err != nil {
		return nil, err
	}
	return toQuota(found), nil
}

// SetQuotaScope limits a scope; a null limit is none of its own.
func (m mutations) SetQuotaScope(ctx context.Context, scope, host string, p model.QuotaScopeInput) (*model.SetQuotaScope, error) {
	var now folder.Quota
	var err error
	if p.HardLimitBytes == nil {
		now, err = m.folders.UnsetQuotaScope(ctx, m.who(ctx), host, scope)
	} else {
		now, err = m.folders.SetQuotaScope(ctx, m.who(ctx), host, scope, *p.HardLimitBytes)
	}
	if err != nil {
		return nil, err
	}
	return &model.SetQuotaScope{QuotaScope: toQuota(now)}, nil
}

func (m mutations) UnsetQuotaScope(ctx context.Context, scope, host string) (*model.UnsetQuotaScope, error) {
	now, err := m.folders.UnsetQuotaScope(ctx, m.who(ctx), host, scope)
	if err != nil {
		return nil, err
	}
	return &model.UnsetQuotaScope{QuotaScope: toQuota(now)}, nil
}
