package authztest

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/fault"
	"berth.dev/berth/internal/manager/authz"
)

var update = flag.Bool("update", false, "write docs/authorisation.md")

const document = "../../../docs/authorisation.md"

// line says of one method what it asks of the rule of a kind, and about which object the test calls it.
type line struct {
	method string // noun.Method
	kind   authz.Kind
	verb   authz.Verb
	object objectOf
	// args follow the context and the actor; what is missing is the zero value.
	args func(w *world, s set) []any
	how  how
}

// how a method refuses.
type how int

const (
	checks  how = iota // NotFound of what the actor may not see, else Denied
	needs              // Denied always
	lists              // leaves out what the actor may not see
	offices            // Denied to those who administrate nothing, and checks the others
)

// objectOf are the facts of the object that a line is about; s is the owner whose things are meant.
type objectOf func(a authz.Actor, w *world, s set) authz.Object

// ofOwner belongs to the owner, or to the superadmin where the matrix asks about those.
func ofOwner(_ authz.Actor, _ *world, s set) authz.Object {
	return authz.Object{Owner: cluster.UserID(s.user), OwnerRole: s.role, Domain: "d"}
}

// ofSession is ofOwner with the project that the session runs in.
func ofSession(_ authz.Actor, w *world, s set) authz.Object {
	return authz.Object{Owner: cluster.UserID(s.user), OwnerRole: s.role, Domain: "d", Project: cluster.ProjectID(w.project)}
}

// ofFolder is ofOwner with what folders have.
func ofFolder(_ authz.Actor, _ *world, s set) authz.Object {
	return authz.Object{Owner: cluster.UserID(s.user), OwnerRole: s.role, Domain: "d", Permission: cluster.ReadWrite}
}

// ofRole is a user of the owner's role who is none of the people: a new one, or the spare one.
func ofRole(_ authz.Actor, _ *world, s set) authz.Object {
	return authz.Object{OwnerRole: s.role, Domain: "d"}
}

// ofService is a service account of the domain.
func ofService(_ authz.Actor, _ *world, _ set) authz.Object {
	return authz.Object{OwnerRole: authz.RoleUser, Domain: "d", Service: true}
}

// ofItself is the actor's own.
func ofItself(a authz.Actor, _ *world, _ set) authz.Object { return authz.Object{Owner: a.UserID} }

// ofTemplate is what the owner has for a project.
func ofTemplate(_ authz.Actor, w *world, s set) authz.Object {
	return authz.Object{Owner: cluster.UserID(s.user), OwnerRole: s.role, Domain: "d", Project: cluster.ProjectID(w.project)}
}

func ofProject(_ authz.Actor, w *world, _ set) authz.Object {
	return authz.Object{Project: cluster.ProjectID(w.project), ProjectType: "general", Domain: "d", Permission: cluster.ReadWrite}
}

// ofOwnDomain is the domain of whoever asks.
// ofOwnUsers is a user of the actor's own domain.
func ofOwnUsers(a authz.Actor, _ *world, _ set) authz.Object {
	return authz.Object{Domain: a.Domain, OwnerRole: authz.RoleUser}
}

func ofOwnDomain(a authz.Actor, _ *world, _ set) authz.Object { return authz.Object{Domain: a.Domain} }

func ofDomain(_ authz.Actor, _ *world, _ set) authz.Object { return authz.Object{Domain: "d"} }

func ofGroup(_ authz.Actor, _ *world, _ set) authz.Object {
	return authz.Object{Active: true, Domains: []string{"d"}}
}

func ofCluster(_ authz.Actor, _ *world, _ set) authz.Object { return authz.Object{} }

func forAll(_ authz.Actor, _ *world, _ set) authz.Object {
	return authz.Object{Public: true, Given: true, Registry: "local"}
}

func ofRegistry(_ authz.Actor, _ *world, _ set) authz.Object {
	return authz.Object{Registry: "r.example", Public: true}
}

// ofImage was made of a session of the owner's.
func ofImage(_ authz.Actor, _ *world, s set) authz.Object {
	return authz.Object{Owner: cluster.UserID(s.user), OwnerRole: s.role, Domain: "d", Registry: "local"}
}

// ofNobodyElse is what only the owner has in a list of their own.
func ofNobodyElse(a authz.Actor, _ *world, s set) authz.Object {
	if a.UserID != cluster.UserID(s.user) {
		return authz.Object{}
	}
	return authz.Object{Owner: a.UserID, Registry: "local"}
}

func ofProjectImage(_ authz.Actor, w *world, _ set) authz.Object {
	return authz.Object{Project: cluster.ProjectID(w.project), Domain: "d", Registry: "local"}
}

// twice reports whether the line is asked again about a superadmin's object.
func (l line) twice(w *world) bool {
	return !reflect.DeepEqual(l.object(authz.Actor{}, w, w.owner), l.object(authz.Actor{}, w, w.root))
}

const (
	yes    = "yes"
	denied = "no"
	hidden = "hidden"
)

