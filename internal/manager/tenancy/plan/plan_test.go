package plan_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/manager/tenancy/plan"
)

var (
	root  = plan.Who{Superadmin: true, Domain: "default", Email: "admin@x", Address: "10.0.0.1"}
	grace = plan.Who{Domain: "physics", Email: "grace@x", Address: "10.0.0.1"}
)

func user(domain, role string) *plan.Object {
	return &plan.Object{Domain: domain, Attrs: plan.Attrs{"username": "", "full_name": "", "description": "", "role": role, "status": "active",
		"policy": "default", "keypair_policy": "default", "allowed_from": "[]"}}
}

// cluster of two domains; grace administers physics, whose project lasers has ada and, as its administrator, bob.
func world() *plan.Snapshot {
	s := &plan.Snapshot{Objects: map[plan.Key]*plan.Object{}, Permissions: []string{"download-file", "mount-in-session"},
		Orders: []string{"fifo", "drf"}, Slots: map[cluster.SlotName]cluster.SlotKind{}}
	for _, k := range []plan.Kind{plan.KeypairPolicy, plan.UserPolicy, plan.ProjectPolicy} {
		s.Objects[plan.Key{Kind: k, Name: "default"}] = &plan.Object{
			Attrs: plan.Attrs{"max_sessions": "30", "max_folders": "0", "resources": "{}"}}
	}
	for _, d := range []string{"default", "physics"} {
		s.Objects[plan.Key{Kind: plan.Domain, Name: d}] = &plan.Object{Attrs: plan.Attrs{"description": "", "active": "true", "total": "{}",
			"registries": "[]", "folder_hosts": "{}"}}
	}
	for who, is := range map[string][2]string{"admin@x": {"default", "superadmin"}, "eve@x": {"default", "user"},
		"grace@x": {"physics", "admin"}, "ada@x": {"physics", "user"}, "bob@x": {"physics", "user"}} {
		o := user(is[0], is[1])
		o.Attrs["username"] = who
		s.Objects[plan.Key{Kind: plan.User, Name: who}] = o
	}
	s.Objects[plan.Key{Kind: plan.Project, Domain: "physics", Name: "lasers"}] = &plan.Object{
		Members: map[string]string{"ada@x": plan.Member, "bob@x": plan.Admin},
		Attrs: plan.Attrs{"type": "general", "description": "", "active": "true", "total": "{}", "folder_hosts": "{}",
			"policy": "default"}}
	s.Objects[plan.Key{Kind: plan.ResourceGroup, Name: "gpus"}] = &plan.Object{Allowed: map[string]bool{"domain:physics": true},
		Attrs: plan.Attrs{"description": "", "active": "true", "public": "true", "scheduler": "fifo", "egress": "open"}}
	return s
}

// forDomain is what an administrator of a domain sees of a world.
func forDomain(s *plan.Snapshot, domain string) *plan.Snapshot {
	for k, o := range s.Objects {
		if k.Kind == plan.User && o.Domain != domain || k.Kind == plan.Project && k.Domain != domain ||
			k.Kind == plan.Domain && k.Name != domain || k.Kind == plan.ResourceGroup {
			delete(s.Objects, k)
		}
	}
	return s
}

func decide(t *testing.T, text string, s *plan.Snapshot, who plan.Who, prune bool) (plan.Plan, string) {
	t.Helper()
	f, bad := plan.ReadYAML([]byte(text), s)
	if len(bad) > 0 {
		return plan.Plan{}, plan.Told(bad)
	}
	p, bad := plan.Make(f, s, who, prune)
	return p, plan.Told(bad)
}

func lines(p plan.Plan) (out []string) {
	for _, c := range p.Changes {
		out = append(out, c.Words()...)
	}
	return out
}

