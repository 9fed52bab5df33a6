package plan

import (
	"bytes"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"

	"berth.dev/berth/internal/cluster"
)

// Object is something that is there.
type Object struct {
	Attrs Attrs
	// Domain is that of a user, MainKey their main keypair.
	Domain, MainKey string
	// Service says that a user is a service account: files do not name those.
	Service bool
	// Members say what users are in a project, by email address; Allowed are the domains and projects ("domain:NAME",
	// "project:DOMAIN/NAME") that may use a resource group.
	Members map[string]string
	Allowed map[string]bool
	// Held are what live sessions hold, Sessions how many they are, Waiting how many wait, Folders how many folders there are.
	Held     cluster.Slots
	Sessions int
	Waiting  int
	Folders  int
}

// left reports whether files leave the object out.
func (o *Object) left() bool { return o.Service || o.Attrs["status"] == "deleted" }

// Snapshot is what is there, as far as the actor sees it.
type Snapshot struct {
	Objects map[Key]*Object
	Slots   map[cluster.SlotName]cluster.SlotKind
	// Permissions are those on folder hosts, Orders the orders of waiting sessions.
	Permissions, Orders []string
}

// sorted are the keys of a kind.
func (s *Snapshot) sorted(k Kind) []Key {
	var out []Key
	for key := range s.Objects {
		if key.Kind == k {
			out = append(out, key)
		}
	}
	slices.SortFunc(out, compareKeys)
	return out
}

func compareKeys(a, b Key) int {
	if c := strings.Compare(a.Domain, b.Domain); c != 0 {
		return c
	}
	return strings.Compare(a.Name, b.Name)
}

// What files are written of.
func str(v string) *yaml.Node { n := &yaml.Node{}; n.SetString(v); return n }

func bare(v string) *yaml.Node { return &yaml.Node{Kind: yaml.ScalarNode, Value: v} }

func seq(items []string) *yaml.Node {
	n := &yaml.Node{Kind: yaml.SequenceNode, Style: yaml.FlowStyle}
	for _, i := range items {
		n.Content = append(n.Content, str(i))
	}
	return n
}

type mapping struct{ yaml.Node }

func newMapping(flow bool) *mapping {
	m := &mapping{yaml.Node{Kind: yaml.MappingNode}}
	if flow {
		m.Style = yaml.FlowStyle
	}
	return m
}

func (m *mapping) put(key string, v *yaml.Node) { m.Content = append(m.Content, str(key), v) }

// properties writes what an object is; what is empty is left out.
func properties(k Kind, o *Object) *mapping {
	m := newMapping(false)
	for _, f := range fields[k] {
		v, ok := o.Attrs[f.name]
		switch {
		case !ok || v == "" || v == "[]" || v == "{}":
		case f.form == flag || f.form == count:
			m.put(f.name, bare(v))
		case f.form == list:
			items, _ := Decode[[]string](v)
			m.put(f.name, seq(items))
		case f.form == slots:
			of, _ := Decode[map[string]string](v)
			inner := newMapping(true)
			for _, slot := range sortedKeys(of) {
				inner.put(slot, str(of[slot]))
			}
			m.put(f.name, &inner.Node)
		case f.form == hosts:
			of, _ := Decode[map[string][]string](v)
			inner := newMapping(false)
			for _, host := range sortedKeys(of) {
				inner.put(host, seq(of[host]))
			}
			m.put(f.name, &inner.Node)
		default:
			m.put(f.name, str(v))
		}
	}
	return m
}

func sortedKeys[V any](m map[string]V) []string {
	out := make([]string, 0, len(m))
	for k := range m {
		out = append(out, k)
	}
	slices.Sort(out)
	return out
}

// WriteYAML writes a tenancy as a file that changes nothing when it is applied.
func WriteYAML(s *Snapshot) []byte {
	root := newMapping(false)
	policies := newMapping(false)
	for _, p := range []struct {
		name string
		kind Kind
	}{{"keypair", KeypairPolicy}, {"user", UserPolicy}, {"project", ProjectPolicy}} {
		if m := s.listed(p.kind, ""); len(m.Content) > 0 {
			policies.put(p.name, &m.Node)
		}
	}
	if len(policies.Content) > 0 {
		root.put("policies", &policies.Node)
	}
	domains := newMapping(false)
	for _, key := range s.sorted(Domain) {
		d := properties(Domain, s.Objects[key])
		if m := s.listed(Project, key.Name); len(m.Content) > 0 {
			d.put("projects", &m.Node)
		}
		if m := s.listed(User, key.Name); len(m.Content) > 0 {
			d.put("users", &m.Node)
		}
		domains.put(key.Name, &d.Node)
	}
	if len(domains.Content) > 0 {
		root.put("domains", &domains.Node)
	}
	if m := s.listed(ResourceGroup, ""); len(m.Content) > 0 {
		root.put("resource_groups", &m.Node)
	}
	var b bytes.Buffer
	e := yaml.NewEncoder(&b)
	e.SetIndent(2)
	_ = e.Encode(&root.Node) // a tree of texts always is YAML
	_ = e.Close()
	return b.Bytes()
}

// listed are the objects of a kind, those of a domain where they belong to one.
func (s *Snapshot) listed(k Kind, domain string) *mapping {
	all := newMapping(false)
	for _, key := range s.sorted(k) {
		o := s.Objects[key]
		if k == Project && key.Domain != domain || k == User && (o.Domain != domain || o.left()) {
			continue
		}
		m := properties(k, o)
		switch k {
		case Project:
			var members, admins []string
			for _, who := range sortedKeys(o.Members) {
				if u := s.Objects[Key{User, "", who}]; u != nil && u.left() {
					continue
				}
				if o.Members[who] == Admin {
					admins = append(admins, who)
				} else {
					members = append(members, who)
				}
			}
			block := func(items []string) *yaml.Node {
				n := seq(items)
				if len(items) > 0 {
					n.Style = 0
				}
				return n
			}
			m.put("members", block(members))
			if len(admins) > 0 {
				m.put("admins", block(admins))
			}
		case ResourceGroup:
			var domains, projects []string
			for _, who := range sortedKeys(o.Allowed) {
				if d, ok := strings.CutPrefix(who, "domain:"); ok {
					domains = append(domains, d)
				} else if p, ok := strings.CutPrefix(who, "project:"); ok {
					projects = append(projects, p)
				}
			}
			m.put("domains", seq(domains))
			m.put("projects", seq(projects))
		}
		all.put(key.Name, &m.Node)
	}
	return all
}
