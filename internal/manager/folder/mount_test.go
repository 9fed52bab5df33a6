package folder

import (
	"strings"
	"testing"

	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/fault"
)

func TestPlanMounts(t *testing.T) {
	t.Parallel()
	const own, theirs = cluster.ProjectID("p"), cluster.ProjectID("q")
	volume := &seen{}
	volume.Path, volume.OwnerUID = "/vol", 9001
	user := cluster.QuotaScope{Kind: cluster.UserScope, ID: "0f5e1f6a-1f0c-4a50-a1a0-0123456789ab"}
	known := map[string]*mountable{}
	add := func(name string, change func(m *mountable)) {
		m := &mountable{Folder: Folder{ID: cluster.FolderID("id-" + name), Name: name, Host: "p:v", Scope: user, Status: cluster.FolderReady,
			Ownership: OfUser,
			Effective: cluster.ReadWriteDelete, UserEmail: "a@x"}, reach: true, permit: true, volume: volume,
			most: cluster.ReadWriteDelete, project: own}
		if change != nil {
			change(m)
		}
		known[name] = m
	}
	add("data", nil)
	add("more", nil)
	add("ro", func(m *mountable) { m.Effective, m.most = cluster.ReadOnly, cluster.ReadOnly })
	add("proj", func(m *mountable) { m.Ownership, m.ProjectID = OfProject, own })
	add("foreign", func(m *mountable) { m.Ownership, m.ProjectID = OfProject, theirs })
	add("trashed", func(m *mountable) { m.Status = cluster.FolderDeletePending })
	add("cloning", func(m *mountable) { m.Status = cluster.FolderCloning })
	add("managed", func(m *mountable) { m.reach = false })
	add("nohost", func(m *mountable) { m.permit = false })
	add("unknown", func(m *mountable) { m.volume = nil })
	add("legacy", func(m *mountable) { m.UnmanagedPath = "/x" })
	add(".local", nil)
	add(".linuxbrew", nil)
	add(".broken", func(m *mountable) { m.Status = cluster.FolderError })
	add(".away", func(m *mountable) { m.volume = nil })
	auto := func(names ...string) (out []mountable) {
		for _, n := range names {
			out = append(out, *known[n])
		}
		return out
	}
	for _, c := range []struct {
		name string
		r    MountRequest
		auto []mountable
		want string // "name/sub@target(perm)" in order
		kind fault.Kind
	}{
		{name: "nothing", want: ""},
		{name: "default target", r: MountRequest{Mounts: []string{"data"}}, want: "data@/home/work/data(wd)"},
		{name: "relative and absolute", r: MountRequest{Mounts: []string{"data", "more"},
			MountMap: map[string]string{"data": "in", "more": "/data/more/"}},
			want: "data@/home/work/in(wd) more@/data/more(wd)"},
		{name: "only in the map", r: MountRequest{MountMap: map[string]string{"data": "/srv/data"}}, want: "data@/srv/data(wd)"},
		{name: "sub-directory", r: MountRequest{Mounts: []string{"data/a/b/"}, MountMap: map[string]string{"data/a/b/": "ab"}},
			want: "data/a/b@/home/work/ab(wd)"},
		{name: "two of one folder", r: MountRequest{Mounts: []string{"data/a", "data/b"},
			MountMap: map[string]string{"data/a": "a", "data/b": "b"}},
			want: "data/a@/home/work/a(wd) data/b@/home/work/b(wd)"},
		{name: "sub-path option", r: MountRequest{Mounts: []string{"data"},
			Options: map[string]MountOption{"data": {Subpath: "./x", Permission: "ro", Target: "t"}}}, want: "data/x@/home/work/t(ro)"},
		{name: "named twice", r: MountRequest{Mounts: []string{"data", "data"}}, want: "data@/home/work/data(wd)"},
		{name: "rw of wd", r: MountRequest{Mounts: []string{"data"}, Options: map[string]MountOption{"data": {Permission: "rw"}}},
			want: "data@/home/work/data(rw)"},
		{name: "read-only stays", r: MountRequest{Mounts: []string{"ro"}}, want: "ro@/home/work/ro(ro)"},
		{name: "project folders", r: MountRequest{Mounts: []string{"proj", "foreign"}}, want: "proj@/home/work/proj(wd)"},
		{name: "automatic", auto: auto(".local", ".linuxbrew", ".broken", ".away"),
			want: ".local@/home/work/.local(wd) .linuxbrew@/home/linuxbrew/.linuxbrew(wd)"},
		{name: "automatic, asked for as well", r: MountRequest{Mounts: []string{".local"},
			Options: map[string]MountOption{".local": {Permission: "ro"}}}, auto: auto(".local"),
			want: ".local@/home/work/.local(ro)"},
		{name: "automatic in the way", r: MountRequest{Mounts: []string{"data"}, MountMap: map[string]string{"data": ".local/x"}},
			auto: auto(".local"), want: "data@/home/work/.local/x(wd)"},

		{name: "no such", r: MountRequest{Mounts: []string{"managed"}}, kind: fault.NotFound},
		{name: "rw of read-only", r: MountRequest{Mounts: []string{"ro"}, Options: map[string]MountOption{"ro": {Permission: "rw"}}},
			kind: fault.Invalid},
		{name: "trash", r: MountRequest{Mounts: []string{"trashed"}}, kind: fault.Conflict},
		{name: "cloning", r: MountRequest{Mounts: []string{"cloning"}}, kind: fault.Conflict},
		{name: "no permission of the host", r: MountRequest{Mounts: []string{"nohost"}}, kind: fault.Denied},
		{name: "unknown volume", r: MountRequest{Mounts: []string{"unknown"}}, kind: fault.Unavailable},
		{name: "unmanaged", r: MountRequest{Mounts: []string{"legacy"}}, kind: fault.Invalid},
		{name: "sources overlap", r: MountRequest{Mounts: []string{"data", "data/a"}, MountMap: map[string]string{"data/a": "a"}},
			kind: fault.Invalid},
		{name: "sources overlap within", r: MountRequest{Mounts: []string{"data/a", "data/a/b"},
			MountMap: map[string]string{"data/a": "x", "data/a/b": "y"}}, kind: fault.Invalid},
		{name: "one target", r: MountRequest{Mounts: []string{"data", "more"}, MountMap: map[string]string{"data": "x", "more": "/home/work/x"}},
			kind: fault.Invalid},
		{name: "targets within", r: MountRequest{Mounts: []string{"data", "more"},
			MountMap: map[string]string{"data": "/data", "more": "/data/y"}},
			kind: fault.Invalid},
		{name: "alias is a name", r: MountRequest{Mounts: []string{"data", "more", "ro"}, MountMap: map[string]string{"data": "more"}},
			kind: fault.Invalid},
		{name: "option for another", r: MountRequest{Mounts: []string{"data"}, Options: map[string]MountOption{"more": {}}}, kind: fault.Invalid},
		{name: "leaves the folder", r: MountRequest{Mounts: []string{"data/../x"}}, kind: fault.Invalid},
		{name: "no name", r: MountRequest{Mounts: []string{"/x"}}, kind: fault.Invalid},
		{name: "no id", r: MountRequest{MountIDs: []string{"data"}}, kind: fault.Invalid},
		{name: "bad permission", r: MountRequest{Mounts: []string{"data"}, Options: map[string]MountOption{"data": {Permission: "rwx"}}},
			kind: fault.Invalid},
		{name: "too many", r: MountRequest{Mounts: strings.Fields(strings.Repeat("data ", 70)), MountMap: many(70)}, kind: fault.Invalid},
	} {
		got, err := plan(c.r, known, c.auto)
		if c.kind != 0 {
			if !fault.Is(err, c.kind) {
				t.Errorf("%s: got %q, %v, want %v", c.name, got, err, c.kind)
			}
			continue
		}
		if err != nil || got != c.want {
			t.Errorf("%s: got %q, %v, want %q", c.name, got, err, c.want)
		}
	}
}