// want is what the rule says about one actor.
func (l line) want(a authz.Actor, w *world, s set) string {
	o := l.object(a, w, s)
	switch {
	case !a.Known():
		return denied
	case l.kind.May(a, l.verb, o):
		return yes
	case l.how == lists:
		return hidden
	case l.how == offices && !l.kind.May(a, l.verb, authz.Object{Domain: a.Domain}):
		return denied
	case l.how == needs:
		return denied
	case fault.Is(l.kind.Check(a, l.verb, o), fault.NotFound):
		return hidden
	}
	return denied
}

// Every exported method of every noun that takes an actor decides as the table says, about every kind of actor; a method
// without a line fails, and so does a line without a method.
func TestMatrix(t *testing.T) {
	t.Parallel()
	w, _ := newWorld(t)
	w.renew()
	nouns := services(w)
	covered := map[string]bool{}
	for _, l := range matrix {
		covered[l.method] = true
	}
	actorType := reflect.TypeFor[authz.Actor]()
	for noun, service := range nouns {
		for i := range service.NumMethod() {
			m := service.Type().Method(i)
			name := noun + "." + m.Name
			takes := m.Type.NumIn() > 2 && m.Type.In(2) == actorType
			_, free := actorless[name]
			require.True(t, covered[name] || free, "%s has no line in the matrix", name)
			require.False(t, covered[name] && free, "%s is listed twice", name)
			require.True(t, takes || free, "%s does not take an actor: say why", name)
			delete(covered, name)
			delete(unseen, name)
		}
	}
	require.Empty(t, covered, "lines without a method")
	require.Empty(t, unseen, "methods that are not there")

	eachNoun(t, func(t *testing.T, w *world, actors map[string]authz.Actor, lines []bound) {
		for _, l := range lines {
			for _, who := range people {
				l.check(t, who, actors[who], w)
			}
		}
	})
}

// bound is a line with the method that it is about, of one world.
type bound struct {
	line
	callee reflect.Value
}

// eachNoun tests the lines of each noun in a world of its own: lists stay short there, and the worlds are asked at the same time.
func eachNoun(t *testing.T, test func(t *testing.T, w *world, actors map[string]authz.Actor, lines []bound)) {
	t.Helper()
	byNoun := map[string][]line{}
	for _, l := range matrix {
		noun, _, _ := strings.Cut(l.method, ".")
		byNoun[noun] = append(byNoun[noun], l)
	}
	for noun, lines := range byNoun {
		t.Run(noun, func(t *testing.T) {
			t.Parallel()
			w, actors := newWorld(t)
			service := services(w)[noun]
			var out []bound
			for _, l := range lines {
				_, name, _ := strings.Cut(l.method, ".")
				out = append(out, bound{l, service.MethodByName(name)})
			}
			test(t, w, actors, out)
		})
	}
}

// check calls a method as somebody, about what belongs to a user and, where that makes a difference, to a superadmin.
func (l bound) check(t *testing.T, who string, a authz.Actor, w *world) {
	t.Helper()
	owners := 1
	if l.twice(w) {
		owners++
	}
	for i := range owners {
		w.renew()
		s := []set{w.owner, w.root}[i]
		got, err := l.call(t, l.callee, a, w, s)
		if want := l.want(a, w, s); got != want {
			t.Errorf("%s (%s %s) by %s about what belongs to a %s: %s, the rule says %s: %v",
				l.method, l.verb, l.kind.Noun, who, s.role, got, want, err)
		}
	}
}

// looks are the verbs of methods that change nothing.
var looks = []authz.Verb{authz.See, authz.SeeMembers, authz.Reach, authz.ReadFiles}

// call calls a method and tells what came of it as far as rights go. Who was refused has changed nothing: a use case is one transaction.
func (l line) call(t *testing.T, method reflect.Value, a authz.Actor, w *world, s set) (string, error) {
	got, err := l.outcome(t, method, a, w, s)
	if got == yes && !slices.Contains(looks, l.verb) {
		w.spent = true
	}
	return got, err
}

func (l line) outcome(t *testing.T, method reflect.Value, a authz.Actor, w *world, s set) (string, error) {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	in := []reflect.Value{reflect.ValueOf(ctx), reflect.ValueOf(a)}
	var args []any
	if l.args != nil {
		args = l.args(w, s)
	}
	for i := len(in); i < method.Type().NumIn(); i++ {
		of := method.Type().In(i)
		if n := i - 2; n < len(args) && args[n] != nil {
			in = append(in, reflect.ValueOf(args[n]).Convert(of))
		} else {
			in = append(in, reflect.Zero(of))
		}
	}
	out := method.Call(in)
	err, _ := out[len(out)-1].Interface().(error)
	switch {
	case fault.Is(err, fault.Denied):
		return denied, err
	case l.how != needs && fault.Is(err, fault.NotFound) && strings.Contains(err.Error(), "No such "+l.kind.Noun):
		return hidden, err
	case l.how == lists && err == nil:
		text, jsonErr := json.Marshal(out[0].Interface())
		require.NoError(t, jsonErr, l.method)
		if !strings.Contains(string(text), l.shows(w, s)) {
			return hidden, nil
		}
	}
	return yes, err
}

