package plan_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"berth.dev/berth/internal/manager/tenancy/plan"
)

// written is a world with every form of property, an empty project, a service account and people who may use one group.
func written() *plan.Snapshot {
	s := world()
	for k, o := range s.Objects {
		if k.Kind == plan.User && k.Name != "ada@x" && k.Name != "bob@x" && k.Name != "grace@x" || k.Kind == plan.ProjectPolicy {
			delete(s.Objects, k)
		}
		if k.Kind == plan.KeypairPolicy {
			o.Attrs["resources"] = `{"cpu":"4","mem":"8g"}`
		}
	}
	physics := s.Objects[plan.Key{Kind: plan.Domain, Name: "physics"}].Attrs
	physics["description"], physics["active"] = "optics & lasers", "false"
	physics["total"], physics["registries"] = `{"cpu":"0.5"}`, `["a","b"]`
	physics["folder_hosts"] = `{"local:v":["download-file","mount-in-session"]}`
	ada := s.Objects[plan.Key{Kind: plan.User, Name: "ada@x"}].Attrs
	ada["full_name"], ada["allowed_from"] = "=1+1", `["10.0.0.0/8","::1"]`
	s.Objects[plan.Key{Kind: plan.Project, Domain: "physics", Name: "beams"}] = &plan.Object{
		Members: map[string]string{"ada@x": plan.Member}, Attrs: plan.Attrs{"type": "general"}}
	s.Objects[plan.Key{Kind: plan.Project, Domain: "default", Name: "empty"}] = &plan.Object{Attrs: plan.Attrs{"type": "general"}}
	s.Objects[plan.Key{Kind: plan.ResourceGroup, Name: "gpus"}].Allowed = map[string]bool{"domain:physics": true,
		"project:physics/lasers": true}
	machine := user("physics", "user")
	machine.Service = true
	s.Objects[plan.Key{Kind: plan.User, Name: "robot@x"}] = machine
	return s
}

func TestFilesAsTheyAreWritten(t *testing.T) {
	t.Parallel()
	require.Equal(t, `policies:
  keypair:
    default:
      resources: {cpu: "4", mem: 8g}
      max_sessions: 30
  user:
    default:
      max_folders: 0
domains:
  default:
    active: true
    projects:
      empty:
        type: general
        members: []
  physics:
    description: optics & lasers
    active: false
    total: {cpu: "0.5"}
    registries: [a, b]
    folder_hosts:
      local:v: [download-file, mount-in-session]
    projects:
      beams:
        type: general
        members:
          - ada@x
      lasers:
        type: general
        active: true
        policy: default
        members:
          - ada@x
        admins:
          - bob@x
    users:
      ada@x:
        username: ada@x
        full_name: =1+1
        role: user
        status: active
        policy: default
        keypair_policy: default
        allowed_from: [10.0.0.0/8, '::1']
      bob@x:
        username: bob@x
        role: user
        status: active
        policy: default
        keypair_policy: default
      grace@x:
        username: grace@x
        role: admin
        status: active
        policy: default
        keypair_policy: default
resource_groups:
  gpus:
    active: true
    public: true
    scheduler: fifo
    egress: open
    domains: [physics]
    projects: [physics/lasers]
`, string(plan.WriteYAML(written())))
	require.Equal(t, `email,username,full_name,description,domain,projects,role,status,policy,keypair_policy,allowed_from
ada@x,ada@x,'=1+1,,physics,beams|lasers,user,active,default,default,10.0.0.0/8|::1
bob@x,bob@x,,,physics,lasers,user,active,default,default,
grace@x,grace@x,,,physics,,admin,active,default,default,
`, string(plan.WriteCSV(written())))
	require.Equal(t, "{}\n", string(plan.WriteYAML(&plan.Snapshot{})))
}

