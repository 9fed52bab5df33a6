package authz

import "berth.dev/berth/internal/cluster"

// Decision tells how the rule of a kind decided about one object.
type Decision struct {
	Allowed bool
	// Because are the words of the conditions that hold, each of which is enough.
	Because []string
	// Needs are the words of all conditions of the rule, of which one must hold.
	Needs []string
	// ReadsOnly says that the actor is a monitor, who changes nothing whatever the rule says.
	ReadsOnly bool
}

// Explain is May with its reasons, of the same rule.
func (k Kind) Explain(a Actor, v Verb, o Object) Decision {
	d := Decision{Allowed: k.May(a, v, o), Because: []string{}, Needs: []string{}, ReadsOnly: a.Monitor() && !v.reads()}
	for _, c := range alternatives(k.of(v)) {
		d.Needs = append(d.Needs, c.String())
		if admitted(a, v) && c.holds(a, o) {
			d.Because = append(d.Because, c.String())
		}
	}
	return d
}

// alternatives are the conditions of which one is enough.
func alternatives(c condition) []condition {
	any, is := c.(anyOf)
	if !is {
		return []condition{c}
	}
	var out []condition
	for _, one := range any {
		out = append(out, alternatives(one)...)
	}
	return out
}

// Expression is where a query has a fact, for one actor: as an array of texts, empty where nothing is known. arg adds a parameter to the
// query and returns its placeholder.
func (c Columns) Expression(a Actor, f Fact, arg func(any) string) string {
	text := (&query{columns: c, actor: a, arg: arg}).column(f)
	if f.list() {
		return "coalesce((" + text + ")::text[], '{}')"
	}
	return "array_remove(ARRAY[(" + text + ")::text], NULL)"
}

// With is the object with a fact that Expression read.
func (o Object) With(f Fact, values []string) Object {
	first := ""
	if len(values) > 0 {
		first = values[0]
	}
	switch f {
	case Owner:
		o.Owner = cluster.UserID(first)
	case OwnerRole:
		o.OwnerRole = Role(first)
	case Domain:
		o.Domain = first
	case Project:
		o.Project = cluster.ProjectID(first)
	case ProjectType:
		o.ProjectType = first
	case Creator:
		o.Creator = cluster.UserID(first)
	case Permission:
		o.Permission = cluster.MountPermission(first)
	case Granted:
		o.Granted = cluster.MountPermission(first)
	case Registry:
		o.Registry = first
	case Given:
		o.Given = first == "true"
	case Public:
		o.Public = first == "true"
	case Active:
		o.Active = first == "true"
	case ToDomains:
		o.Domains = values
	case ToProjects:
		for _, v := range values {
			o.Projects = append(o.Projects, cluster.ProjectID(v))
		}
	case ToKeys:
		for _, v := range values {
			o.Keys = append(o.Keys, cluster.AccessKey(v))
		}
	}
	return o
}
