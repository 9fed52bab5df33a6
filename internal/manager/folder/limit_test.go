package folder_test

import (
	"slices"
	"testing"

	"berth.dev/berth/internal/fault"
	"berth.dev/berth/internal/manager/folder"
)

// The policy of projects limits the folders of a project, and its list of hosts adds to what the domain allows.
func TestProjectsHaveLimits(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	ctx := t.Context()
	r.sql("UPDATE project_resource_policies SET max_vfolder_count = 1, max_quota_scope_size = 700")
	f := r.create(r.admin, "first", of(r.project))
	if got := r.proxy.limits[f.Scope.String()]; got != 700 {
		t.Errorf("the scope's limit is %d", got)
	}
	_, err := r.Create(ctx, r.admin, folder.CreateInput{Name: "second", Host: host, Project: string(r.project)})
	wantKind(t, err, fault.Exhausted, "one folder more than the project's policy allows")
	r.create(r.admin, "of another", of(r.other))

	r.sql("UPDATE domains SET allowed_vfolder_hosts = '{}'")
	_, err = r.Create(ctx, r.alice, folder.CreateInput{Name: "mine", Host: host})
	wantKind(t, err, fault.Denied, "a host that nobody allows")
	r.sql(`UPDATE projects SET allowed_vfolder_hosts = '{"p:v": ["create-vfolder"]}' WHERE id = $1`, r.project)
	hosts, err := r.Hosts(ctx, r.alice, string(r.project))
	r.must(err)
	if !slices.Contains(hosts.Allowed, host) {
		t.Errorf("the project's list is not heeded: %v", hosts.Allowed)
	}
	if hosts, err = r.Hosts(ctx, r.alice, string(r.other)); err != nil || len(hosts.Allowed) > 0 {
		t.Errorf("another project's list counts: %v, %v", hosts.Allowed, err)
	}
}