// Every property is taken at its bounds and refused beyond them.
func TestPropertiesHaveBounds(t *testing.T) {
	t.Parallel()
	set := func(where, name string, v any) string {
		value := fmt.Sprint(v)
		if items, ok := v.([]string); ok {
			value = "[" + strings.Join(items, ", ") + "]"
		}
		text := map[string]string{
			"keypair": "policies: {keypair: {p: {%s: %s}}}", "user policy": "policies: {user: {p: {%s: %s}}}",
			"project policy": "policies: {project: {p: {%s: %s}}}", "domain": "domains: {physics: {%s: %s}}",
			"group": "resource_groups: {g: {%s: %s}}", "project": "domains: {physics: {projects: {lasers: {%s: %s}}}}",
			"user": "domains: {physics: {users: {ada@x: {%s: %s}}}}",
		}[where]
		s := world()
		s.Orders = nil
		_, bad := decide(t, fmt.Sprintf(text, name, value), s, root, false)
		return bad
	}
	for _, c := range []struct {
		where, name string
		low, high   int64
	}{
		{"keypair", "max_sessions", 0, 1<<31 - 1}, {"keypair", "max_sftp_sessions", 0, 1<<31 - 1}, {"keypair", "max_containers", 1, 10_000},
		{"keypair", "max_waiting", -1, 1<<31 - 1}, {"keypair", "max_priority", -1, 100}, {"keypair", "max_life", 0, 1<<31 - 1},
		{"keypair", "idle_timeout", 0, 1<<31 - 1}, {"user policy", "max_folders", 0, 1<<31 - 1},
		{"user policy", "max_folder_bytes", -1, 1<<63 - 1}, {"user policy", "max_images", 0, 1<<31 - 1},
		{"user policy", "max_replicas", 0, 1<<31 - 1}, {"project policy", "max_folders", 0, 1<<31 - 1},
		{"project policy", "max_folder_bytes", -1, 1<<63 - 1}, {"project policy", "max_networks", 0, 1<<31 - 1},
	} {
		require.Empty(t, set(c.where, c.name, c.low), c.name)
		require.Empty(t, set(c.where, c.name, c.high), c.name)
		require.Contains(t, set(c.where, c.name, c.low-1), c.name+" must be a number from", c.where)
		if c.high < 1<<63-1 {
			require.Contains(t, set(c.where, c.name, c.high+1), c.name+" must be a number from", c.where)
		}
	}
	for _, c := range []struct {
		where, name string
		most        int
	}{
		{"domain", "description", 512}, {"project", "description", 512}, {"group", "description", 512}, {"user", "description", 512},
		{"group", "scheduler", 64}, {"group", "egress", 4096}, {"user", "username", 64}, {"user", "full_name", 255},
	} {
		require.Empty(t, set(c.where, c.name, strings.Repeat("x", c.most)), c.name)
		require.Contains(t, set(c.where, c.name, strings.Repeat("x", c.most+1)), "bytes", c.name)
	}
	for where, name := range map[string]string{"domain": "registries", "user": "allowed_from"} {
		items := slices.Repeat([]string{""}, 101)
		for i := range items {
			items[i] = fmt.Sprintf("10.0.0.%d", i)
		}
		require.Empty(t, set(where, name, items[:100]), name)
		require.Contains(t, set(where, name, items), "has 101 items; 100 are the most")
	}
	long := strings.Repeat("s", 64)
	require.Empty(t, set("domain", "total", "{"+long+": 1}"))
	require.Contains(t, set("domain", "total", "{"+long+"s: 1}"), "is no amount of")
	require.Contains(t, set("domain", "total", "{cpu: [1]}"), "must be an amount such as")
	require.Contains(t, set("domain", "total", "{cpu: }"), "must be an amount such as")
	require.Contains(t, set("domain", "registries", "[a, '']"), "must be a text")
	require.Contains(t, set("domain", "registries", "[a, [b]]"), "must be a text")
	require.Contains(t, set("domain", "registries", "[a, ~]"), "must be a text")

	// What is wrong is told in part.
	eighty := strings.Repeat("k", 80)
	require.Contains(t, set("user", "role", eighty), eighty+`"`)
	require.Contains(t, set("user", "role", eighty+"k"), eighty+`…"`)
}

