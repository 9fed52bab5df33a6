package folder

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"

	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/fault"
	"berth.dev/berth/internal/manager/audit"
	"berth.dev/berth/internal/manager/authz"
	"berth.dev/berth/internal/manager/store"
	"berth.dev/berth/internal/manager/store/dbgen"
	"berth.dev/berth/internal/manager/tenancy"
	"berth.dev/berth/internal/wire/storage"
)

// SettingDefaultHost is the cluster setting (a JSON text) with the host of folders that name none.
const SettingDefaultHost = "volumes/default_host"

// FirstHost is the host that a fresh cluster allows and takes by default: the one of `berth up`.
const FirstHost = "local:volume1"

// FirstHosts is what a fresh cluster's domain allows.
func FirstHosts() map[string]any {
	return map[string]any{FirstHost: AllPermissions()}
}

// permits holds the permissions that policies give an actor, by host.
type permits map[string]map[HostPermission]bool

// add adds what one policy allows: {"host": ["permission", ...]}, or ["host", ...] for all permissions on these hosts.
func (p permits) add(raw json.RawMessage) {
	var lists map[string][]HostPermission
	if json.Unmarshal(raw, &lists) != nil {
		var hosts []string
		if json.Unmarshal(raw, &hosts) != nil {
			return // neither of the two forms: it allows nothing
		}
		lists = map[string][]HostPermission{}
		for _, h := range hosts {
			lists[h] = AllPermissions()
		}
	}
	for host, list := range lists {
		for _, one := range list {
			if p[host] == nil {
				p[host] = map[HostPermission]bool{}
			}
			p[host][one] = true
		}
	}
}

// permitsOf returns what the policies of a domain, of projects and of a keypair allow together.
func permitsOf(r dbgen.HostsAllowedRow) permits {
	p := permits{}
	p.add(r.DomainHosts)
	var projects []json.RawMessage
	_ = json.Unmarshal(r.ProjectHosts, &projects) // an array that the query made
	for _, raw := range projects {
		p.add(raw)
	}
	p.add(r.KeypairHosts)
	return p
}

// list is what is allowed on a host, in the wire's order.
func (p permits) list(host string) []HostPermission {
	out := []HostPermission{}
	for _, one := range AllPermissions() {
		if p[host][one] {
			out = append(out, one)
		}
	}
	return out
}

// need returns an error unless the permission what is given on the host. name is the folder's, for the text; "" when there is none yet.
func (p permits) need(a authz.Actor, what HostPermission, host, name string) error {
	if p[host][what] {
		return nil
	}
	about := "on host " + host
	if name != "" {
		about = "with folder " + name + " on host " + host
	}
	return fault.Deniedf("%s has no permission %s %s", a.Email, what, about).
		WithNext("ask an administrator to add %s for %s to allowed_vfolder_hosts of your domain, project or resource policy", what, host)
}

// permits reads what policies allow the actor on hosts, for folders of a project or, if project is "", of users.
func (s *Service) permits(ctx context.Context, q *dbgen.Queries, a authz.Actor, project cluster.ProjectID) (permits, error) {
	projects := []string{string(project)}
	if project == "" {
		projects = store.Texts(a.Projects)
	}
	r, err := q.HostsAllowed(ctx, a.Domain, projects, string(a.AccessKey))
	if err != nil {
		return nil, fmt.Errorf("read allowed folder hosts: %w", err)
	}
	return permitsOf(r), nil
}

// needHost returns an error unless policies give the actor the permission what on the folder's host.
func (s *Service) needHost(ctx context.Context, a authz.Actor, f Folder, what HostPermission) error {
	p, err := s.permits(ctx, s.d.Store.Queries, a, f.ProjectID)
	if err != nil {
		return err
	}
	return p.need(a, what, f.Host, f.Name)
}

// seen is a volume as the nodes of its storage proxy announce it.
type seen struct {
	storage.Volume
	proxy      string
	sftpGroups []string
	nodes      int // how many of them are live
}

func (v seen) host() string { return v.proxy + ":" + v.Name }

func (v seen) problem() string {
	if v.nodes == 0 {
		return "its storage proxy is not connected"
	}
	return v.Problem
}

func (v seen) usedPercent() *float64 {
	if v.CapacityBytes <= 0 {
		return nil
	}
	return new(100 * float64(v.UsedBytes) / float64(v.CapacityBytes))
}

