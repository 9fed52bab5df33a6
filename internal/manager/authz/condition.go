package authz

import (
	"fmt"
	"slices"
	"strings"

	"berth.dev/berth/internal/cluster"
)

// Fact names one thing that rules look at of an object. Object holds it for decisions in Go, Columns says where it is for
// decisions in SQL.
type Fact string

// The facts. Which of them a kind of object has is told by Kind.Facts.
const (
	Owner       Fact = "owner"        // the user whom the object belongs to; none when it belongs to a project
	OwnerRole   Fact = "owner role"   // the role of that user
	Domain      Fact = "domain"       // the domain that the object belongs to
	Project     Fact = "project"      // the project that the object belongs to
	ProjectType Fact = "project type" // the type of that project
	Creator     Fact = "creator"      // the user who made the object
	Permission  Fact = "permission"   // what a folder allows to be done with its files
	Granted     Fact = "granted"      // the permission on a folder that was given to the actor
	Given       Fact = "given"        // whether the object was given to the actor: a share, or a policy that holds for the actor
	Public      Fact = "public"       // whether the object is for every user
	Active      Fact = "active"       // whether the object is in use
	Service     Fact = "service"      // whether the object belongs to a service account
	Registry    Fact = "registry"     // the registry of an image
	ToDomains   Fact = "domains"      // the domains that the object is assigned to
	ToProjects  Fact = "projects"     // the projects that the object is assigned to
	ToKeys      Fact = "access keys"  // the access keys that the object is assigned to
)

// sqlType is the type of a fact's column, or of the elements of a list.
func (f Fact) sqlType() string {
	switch f {
	case Owner, Creator, Project, ToProjects:
		return "uuid"
	}
	return "text"
}

// list reports whether the fact has several values.
func (f Fact) list() bool { return f == ToDomains || f == ToProjects || f == ToKeys }

// Object holds the facts about one object. Those that the rule of its kind does not use stay empty.
type Object struct {
	// Name is for the words of refusals.
	Name        string
	Owner       cluster.UserID
	OwnerRole   Role
	Domain      string
	Project     cluster.ProjectID
	ProjectType string
	Creator     cluster.UserID
	Permission  cluster.MountPermission
	Granted     cluster.MountPermission
	Given       bool
	Public      bool
	Active      bool
	Service     bool
	Registry    string
	Domains     []string
	Projects    []cluster.ProjectID
	Keys        []cluster.AccessKey
}

// values are what is known of a fact that is no flag; unknown is none.
func (o Object) values(f Fact) []string {
	switch f {
	case Owner:
		return known(string(o.Owner))
	case OwnerRole:
		return known(string(o.OwnerRole))
	case Domain:
		return known(o.Domain)
	case Project:
		return known(string(o.Project))
	case ProjectType:
		return known(o.ProjectType)
	case Creator:
		return known(string(o.Creator))
	case Permission:
		return known(string(o.Permission))
	case Granted:
		return known(string(o.Granted))
	case Registry:
		return known(o.Registry)
	case ToDomains:
		return known(o.Domains...)
	case ToProjects:
		return known(o.Projects...)
	case ToKeys:
		return known(o.Keys...)
	}
	return nil
}

func (o Object) is(f Fact) bool {
	switch f {
	case Given:
		return o.Given
	case Public:
		return o.Public
	case Active:
		return o.Active
	case Service:
		return o.Service
	}
	return false
}

func known[T ~string](texts ...T) []string {
	var out []string
	for _, t := range texts {
		if t != "" {
			out = append(out, string(t))
		}
	}
	return out
}

// attribute names what rules compare with the facts of an object.
type attribute string

const (
	itsUser       attribute = "user"
	itsDomain     attribute = "domain"
	itsProjects   attribute = "projects"
	itsLeads      attribute = "projects to administer"
	itsKey        attribute = "access key"
	itsRegistries attribute = "registries" // those that the actor's domain allows
	itsScope      attribute = "scope"      // the projects that the actor's token is for
)

