package list_test

import (
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"berth.dev/berth/internal/fault"
	"berth.dev/berth/internal/manager/store/list"
)

var fields = list.Fields{"name": list.Text("t.name"), "n": list.Number("t.n"), "at": list.Time("t.at"), "on": list.Bool("t.on"),
	"tags": list.Texts("t.tags"), "sort": list.OrderOnly("t.sort"), "title": list.Text("t.name").Trigrams("t.name = ANY(%s)")}

// onlyOurs matches SQL that is made of our own words and placeholders alone.
var onlyOurs = regexp.MustCompile(`^(\(|\)| |true|false|AND|OR|IS|NOT|NULL|TRUE|LIKE|ILIKE|ANY|strpos|t\.(name|n|at|on|tags)|` +
	`\$\d+|::(text|text\[\]|float8|boolean|timestamptz)|=|<>|<=|>=|<|>|,|0)*$`)

// Whatever the text, the SQL holds nothing of it.
func TestNothingOfTheTextBecomesSQL(t *testing.T) {
	t.Parallel()
	word := rapid.SampledFrom([]string{"name", "title", "n", "at", "on", "tags", "sort", "nope", "==", "!=", "<", ">=", "contains", "in", "is",
		"isnot",
		"like", "ilike", "&", "|", "&&", "!",
		"(", ")", "[", "]", ",", `"x' OR 1=1 --"`, `'y'`, "12", "-1.5", "null", "true",
		`"2026-01-01"`, ";", "--", "/*", "\\", "\"", "ß", "\x00"})
	rapid.Check(t, func(t *rapid.T) {
		text := strings.Join(rapid.SliceOfN(word, 0, 12).Draw(t, "words"), rapid.SampledFrom([]string{" ", ""}).Draw(t, "between"))
		var b list.Builder
		sql, err := list.Filter(&b, fields, text)
		if err != nil {
			if !fault.Is(err, fault.Invalid) {
				t.Fatalf("%q: %v", text, err)
			}
			return
		}
		if !onlyOurs.MatchString(sql) {
			t.Fatalf("%q became %s", text, sql)
		}
	})
}

