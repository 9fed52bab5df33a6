package scim

import (
	"encoding/json"
	"slices"
	"strings"
)

// operation is one of a PATCH, with its path read.
type operation struct {
	kind  string // add, replace, remove
	path  path
	value json.RawMessage
}

// path is where an operation works: an attribute such as name.familyname, of a multi-valued one the values that a filter chooses.
type path struct {
	attribute string
	// filter chooses values: sub is compared with equal; "" without a filter.
	sub, equal string
	// of is the part of the value that is meant, such as value in emails[type eq "work"].value.
	of string
}

// operations reads a PATCH.
func operations(raw []byte) ([]operation, error) {
	o, err := readObject(raw)
	if err != nil {
		return nil, err
	}
	var all []json.RawMessage
	if json.Unmarshal(o["operations"], &all) != nil || len(all) == 0 {
		return nil, bad(InvalidSyntax, "Operations is no list of operations")
	}
	if len(all) > maxOperations {
		return nil, bad(TooMany, "a PATCH has %d operations at most", maxOperations)
	}
	var out []operation
	for _, one := range all {
		o, err := readObject(one)
		if err != nil {
			return nil, err
		}
		kind, err := text("op", o["op"])
		if err != nil {
			return nil, err
		}
		p := operation{kind: strings.ToLower(kind), value: o["value"]} // Microsoft Entra writes Add, Replace, Remove
		if !slices.Contains([]string{"add", "replace", "remove"}, p.kind) {
			return nil, bad(InvalidSyntax, "op is add, replace or remove, not %.40q", kind)
		}
		where := ""
		if !isNull(o["path"]) {
			if err := json.Unmarshal(o["path"], &where); err != nil {
				return nil, bad(InvalidPath, "path is no text")
			}
		}
		if where == "" && p.kind == "remove" {
			return nil, bad(NoTarget, "remove needs a path")
		}
		if p.path, err = readPath(where); err != nil {
			return nil, err
		}
		if slices.Contains(readOnly, p.path.attribute) {
			return nil, bad(Mutability, "%s cannot be changed", p.path.attribute)
		}
		out = append(out, p)
	}
	return out, nil
}

// readPath reads a path such as name.familyName, members[value eq "2819c223"] and emails[type eq "work"].value.
func readPath(where string) (path, error) {
	var p path
	wrong := bad(InvalidPath, "%.100q is no path that is known here", where)
	if len(where) > 1024 {
		return p, wrong
	}
	head, rest, chosen := strings.Cut(where, "[")
	p.attribute = attribute(strings.TrimSpace(head))
	if !chosen {
		return p, nil
	}
	inside, tail, closed := cutBracket(rest)
	if !closed {
		return p, wrong
	}
	e, err := parse(inside)
	if err != nil || e.kind != "compare" || e.op != "eq" || e.value.kind == valueNull {
		return p, wrong
	}
	p.sub, p.equal = e.attribute, e.value.text
	if tail != "" {
		of, dotted := strings.CutPrefix(tail, ".")
		if !dotted || of == "" {
			return p, wrong
		}
		p.of = strings.ToLower(of)
	}
	return p, nil
}

// cutBracket cuts behind the bracket that closes; brackets within texts do not.
func cutBracket(s string) (inside, tail string, ok bool) {
	quoted := false
	for i := 0; i < len(s); i++ {
		switch {
		case s[i] == '\\' && quoted:
			i++
		case s[i] == '"':
			quoted = !quoted
		case s[i] == ']' && !quoted:
			return s[:i], s[i+1:], true
		}
	}
	return "", "", false
}

// Patch changes a user as a PATCH says. All of it counts or nothing.
func (u *User) Patch(raw []byte) error {
	all, err := operations(raw)
	if err != nil {
		return err
	}
	next := *u
	for _, o := range all {
		if err := next.apply(o); err != nil {
			return err
		}
	}
	if err := next.check(); err != nil {
		return err
	}
	*u = next
	return nil
}

func (u *User) apply(o operation) error {
	if o.path.attribute == "" {
		return each(o.value, func(name string, v json.RawMessage) error {
			p, err := readPath(name) // Microsoft Entra writes paths as names
			if err != nil {
				return err
			}
			return u.apply(operation{o.kind, p, v})
		})
	}
	v := o.value
	if o.kind == "remove" {
		v = nil
	} else if isNull(v) && o.kind == "add" {
		return bad(InvalidValue, "add needs a value")
	}
	if o.path.attribute == "emails" && (o.path.sub != "" || o.path.of != "") {
		if o.path.sub == "type" && !strings.EqualFold(o.path.equal, "work") {
			return nil // one address is kept, that of work
		}
		if o.path.of != "" && o.path.of != "value" {
			return nil
		}
	}
	if o.path.attribute == "emails.value" {
		o.path.attribute = "emails"
	}
	if o.kind == "remove" && (o.path.attribute == "active" || o.path.attribute == "username") {
		return bad(Mutability, "%s cannot be removed", o.path.attribute)
	}
	return u.set(o.path.attribute, v)
}

// Patch changes a group as a PATCH says. All of it counts or nothing.
func (g *Group) Patch(raw []byte) error {
	all, err := operations(raw)
	if err != nil {
		return err
	}
	next := Group{g.DisplayName, g.ExternalID, slices.Clone(g.Members)}
	for _, o := range all {
		if err := next.apply(o); err != nil {
			return err
		}
	}
	if err := next.check(); err != nil {
		return err
	}
	*g = next
	return nil
}

func (g *Group) apply(o operation) error {
	if o.path.attribute == "" {
		return each(o.value, func(name string, v json.RawMessage) error {
			return g.apply(operation{o.kind, path{attribute: name}, v})
		})
	}
	if o.path.attribute != "members" {
		if o.kind == "remove" {
			o.value = nil
		}
		return g.set(o.path.attribute, o.value)
	}
	if o.path.sub != "" {
		if o.path.sub != "value" || o.kind != "remove" {
			return bad(InvalidPath, `members are chosen by members[value eq "ID"], and removed so`)
		}
		gone := strings.ToLower(o.path.equal)
		g.Members = slices.DeleteFunc(g.Members, func(m string) bool { return m == gone })
		return nil
	}
	some, err := members(o.value)
	if err != nil {
		return err
	}
	switch o.kind {
	case "add":
		g.Members = append(g.Members, some...)
		if len(g.Members) > 2*MaxMembers {
			return bad(TooMany, "a group has %d members at most", MaxMembers)
		}
	case "replace":
		g.Members = some
	case "remove":
		if isNull(o.value) {
			g.Members = nil
			return nil
		}
		gone := map[string]bool{}
		for _, id := range some {
			gone[id] = true
		}
		g.Members = slices.DeleteFunc(g.Members, func(m string) bool { return gone[m] })
	}
	return nil
}

// each takes the attributes of a value without a path. What only the server sets is left out: Okta sends ids along.
func each(v json.RawMessage, do func(name string, v json.RawMessage) error) error {
	o, err := readObject(v)
	if err != nil {
		return bad(InvalidValue, "an operation without a path needs an object as its value")
	}
	names := make([]string, 0, len(o))
	for name := range o {
		names = append(names, name)
	}
	slices.Sort(names)
	for _, name := range names {
		if slices.Contains(readOnly, name) || name == "" {
			continue
		}
		if err := do(name, o[name]); err != nil {
			return err
		}
	}
	return nil
}