func TestAPlanIsOrderedAndSaysWhatChanges(t *testing.T) {
	t.Parallel()
	p, bad := decide(t, `
resource_groups:
  gpus: {domains: [chemistry], scheduler: drf}
domains:
  chemistry:
    total: {cpu: 8, mem: 16g}
    projects:
      acids: {members: [zoe@x], admins: [yan@x], policy: small}
    users:
      zoe@x: {full_name: Zoe, role: admin}
      yan@x: {keypair_policy: tiny}
  physics:
    registries: [b.example.org, a.example.org]
    users:
      ada@x: {status: inactive}
      bob@x: {full_name: "Bob =1+1"}
policies:
  project: {small: {max_folders: 3}}
  keypair: {tiny: {max_sessions: 1, resources: {mem: 1536m}}}
`, world(), root, false)
	require.Empty(t, bad)
	require.Equal(t, []string{
		"+ keypair policy tiny: resources mem=1536m, max_sessions 1",
		"+ project policy small: max_folders 3",
		"+ domain chemistry: total cpu=8, mem=16g",
		"~ domain physics: registries none -> a.example.org, b.example.org",
		"~ resource group gpus: scheduler fifo -> drf",
		"+ project chemistry/acids: policy small",
		"+ user yan@x in domain chemistry: keypair_policy tiny",
		"+ user zoe@x in domain chemistry: full_name Zoe, role admin",
		`~ user bob@x: full_name none -> "Bob =1+1"`,
		"+ project chemistry/acids gets zoe@x",
		"+ project chemistry/acids is administered by yan@x",
		"+ domain chemistry may use resource group gpus",
		"- domain physics may no more use resource group gpus",
		"~ user ada@x: status active -> inactive (is let in nowhere; sessions and folders stay)",
	}, lines(p))
	require.Equal(t, "6 to make, 5 to change, 1 to make inactive, 0 as they should be", p.Summary())
}

func TestAListIsTheWholeListAndOtherThingsStay(t *testing.T) {
	t.Parallel()
	for text, want := range map[string][]string{
		"{members: [ada@x, bob@x]}":           nil,
		"{members: [ada@x], admins: [bob@x]}": nil,
		"{description: beams}":                {"~ project physics/lasers: description none -> beams"},
		"{members: [ada@x]}":                  {"- project physics/lasers is closed to bob@x (what they run there ends)"},
		"{admins: [ada@x]}": {"+ project physics/lasers is administered by ada@x",
			"- project physics/lasers is administered no more by bob@x"},
		"{members: [ada@x, bob@x], admins: []}": {"- project physics/lasers is administered no more by bob@x"},
		"{members: [grace@x], admins: [bob@x, ada@x]}": {"+ project physics/lasers gets grace@x",
			"+ project physics/lasers is administered by ada@x"},
	} {
		p, bad := decide(t, "domains: {physics: {projects: {lasers: "+text+"}}}", world(), root, false)
		require.Empty(t, bad, text)
		require.Equal(t, want, lines(p), text)
	}
}

func TestPruneMakesInactiveAndNeverThoseWhoMustStay(t *testing.T) {
	t.Parallel()
	p, bad := decide(t, "domains: {physics: {projects: {}, users: {grace@x: {}, ada@x: {}}}, default: {}}\nresource_groups: {}", world(), root,
		true)
	require.Empty(t, bad)
	require.Equal(t, []string{
		"~ user bob@x: status active -> inactive (is let in nowhere; sessions and folders stay)", "    note: the file does not name it",
		"~ resource group gpus: active true -> false (starts no sessions; sessions run on)", "    note: the file does not name it",
		"~ project physics/lasers: active true -> false (starts no sessions; sessions run on)", "    note: the file does not name it",
	}, lines(p))
	_, bad = decide(t, "domains: {physics: {}}", world(), root, true)
	require.Contains(t, bad, "does not name domain default")
	_, bad = decide(t, "domains: {default: {users: {eve@x: {}}}, physics: {}}", world(), root, true)
	require.Contains(t, bad, "does not name user admin@x")
	p, bad = decide(t, "domains: {physics: {users: {grace@x: {}}}}", forDomain(world(), "physics"), grace, true)
	require.Empty(t, bad)
	require.Len(t, p.Changes, 2)
	p, bad = decide(t, "policies: {user: {}}\ndomains: {default: {}, physics: {}}", world(), root, true)
	require.Empty(t, bad)
	require.Empty(t, p.Changes, "lists that the file does not have, and policies, are left alone")
}

