package folder

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"

	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/manager/authz"
)

func TestAccess(t *testing.T) {
	t.Parallel()
	actor := func(id, role, domain string, projects ...cluster.ProjectID) authz.Actor {
		return authz.Actor{UserID: cluster.UserID(id), AccessKey: "k", Role: authz.Role(role), Domain: domain, Projects: projects}
	}
	const ro, rw, wd = cluster.ReadOnly, cluster.ReadWrite, cluster.ReadWriteDelete
	mine := authz.Object{Owner: "u", OwnerRole: "user", Domain: "d", Permission: rw}
	readOnly := authz.Object{Owner: "u", OwnerRole: "user", Domain: "d", Permission: ro}
	granted := authz.Object{Owner: "u", OwnerRole: "user", Domain: "d", Permission: rw, Granted: ro, Given: true}
	roots := authz.Object{Owner: "u", OwnerRole: "superadmin", Domain: "d", Permission: rw}
	project := authz.Object{Project: "p", Domain: "d", Permission: rw}
	override := authz.Object{Project: "p", Domain: "d", Permission: rw, Granted: ro, Given: true}
	model := authz.Object{Project: "p", Domain: "d", Permission: ro, ProjectType: "model-store", Creator: "u"}
	for _, c := range []struct {
		name string
		a    authz.Actor
		h    authz.Object
		want access
	}{
		{"owner", actor("u", "user", "d"), mine, access{true, true, true, false, wd}},
		{"owner of a read-only folder", actor("u", "user", "d"), readOnly, access{true, true, true, false, wd}},
		{"stranger", actor("x", "user", "d"), mine, access{}},
		{"nobody", authz.Actor{}, mine, access{}},
		{"granted", actor("x", "user", "d"), granted, access{true, true, false, true, ro}},
		{"granted administrator", actor("x", "admin", "d"), granted, access{true, true, true, true, ro}},
		{"domain administrator", actor("x", "admin", "d"), mine, access{true, false, true, false, wd}},
		{"administrator of another domain", actor("x", "admin", "e"), mine, access{}},
		{"administrator of a superadmin's domain", actor("x", "admin", "d"), roots, access{}},
		{"superadmin", actor("x", "superadmin", "e"), roots, access{true, false, true, false, wd}},
		{"monitor", actor("x", "monitor", "e"), mine, access{visible: true}},
		{"member", actor("x", "user", "d", "p"), project, access{true, true, false, false, rw}},
		{"member with another permission", actor("x", "user", "d", "p"), override, access{true, true, false, false, ro}},
		{"no member any more", actor("x", "user", "d"), override, access{}},
		{"administrator and member", actor("x", "admin", "d", "p"), project, access{true, true, true, false, wd}},
		{"administrator, no member", actor("x", "admin", "d"), project, access{true, false, true, false, wd}},
		{"creator of a model", actor("u", "user", "d", "p"), model, access{true, true, true, false, wd}},
		{"other member of a model store", actor("x", "user", "d", "p"), model, access{true, true, false, false, ro}},
		{"creator who left", actor("u", "user", "d"), model, access{}},
	} {
		if got := accessOf(c.a, c.h); got != c.want {
			t.Errorf("%s: got %+v, want %+v", c.name, got, c.want)
		}
	}
	if got := rightsOf(actor("x", "user", "d"), granted); !slices.Equal(got, []string{"read_attribute", "read_content", "mount_ro"}) {
		t.Errorf("rights of a reader = %v", got)
	}
	want := []string{"read_attribute", "update_attribute", "delete_vfolder", "assign_permission_to_others", "clone", "read_content",
		"mount_ro", "write_content", "delete_content"}
	if got := rightsOf(actor("u", "user", "d"), readOnly); !slices.Equal(got, want) {
		t.Errorf("rights of the owner of a read-only folder = %v", got)
	}
}

func TestPermits(t *testing.T) {
	t.Parallel()
	p := permits{}
	for _, raw := range []string{`{"a:b": ["mount-in-session"], "c:d": []}`, `["e:f"]`, `{"a:b": ["upload-file", "unheard-of"]}`, `null`, `7`,
		`{"x:y": "all"}`, ``} {
		p.add(json.RawMessage(raw))
	}
	if got := p.list("a:b"); !slices.Equal(got, []HostPermission{PermitMount, PermitUpload}) {
		t.Errorf("a:b allows %v", got)
	}
	if got := p.list("e:f"); len(got) != len(AllPermissions()) {
		t.Errorf("an older list allows %v", got)
	}
	if len(p.list("c:d"))+len(p.list("x:y")) > 0 {
		t.Error("nothing became something")
	}
}

func TestNames(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"data", "a b", ".local", ".linuxbrew", "Größe-1_x.y", "x (2)", "__", strings.Repeat("ß", 64)} {
		if err := checkName(name, OfUser, UsageGeneral); err != nil {
			t.Errorf("%q: %v", name, err)
		}
	}
	for _, name := range []string{"", ".", "..", "...", strings.Repeat("ß", 65), "a\xff", "a/b", "a\x00", "a\n", " a", "a ", ".ssh", ".bashrc",
		".zsh_profile", ".terminfo", ".jupyter", ".tmux.conf", "home", "tmp", "_",
		"0f5e1f6a-1f0c-4a50-a1a0-0123456789ab", "0f5e1f6a1f0c4a50a1a00123456789ab", "a:b", "a,b", "a=b"} {
		if checkName(name, OfUser, UsageGeneral) == nil {
			t.Errorf("%q is allowed", name)
		}
	}
}

func TestFilePaths(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{"": ".", ".": ".", "/": ".", "./a//b/": "a/b", "/a": "a", "a/./b": "a/b", "..a": "..a"} {
		if got, err := filePath(text); err != nil || got != want {
			t.Errorf("%q: %q, %v", text, got, err)
		}
	}
	for _, text := range []string{"..", "a/../b", "../a", "a\x00"} {
		if _, err := filePath(text); err == nil {
			t.Errorf("%q is allowed", text)
		}
	}
}