// volumes returns all volumes that proxies announce, by host. Where several nodes serve a volume, an announcement without a problem counts
// before one with a problem, then the newest.
func (s *Service) volumes() map[string]seen {
	out := map[string]seen{}
	live, gone := s.d.Proxies.View()
	take := func(p storage.Presence, nodes int) {
		for _, v := range p.Volumes {
			now := seen{Volume: v, proxy: p.Proxy, sftpGroups: p.SFTPGroups, nodes: nodes}
			was, there := out[now.host()]
			if there && (was.Problem == "" && v.Problem != "" || (was.Problem == "") == (v.Problem == "") && !v.CheckedAt.After(was.CheckedAt)) {
				now.Volume = was.Volume
			}
			now.nodes += was.nodes
			out[now.host()] = now
		}
	}
	for _, p := range live {
		take(p, 1)
	}
	for _, p := range gone {
		for _, v := range p.Volumes {
			if _, there := out[p.Proxy+":"+v.Name]; !there {
				take(storage.Presence{Proxy: p.Proxy, SFTPGroups: p.SFTPGroups, Volumes: []storage.Volume{v}}, 0)
			}
		}
	}
	return out
}

// knownHost finds a volume that can be used now.
func (s *Service) knownHost(host string) (seen, error) {
	h, err := cluster.ParseVolumeHost(host)
	if err != nil {
		return seen{}, err
	}
	v, ok := s.volumes()[host]
	switch {
	case !ok:
		return seen{}, authz.NotFound(hostNoun, host)
	case v.nodes == 0:
		return v, noProxy(h.Proxy)
	case v.Problem != "":
		return v, fault.Unavailablef("folder host %s cannot be used now: %s", host, v.Problem).WithReason("storage-proxy-error").
			WithNext("ask an administrator to look at the storage proxy %s", h.Proxy)
	}
	return v, nil
}

// defaultHost is "" when none is set or what is set is not among the hosts.
func (s *Service) defaultHost(ctx context.Context, among func(host string) bool) (string, error) {
	raw, err := s.d.Store.GetSetting(ctx, SettingDefaultHost)
	if store.Missing(err) {
		if among(FirstHost) {
			return FirstHost, nil
		}
		return "", nil
	}
	var host string
	if err == nil {
		err = json.Unmarshal(raw, &host)
	}
	if err != nil {
		return "", fmt.Errorf("read setting %s: %w", SettingDefaultHost, err)
	}
	if !among(host) {
		return "", nil
	}
	return host, nil
}

// SetDefaultHost chooses the host of folders that name none; "" is none (superadmins).
func (s *Service) SetDefaultHost(ctx context.Context, a authz.Actor, host string) (err error) {
	ctx, end := audit.Begin(ctx, s.d.Store, a, "folder-host.set-default", host)
	defer end(&err)
	if err := authz.FolderHosts.Need(a, authz.Administer, authz.Object{}, "choose the default folder host"); err != nil {
		return err
	}
	if host != "" {
		if _, err := cluster.ParseVolumeHost(host); err != nil {
			return err
		}
	}
	raw, err := json.Marshal(host)
	if err == nil {
		err = s.d.Store.SetSetting(ctx, SettingDefaultHost, raw)
	}
	if err != nil {
		return fmt.Errorf("store setting %s: %w", SettingDefaultHost, err)
	}
	return nil
}

// Hosts are those that the actor may use, in a project (id or name) or "" for all of the actor's.
func (s *Service) Hosts(ctx context.Context, a authz.Actor, project string) (Hosts, error) {
	if err := authz.Authenticated(a); err != nil {
		return Hosts{}, err
	}
	var id cluster.ProjectID
	if project != "" {
		p, err := s.d.Tenancy.VisibleProject(ctx, a, project, a.Domain)
		if err != nil {
			return Hosts{}, err
		}
		id = cluster.ProjectID(p.ID)
	}
	allowed, err := s.permits(ctx, s.d.Store.Queries, a, id)
	if err != nil {
		return Hosts{}, err
	}
	known := s.volumes()
	out := Hosts{Allowed: []string{}, Info: map[string]HostInfo{}}
	for host := range allowed {
		v, there := known[host]
		if !there {
			continue
		}
		out.Allowed = append(out.Allowed, host)
		out.Info[host] = HostInfo{Backend: v.Backend, Capabilities: orEmpty(v.Capabilities), UsedPercent: v.usedPercent(),
			SFTPGroups:  orEmpty(v.sftpGroups),
			Permissions: allowed.list(host), Problem: v.problem()}
	}
	slices.Sort(out.Allowed)
	out.Default, err = s.defaultHost(ctx, func(h string) bool { return slices.Contains(out.Allowed, h) })
	return out, err
}