func (a Actor) values(at attribute) []string {
	switch at {
	case itsUser:
		return known(string(a.UserID))
	case itsDomain:
		return known(a.Domain)
	case itsProjects:
		return known(a.Projects...)
	case itsLeads:
		return known(a.Leads...)
	case itsKey:
		return known(string(a.AccessKey))
	case itsRegistries:
		return known(a.AllowedRegistries...)
	case itsScope:
		if a.Scope != nil {
			return known(a.Scope.Projects...)
		}
	}
	return nil
}

// condition is one part of a rule. It is decided in Go about an object that was read, and written as SQL about all rows
// of a query; both always agree (see package facts). SQL that is NULL counts as false.
type condition interface {
	holds(a Actor, o Object) bool
	// given is the condition for one actor: what depends on the actor alone is decided.
	given(a Actor) condition
	// sql writes a condition that given returned.
	sql(q *query) string
	// facts are those that the condition looks at.
	facts() []Fact
	// String says it in words.
	String() string
}

// Columns say where a query has the facts of its objects: SQL expressions of the query's own tables. In an expression
// {user}, {projects} and {key} stand for the actor's user, projects and access key.
type Columns map[Fact]string

// query collects what SQL needs.
type query struct {
	noun    string
	columns Columns
	actor   Actor
	// arg adds a parameter and returns its placeholder.
	arg func(any) string
}

// column is the expression of a fact.
func (q *query) column(f Fact) string {
	text, ok := q.columns[f]
	if !ok {
		panic(fmt.Sprintf("authz: a query about a %s does not say where the fact %q is", q.noun, f)) // a mistake of the caller's text
	}
	if strings.Contains(text, "{user}") {
		text = strings.ReplaceAll(text, "{user}", q.arg(string(q.actor.UserID))+"::uuid")
	}
	if strings.Contains(text, "{projects}") {
		text = strings.ReplaceAll(text, "{projects}", q.arg(append([]string{}, q.actor.values(itsProjects)...))+"::uuid[]")
	}
	if strings.Contains(text, "{key}") {
		text = strings.ReplaceAll(text, "{key}", q.arg(string(q.actor.AccessKey))+"::text")
	}
	return text
}

// constant is a condition that is decided.
type constant bool

func (c constant) holds(Actor, Object) bool { return bool(c) }
func (c constant) given(Actor) condition    { return c }
func (c constant) sql(*query) string        { return fmt.Sprint(bool(c)) }
func (c constant) facts() []Fact            { return nil }

func (c constant) String() string {
	if c {
		return "every user"
	}
	return "nobody"
}

// role holds for actors of that role, whatever the object is.
type role Role

func (r role) holds(a Actor, _ Object) bool { return a.Role == Role(r) }
func (r role) given(a Actor) condition      { return constant(a.Role == Role(r)) }
func (r role) sql(*query) string            { return undecided }
func (r role) facts() []Fact                { return nil }
func (r role) String() string               { return "the actor's role is " + string(r) }

// undecided is no SQL: given has decided such a condition before.
const undecided = "false"

// match holds when a fact of the object is among the values of the actor's attribute.
type match struct {
	fact Fact
	to   attribute
}

func (m match) holds(a Actor, o Object) bool {
	mine := a.values(m.to)
	return slices.ContainsFunc(o.values(m.fact), func(v string) bool { return slices.Contains(mine, v) })
}

func (m match) given(a Actor) condition {
	if len(a.values(m.to)) == 0 {
		return constant(false)
	}
	return m
}

func (m match) sql(q *query) string {
	mine := q.actor.values(m.to)
	column, of := q.column(m.fact), m.fact.sqlType()
	switch {
	case m.fact.list():
		return fmt.Sprintf("%s && %s::%s[]", column, q.arg(mine), of)
	case len(mine) == 1: // an index that is ordered by further columns stays useful
		return fmt.Sprintf("%s = %s::%s", column, q.arg(mine[0]), of)
	}
	return fmt.Sprintf("%s = ANY(%s::%s[])", column, q.arg(mine), of)
}

func (m match) facts() []Fact { return []Fact{m.fact} }

func (m match) String() string { return fmt.Sprintf("the object's %s is the actor's %s", m.fact, m.to) }