func many(n int) map[string]string {
	out := map[string]string{}
	for i := range n {
		out["data/"+strings.Repeat("x", i+1)] = strings.Repeat("y", i+1)
	}
	return out
}

func plan(r MountRequest, known map[string]*mountable, auto []mountable) (string, error) {
	sources, err := r.sources()
	if err != nil {
		return "", err
	}
	found := make([]*mountable, len(sources))
	for i, s := range sources {
		found[i] = known[s.folder]
	}
	mounts, err := planMounts("a@x", sources, found, auto)
	if err != nil {
		return "", err
	}
	var words []string
	for _, m := range mounts {
		name := m.Name
		if m.Subpath != "." {
			name += "/" + m.Subpath
		}
		words = append(words, name+"@"+m.Target+"("+string(m.Perm)+")")
	}
	return strings.Join(words, " "), nil
}

func TestTargets(t *testing.T) {
	t.Parallel()
	for wanted, want := range map[string]string{"": "/home/work/data", "x": "/home/work/x", "x/y": "/home/work/x/y", "/mnt/x": "/mnt/x",
		"/opt/tool":    "/opt/tool",
		"/home/work/x": "/home/work/x", "./x": "/home/work/x", "/data//x/": "/data/x", "/home/other": "/home/other",
		"/workspace": "/workspace", "/data": "/data"} {
		if got, err := targetFor("data", wanted); err != nil || got != want {
			t.Errorf("%q: %q, %v", wanted, got, err)
		}
	}
	for _, wanted := range []string{"/", "/home", "/home/work", ".", "/etc", "/tmp", "/usr", "/proc/x", "/dev/shm", "/sys/x", "/.berth",
		"/.berth/x", "/home/config/x", "..", "../x", "/a/../etc",
		"/tmp/x", "/usr/local/x", "/lib32/x", "/x", "/root/x", "/var/lib/x", "/opt/kernel/x", "/mnt",
		".ssh", ".ssh/keys", "/home/work/.ssh", ".bashrc", ".zsh_profile", "/lib64/x", "/run/x", "a:b", "a\nb", "/home/work/.jupyter/x",
		strings.Repeat("x", 1025)} {
		if got, err := targetFor("data", wanted); err == nil {
			t.Errorf("%q is %q", wanted, got)
		}
	}
}