// Files that are refused, with the line.
func TestBadFilesAreRefusedWithTheirLines(t *testing.T) {
	t.Parallel()
	for _, c := range [][2]string{
		{"", "the file is empty"},
		{"- a", "line 1: the file must be a mapping"},
		{"a: 1\n---\nb: 2", "more than one document"},
		{"domains: [", "this is no YAML"},
		{"domain: {}", `line 1: "domain" is unknown in the file; it may have domains, policies, resource_groups`},
		{"domains:\n  physics:\n    colour: red", `line 3: "colour" is unknown in a domain`},
		{"domains:\n  physics: {}\n  physics: {}", `line 3: "physics" is there twice, in line 2, too`},
		{"domains:\n  physics:\n    users:\n      ada@x: {password: hunter2}",
			"line 4: \"password\" is unknown in a user; secrets do not belong into files"},
		{"domains:\n  physics:\n    users:\n      ada@x: {projects: [a]}", "members are listed at their project"},
		{"domains:\n  physics:\n    users: {ada@x: {}}\n  default:\n    users: {ada@x: {}}",
			"line 5: user ada@x is in the file twice, in line 3, too"},
		{"domains:\n  physics:\n    users: {eve@x: {}}", "line 3: user eve@x is in domain default: users stay"},
		{"domains:\n  physics:\n    projects:\n      lasers:\n        members: [ada@x, nobody@x]",
			"line 5: there is no user nobody@x in domain physics"},
		{"domains:\n  physics:\n    projects:\n      lasers:\n        members: [eve@x]",
			"line 5: there is no user eve@x in domain physics"},
		{"domains:\n  physics:\n    projects:\n      lasers:\n        members: [ada@x, ada@x]",
			"line 5: \"ada@x\" is in members twice"},
		{"domains:\n  physics:\n    projects:\n      lasers: {policy: none}",
			"line 4: there is no project policy none, which project physics/lasers names"},
		{"domains:\n  physics:\n    projects:\n      lasers: {type: model-store}",
			"line 4: the type of project physics/lasers is general and never changes"},
		{"domains:\n  physics:\n    projects:\n      a/b: {}", "cannot be the name of a project"},
		{"domains:\n  physics:\n    users:\n      ada: {}", "line 4: \"ada\" is no email address"},
		{"domains:\n  physics:\n    users:\n      ada@x: {role: king}",
			"line 4: role must be user or admin or monitor or superadmin, not \"king\""},
		{"domains:\n  physics:\n    users:\n      ada@x: {status: }", "line 4: status has no value"},
		{"domains:\n  physics:\n    users:\n      ada@x: {allowed_from: [home]}",
			"line 4: \"home\" is neither an address nor a network"},
		{"domains:\n  physics:\n    active: yes", "line 3: active must be true or false, not \"yes\""},
		{"domains:\n  physics:\n    total: {cpu: lots}", "line 3: total: \"lots\" is no amount of cpu"},
		{"domains:\n  physics:\n    total: {cpu: 1, cpu: 2}", "line 3: \"cpu\" is there twice"},
		{"domains:\n  physics:\n    folder_hosts: {local:a: [fly]}", "line 3: \"fly\" is no permission on folder hosts"},
		{"domains:\n  physics:\n    folder_hosts: {local: [download-file]}", "line 3: folder_hosts"},
		{"policies:\n  keypair:\n    a: {max_sessions: -1}", "line 3: max_sessions must be a number from 0"},
		{"policies:\n  keypair:\n    a: {max_sessions: 1e9}", "line 3: max_sessions must be a number from 0"},
		{"resource_groups:\n  gpus: {scheduler: lottery}", "line 2: scheduler must be fifo or drf, not \"lottery\""},
		{"resource_groups:\n  gpus: {projects: [lasers]}", "line 2: \"lasers\" names no project: write DOMAIN/PROJECT"},
		{"resource_groups:\n  gpus: {projects: [physics/none]}", "line 2: there is no project physics/none"},
		{"resource_groups:\n  gpus: {domains: [none]}", "line 2: there is no domain none, which resource group gpus names"},
		{"domains:\n  physics: !!python/object:os.system {}", "line 2: types (!!python/object:os.system) are not understood"},
		// A cycle, and a bomb.
		{"domains: &a\n  physics: *a", "line 1: anchors and aliases"},
		{"a: &a [x,x]\nb: &b [*a,*a]\nc: &c [*b,*b]\nd: [*c,*c]", "line 1: anchors and aliases"},
		// Oneself.
		{"domains:\n  default:\n    users:\n      admin@x: {role: user}", "line 4: nobody changes their own role"},
		{"domains:\n  default:\n    users:\n      admin@x: {status: inactive}", "line 4: nobody changes their own status"},
		{"domains:\n  default:\n    users:\n      admin@x: {allowed_from: [192.0.2.0/24]}",
			"line 4: these networks would shut you out: you come from 10.0.0.1"},
		{"domains:\n  default:\n    active: false", "line 3: domain default stays active"},
		// Two who exchange their names wait for each other.
		{"domains:\n  physics:\n    users:\n      ada@x: {username: bob@x}\n      bob@x: {username: ada@x}",
			"line 4: bob@x is already called \"bob@x\""},
		{"domains:\n  physics:\n    users:\n      n@x: {username: same}\n      m@x: {username: same}", "is already called \"same\""},
		{strings.Repeat("[", 100_000), ""},
		{"domains: {" + strings.Repeat("a,", 600_000) + "}", "too many parts"},
		{strings.Repeat("#", plan.MaxBytes+1), "larger than 4 MiB"},
	} {
		text, want := c[0], c[1]
		_, bad := decide(t, text, world(), root, false)
		require.Contains(t, bad, want, "%.200s", text)
		require.NotEmpty(t, bad, "%.200s", text)
	}
}

