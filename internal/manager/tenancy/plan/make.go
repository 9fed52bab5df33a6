package plan

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
)

// defaultPolicy is what new keypairs, users and projects get; the domain of the same name stays active.
const defaultPolicy = "default"

// maxStep bounds how many members one change moves.
const maxStep = 500

// Who applies a file.
type Who struct {
	Superadmin    bool
	Domain, Email string
	// Address is where they come from.
	Address string
}

// Change is one step: an object is made, or properties change from something to something. Those of Members are what users are in the
// project, those of Access who may use the resource group.
type Change struct {
	Kind Kind
	// Domain is that of a project or user.
	Domain, Name string
	Make         bool
	From, To     Attrs
	// Notes are what to know of it.
	Notes []string
}

// Key names what changes.
func (c Change) Key() Key {
	if c.Kind == Project {
		return Key{c.Kind, c.Domain, c.Name}
	}
	return Key{c.Kind, "", c.Name}
}

// Plan is what has to be done, in this order.
type Plan struct {
	Changes []Change
	Notes   []string
	// Same are the objects of the file that are as it says.
	Same int
}

// maker makes a plan.
type maker struct {
	problems
	file *File
	now  *Snapshot
	who  Who
	out  Plan
	// domains, policies and so on that will be there, with their lines; users with their domains.
	will map[Key]string
	// members are changes of members by project.
	members map[Key]*Change
}

// Make decides what has to change for a file to be true. With prune, what a list of the file does not name is made inactive: domains,
// projects, users and resource groups.
func Make(f File, now *Snapshot, who Who, prune bool) (Plan, []Problem) {
	m := &maker{file: &f, now: now, who: who, will: map[Key]string{}, members: map[Key]*Change{}}
	m.out.Notes = append(m.out.Notes, f.notes...)
	for key, o := range now.Objects {
		m.will[key] = o.Domain
	}
	for i := range f.entries {
		e := &f.entries[i]
		m.placed(e)
		m.will[e.key] = e.domain
	}
	for i := range f.entries {
		m.entry(&f.entries[i])
	}
	if prune {
		m.prune()
	}
	m.usernames()
	for _, c := range m.members {
		m.out.Changes = append(m.out.Changes, steps(*c)...)
	}
	slices.SortStableFunc(m.out.Changes, func(a, b Change) int {
		if d := m.rank(a) - m.rank(b); d != 0 {
			return d
		}
		if d := strings.Compare(string(a.Kind), string(b.Kind)); d != 0 {
			return d
		}
		return compareKeys(a.Key(), b.Key())
	})
	m.pressure()
	m.held()
	if bad := m.all(); len(bad) > 0 {
		return Plan{}, bad
	}
	return m.out, nil
}

// rank orders changes: what others name comes before them, rights are given before they are taken, and what ends comes last.
func (m *maker) rank(c Change) int {
	ends := c.To["active"] == "false" && !c.Make
	switch c.Kind {
	case KeypairPolicy, UserPolicy, ProjectPolicy:
		return 0
	case Domain:
		if ends {
			return 12
		}
		return 1
	case ResourceGroup:
		if ends {
			return 10
		}
		return 2
	case Project:
		if ends {
			return 11
		}
		return 3
	case User:
		switch {
		case c.Make:
			return 4
		case lowers(c):
			return 9
		}
		return 5
	case Members:
		return 6
	}
	return 7
}

// lowers reports whether a user may do less afterwards.
func lowers(c Change) bool {
	power := map[string]int{"user": 0, "monitor": 1, "admin": 2, "superadmin": 3}
	to, changes := c.To["role"]
	return changes && power[to] < power[c.From["role"]] || c.From["status"] == "active"
}

// steps cuts a change of members into bounded ones.
func steps(c Change) []Change {
	var out []Change
	users := sortedKeys(c.To)
	for part := range slices.Chunk(users, maxStep) {
		s := Change{Kind: c.Kind, Domain: c.Domain, Name: c.Name, From: Attrs{}, To: Attrs{}}
		for _, u := range part {
			s.From[u], s.To[u] = c.From[u], c.To[u]
		}
		out = append(out, s)
	}
	return out
}

// placed says which domain a user of a table is of.
func (m *maker) placed(e *entry) {
	if e.key.Kind != User || e.domain != "" {
		return
	}
	e.domain = m.who.Domain
	if u := m.now.Objects[e.key]; u != nil {
		e.domain = u.Domain
	}
}

