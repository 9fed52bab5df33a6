package plan

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"

	"berth.dev/berth/internal/cluster"
)

// reader reads a YAML document, node by node: every mistake has a line.
type reader struct {
	problems
	file  File
	kinds map[cluster.SlotName]cluster.SlotKind
	perms []string
}

// ReadYAML reads a tenancy. Slot kinds and permissions of folder hosts are those that there are.
func ReadYAML(text []byte, s *Snapshot) (File, []Problem) {
	r := &reader{kinds: s.Slots, perms: s.Permissions}
	r.document(text)
	return r.file, r.all()
}

func (r *reader) document(text []byte) {
	if len(text) > MaxBytes {
		r.add(0, "the file is larger than %d MiB: split it", MaxBytes>>20)
		return
	}
	marks := 0
	for _, c := range []byte("\n,[{:") {
		marks += bytes.Count(text, []byte{c})
	}
	if marks > maxMarks {
		r.add(0, "the file has too many parts: split it")
		return
	}
	d := yaml.NewDecoder(bytes.NewReader(text))
	var doc, second yaml.Node
	if err := d.Decode(&doc); errors.Is(err, io.EOF) {
		r.add(0, "the file is empty")
		return
	} else if err != nil {
		r.add(0, "this is no YAML: %s", strings.TrimPrefix(err.Error(), "yaml: "))
		return
	}
	if err := d.Decode(&second); !errors.Is(err, io.EOF) {
		r.add(0, "the file has more than one document: leave one")
		return
	}
	if !r.plain(&doc) {
		return
	}
	r.each(doc.Content[0], "the file", map[string]func(*yaml.Node){
		"domains":         r.domains,
		"resource_groups": r.groups,
		"policies": func(n *yaml.Node) {
			r.each(n, "policies", map[string]func(*yaml.Node){
				"keypair": func(n *yaml.Node) { r.objects(n, KeypairPolicy, "", nil) },
				"user":    func(n *yaml.Node) { r.objects(n, UserPolicy, "", nil) },
				"project": func(n *yaml.Node) { r.objects(n, ProjectPolicy, "", nil) },
			})
		},
	})
	if len(r.file.entries) > MaxObjects {
		r.add(0, "the file names %d objects; %d are the most: split it", len(r.file.entries), MaxObjects)
	}
}

// plain refuses what makes files mean more than they say: anchors and aliases, and types other than those of values.
func (r *reader) plain(n *yaml.Node) bool {
	if n.Kind == yaml.AliasNode || n.Anchor != "" {
		r.add(n.Line, "anchors and aliases (& and *) are not understood: write the value out")
		return false
	}
	if n.Style&yaml.TaggedStyle != 0 {
		r.add(n.Line, "types (%s) are not understood: leave them out", n.Tag)
		return false
	}
	for _, c := range n.Content {
		if !r.plain(c) {
			return false
		}
	}
	return true
}

func null(n *yaml.Node) bool { return n.Kind == yaml.ScalarNode && n.Tag == "!!null" }

// pairs walks over a mapping; keys are texts that come once.
func (r *reader) pairs(n *yaml.Node, what string, each func(key *yaml.Node, v *yaml.Node)) {
	if null(n) {
		return
	}
	if n.Kind != yaml.MappingNode {
		r.add(n.Line, "%s must be a mapping: a line \"name: value\" each", what)
		return
	}
	seen := map[string]int{}
	for i := 0; i+1 < len(n.Content); i += 2 {
		key := n.Content[i]
		if key.Kind != yaml.ScalarNode || null(key) {
			r.add(key.Line, "a name of %s must be a text", what)
			continue
		}
		if line, twice := seen[key.Value]; twice {
			r.add(key.Line, "%q is there twice, in line %d, too", clip(key.Value), line)
			continue
		}
		seen[key.Value] = key.Line
		each(key, n.Content[i+1])
	}
}

func clip(s string) string {
	if len(s) > 80 {
		return strings.ToValidUTF8(s[:80], "") + "…"
	}
	return s
}