func TestValuesOfProperties(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		kind      plan.Kind
		name      string
		good, bad string
	}{
		{plan.Domain, "active", "true", "maybe"}, {plan.UserPolicy, "max_folders", "3", "three"}, {plan.User, "allowed_from", `["::1"]`, `{}`},
		{plan.Domain, "total", `{"cpu":"1"}`, `[]`}, {plan.Domain, "folder_hosts", `{"a":["b"]}`, `{"a":"b"}`},
	} {
		require.NoError(t, plan.Value(c.kind, c.name, c.good))
		require.ErrorContains(t, plan.Value(c.kind, c.name, c.bad), "is no value of "+c.name)
	}
	require.NoError(t, plan.Value(plan.User, "full_name", "anything"))
	require.ErrorContains(t, plan.Value(plan.User, "password", "x"), "is no property of a user")
	require.Equal(t, `["<a>","b"]`, plan.List([]string{"b", "<a>", "b"}))
	require.Equal(t, `{"h":["a","b"]}`, plan.Hosts(map[string]any{"h": []any{"b", "a", "b"}}))
}

// What one is refused depends on who the other is, and on networks that hold oneself.
func TestWhoIsChangedAndFromWhere(t *testing.T) {
	t.Parallel()
	own := "domains: {default: {users: {admin@x: {allowed_from: [%s]}}}}"
	for networks, fits := range map[string]bool{"10.0.0.1": true, "10.0.0.2": false, "10.0.0.0/8": true, "192.0.2.0/24": false,
		"'::ffff:10.0.0.1'": true, "'::1', 10.0.0.1": true, "": true} {
		_, bad := decide(t, fmt.Sprintf(own, networks), world(), root, false)
		require.Equal(t, !fits, strings.Contains(bad, "would shut you out"), "%s: %s", networks, bad)
	}
	_, bad := decide(t, "domains: {default: {users: {admin@x: {full_name: A}}}}", world(), plan.Who{Superadmin: true, Domain: "default",
		Email: "admin@x", Address: "192.0.2.1"}, false)
	require.Empty(t, bad)

	s := forDomain(world(), "physics")
	s.Objects[plan.Key{Kind: plan.User, Name: "root@x"}] = user("physics", "superadmin")
	_, bad = decide(t, "domains: {physics: {users: {root@x: {full_name: R}}}}", s, grace, false)
	require.Contains(t, bad, "root@x is a superadmin: changing them needs a superadmin")
	_, bad = decide(t, "domains: {physics: {users: {root@x: {role: superadmin}}}}", s, grace, false)
	require.Empty(t, bad, "what is said already changes nothing")
	p, bad := decide(t, "domains: {physics: {users: {root@x: {role: user}}}}", s, root, false)
	require.Empty(t, bad)
	require.Len(t, p.Changes, 1)
	p, bad = decide(t, "domains: {physics: {users: {grace@x: {}}}}", s, grace, true)
	require.Empty(t, bad)
	for _, c := range p.Changes {
		require.NotEqual(t, "root@x", c.Name, "an administrator of a domain prunes no superadmin")
	}

	robots := world()
	robot := user("physics", "user")
	robot.Service = true
	robots.Objects[plan.Key{Kind: plan.User, Name: "robot@x"}] = robot
	for _, text := range []string{"domains: {physics: {users: {robot@x: {full_name: R}}}}",
		"domains: {physics: {projects: {lasers: {members: [robot@x]}}}}"} {
		_, bad = decide(t, text, robots, root, false)
		require.Contains(t, bad, "robot@x is a service account, which files do not change")
	}
	for _, mail := range []string{"ada", "'@x'", "ada@", "a@b@c", "'a b@x'", strings.Repeat("a", 63) + "@x"} {
		_, bad = decide(t, "domains: {physics: {users: {"+mail+": {}}}}", world(), root, false)
		require.Contains(t, bad, "is no email address", mail)
	}
	_, bad = decide(t, "domains: {physics: {users: {"+strings.Repeat("a", 62)+"@x: {}}}}", world(), root, false)
	require.Empty(t, bad)

	// Who is made without a name is called by the address.
	s = world()
	s.Objects[plan.Key{Kind: plan.User, Name: "ada@x"}].Attrs["username"] = "new@x"
	_, bad = decide(t, "domains: {physics: {users: {new@x: {}}}}", s, root, false)
	require.Contains(t, bad, `ada@x is already called "new@x"`)
}