func TestPrecedenceAndOrder(t *testing.T) {
	t.Parallel()
	var b list.Builder
	sql, err := list.Filter(&b, fields, `n == 1 | n == 2 & !(name == "a\"b\\" | on == true)`)
	require.NoError(t, err)
	require.Equal(t, `((t.n = $1::float8) OR (t.n = $2::float8 AND (((t.name = $3::text) OR (t.on = $4::boolean))) IS NOT TRUE))`, sql)
	require.Equal(t, []any{1.0, 2.0, `a"b\`, true}, b.Args)
	order, err := list.Order(fields, "+name, -sort,n", "t.n", "t.id")
	require.NoError(t, err)
	require.Equal(t, "t.name ASC NULLS LAST, t.sort DESC NULLS LAST, t.n ASC NULLS LAST, t.id", order)
	order, err = list.Order(fields, "", "t.n DESC", "t.id")
	require.NoError(t, err)
	require.Equal(t, "t.n DESC, t.id", order)
	for _, bad := range []string{"nope", "name;", "name desc", "-", strings.Repeat("n,", 20) + "n"} {
		_, err := list.Order(fields, bad, "t.n", "t.id")
		require.True(t, fault.Is(err, fault.Invalid), bad)
	}
}

func TestEnumsAreComparedByAnyOfTheirNames(t *testing.T) {
	t.Parallel()
	f := list.Fields{"id": list.ID("t.id"), "status": list.Enum("t.status", []string{"ready", "delete-pending"}, nil),
		"perm": list.Enum("t.perm", []string{"ro", "wd"}, map[string]string{"READ_ONLY": "ro", "RW_DELETE": "wd", "OWNER_PERM": "wd"})}
	var b list.Builder
	sql, err := list.Filter(&b, f, `status == "READY" & status != "DELETE_PENDING" & perm in ["read_only", "OWNER_PERM", "ro", `+
		`"moon"] & status ilike "del%"`)
	require.NoError(t, err)
	require.Equal(t, `((t.status = $1::text AND t.status <> $2::text AND (t.perm = $3::text OR t.perm = $4::text OR t.perm = $5::text OR `+
		`t.perm = $6::text) AND t.status ILIKE $7::text))`, sql)
	require.Equal(t, []any{"ready", "delete-pending", "ro", "wd", "ro", "moon", "del%"}, b.Args)
	b = list.Builder{}
	sql, err = list.Filter(&b, f, `id == "0123456789ABCDEF0123456789abcdef" & id != "x"`)
	require.NoError(t, err)
	require.Equal(t, `((t.id = $1::uuid AND t.id::text <> $2::text))`, sql)
	require.Equal(t, []any{"01234567-89ab-cdef-0123-456789abcdef", "x"}, b.Args)
	for _, bad := range []string{`status == 1`, `status == true`, `perm in [1]`, `id == 1`} {
		_, err := list.Filter(&b, f, bad)
		require.True(t, fault.Is(err, fault.Invalid), bad)
	}
}

// TestTrigrams: a pattern looks up what every matching text has, and nothing where it has no three characters together.
func TestTrigrams(t *testing.T) {
	t.Parallel()
	for filter, want := range map[string][]string{
		`title like "%Abcd%"`: {"abc", "bcd"}, `title like "ab_cde%fg"`: {"cde"}, `title ilike "%ab%cd%"`: nil,
		`title contains "a%b_"`: {"a%b", "%b_"},
		`title like "a\%b%"`:    {"a%b"}, `title like "a\\\\b%"`: {`a\b`}, `title contains "aaaa"`: {"aaa"}, `title ilike "%abßcde%"`: {"cde"},
		`title ilike "%a\ßbcd"`: {"bcd"}, `title ilike "%"`: nil, `title contains ""`: nil,
	} {
		var b list.Builder
		sql, err := list.Filter(&b, fields, filter)
		require.NoError(t, err, filter)
		if want == nil {
			require.NotContains(t, sql, "ANY", filter)
			continue
		}
		require.Contains(t, sql, " AND t.name = ANY($2::text[])", filter)
		require.Equal(t, want, b.Args[1], filter)
	}
	var b list.Builder
	_, err := list.Filter(&b, fields, `title contains "abcdefghijklmnopqrstuvwxyz"`)
	require.NoError(t, err)
	require.Len(t, b.Args[1], 16)
}

// FuzzFilter does the same with arbitrary texts, and bounds what a text may cost PostgreSQL.
func FuzzFilter(f *testing.F) {
	for _, seed := range []string{`n == 1 | n == 2 & !(name == "a\"b\\" | on == true)`, `name in ["a", "b"]`, `tags contains "x"`,
		`at >= "2026-01-01"`, `((((`, `name is null`, `!`, `name ilike "%x%"`, `title ilike "%xyz%"`} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		var b list.Builder
		sql, err := list.Filter(&b, fields, text)
		if err != nil {
			if !fault.Is(err, fault.Invalid) {
				t.Fatalf("%q: %v", text, err)
			}
			return
		}
		if !onlyOurs.MatchString(sql) {
			t.Fatalf("%q became %s", text, sql)
		}
		if len(sql) > 64*(len(text)+1) || len(b.Args) > len(text) {
			t.Fatalf("%q became %d bytes with %d values", text, len(sql), len(b.Args))
		}
	})
}

// FuzzOrder says that an order holds nothing but our own words.
func FuzzOrder(f *testing.F) {
	ours := regexp.MustCompile(`^(t\.(name|n|at|on|tags|sort) (ASC|DESC) NULLS LAST, )*(t\.n, )?t\.id$`)
	for _, seed := range []string{"", "+name, -sort,n", "name;", "nope", "-"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		sql, err := list.Order(fields, text, "t.n", "t.id")
		if err == nil && !ours.MatchString(sql) {
			t.Fatalf("%q became %s", text, sql)
		}
	})
}