// named checks that something which the file names is there, or will be.
func (m *maker) named(k Key, line int, by string) bool {
	if _, ok := m.will[k]; ok {
		return true
	}
	m.add(line, "there is no %s, which %s names", k, by)
	return false
}

func (m *maker) entry(e *entry) {
	o := m.now.Objects[e.key]
	if !m.within(e, o) {
		return
	}
	if o == nil && !m.good(e) {
		return
	}
	c := Change{Kind: e.key.Kind, Domain: e.key.Domain, Name: e.key.Name, Make: o == nil, From: Attrs{}, To: Attrs{}}
	if e.key.Kind == User {
		c.Domain = e.domain
	}
	if (e.key.Kind == Project || e.key.Kind == User) && !m.named(Key{Domain, "", c.Domain}, e.line, e.key.String()) {
		return
	}
	for _, f := range fields[e.key.Kind] {
		v, ok := e.set[f.name]
		if !ok {
			continue
		}
		if f.ref != "" && !m.named(Key{f.ref, "", v.text}, v.line, e.key.String()) {
			continue
		}
		m.word(f, v)
		if o == nil {
			c.To[f.name] = v.text
			continue
		}
		if o.Attrs[f.name] == v.text {
			continue
		}
		if f.fixed {
			m.add(v.line, "the %s of %s is %s and never changes", f.name, e.key, o.Attrs[f.name])
			continue
		}
		c.From[f.name], c.To[f.name] = o.Attrs[f.name], v.text
	}
	m.allowed(e, c, o)
	m.lists(e, o)
	if c.Make || len(c.To) > 0 {
		m.out.Changes = append(m.out.Changes, c)
	} else {
		m.out.Same++
	}
}

// word checks what there is a closed list of.
func (m *maker) word(f field, v value) {
	switch {
	case f.name == "scheduler" && len(m.now.Orders) > 0 && !slices.Contains(m.now.Orders, v.text):
		m.add(v.line, "scheduler must be %s, not %q", strings.Join(m.now.Orders, " or "), clip(v.text))
	case f.name == "allowed_from":
		networks, _ := Decode[[]string](v.text)
		for _, n := range networks {
			_, addrErr := netip.ParseAddr(n)
			if _, err := netip.ParsePrefix(n); err != nil && addrErr != nil {
				m.add(v.line, "%q is neither an address nor a network such as 10.0.0.0/8", clip(n))
			}
		}
	}
}

// within tells early what the noun would refuse, because it is not the actor's to say.
func (m *maker) within(e *entry, o *Object) bool {
	w := m.who
	of := e.key.Domain
	switch e.key.Kind {
	case User:
		of = e.domain
		if o != nil && o.Domain != of {
			m.add(e.line, "%s is in domain %s: users stay in the domain that they were made in", e.key, o.Domain)
			return false
		}
		if o != nil && o.Service {
			m.add(e.line, "%s is a service account, which files do not change", e.key)
			return false
		}
	case Domain:
		of = e.key.Name
	case Project:
	default:
		if !w.Superadmin {
			m.add(e.line, "%s: this needs a superadmin; you administer domain %s", e.key, w.Domain)
			return false
		}
		return true
	}
	if !w.Superadmin && of != w.Domain {
		m.add(e.line, "%s is of domain %s; you administer domain %s alone", e.key, clip(of), w.Domain)
		return false
	}
	return true
}

// good checks the name of something new.
func (m *maker) good(e *entry) bool {
	name := e.key.Name
	if e.key.Kind != User {
		if name == "" || len(name) > 64 || strings.TrimSpace(name) != name || strings.ContainsAny(name, "/\x00\n\t") {
			m.add(e.line, "%q cannot be the name of a %s", clip(name), e.key.Kind)
			return false
		}
		return true
	}
	user, host, ok := strings.Cut(name, "@")
	if !ok || user == "" || host == "" || len(name) > 64 || strings.ContainsAny(name, " \t\n") || strings.Contains(host, "@") {
		m.add(e.line, "%q is no email address", clip(name))
		return false
	}
	return true
}