// is holds when a fact has one of the values; "" stands for a fact that is missing.
type is struct {
	fact   Fact
	values []string
}

func (c is) holds(_ Actor, o Object) bool {
	have := o.values(c.fact)
	if len(have) == 0 {
		return slices.Contains(c.values, "")
	}
	return slices.Contains(c.values, have[0])
}

func (c is) given(Actor) condition { return c }

func (c is) sql(q *query) string {
	return fmt.Sprintf("coalesce(%s::text, '') IN ('%s')", q.column(c.fact), strings.Join(c.values, "', '"))
}

func (c is) facts() []Fact { return []Fact{c.fact} }

func (c is) String() string { return fmt.Sprintf("the object's %s is one of %q", c.fact, c.values) }

// flag holds when a fact is true.
type flag Fact

func (f flag) holds(_ Actor, o Object) bool { return o.is(Fact(f)) }
func (f flag) given(Actor) condition        { return f }
func (f flag) sql(q *query) string          { return q.column(Fact(f)) }
func (f flag) facts() []Fact                { return []Fact{Fact(f)} }
func (f flag) String() string               { return "the object is " + string(f) }

// not holds when the condition does not.
type not struct{ condition }

func (n not) holds(a Actor, o Object) bool { return !n.condition.holds(a, o) }

func (n not) given(a Actor) condition {
	inner := n.condition.given(a)
	if c, decided := inner.(constant); decided {
		return !c
	}
	return not{inner}
}

func (n not) sql(q *query) string { return "(" + n.condition.sql(q) + ") IS NOT TRUE" }

func (n not) String() string { return "not (" + n.condition.String() + ")" }

// allOf holds when all conditions do.
type allOf []condition

func (c allOf) holds(a Actor, o Object) bool {
	return !slices.ContainsFunc(c, func(one condition) bool { return !one.holds(a, o) })
}

func (c allOf) given(a Actor) condition {
	left, decided := reduce(c, a, false)
	if decided {
		return constant(false)
	}
	if len(left) == 0 {
		return constant(true)
	}
	return allOf(left)
}

func (c allOf) sql(q *query) string { return join(c, q, " AND ") }
func (c allOf) facts() []Fact       { return factsOf(c) }
func (c allOf) String() string      { return wordsOf(c, " and ", " and ") }

// anyOf holds when one of the conditions does.
type anyOf []condition

func (c anyOf) holds(a Actor, o Object) bool {
	return slices.ContainsFunc(c, func(one condition) bool { return one.holds(a, o) })
}

func (c anyOf) given(a Actor) condition {
	left, decided := reduce(c, a, true)
	if decided {
		return constant(true)
	}
	if len(left) == 0 {
		return constant(false)
	}
	return anyOf(left)
}

func (c anyOf) sql(q *query) string { return join(c, q, " OR ") }
func (c anyOf) facts() []Fact       { return factsOf(c) }
func (c anyOf) String() string      { return wordsOf(c, ", ", " or ") }

// reduce returns the conditions that are left for an actor; decided says that one of them has the decisive value.
func reduce(conditions []condition, a Actor, decisive constant) (left []condition, decided bool) {
	for _, one := range conditions {
		inner := one.given(a)
		switch c, constant := inner.(constant); {
		case !constant:
			left = append(left, inner)
		case c == decisive:
			return nil, true
		}
	}
	return left, false
}

func join(conditions []condition, q *query, operator string) string {
	parts := make([]string, len(conditions))
	for i, one := range conditions {
		parts[i] = one.sql(q)
	}
	return "(" + strings.Join(parts, operator) + ")"
}

func factsOf(conditions []condition) []Fact {
	var out []Fact
	for _, one := range conditions {
		out = append(out, one.facts()...)
	}
	slices.Sort(out)
	return slices.Compact(out)
}

func wordsOf(conditions []condition, between, last string) string {
	words := ""
	for i, one := range conditions {
		switch {
		case i == 0:
		case i == len(conditions)-1:
			words += last
		default:
			words += between
		}
		words += one.String()
	}
	return words
}

// named gives a condition the words that people use for it.
type named struct {
	condition
	words string
}

func (n named) String() string { return n.words }