// What an administrator of a domain might try in a file: other domains, higher roles, what superadmins set.
func TestAnAdministratorOfADomainReachesNothingElse(t *testing.T) {
	t.Parallel()
	for _, c := range [][2]string{
		{"domains:\n  default: {}", "line 2: domain default is of domain default; you administer domain physics alone"},
		{"domains:\n  new: {}", "you administer domain physics alone"},
		{"domains:\n  default:\n    users:\n      eve@x: {status: inactive}", "line 4: user eve@x is of domain default"},
		{"domains:\n  default:\n    projects:\n      p: {}", "line 4: project default/p is of domain default"},
		{"domains:\n  physics:\n    total: {cpu: 1000}", "line 2: domain physics has other properties (total)"},
		{"domains:\n  physics:\n    folder_hosts: {local:v: [download-file]}", "other properties (folder_hosts)"},
		{"domains:\n  physics:\n    active: false", "needs a superadmin"},
		{"domains:\n  physics:\n    users:\n      ada@x: {role: superadmin}", "line 4: making a superadmin needs a superadmin"},
		{"domains:\n  physics:\n    users:\n      new@x: {role: monitor}", "line 4: making a monitor needs a superadmin"},
		{"domains:\n  physics:\n    users:\n      grace@x: {role: user}", "nobody changes their own role"},
		{"domains:\n  physics:\n    users:\n      grace@x: {policy: big}", "there is no user policy big"},
		{"domains:\n  physics:\n    users:\n      grace@x: {keypair_policy: large}",
			"nobody but superadmins sets their own limits (keypair_policy)"},
		{"domains:\n  physics:\n    users:\n      grace@x: {allowed_from: ['::1']}",
			"nobody but superadmins sets their own limits (allowed_from)"},
		{"domains:\n  physics:\n    projects:\n      lasers:\n        members: [eve@x]",
			"line 5: there is no user eve@x in domain physics"},
		{"policies:\n  user:\n    default: {max_folders: 0}", "line 3: user policy default: this needs a superadmin"},
		{"resource_groups:\n  gpus: {domains: [physics]}", "line 2: resource group gpus: this needs a superadmin"},
	} {
		text, want := c[0], c[1]
		s := forDomain(world(), "physics")
		s.Objects[plan.Key{Kind: plan.KeypairPolicy, Name: "large"}] = &plan.Object{Attrs: plan.Attrs{}}
		_, bad := decide(t, text, s, grace, false)
		require.Contains(t, bad, want, text)
	}
}