// allowed tells which changes of somebody's own rights, and of rights above the actor's, are refused.
func (m *maker) allowed(e *entry, c Change, o *Object) {
	w := m.who
	line := func(name string) int { return e.set[name].line }
	changes := func(name string) bool { _, ok := c.To[name]; return ok }
	switch c.Kind {
	case Domain:
		if !w.Superadmin && (c.Make || len(c.To) > 0) {
			m.add(e.line, "%s has other properties (%s): changing them needs a superadmin", e.key, strings.Join(sortedKeys(c.To), ", "))
		}
		if c.To["active"] == "false" && (c.Name == w.Domain || c.Name == defaultPolicy) {
			m.add(line("active"), "%s stays active: it is your own or the cluster's first one", e.key)
		}
	case User:
		if r := c.To["role"]; !w.Superadmin && (r == "superadmin" || r == "monitor") {
			m.add(line("role"), "making a %s needs a superadmin", r)
		}
		if o != nil && !w.Superadmin && o.Attrs["role"] == "superadmin" && len(c.To) > 0 {
			m.add(e.line, "%s is a superadmin: changing them needs a superadmin", e.key)
		}
		if c.Name != w.Email {
			return
		}
		for _, name := range []string{"role", "status"} {
			if changes(name) {
				m.add(line(name), "nobody changes their own %s: have another administrator apply this", name)
			}
		}
		for _, name := range []string{"policy", "keypair_policy", "allowed_from"} {
			if changes(name) && !w.Superadmin {
				m.add(line(name), "nobody but superadmins sets their own limits (%s)", name)
			}
		}
		if changes("allowed_from") && !admits(c.To["allowed_from"], w.Address) {
			m.add(line("allowed_from"), "these networks would shut you out: you come from %s", w.Address)
		}
	}
}

// admits reports whether networks admit an address; none admit all, and what is no address is not judged.
func admits(networks, address string) bool {
	of, _ := Decode[[]string](networks)
	at, err := netip.ParseAddr(address)
	if len(of) == 0 || err != nil {
		return true
	}
	return slices.ContainsFunc(of, func(n string) bool {
		if one, err := netip.ParseAddr(n); err == nil {
			return one.Unmap() == at.Unmap()
		}
		p, err := netip.ParsePrefix(n)
		return err == nil && p.Contains(at.Unmap())
	})
}

// member is what somebody shall be in a project.
func (m *maker) member(project Key, who, is string) {
	was := Nobody
	if o := m.now.Objects[project]; o != nil && o.Members[who] != "" {
		was = o.Members[who]
	}
	c := m.members[project]
	if was == is {
		return
	}
	if c == nil {
		c = &Change{Kind: Members, Domain: project.Domain, Name: project.Name, From: Attrs{}, To: Attrs{}}
		m.members[project] = c
	}
	c.From[who], c.To[who] = was, is
}

// user checks that a member is a user of the domain whom the actor sees.
func (m *maker) user(who item, domain string, by Key) bool {
	of, ok := m.will[Key{User, "", who.text}]
	if !ok || of != domain {
		m.add(who.line, "there is no user %s in domain %s, whom %s names", clip(who.text), domain, by)
		return false
	}
	if u := m.now.Objects[Key{User, "", who.text}]; u != nil && u.Service {
		m.add(who.line, "%s is a service account, which files do not change", clip(who.text))
		return false
	}
	return true
}

// lists plans what lists of an object say. A list that is there is the whole list.
func (m *maker) lists(e *entry, o *Object) {
	switch e.key.Kind {
	case Project:
		m.membersOf(e, o)
	case User:
		projects, there := e.lists["projects"]
		if !there {
			return
		}
		want := map[Key]bool{}
		for _, p := range projects {
			key := Key{Project, e.domain, p.text}
			if m.named(key, p.line, e.key.String()) {
				want[key] = true
				if o := m.now.Objects[key]; o == nil || o.Members[e.key.Name] == "" {
					m.member(key, e.key.Name, Member)
				}
			}
		}
		for key, p := range m.now.Objects {
			if key.Kind == Project && p.Members[e.key.Name] != "" && !want[key] {
				m.member(key, e.key.Name, Nobody)
			}
		}
	case ResourceGroup:
		m.access(e, o)
	}
}

func (m *maker) membersOf(e *entry, o *Object) {
	members, stated := e.lists["members"]
	admins, office := e.lists["admins"]
	want := map[string]string{}
	for _, who := range members {
		if m.user(who, e.key.Domain, e.key) {
			want[who.text] = Member
		}
	}
	if stated && !office && o != nil { // nothing is said of who administers it
		for who := range want {
			if o.Members[who] == Admin {
				want[who] = Admin
			}
		}
	}
	for _, who := range admins {
		if m.user(who, e.key.Domain, e.key) {
			want[who.text] = Admin
		}
	}
	for who, is := range want {
		m.member(e.key, who, is)
	}
	if o == nil {
		return
	}
	for who, is := range o.Members {
		u := m.now.Objects[Key{User, "", who}]
		switch {
		case want[who] != "" || u == nil || u.left():
		case stated:
			m.member(e.key, who, Nobody)
		case office && is == Admin:
			m.member(e.key, who, Member)
		}
	}
}