// What ends comes last, lower rights before that, and steps of members are bounded.
func TestOrderOfWhatEnds(t *testing.T) {
	t.Parallel()
	s := world()
	s.Objects[plan.Key{Kind: plan.User, Name: "eve@x"}].Attrs["role"] = "monitor"
	s.Objects[plan.Key{Kind: plan.User, Name: "bob@x"}].Attrs["role"] = "admin"
	p, bad := decide(t, `
domains:
  physics:
    active: false
    projects: {lasers: {active: false, members: [ada@x]}}
    users: {bob@x: {role: monitor}, ada@x: {role: admin}}
  default:
    users: {eve@x: {role: user}}
resource_groups:
  gpus: {active: false, projects: [physics/lasers]}
`, s, root, false)
	require.Empty(t, bad)
	require.Equal(t, []string{
		"~ user ada@x: role user -> admin",
		"- project physics/lasers is closed to bob@x (what they run there ends)",
		"+ project physics/lasers may use resource group gpus",
		"~ user bob@x: role admin -> monitor",
		"~ user eve@x: role monitor -> user",
		"~ resource group gpus: active true -> false (starts no sessions; sessions run on)",
		"~ project physics/lasers: active true -> false (starts no sessions; sessions run on)",
		"~ domain physics: active true -> false (its users are let in nowhere; sessions run on)",
	}, lines(p))
}

// What is held is compared with the policy that one has afterwards, and exactly as much as allowed is not too much.
func TestPressureOfPolicies(t *testing.T) {
	t.Parallel()
	s := world()
	lasers := s.Objects[plan.Key{Kind: plan.Project, Domain: "physics", Name: "lasers"}]
	lasers.Folders = 3
	ada := s.Objects[plan.Key{Kind: plan.User, Name: "ada@x"}]
	ada.Sessions = 2
	notes := func(text string) (out []string) {
		p, bad := decide(t, text, s, root, false)
		require.Empty(t, bad)
		for _, c := range p.Changes {
			out = append(out, c.Notes...)
		}
		return out
	}
	require.Empty(t, notes("policies: {project: {default: {max_folders: 3}}, keypair: {default: {max_sessions: 2}}}"))
	require.Len(t, notes("policies: {project: {default: {max_folders: 2}}, keypair: {default: {max_sessions: 1}}}"), 2)
	require.Contains(t, notes("policies: {project: {default: {max_folders: 2}}}")[0], "lasers (3 folders)")
	require.Contains(t, notes("policies: {keypair: {default: {max_sessions: 1}}}")[0], "ada@x (2 sessions)")
	require.Empty(t, notes("policies: {keypair: {default: {max_sessions: 1}, more: {max_sessions: 9}}}\n"+
		"domains: {physics: {users: {ada@x: {keypair_policy: more}}}}"), "who leaves a policy is not counted")
	require.Len(t, notes("policies: {project: {few: {max_folders: 1}}}\ndomains: {physics: {projects: {lasers: {policy: few}}}}"), 2)
	for i := range 5 {
		o := user("physics", "user")
		o.Sessions, o.Attrs["username"] = 2, fmt.Sprintf("u%d@x", i)
		s.Objects[plan.Key{Kind: plan.User, Name: o.Attrs["username"]}] = o
	}
	require.Contains(t, notes("policies: {keypair: {default: {max_sessions: 1}}}")[0],
		"ada@x (2 sessions), u0@x (2 sessions), u1@x (2 sessions) and 3 more: nothing ends")
}

func TestMistakesInTables(t *testing.T) {
	t.Parallel()
	read := func(text string) string {
		_, bad := plan.ReadCSV([]byte(text), world())
		return plan.Told(bad)
	}
	require.Equal(t, "line 1: the columns 1 and 3 both are email", read("email,role,e-mail\na@x,king,b@x"), "no row is read then")
	require.Contains(t, read("\"email\nada@x"), "line 1: this is no table")
	require.Contains(t, read(strings.Repeat("x", plan.MaxBytes+1)), "larger than 4 MiB")
	require.Contains(t, read("name"), `there is no column "name"; there are email, username`)
}
