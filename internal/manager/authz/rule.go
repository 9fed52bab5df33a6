package authz

import (
	"slices"

	"berth.dev/berth/internal/fault"
)

// Verb is what an actor wants to do with an object.
type Verb string

// The verbs. See decides who learns that an object exists.
const (
	See        Verb = "see"        // know that it is there, and its properties
	Change     Verb = "change"     // change it, destroy it or run something in it
	Create     Verb = "create"     // make one
	Administer Verb = "administer" // set what is for administrators alone
	Use        Verb = "use"        // make a session with it
	Act        Verb = "act"        // name it as the owner of a request
	Reveal     Verb = "reveal"     // be told its secret
	Visit      Verb = "visit"      // connect to the app behind it
	Purge      Verb = "purge"      // forget it with its trash, or with all that it has
	Admit      Verb = "admit"      // say who belongs to it
	SeeMembers Verb = "see members"
	Divide     Verb = "divide" // share out what it has among those in it
	// Of folders: what concerns the files in them.
	Reach       Verb = "reach"        // have it among one's own folders: in lists, and to mount
	ReadFiles   Verb = "read files"   // list and download
	WriteFiles  Verb = "write files"  // make, change and upload
	DeleteFiles Verb = "delete files" // remove
)

// reads reports whether the verb changes nothing. The others are refused to monitors whatever the rule says.
func (v Verb) reads() bool { return v == See || v == Reach || v == ReadFiles || v == SeeMembers }

// Kind is a kind of object with its rule: who may do what. Every decision about objects of the kind comes from it, those about
// one object (May, Check) as well as those about all rows of a query (Where).
type Kind struct {
	// Noun is the wire's word for the object.
	Noun string
	rule map[Verb]condition
}

// Verbs are those that the kind's rule knows, in the order of their names.
func (k Kind) Verbs() []Verb {
	var out []Verb
	for v := range k.rule {
		out = append(out, v)
	}
	slices.Sort(out)
	return out
}

// Facts are those that the kind's rule looks at.
func (k Kind) Facts() []Fact {
	var all []condition
	if scopings[k.Noun].inProject {
		all = append(all, match{Project, itsScope})
	}
	for _, v := range k.Verbs() {
		all = append(all, k.rule[v])
	}
	return factsOf(all)
}

// Who says in words who may do it.
func (k Kind) Who(v Verb) string { return k.of(v).String() }

// of is the condition of a verb; what no rule allows is denied.
func (k Kind) of(v Verb) condition {
	if c, ok := k.rule[v]; ok {
		return c
	}
	return constant(false)
}

// admitted reports whether the actor may do such a thing to anything at all.
func admitted(a Actor, v Verb) bool { return a.Known() && (v.reads() || !a.Monitor()) }

// May decides about one object.
func (k Kind) May(a Actor, v Verb, o Object) bool {
	return admitted(a, v) && k.leaves(a, v).holds(a, o) && k.of(v).holds(a, o)
}

// Where writes the decision as an SQL condition over the rows of a query: exactly the rows hold for which May is true of
// the row's object. arg adds a parameter to the query and returns its placeholder.
func (k Kind) Where(a Actor, v Verb, columns Columns, arg func(any) string) string {
	if !admitted(a, v) {
		return constant(false).sql(nil)
	}
	q := &query{noun: k.Noun, columns: columns, actor: a, arg: arg}
	if a.Scope == nil {
		return k.of(v).given(a).sql(q)
	}
	return allOf{k.leaves(a, v), k.of(v)}.given(a).sql(q)
}

// Check is May as an error. Whoever may not see the object learns nothing about it: the refusal is NotFound. Others are
// Denied and told who may.
func (k Kind) Check(a Actor, v Verb, o Object) error {
	switch {
	case !a.Known():
		return Authenticated(a)
	case k.May(a, v, o):
		return nil
	case v == See || !k.May(a, See, o):
		return NotFound(k.Noun, o.Name)
	}
	return k.denied(a, string(v)+" this "+k.Noun, v)
}

// Need refuses with Denied, for what is no secret or concerns no object that is there: what says in words what was asked.
func (k Kind) Need(a Actor, v Verb, o Object, what string) error {
	if k.May(a, v, o) {
		return nil
	}
	return k.denied(a, what, v)
}

func (k Kind) denied(a Actor, what string, v Verb) error {
	if !a.Known() {
		return Authenticated(a)
	}
	if a.Scope != nil && !k.leaves(a, v).holds(a, Object{Owner: a.UserID}) {
		return fault.Deniedf("%s may not %s with this API token: its scope leaves that out", a.Email, what).
			WithNext("use a token with a wider scope, or sign the request with a keypair")
	}
	return fault.Deniedf("%s may not %s: this needs %s", a.Email, what, k.Who(v)).
		WithNext("ask an administrator of your cluster")
}