func TestLimitsBelowWhatIsHeldAreTold(t *testing.T) {
	t.Parallel()
	s := world()
	ada := s.Objects[plan.Key{Kind: plan.User, Name: "ada@x"}]
	ada.Held, ada.Sessions, ada.Folders = cluster.Slots{"cpu": cluster.Whole(8), "mem": cluster.Whole(4 << 30)}, 3, 12
	lasers := s.Objects[plan.Key{Kind: plan.Project, Domain: "physics", Name: "lasers"}]
	lasers.Held = cluster.Slots{"cpu": cluster.Whole(8)}
	p, bad := decide(t, `
policies:
  keypair: {default: {max_sessions: 2, resources: {cpu: 4, mem: 8g}}}
  user: {few: {max_folders: 5}}
domains:
  physics:
    projects: {lasers: {total: {cpu: 2}}}
    users: {ada@x: {policy: few}}
`, s, root, false)
	require.Empty(t, bad)
	const rest = ": nothing ends, and nothing new is admitted until it is less"
	require.Equal(t, []string{
		"~ keypair policy default: resources none -> cpu=4, mem=8g, max_sessions 30 -> 2",
		"    note: more than that is held now by ada@x (cpu 8, 3 sessions)" + rest,
		"+ user policy few: max_folders 5",
		"    note: more than that is held now by ada@x (12 folders)" + rest,
		"~ project physics/lasers: total none -> cpu=2",
		"    note: more than that is held now by lasers (cpu 8)" + rest,
		"~ user ada@x: policy default -> few",
		"    note: more than that is held now by ada@x (12 folders)" + rest,
	}, lines(p))
}

// TestWhatWaitsOfInactiveOwnersIsTold: who makes somebody inactive reads before what of theirs will not start.
func TestWhatWaitsOfInactiveOwnersIsTold(t *testing.T) {
	t.Parallel()
	s := world()
	s.Objects[plan.Key{Kind: plan.User, Name: "ada@x"}].Waiting = 2
	s.Objects[plan.Key{Kind: plan.Project, Domain: "physics", Name: "lasers"}].Waiting = 1
	s.Objects[plan.Key{Kind: plan.Domain, Name: "physics"}].Waiting = 3
	p, bad := decide(t, `
domains:
  physics:
    active: false
    projects: {lasers: {active: false}}
    users: {ada@x: {status: inactive}, bob@x: {status: inactive}}
`, s, root, false)
	require.Empty(t, bad)
	text := strings.Join(lines(p), "\n")
	for _, n := range []string{"3 sessions", "1 session", "2 sessions"} {
		require.Contains(t, text, "    note: "+n+" of it waiting to start will not, until it is active again")
	}
	require.Equal(t, 3, strings.Count(text, "waiting to start"), text)
	require.Contains(t, p.Summary(), "4 to make inactive")
}

func TestWhatIsExportedChangesNothing(t *testing.T) {
	t.Parallel()
	s := world()
	s.Objects[plan.Key{Kind: plan.User, Name: "ada@x"}].Attrs["full_name"] = "=HYPERLINK(\"http://x\")\n- true: yes #"
	s.Objects[plan.Key{Kind: plan.User, Name: "bob@x"}].Attrs["description"] = "'+1"
	s.Objects[plan.Key{Kind: plan.User, Name: "eve@x"}].Attrs["username"] = "true"
	gone := user("physics", "user")
	gone.Attrs["status"] = "deleted"
	s.Objects[plan.Key{Kind: plan.User, Name: "gone@x"}] = gone
	s.Objects[plan.Key{Kind: plan.Project, Domain: "physics", Name: "lasers"}].Members["gone@x"] = plan.Member
	d := s.Objects[plan.Key{Kind: plan.Domain, Name: "physics"}].Attrs
	d["total"], d["registries"] = `{"cpu":"0.5","mem":"1536m"}`, `["a","b"]`
	d["folder_hosts"] = `{"local:v":["download-file","mount-in-session"]}`
	text := plan.WriteYAML(s)
	p, bad := decide(t, string(text), s, root, true)
	require.Empty(t, bad, string(text))
	require.Empty(t, p.Changes, string(text))
	require.NotContains(t, string(text), "gone@x")

	table := plan.WriteCSV(s)
	require.Contains(t, string(table), "\"'=HYPERLINK")
	f, mistakes := plan.ReadCSV(table, s)
	require.Empty(t, mistakes)
	p, mistakes = plan.Make(f, s, root, false)
	require.Empty(t, mistakes)
	require.Empty(t, lines(p), string(table))
	require.Equal(t, 5, p.Same)
}

