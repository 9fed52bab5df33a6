package graphapi

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"berth.dev/berth/internal/fault"
	"berth.dev/berth/internal/manager/audit"
	"berth.dev/berth/internal/manager/graphapi/model"
	"berth.dev/berth/internal/manager/store/list"
)

// The newer interface filters by objects. They are written in the language of lists, whose parser knows which fields a list has, how they
// may be compared and how much a filter may say. Texts of a caller are quoted.

// quoted writes a text as a literal of the language of lists.
func quoted(text string) string {
	return `"` + strings.NewReplacer(`\`, `\\`, `"`, `\"`).Replace(text) + `"`
}

// pattern writes a text as a literal for like, in which only the given ends are open.
func pattern(before, text, after string) string {
	return quoted(before + strings.NewReplacer(`\`, `\\`, "%", `\%`, "_", `\_`).Replace(text) + after)
}

// maxNested is how deep AND, OR and NOT may be nested.
const maxNested = 8

// terms are comparisons that must all hold; the first error is kept.
type terms struct {
	all []string
	err error
}

func (t *terms) add(format string, args ...any) { t.all = append(t.all, fmt.Sprintf(format, args...)) }

func (t *terms) String() string { return strings.Join(t.all, " & ") }

// refuse says that a list cannot be asked by a field, when it was.
func (t *terms) refuse(field string, given bool) {
	if given && t.err == nil {
		t.err = fault.Invalidf("this list cannot be filtered by %s", field).WithNext("leave it out, or filter by other fields")
	}
}

func (t *terms) flag(field string, v *bool) {
	if v != nil {
		t.add("%s == %v", field, *v)
	}
}

func anyOf(parts []string) string {
	if len(parts) == 0 {
		return "" // which nothing is
	}
	return "(" + strings.Join(parts, " | ") + ")"
}

// among requires a field to be one of some literals, or none of them.
func (t *terms) among(not string, field string, literals []string) {
	t.add("%s (%s in [%s])", not, field, strings.Join(literals, ","))
}

func each[T any](in []T, write func(T) string) []string {
	out := make([]string, len(in))
	for i, v := range in {
		out[i] = write(v)
	}
	return out
}

func (t *terms) text(field string, f *model.StringFilter) {
	if f == nil {
		return
	}
	for _, c := range []struct {
		v             *string
		not, op       string
		before, after string
	}{
		{f.Contains, "", "like", "%", "%"}, {f.NotContains, "!", "like", "%", "%"},
		{f.StartsWith, "", "like", "", "%"}, {f.NotStartsWith, "!", "like", "", "%"},
		{f.EndsWith, "", "like", "%", ""}, {f.NotEndsWith, "!", "like", "%", ""},
		{f.IContains, "", "ilike", "%", "%"}, {f.INotContains, "!", "ilike", "%", "%"},
		{f.IStartsWith, "", "ilike", "", "%"}, {f.INotStartsWith, "!", "ilike", "", "%"},
		{f.IEndsWith, "", "ilike", "%", ""}, {f.INotEndsWith, "!", "ilike", "%", ""},
		{f.IEquals, "", "ilike", "", ""}, {f.INotEquals, "!", "ilike", "", ""},
	} {
		if c.v != nil {
			t.add("%s (%s %s %s)", c.not, field, c.op, pattern(c.before, *c.v, c.after))
		}
	}
	if f.Equals != nil {
		t.add("%s == %s", field, quoted(*f.Equals))
	}
	if f.NotEquals != nil {
		t.add("! (%s == %s)", field, quoted(*f.NotEquals))
	}
	if f.In != nil {
		t.among("", field, each(f.In, quoted))
	}
	if f.NotIn != nil {
		t.among("!", field, each(f.NotIn, quoted))
	}
	like := func(text string) string { return field + " ilike " + pattern("", text, "") }
	if f.IIn != nil {
		if len(f.IIn) == 0 {
			t.among("", field, nil)
		} else {
			t.add("%s", anyOf(each(f.IIn, like)))
		}
	}
	if len(f.INotIn) > 0 {
		t.add("! %s", anyOf(each(f.INotIn, like)))
	}
}

func (t *terms) id(field string, f *model.UUIDFilter) {
	if f == nil {
		return
	}
	canonical := func(text string) string {
		_, raw := fromGlobalID(text)
		id, err := uuid(field, raw)
		if err != nil && t.err == nil {
			t.err = err
		}
		return quoted(id)
	}
	if f.Equals != nil {
		t.add("%s == %s", field, canonical(*f.Equals))
	}
	if f.NotEquals != nil {
		t.add("! (%s == %s)", field, canonical(*f.NotEquals))
	}
	if f.In != nil {
		t.among("", field, each(f.In, canonical))
	}
	if f.NotIn != nil {
		t.among("!", field, each(f.NotIn, canonical))
	}
}

func (t *terms) time(field string, f *model.DateTimeFilter) {
	if f == nil {
		return
	}
	for _, c := range []struct {
		v  *time.Time
		op string
	}{{f.Before, "<"}, {f.After, ">"}, {f.Equals, "=="}, {f.NotEquals, "!="}} {
		if c.v != nil {
			t.add("%s %s %s", field, c.op, quoted(c.v.UTC().Format(time.RFC3339Nano)))
		}
	}
}

// words compares a field with values of an enum; word is how the list writes a value.
func words[E ~string](t *terms, field string, word func(E) string, equals, notEquals *E, in, notIn []E) {
	write := func(v E) string { return quoted(word(v)) }
	if equals != nil {
		t.add("%s == %s", field, write(*equals))
	}
	if notEquals != nil {
		t.add("! (%s == %s)", field, write(*notEquals))
	}
	if in != nil {
		t.among("", field, each(in, write))
	}
	if notIn != nil {
		t.among("!", field, each(notIn, write))
	}
}

// lower turns the name of an enum's value into the word of the list.
func lower[E ~string](v E) string { return strings.ReplaceAll(strings.ToLower(string(v)), "_", "-") }

// nested adds what AND, OR and NOT hold: all of the first, one of the second, none of the third.
func nested[F any](t *terms, depth int, write func(*F, int) (string, error), and, or, not []*F) {
	if len(and)+len(or)+len(not) > 0 && depth >= maxNested {
		t.err = fault.Invalidf("the filter is nested too deeply").WithNext("nest AND, OR and NOT %d times at most", maxNested)
		return
	}
	all := func(in []*F) (out []string) {
		for _, f := range in {
			if f == nil || t.err != nil {
				continue
			}
			text, err := write(f, depth+1)
			if err != nil {
				t.err = err
			}
			if text != "" {
				out = append(out, "("+text+")")
			}
		}
		return out
	}
	t.all = append(t.all, all(and)...)
	if parts := all(or); len(parts) > 0 {
		t.all = append(t.all, anyOf(parts))
	}
	for _, part := range all(not) {
		t.all = append(t.all, "! "+part)
	}
}

func userFilter(f *model.UserV2Filter, depth int) (string, error) {
	if f == nil {
		return "", nil
	}
	t := &terms{}
	t.id("uuid", f.UUID)
	for field, s := range map[string]*model.StringFilter{"username": f.Username, "email": f.Email, "full_name": f.FullName,
		"description": f.Description, "status_info": f.StatusInfo, "domain_name": f.DomainName, "resource_policy": f.ResourcePolicy} {
		t.text(field, s)
	}
	slices.Sort(t.all) // one filter is one text: documents are compared in tests and logs
	if s := f.Status; s != nil {
		words(t, "status", lower, s.Equals, s.NotEquals, s.In, s.NotIn)
	}
	if r := f.Role; r != nil {
		words(t, "role", lower, r.Equals, r.NotEquals, r.In, r.NotIn)
	}
	t.flag("need_password_change", f.NeedPasswordChange)
	t.flag("totp_activated", f.TotpActivated)
	t.flag("sudo_session_enabled", f.SudoSessionEnabled)
	t.time("created_at", f.CreatedAt)
	if d := f.Domain; d != nil {
		t.text("domain_name", d.Name)
		t.refuse("domain.isActive", d.IsActive != nil)
	}
	t.refuse("integrationName", f.IntegrationName != nil)
	t.refuse("project", f.Project != nil)
	t.refuse("numbers of users in containers", f.ContainerUID != nil || f.ContainerMainGid != nil || f.ContainerGids != nil)
	nested(t, depth, userFilter, f.And, f.Or, f.Not)
	return t.String(), t.err
}

func projectFilter(f *model.ProjectV2Filter, depth int) (string, error) {
	if f == nil {
		return "", nil
	}
	t := &terms{}
	t.id("id", f.ID)
	t.text("name", f.Name)
	t.text("domain_name", f.DomainName)
	if k := f.Type; k != nil {
		words(t, "type", func(v model.ProjectTypeV2) string { return string(v) }, k.Equals, k.NotEquals, k.In, k.NotIn)
	}
	t.flag("is_active", f.IsActive)
	t.time("created_at", f.CreatedAt)
	t.time("modified_at", f.ModifiedAt)
	if d := f.Domain; d != nil {
		t.text("domain_name", d.Name)
		t.refuse("domain.isActive", d.IsActive != nil)
	}
	t.refuse("user", f.User != nil)
	nested(t, depth, projectFilter, f.And, f.Or, f.Not)
	return t.String(), t.err
}

// resultsOf are the results of the log that a status of the wire means. Nothing in the log is running or unknown.
var resultsOf = map[model.AuditLogStatus][]string{
	model.AuditLogStatusSuccess: {audit.Done}, model.AuditLogStatusError: {audit.Denied},
}

func auditFilter(f *model.AuditLogFilter, depth int) (string, error) {
	if f == nil {
		return "", nil
	}
	t := &terms{}
	t.text("action", f.Operation)
	t.text("object", f.EntityID)
	t.text("user_id", f.TriggeredBy)
	if e := f.EntityType; e != nil {
		t.refuse("entityType otherwise than by equals", e.Equals == nil)
		if e.Equals != nil {
			t.add("action like %s", pattern("", actionsOf(*e.Equals), "%"))
		}
	}
	if s := f.Status; s != nil {
		results := func(in ...model.AuditLogStatus) (out []string) {
			for _, v := range in {
				out = append(out, each(resultsOf[v], quoted)...)
			}
			return out
		}
		if s.Equals != nil {
			t.among("", "result", results(*s.Equals))
		}
		if s.NotEquals != nil {
			t.among("!", "result", results(*s.NotEquals))
		}
		if s.In != nil {
			t.among("", "result", results(s.In...))
		}
		if s.NotIn != nil {
			t.among("!", "result", results(s.NotIn...))
		}
	}
	t.time("at", f.CreatedAt)
	nested(t, depth, auditFilter, f.And, f.Or, f.Not)
	return t.String(), t.err
}

// actionsOf is how the actions on a kind of object begin in the log.
func actionsOf(kind string) string {
	switch kind = lower(kind); kind {
	case "vfolder":
		kind = "folder"
	case "model-deployment":
		kind = "deployment"
	}
	return kind + "."
}

// kindOf is the kind of object of an action of the log, as clients name it.
func kindOf(action string) string {
	kind, _, _ := strings.Cut(action, ".")
	if kind == "folder" {
		kind = "vfolder"
	}
	return upper(kind)
}

// fieldOf is the name in a list of a field that the newer interface names in capitals.
func fieldOf[E ~string](f E) string { return strings.ToLower(string(f)) }

// orders writes what a list is ordered by.
func orders[O any](in []*O, field func(*O) (name string, direction model.OrderDirection)) string {
	var out []string
	for _, o := range in {
		if o == nil {
			continue
		}
		name, direction := field(o)
		if direction == model.OrderDirectionDesc {
			name = "-" + name
		}
		out = append(out, name)
	}
	return strings.Join(out, ",")
}

// pageV2 is a page by limit and offset, of at most so many items as a page has.
func pageV2(filter, order string, limit, offset *int) list.Query {
	return list.Query{Filter: filter, Order: order, Limit: min(value(limit), maxList), Offset: value(offset)}
}
