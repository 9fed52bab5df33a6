package plan_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"berth.dev/berth/internal/manager/tenancy/plan"
)

// A cell that would be a formula comes back as it was, blanks before a cell are no part of it, and what is no formula keeps its apostrophe.
func TestCellsComeBackAsTheyWere(t *testing.T) {
	t.Parallel()
	for _, cell := range []string{"=1+1", "'=1+1", "-", "+49 30", "@home", "'tis", "Ada"} {
		require.Equal(t, strings.ContainsAny(cell[:1], "=+-@") || cell == "'=1+1", plan.Harmless(cell) != cell, cell)
		table := "email, full_name\nada@x, \"" + plan.Harmless(cell) + "\"\n"
		f, bad := plan.ReadCSV([]byte(table), world())
		require.Empty(t, bad, cell)
		p, bad := plan.Make(f, world(), root, false)
		require.Empty(t, bad, cell)
		require.Len(t, p.Changes, 1, cell)
		require.Equal(t, cell, p.Changes[0].To["full_name"], cell)
	}
}

// Names have 64 bytes, users a name without blanks; mistakes are told by their lines, whatever found them first.
func TestNamesHaveBounds(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("x", 64)
	for text, bad := range map[string]string{
		"domains: {" + long + ": {}}":                                "",
		"domains: {" + long + "x: {}}":                               "cannot be the name of a domain",
		"domains: {physics: {users: {" + long[:60] + "@x.y: {}}}}":   "",
		"domains: {physics: {users: {" + long[:61] + "@x.y: {}}}}":   "is no email address",
		`domains: {physics: {users: {n@x: {username: ""}}}}`:         `"" cannot be the name of a user`,
		`domains: {physics: {users: {n@x: {username: "a b"}}}}`:      `"a b" cannot be the name of a user`,
		`domains: {physics: {users: {n@x: {full_name: "a\0b"}}}}`:    "full_name is no text",
		`domains: {physics: {users: {ada@x: {allowed_from: home}}}}`: "allowed_from must be a list",
		`domains: {physics: {projects: {lasers: {members: [[a]]}}}}`: "an item of members must be a text",
		`{? [a] : {}}`: "line 1",
	} {
		_, told := decide(t, text, world(), root, false)
		if bad == "" {
			require.Empty(t, told, text)
			continue
		}
		require.Contains(t, told, bad, text)
	}
	bad := "domains:\n  physics:\n    users:\n      n@x: {role: king}\n      ada: {}\n      m@x: {status: gone}"
	_, told := decide(t, bad, world(), root, false)
	require.Regexp(t, `(?s)line 4.*line 6`, told)
	table := "email,role\n" + strings.Repeat("king@x,king\n", 2) + "a@x\n"
	_, problems := plan.ReadCSV([]byte(table), world())
	for i := 1; i < len(problems); i++ {
		require.LessOrEqual(t, problems[i-1].Line, problems[i].Line, "%v", problems)
	}
}

// Twenty people are named, the rest is counted.
func TestManyMembersAreCounted(t *testing.T) {
	t.Parallel()
	for n, more := range map[int]string{20: "", 21: " and 1 more", 23: " and 3 more"} {
		s := world()
		var names []string
		for i := range n {
			name := fmt.Sprintf("u%02d@x", i)
			o := user("physics", "user")
			o.Attrs["username"] = name
			s.Objects[plan.Key{Kind: plan.User, Name: name}] = o
			names = append(names, name)
		}
		p, bad := decide(t, "domains: {physics: {projects: {lasers: {members: ["+strings.Join(names, ", ")+"]}}}}", s, root, false)
		require.Empty(t, bad)
		require.Contains(t, lines(p), "+ project physics/lasers gets "+strings.Join(names[:20], ", ")+more)
	}
}