func TestTablesOfUsers(t *testing.T) {
	t.Parallel()
	read := func(text string, who plan.Who) (plan.Plan, string) {
		f, bad := plan.ReadCSV([]byte(text), world())
		if len(bad) > 0 {
			return plan.Plan{}, plan.Told(bad)
		}
		p, bad := plan.Make(f, world(), who, false)
		return p, plan.Told(bad)
	}
	p, bad := read("\uFEFFFull name;E-Mail;projects\r\nAda L.;ada@x;\r\n;new@x;lasers\r\nBob;bob@x;lasers\r\n", grace)
	require.Empty(t, bad)
	require.Equal(t, []string{
		"+ user new@x in domain physics",
		"~ user ada@x: full_name none -> \"Ada L.\"",
		"~ user bob@x: full_name none -> Bob",
		"+ project physics/lasers gets new@x",
	}, lines(p))
	require.Len(t, p.Notes, 3, "a mark, ends of lines and semicolons are told")
	p, bad = read("email,domain,projects\nada@x,physics,-none-\n", root)
	require.Contains(t, bad, "line 2: there is no project physics/-none-")
	require.Empty(t, p.Changes)
	for _, c := range [][2]string{
		{"", "the table is empty"},
		{"name\nx", "line 1: there is no column \"name\""},
		{"email,email\na@x,b@x", "line 1: the columns"},
		{"email,password\na@x,pw", "line 1: passwords do not belong into tables"},
		{"full_name\nAda", "line 1: the table has no column email"},
		{"email,role\na@x", "line 2: the row has 1 cells, and there are 2 columns"},
		{"email,role\na@x,king", "line 2: role must be"},
		{"email\na@x\nb@x\na@x", "line 4: user a@x is in the file twice, in line 2, too"},
		{"email\n\"a@x\n", "line 2"},
		{"email\n\x00", "no UTF-8 text"},
		{"email\n\xff", "no UTF-8 text"},
		{"email,role\n,user", "line 2: the row has no email address"},
		{"email,role\nadmin@x,user", "line 2: nobody changes their own role"},
		{"email,domain\neve@x,physics", "line 2: user eve@x is in domain default"},
		{"email,domain\neve@x,none", "in domain default"},
		{"email,domain\nnew@x,none", "line 2: there is no domain none"},
		{"email,projects\nnew@x,lasers", "line 2: there is no project default/lasers"},
	} {
		text, want := c[0], c[1]
		_, bad := read(text, root)
		require.Contains(t, bad, want, text)
	}
	_, bad = read("email,role\nada@x,superadmin", grace)
	require.Contains(t, bad, "line 2: making a superadmin needs a superadmin")
	_, bad = read("email,domain\neve@x,default", grace)
	require.Contains(t, bad, "you administer domain physics alone")

	var many strings.Builder
	many.WriteString("email\n")
	for i := range 100_000 {
		fmt.Fprintf(&many, "u%d@x\n", i)
	}
	_, bad = read(many.String(), root)
	require.Equal(t, "line 20002: the table has more than 20000 users: split it", bad)
	_, bad = read("email,role\n"+strings.Repeat("a@x,king\n", 1000), root)
	require.Contains(t, bad, "more mistakes")
}

func FuzzReadYAML(f *testing.F) {
	f.Add("domains: {physics: {users: {ada@x: {role: user}}}}")
	f.Add(string(plan.WriteYAML(world())))
	f.Fuzz(func(t *testing.T, text string) {
		s := world()
		file, bad := plan.ReadYAML([]byte(text), s)
		if len(bad) > 0 {
			return
		}
		p, _ := plan.Make(file, s, grace, true)
		for _, c := range p.Changes {
			require.NotEmpty(t, c.Words())
		}
	})
}

func FuzzReadCSV(f *testing.F) {
	f.Add(string(plan.WriteCSV(world())))
	f.Fuzz(func(_ *testing.T, text string) {
		s := world()
		if file, bad := plan.ReadCSV([]byte(text), s); len(bad) == 0 {
			plan.Make(file, s, root, false)
		}
	})
}