// shows is what a list shows of the object.
func (l line) shows(w *world, s set) string {
	switch l.kind.Noun {
	case authz.Sessions.Noun:
		return s.session
	case authz.Circuits.Noun:
		return s.circuit
	case authz.Templates.Noun:
		return s.template
	case authz.ErrorLogs.Noun:
		return s.errorLog
	case authz.Folders.Noun:
		if l.object(authz.Actor{}, w, s).Project != "" {
			return w.projectFolder
		}
		return s.folder
	case authz.Users.Noun, authz.AuditEntries.Noun:
		return s.email
	case authz.Keypairs.Noun:
		return s.key
	case authz.Tokens.Noun:
		return s.token
	case authz.Projects.Noun:
		return w.project
	case authz.Domains.Noun:
		return `"d"`
	case authz.ResourceGroups.Noun:
		return `"g"`
	case authz.AgentSummaries.Noun:
		return `"of-g"`
	case authz.Images.Noun:
		switch o := l.object(authz.Actor{}, w, s); {
		case o.Project != "":
			return w.projectImage
		case o.Registry == "r.example":
			return w.image
		}
		return s.image
	case authz.Policies.Noun:
		return `"unused"`
	case authz.UsageIntervals.Noun:
		return s.user
	}
	return ""
}

// The document says of every method what the matrix says; -update writes it.
func TestDocument(t *testing.T) {
	t.Parallel()
	var b strings.Builder
	b.WriteString(head)
	for _, k := range authz.Kinds() {
		for i, v := range k.Verbs() {
			noun := k.Noun
			if i > 0 {
				noun = ""
			}
			fmt.Fprintf(&b, "| %s | %s | %s |\n", noun, v, k.Who(v))
		}
	}
	b.WriteString(middle)
	fmt.Fprintf(
		&b,
		"| use case | asks for | %s |\n|---|---|%s\n",
		strings.Join(append(slices.Clone(people), "domain admin: a superadmin's"), " | "),
		strings.Repeat("---|", len(people)+1),
	)
	w, actors := paperWorld()
	for _, l := range matrix {
		cells := []string{l.method, string(l.verb) + " " + l.kind.Noun}
		for _, who := range people {
			cells = append(cells, l.want(actors[who], w, w.owner))
		}
		against := "–"
		if l.twice(w) {
			against = l.want(actors["domain admin"], w, w.root)
		}
		fmt.Fprintf(&b, "| %s | %s |\n", strings.Join(cells, " | "), against)
	}
	b.WriteString(tail)
	for _, name := range slices.Sorted(mapsKeys(actorless)) {
		fmt.Fprintf(&b, "| %s | %s |\n", name, actorless[name])
	}
	if *update {
		require.NoError(t, os.WriteFile(document, []byte(b.String()), 0o644))
	}
	have, err := os.ReadFile(document)
	require.NoError(t, err)
	require.Equal(t, b.String(), string(have), "docs/authorisation.md is stale: run make gen")
}

// paperWorld has the people of newWorld without a database.
func paperWorld() (*world, map[string]authz.Actor) {
	w := &world{project: "p", other: "q", owner: set{user: "owner", role: authz.RoleUser}, root: set{user: "root", role: authz.RoleSuperadmin}}
	who := func(user, domain string, role authz.Role, projects ...cluster.ProjectID) authz.Actor {
		return authz.Actor{UserID: cluster.UserID(user), AccessKey: "k", Role: role, Domain: domain, Projects: projects}
	}
	lead := who("l", "d", authz.RoleUser, "p")
	lead.Leads = lead.Projects
	return w, map[string]authz.Actor{"project admin": lead, "owner": who("owner", "d", authz.RoleUser, "p"),
		"member": who("m", "d", authz.RoleUser, "p"),
		"other project": who(
			"o",
			"d",
			authz.RoleUser,
			"q",
		), "stranger": who("s", "e", authz.RoleUser), "domain admin": who("a", "d", authz.RoleAdmin),
		"superadmin": who("r", "d", authz.RoleSuperadmin), "monitor": who("w", "d", authz.RoleMonitor), "inactive": {}}
}

const head = `# Who may do what

Generated from package authz and from the matrix of package authztest by ` + "`make gen`" + `; a test fails when it is stale.
[Decision 0017](decisions/0017-one-rule-per-kind.md) says why there is one rule for each kind of object.

An actor who is not authenticated, or whose user, domain or keypair is not active, may do nothing. Monitors see everything and change
nothing, also of what is their own, except their password and folders that were shared with them: they answer invitations and leave.

## Rules

| object | verb | who |
|---|---|---|
`

const middle = `
## Use cases

The object belongs to a user of a domain and a project (the owner), or to the project or the whole cluster. *member* is another user of
the same project, *project admin* one who administers it, *other project* a user of the same domain, *stranger* one of another domain. The
last column is an administrator of the domain and an object of a superadmin in it. "hidden" answers as if the object did not exist, or
leaves it out of a list.

`

const tail = `
## Methods without an actor

| method | why |
|---|---|
`