func orEmpty(list []string) []string {
	if list == nil {
		return []string{}
	}
	return list
}

// AllHosts are all that are known (superadmins); Info is empty.
func (s *Service) AllHosts(ctx context.Context, a authz.Actor) (Hosts, error) {
	if err := authz.FolderHosts.Need(a, authz.Administer, authz.Object{}, "list all folder hosts"); err != nil {
		return Hosts{}, err
	}
	known := s.volumes()
	out := Hosts{Allowed: slices.Sorted(maps.Keys(known)), Info: map[string]HostInfo{}}
	if out.Allowed == nil {
		out.Allowed = []string{}
	}
	var err error
	out.Default, err = s.defaultHost(ctx, func(h string) bool { _, ok := known[h]; return ok })
	return out, err
}

// AllowedTypes are the kinds of ownership that folders may have.
func (s *Service) AllowedTypes(_ context.Context, a authz.Actor) ([]Ownership, error) {
	if err := authz.Authenticated(a); err != nil {
		return nil, err
	}
	return []Ownership{OfUser, OfProject}, nil
}

// PermissionsOfHosts are all permissions that policies may list.
func (s *Service) PermissionsOfHosts(_ context.Context, a authz.Actor) ([]HostPermission, error) {
	if err := authz.Authenticated(a); err != nil {
		return nil, err
	}
	return AllPermissions(), nil
}

// Volumes are all that proxies have (superadmins and monitors).
func (s *Service) Volumes(_ context.Context, a authz.Actor) ([]Volume, error) {
	if err := authz.FolderHosts.Need(a, authz.See, authz.Object{}, "look at volumes"); err != nil {
		return nil, err
	}
	known := s.volumes()
	out := make([]Volume, 0, len(known))
	for _, host := range slices.Sorted(maps.Keys(known)) {
		v := known[host]
		out = append(out, Volume{ID: host, Backend: v.Backend, Path: v.Path, FSPrefix: v.FSPrefix, Capabilities: orEmpty(v.Capabilities),
			CapacityBytes: v.CapacityBytes,
			UsedBytes:     v.UsedBytes, SFTPGroups: orEmpty(v.sftpGroups), Nodes: v.nodes, Problem: v.problem(), CheckedAt: v.CheckedAt.UTC()})
	}
	return out, nil
}

// Volume is one of Volumes.
func (s *Service) Volume(ctx context.Context, a authz.Actor, host string) (Volume, error) {
	all, err := s.Volumes(ctx, a)
	if err != nil {
		return Volume{}, err
	}
	for _, v := range all {
		if v.ID == host {
			return v, nil
		}
	}
	return Volume{}, authz.NotFound(hostNoun, host)
}

// PerfMetric is what a proxy measures of a volume, as it says it (superadmins).
func (s *Service) PerfMetric(ctx context.Context, a authz.Actor, host string) (json.RawMessage, error) {
	if err := authz.FolderHosts.Need(a, authz.Administer, authz.Object{}, "look at the performance of volumes"); err != nil {
		return nil, err
	}
	v, err := s.knownHost(host)
	if err != nil {
		return nil, err
	}
	var raw json.RawMessage
	err = s.d.Proxies.Do(ctx, v.proxy, "GET", storage.PathMetric, map[string]string{"volume": v.Name}, &raw)
	return raw, err
}

// AllowFirstHosts lets everybody of the first domain use the volume that comes with `berth up`, once: what administrators
// change later stays.
func AllowFirstHosts(ctx context.Context, tx *store.Tx) error {
	_, err := tx.GetSetting(ctx, SettingDefaultHost)
	if !store.Missing(err) {
		return err
	}
	hosts, err := json.Marshal(FirstHosts())
	if err != nil {
		return err
	}
	if err := tx.AllowFirstHosts(ctx, hosts, tenancy.Default); err != nil {
		return fmt.Errorf("allow the first folder hosts: %w", err)
	}
	host, _ := json.Marshal(FirstHost) // a string always encodes
	return tx.SetSetting(ctx, SettingDefaultHost, host)
}