func (m *maker) access(e *entry, o *Object) {
	c := Change{Kind: Access, Name: e.key.Name, From: Attrs{}, To: Attrs{}}
	for list, kind := range map[string]Kind{"domains": Domain, "projects": Project} {
		named, there := e.lists[list]
		if !there {
			continue
		}
		prefix := string(kind) + ":"
		want := map[string]bool{}
		for _, t := range named {
			key := Key{kind, "", t.text}
			if kind == Project {
				domain, name, ok := strings.Cut(t.text, "/")
				if !ok {
					m.add(t.line, "%q names no project: write DOMAIN/PROJECT", clip(t.text))
					continue
				}
				key = Key{kind, domain, name}
			}
			if !m.named(key, t.line, e.key.String()) {
				continue
			}
			want[prefix+t.text] = true
			if o == nil || !o.Allowed[prefix+t.text] {
				c.From[prefix+t.text], c.To[prefix+t.text] = Refused, Admitted
			}
		}
		if o == nil {
			continue
		}
		for who := range o.Allowed {
			if strings.HasPrefix(who, prefix) && !want[who] {
				c.From[who], c.To[who] = Admitted, Refused
			}
		}
	}
	if len(c.To) > 0 {
		m.out.Changes = append(m.out.Changes, c)
	}
}

// prune makes inactive what the lists of the file leave out.
func (m *maker) prune() {
	said := map[Key]bool{}
	for _, e := range m.file.entries {
		said[e.key] = true
	}
	for _, s := range m.file.sections {
		for _, key := range m.now.sorted(s.kind) {
			o := m.now.Objects[key]
			of := key.Domain
			if key.Kind == User {
				of = o.Domain
			}
			if said[key] || s.domain != "" && s.domain != of || key.Kind == User && o.left() ||
				!m.who.Superadmin && key.Kind != User && key.Kind != Project {
				continue
			}
			name, now, off := "active", "true", "false"
			if key.Kind == User {
				name, now, off = "status", "active", "inactive"
			}
			if o.Attrs[name] != now || key.Kind == User && !m.who.Superadmin && o.Attrs["role"] == "superadmin" {
				continue
			}
			if key.Kind == User && key.Name == m.who.Email || key.Kind == Domain && (key.Name == m.who.Domain || key.Name == defaultPolicy) {
				m.add(0, "the file does not name %s, which --prune would make inactive: it is your own or the cluster's first one; add it", key)
				continue
			}
			c := Change{Kind: key.Kind, Domain: of, Name: key.Name, From: Attrs{name: now}, To: Attrs{name: off},
				Notes: []string{"the file does not name it"}}
			m.out.Changes = append(m.out.Changes, c)
		}
	}
}

// usernames refuses names that others have. Two users who exchange theirs would each wait for the other.
func (m *maker) usernames() {
	has := map[string]string{}
	for key, o := range m.now.Objects {
		if key.Kind == User {
			has[o.Attrs["username"]] = key.Name
		}
	}
	for _, e := range m.file.entries {
		if e.key.Kind != User {
			continue
		}
		o := m.now.Objects[e.key]
		v, ok := e.set["username"]
		if !ok && o == nil {
			v = value{e.key.Name, e.line}
		} else if !ok || o != nil && o.Attrs["username"] == v.text {
			continue
		}
		if v.text == "" || strings.ContainsAny(v.text, " \t\n") {
			m.add(v.line, "%q cannot be the name of a user", clip(v.text))
		}
		if who, taken := has[v.text]; taken && who != e.key.Name {
			m.add(v.line, "%s is already called %q: give one of them another name first, in a file of its own", who, clip(v.text))
		}
		has[v.text] = e.key.Name
	}
}

// after are the properties of an object when all is done.
func (m *maker) after(k Key, changes map[Key]Attrs) Attrs {
	out := Attrs{}
	if o := m.now.Objects[k]; o != nil {
		out = maps.Clone(o.Attrs)
	}
	maps.Copy(out, changes[k])
	return out
}

// counted writes a number of things.
func counted(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}
