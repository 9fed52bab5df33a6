// Package plan reads tenancies as files and decides what has to change: a file and what is there become an ordered list of changes, each
// with the values that it replaces. It writes what is there as files, too.
//
// It decides by what it is given alone: package apply reads what is there and carries changes out, by the use cases of the nouns, which
// decide who may. What is decided here about rights is for early words alone.
package plan

import (
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"

	"berth.dev/berth/internal/cluster"
)

// Kind is what a change is about.
type Kind string

// The kinds. Members are who belongs to a project, Access is who may use a resource group.
const (
	KeypairPolicy Kind = "keypair-policy"
	UserPolicy    Kind = "user-policy"
	ProjectPolicy Kind = "project-policy"
	Domain        Kind = "domain"
	ResourceGroup Kind = "resource-group"
	Project       Kind = "project"
	User          Kind = "user"
	Members       Kind = "members"
	Access        Kind = "access"
)

// What somebody is in a project, and whether somebody may use a resource group.
const (
	Nobody   = "no member"
	Member   = "member"
	Admin    = "admin"
	Admitted = "yes"
	Refused  = "no"
)

// Attrs are properties by their names, as canonical text: equal properties are equal texts.
type Attrs map[string]string

// form is how the values of a property are written.
type form int

const (
	text  form = iota
	flag       // true, false
	count      // a whole number
	list       // a JSON list of texts, sorted
	slots      // a JSON object of amounts by slot
	hosts      // a JSON object of sorted lists of permissions by folder host
)

// field is a property of a kind.
type field struct {
	name string
	form form
	// low and high bound numbers; high bounds texts in bytes and lists in items.
	low, high int64
	words     []string // those that a text may be
	ref       Kind     // what a text names
	fixed     bool     // set when the object is made, never later
}

var (
	description = field{name: "description", form: text, high: 512}
	active      = field{name: "active", form: flag}
	total       = field{name: "total", form: slots}
	folderHosts = field{name: "folder_hosts", form: hosts, high: 1000}
)

// fields are the properties of each kind, in the order in which files have them. Those of policies are called as the flags of the command
// line are.
var fields = map[Kind][]field{
	KeypairPolicy: {
		{name: "unlisted", form: text, words: []string{"limited", "unlimited"}},
		{name: "resources", form: slots}, {name: "waiting_resources", form: slots},
		{name: "max_sessions", form: count, high: math.MaxInt32}, {name: "max_sftp_sessions", form: count, high: math.MaxInt32},
		{name: "max_containers", form: count, low: 1, high: 10_000}, {name: "max_waiting", form: count, low: -1, high: math.MaxInt32},
		{name: "max_priority", form: count, low: -1, high: 100}, {name: "max_life", form: count, high: math.MaxInt32},
		{name: "idle_timeout", form: count, high: math.MaxInt32}, folderHosts,
	},
	UserPolicy: {
		{name: "max_folders", form: count, high: math.MaxInt32}, {name: "max_folder_bytes", form: count, low: -1, high: math.MaxInt64},
		{name: "max_images", form: count, high: math.MaxInt32}, {name: "max_replicas", form: count, high: math.MaxInt32},
	},
	ProjectPolicy: {
		{name: "max_folders", form: count, high: math.MaxInt32}, {name: "max_folder_bytes", form: count, low: -1, high: math.MaxInt64},
		{name: "max_networks", form: count, high: math.MaxInt32},
	},
	Domain: {description, active, total, {name: "registries", form: list, high: 100}, folderHosts},
	ResourceGroup: {description, active, {name: "public", form: flag},
		{name: "scheduler", form: text, high: 64}, {name: "egress", form: text, high: 4096}},
	Project: {
		{name: "type", form: text, words: []string{"general", "model-store"}, fixed: true}, description, active, total, folderHosts,
		{name: "policy", form: text, high: 64, ref: ProjectPolicy},
	},
	User: {
		{name: "username", form: text, high: 64}, {name: "full_name", form: text, high: 255}, description,
		{name: "role", form: text, words: []string{"user", "admin", "monitor", "superadmin"}},
		{name: "status", form: text, words: []string{"active", "inactive", "before-verification", "deleted"}},
		{name: "policy", form: text, high: 64, ref: UserPolicy}, {name: "keypair_policy", form: text, high: 64, ref: KeypairPolicy},
		{name: "allowed_from", form: list, high: 100},
	},
}

func fieldOf(k Kind, name string) (field, bool) {
	i := slices.IndexFunc(fields[k], func(f field) bool { return f.name == name })
	if i < 0 {
		return field{}, false
	}
	return fields[k][i], true
}

func names(k Kind) []string {
	var out []string
	for _, f := range fields[k] {
		out = append(out, f.name)
	}
	return out
}

// The canonical texts.

// Flag is the text of a yes or no, Count that of a number.
func Flag(v bool) string   { return strconv.FormatBool(v) }
func Count(n int64) string { return strconv.FormatInt(n, 10) }

// List is the text of a set of texts.
func List(items []string) string {
	items = slices.Compact(slices.Sorted(slices.Values(items)))
	if len(items) == 0 {
		return "[]"
	}
	return encode(items)
}

// Amounts is the text of slots.
func Amounts(s cluster.Slots) string {
	out := map[string]string{}
	for name, v := range s {
		out[string(name)] = amount(name, v)
	}
	return encode(out)
}

// amount writes an amount that reads as the same again, bytes with a suffix where they are whole.
func amount(slot cluster.SlotName, v cluster.Amount) string {
	if slot == cluster.SlotMem {
		for i, suffix := range []string{"t", "g", "m", "k"} {
			if n, unit := v.Units(), int64(1)<<(40-10*i); n > 0 && n%unit == 0 {
				return strconv.FormatInt(n/unit, 10) + suffix
			}
		}
	}
	return v.String()
}

// Hosts is the text of permissions by folder host, as rows have them.
func Hosts(of map[string]any) string {
	out := map[string][]string{}
	for host, v := range of {
		perms := []string{}
		switch v := v.(type) {
		case []any:
			for _, p := range v {
				perms = append(perms, fmt.Sprint(p))
			}
		case []string:
			perms = append(perms, v...)
		}
		slices.Sort(perms)
		out[host] = slices.Compact(perms)
	}
	return encode(out)
}

func encode(v any) string {
	var b strings.Builder
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	_ = e.Encode(v) // texts, lists and objects of texts always are JSON
	return strings.TrimSuffix(b.String(), "\n")
}

// Decode reads a canonical text that is JSON.
func Decode[V any](text string) (v V, err error) {
	err = json.Unmarshal([]byte(text), &v)
	return v, err
}

// Value reads a canonical text as a value of a property: what clients send is not what this package has made.
func Value(k Kind, name, v string) (err error) {
	f, ok := fieldOf(k, name)
	if !ok {
		return fmt.Errorf("%.60q is no property of a %s", name, k)
	}
	switch f.form {
	case flag:
		_, err = strconv.ParseBool(v)
	case count:
		_, err = strconv.ParseInt(v, 10, 64)
	case list:
		_, err = Decode[[]string](v)
	case slots:
		_, err = Decode[map[string]string](v)
	case hosts:
		_, err = Decode[map[string][]string](v)
	}
	if err != nil {
		return fmt.Errorf("%.60q is no value of %s", v, name)
	}
	return nil
}