// each reads a mapping with known keys.
func (r *reader) each(n *yaml.Node, what string, known map[string]func(*yaml.Node)) {
	r.pairs(n, what, func(key, v *yaml.Node) {
		if read, ok := known[key.Value]; ok {
			read(v)
			return
		}
		var there []string
		for k := range known {
			there = append(there, k)
		}
		slices.Sort(there)
		r.unknown(key, what, there)
	})
}

func (r *reader) unknown(key *yaml.Node, what string, known []string) {
	hint := ""
	switch key.Value {
	case "password", "secret_key":
		hint = "; secrets do not belong into files"
	case "projects", "groups":
		hint = "; members are listed at their project"
	}
	r.add(key.Line, "%q is unknown in %s%s; it may have %s", clip(key.Value), what, hint, strings.Join(known, ", "))
}

func (r *reader) domains(n *yaml.Node) {
	r.file.sections = append(r.file.sections, section{Domain, ""})
	r.pairs(n, "domains", func(key, v *yaml.Node) {
		domain := key.Value
		r.object(key, v, Domain, "", map[string]func(*yaml.Node, *entry){
			"projects": func(n *yaml.Node, _ *entry) {
				r.file.sections = append(r.file.sections, section{Project, domain})
				r.objects(n, Project, domain, map[string]func(*yaml.Node, *entry){
					"members": r.items("members"), "admins": r.items("admins")})
			},
			"users": func(n *yaml.Node, _ *entry) {
				r.file.sections = append(r.file.sections, section{User, domain})
				r.objects(n, User, domain, nil)
			},
		})
	})
}

func (r *reader) groups(n *yaml.Node) {
	r.file.sections = append(r.file.sections, section{ResourceGroup, ""})
	r.objects(n, ResourceGroup, "", map[string]func(*yaml.Node, *entry){"domains": r.items("domains"), "projects": r.items("projects")})
}

// objects reads a mapping of names to objects.
func (r *reader) objects(n *yaml.Node, k Kind, domain string, lists map[string]func(*yaml.Node, *entry)) {
	r.pairs(n, string(k)+"s", func(key, v *yaml.Node) { r.object(key, v, k, domain, lists) })
}

func (r *reader) object(key, n *yaml.Node, k Kind, domain string, more map[string]func(*yaml.Node, *entry)) {
	e := entry{key: Key{Kind: k, Name: key.Value}, line: key.Line, set: map[string]value{}, lists: map[string][]item{}}
	switch k {
	case Project:
		e.key.Domain = domain
	case User:
		e.domain = domain
	}
	var later []func()
	r.pairs(n, e.key.String(), func(name, v *yaml.Node) {
		if read, ok := more[name.Value]; ok {
			if k == Domain { // after the domain itself
				later = append(later, func() { read(v, &e) })
			} else {
				read(v, &e)
			}
			return
		}
		f, ok := fieldOf(k, name.Value)
		if !ok {
			known := names(k)
			for extra := range more {
				known = append(known, extra)
			}
			slices.Sort(known)
			r.unknown(name, "a "+string(k), known)
			return
		}
		if t, ok := r.value(f, v); ok {
			e.set[f.name] = value{t, v.Line}
		}
	})
	r.file.add(e, &r.problems)
	for _, do := range later {
		do()
	}
}

// items reads a list of names.
func (r *reader) items(name string) func(*yaml.Node, *entry) {
	return func(n *yaml.Node, e *entry) {
		e.lists[name] = append([]item{}, r.texts(n, name, maxList)...)
	}
}

// texts reads a list of texts that come once.
func (r *reader) texts(n *yaml.Node, what string, most int64) []item {
	if null(n) {
		return nil
	}
	if n.Kind != yaml.SequenceNode {
		r.add(n.Line, "%s must be a list: [a, b], or a line \"- a\" each", what)
		return nil
	}
	if int64(len(n.Content)) > most {
		r.add(n.Line, "%s has %d items; %d are the most", what, len(n.Content), most)
		return nil
	}
	var out []item
	seen := map[string]int{}
	for _, c := range n.Content {
		if c.Kind != yaml.ScalarNode || null(c) || c.Value == "" {
			r.add(c.Line, "an item of %s must be a text", what)
			continue
		}
		if line, twice := seen[c.Value]; twice {
			r.add(c.Line, "%q is in %s twice, in line %d, too", clip(c.Value), what, line)
			continue
		}
		seen[c.Value] = c.Line
		out = append(out, item{c.Value, c.Line})
	}
	return out
}

func texts(items []item) []string {
	out := make([]string, len(items))
	for i, t := range items {
		out[i] = t.text
	}
	return out
}

// value reads a property.
func (r *reader) value(f field, n *yaml.Node) (canonical string, ok bool) {
	switch f.form {
	case list:
		before := len(r.problems.list) + r.more
		got := List(texts(r.texts(n, f.name, f.high)))
		return got, len(r.problems.list)+r.more == before
	case slots, hosts:
		return r.nested(f, n)
	}
	if n.Kind != yaml.ScalarNode || null(n) {
		r.add(n.Line, "%s has no value: leave the line out to leave it as it is", f.name)
		return "", false
	}
	canonical, err := scalar(f, n.Value)
	if err != nil {
		r.add(n.Line, "%s", err)
		return "", false
	}
	return canonical, true
}

// scalar reads a property that is one text.
func scalar(f field, v string) (string, error) {
	switch f.form {
	case flag:
		if v != "true" && v != "false" {
			return "", fmt.Errorf("%s must be true or false, not %q", f.name, clip(v))
		}
	case count:
		n, err := strconv.ParseInt(v, 10, 64)
		if err != nil || n < f.low || n > f.high {
			return "", fmt.Errorf("%s must be a number from %d to %d, not %q", f.name, f.low, f.high, clip(v))
		}
		return Count(n), nil
	case text:
		if len(f.words) > 0 && !slices.Contains(f.words, v) {
			return "", fmt.Errorf("%s must be %s, not %q", f.name, strings.Join(f.words, " or "), clip(v))
		}
		if f.high > 0 && int64(len(v)) > f.high {
			return "", fmt.Errorf("%s has more than %d bytes", f.name, f.high)
		}
		if strings.ContainsRune(v, 0) {
			return "", fmt.Errorf("%s is no text", f.name)
		}
	}
	return v, nil
}

// nested reads amounts by slot, or permissions by folder host.
func (r *reader) nested(f field, n *yaml.Node) (string, bool) {
	before := len(r.problems.list) + r.more
	amounts, perms := cluster.Slots{}, map[string]any{}
	r.pairs(n, f.name, func(key, v *yaml.Node) {
		if f.form == hosts {
			if _, err := cluster.ParseVolumeHost(key.Value); err != nil {
				r.add(key.Line, "%s: %s", f.name, err)
			}
			var of []string
			for _, p := range r.texts(v, key.Value, int64(len(r.perms))) {
				if !slices.Contains(r.perms, p.text) {
					r.add(p.line, "%q is no permission on folder hosts; there are %s", clip(p.text), strings.Join(r.perms, ", "))
				}
				of = append(of, p.text)
			}
			perms[key.Value] = of
			return
		}
		if v.Kind != yaml.ScalarNode || null(v) {
			r.add(v.Line, "%s of %s must be an amount such as 4 or 8g", f.name, clip(key.Value))
			return
		}
		slot := cluster.SlotName(key.Value)
		amount, err := cluster.ParseAmount(cluster.KindOf(slot, r.kinds), v.Value)
		if err != nil || key.Value == "" || len(key.Value) > 64 {
			r.add(v.Line, "%s: %q is no amount of %s: write 4, 0.5 or 8g", f.name, clip(v.Value), clip(key.Value))
			return
		}
		amounts[slot] = amount
	})
	if len(r.problems.list)+r.more != before {
		return "", false
	}
	if f.form == hosts {
		return Hosts(perms), true
	}
	return Amounts(amounts), true
}
