package scim_test

import (
	"encoding/json"
	"errors"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"berth.dev/berth/internal/manager/scim"
	"berth.dev/berth/internal/manager/store/list"
)

var ada = scim.User{UserName: "ada@example.org", ExternalID: "x-1", GivenName: "Ada", FamilyName: "Lovelace", DisplayName: "Ada L.",
	Email: "ada@example.org", Active: true}

// kindOf is the SCIM type of an error.
func kindOf(t *testing.T, err error) string {
	t.Helper()
	var e *scim.Error
	require.True(t, errors.As(err, &e), "%v", err)
	require.Equal(t, 400, e.Status)
	require.NotEmpty(t, e.Detail)
	return e.Type
}

func TestErrorsAreWrittenAsTheStandardSays(t *testing.T) {
	t.Parallel()
	raw, err := json.Marshal(&scim.Error{Status: 409, Type: scim.Uniqueness, Detail: "there is one"})
	require.NoError(t, err)
	require.JSONEq(t, `{"schemas":["urn:ietf:params:scim:api:messages:2.0:Error"],"status":"409",
		"scimType":"uniqueness","detail":"there is one"}`,
		string(raw))
	raw, err = json.Marshal(&scim.Error{Status: 404, Detail: "none"})
	require.NoError(t, err)
	require.NotContains(t, string(raw), "scimType")
}

func TestUsersAsClientsWriteThem(t *testing.T) {
	t.Parallel()
	for name, raw := range map[string]string{
		"Okta": `{"schemas":["urn:ietf:params:scim:schemas:core:2.0:User"],"userName":"ada@example.org","externalId":"x-1",
			"name":{"givenName":"Ada","familyName":"Lovelace"},"emails":[{"primary":true,"value":"ada@example.org","type":"work"}],
			"displayName":"Ada L.","locale":"en-US","groups":[],"password":"1mz050nq","active":true}`,
		"Entra": `{"schemas":["urn:ietf:params:scim:schemas:core:2.0:User","urn:ietf:params:scim:schemas:extension:enterprise:2.0:User"],
			"USERNAME":"ada@example.org","externalId":"x-1","active":"True","displayName":"Ada L.","emails":[{
				"type":"home","value":"h@example.org"},
			{"type":"work","value":"ada@example.org"}],"meta":{"resourceType":"User"},"name":{
				"GivenName":"Ada","familyName":"Lovelace","formatted":""},
			"urn:ietf:params:scim:schemas:extension:enterprise:2.0:User":{"department":"x"}}`,
		"with names of " +
			"schemas": `{"urn:ietf:params:scim:schemas:core:2.0:User:userName":"ada@example.org","externalId":"x-1",
			"emails":"ada@example.org",
			"name":{"givenName":"Ada","familyName":"Lovelace"},"displayName":"Ada L."}`,
	} {
		u, err := scim.DecodeUser([]byte(raw))
		require.NoError(t, err, name)
		require.Equal(t, ada, u, name)
	}
	for raw, want := range map[string]string{
		`[]`: scim.InvalidSyntax, `null`: scim.InvalidSyntax, `{`: scim.InvalidSyntax, "{\"userName\":\"\xff\"}": scim.InvalidSyntax,
		`{}`: scim.InvalidValue, `{"userName":""}`: scim.InvalidValue, `{"userName":7}`: scim.InvalidValue,
		`{"userName":"a","username":"b"}`: scim.InvalidSyntax, `{"userName":"a\u0000b"}`: scim.InvalidValue,
		`{"userName":"a","active":"maybe"}`: scim.InvalidValue, `{"userName":"a","name":"b"}`: scim.InvalidValue,
		`{"userName":"a","emails":[7]}`: scim.InvalidValue, `{"userName":"` + strings.Repeat("a", 100_000) + `"}`: scim.InvalidValue,
		`{"userName":"a","emails":[{"value":"` + strings.Repeat("a", 100_000) + `"}]}`: scim.InvalidValue,
	} {
		_, err := scim.DecodeUser([]byte(raw))
		require.Equal(t, want, kindOf(t, err), "%.60s", raw)
	}
}

func TestPatchesOfUsers(t *testing.T) {
	t.Parallel()
	const title = `{"op":"add","path":"title","value":"x"}`
	patch := func(operations string) string {
		return `{"schemas":["urn:ietf:params:scim:api:messages:2.0:PatchOp"],"Operations":` + operations + `}`
	}
	off, renamed, cleared, moved := ada, ada, ada, ada
	off.Active = false
	renamed.GivenName, renamed.UserName = "Augusta", "augusta@example.org"
	cleared.FamilyName, cleared.DisplayName = "", ""
	moved.Email = "new@example.org"
	for raw, want := range map[string]scim.User{
		`[{"op":"replace","value":{"active":false}}]`:                                              off, // Okta
		`[{"op":"replace","value":{"id":"7","active":false}}]`:                                     off,
		`[{"op":"Replace","path":"active","value":"False"}]`:                                       off, // Entra
		`[{"op":"Add","path":"urn:ietf:params:scim:schemas:core:2.0:User:active","value":false}]`:  off,
		`[{"op":"replace","value":{"name.givenName":"Augusta","userName":"augusta@example.org"}}]`: renamed,
		// Entra
		`[{"op":"replace","value":{"name":{"givenName":"Augusta"},"userName":"augusta@example.org"}}]`:                     renamed,
		`[{"op":"remove","path":"name.familyName"},{"op":"replace","path":"displayName","value":null}]`:                    cleared,
		`[{"op":"Replace","path":"emails[type eq \"work\"].value","value":"new@example.org"}]`:                             moved,
		`[{"op":"Add","value":{"emails[type eq \"work\"].value":"new@example.org"}}]`:                                      moved,
		`[{"op":"replace","path":"emails","value":[{"value":"new@example.org","type":"work"}]}]`:                           moved,
		`[{"op":"replace","path":"emails[type eq \"home\"].value","value":"new@example.org"}]`:                             ada,
		`[{"op":"add","path":"phoneNumbers[type eq \"work\"].value","value":"1"},{"op":"add","path":"title","value":"x"}]`: ada,
		`[{"op":"add","path":"urn:ietf:params:scim:schemas:extension:enterprise:2.0:User:department","value":"x"}]`:        ada,
	} {
		u := ada
		require.NoError(t, u.Patch([]byte(patch(raw))), raw)
		require.Equal(t, want, u, raw)
	}
	for raw, want := range map[string]string{
		`[]`: scim.InvalidSyntax, `{}`: scim.InvalidSyntax, `[{"op":"move","path":"active"}]`: scim.InvalidSyntax,
		`[{"op":"remove"}]`: scim.NoTarget, `[{"op":"remove","path":"userName"}]`: scim.Mutability,
		`[{"op":"remove","path":"active"}]`:          scim.Mutability,
		`[{"op":"replace","path":"id","value":"7"}]`: scim.Mutability, `[{"op":"replace","path":"groups","value":[]}]`: scim.Mutability,
		`[{"op":"replace","path":"userName","value":""}]`: scim.InvalidValue, `[{"op":"replace","value":"x"}]`: scim.InvalidValue,
		`[{"op":"replace","path":"active","value":1}]`: scim.InvalidValue, `[{"op":"add","path":"displayName"}]`: scim.InvalidValue,
		`[{"op":"replace","path":"emails[type eq","value":"x"}]`:                                           scim.InvalidPath,
		`[{"op":"replace","path":"emails[type pr].value","value":""}]`:                                     scim.InvalidPath,
		`[{"op":"replace","path":"active","value":false},{"op":"replace","path":"userName","value":null}]`: scim.InvalidValue,
		`[` + strings.Repeat(title+",", 1000) + title + `]`:                                                scim.TooMany,
		`[{"op":"replace","path":"` + strings.Repeat("a", 100_000) +
			`","value":"x"}]`: scim.InvalidPath,
	} {
		u := ada
		require.Equal(t, want, kindOf(t, u.Patch([]byte(patch(raw)))), "%.80s", raw)
		require.Equal(t, ada, u, "%.80s: half of it was done", raw)
	}
}

func TestPatchesOfGroups(t *testing.T) {
	t.Parallel()
	before := scim.Group{DisplayName: "staff", ExternalID: "g", Members: []string{"a", "b"}}
	for raw, want := range map[string]scim.Group{
		`[{"op":"Add","path":"members","value":[{"value":"C"},{"value":"a"}]}]`: {DisplayName: "staff",
			ExternalID: "g", Members: []string{"a", "b", "c"}},
		`[{"op":"add","path":"members","value":{"value":"c"}}]`: {DisplayName: "staff",
			ExternalID: "g", Members: []string{"a", "b", "c"}},
		`[{"op":"add","value":{"members":[{"value":"c","display":"C"}]}}]`: {DisplayName: "staff",
			ExternalID: "g", Members: []string{"a", "b", "c"}},
		`[{"op":"remove","path":"members[value eq \"a\"]"}]`: {DisplayName: "staff",
			ExternalID: "g", Members: []string{"b"}},
		`[{"op":"Remove","path":"members","value":[{"value":"a"}]}]`: {DisplayName: "staff",
			ExternalID: "g", Members: []string{"b"}}, // Entra
		`[{"op":"remove","path":"members"}]`: {DisplayName: "staff",
			ExternalID: "g"},
		`[{"op":"replace","path":"members","value":[{"value":"z"}]}]`: {DisplayName: "staff",
			ExternalID: "g", Members: []string{"z"}},
		`[{"op":"replace","value":{"id":"7","displayName":"crew"}}]`: {DisplayName: "crew",
			ExternalID: "g", Members: []string{"a", "b"}}, // Okta
		`[{"op":"Replace","path":"displayName","value":"crew"},{"op":"remove","path":"externalId"}]`: {DisplayName: "crew",
			Members: []string{"a", "b"}},
	} {
		g := scim.Group{DisplayName: before.DisplayName, ExternalID: before.ExternalID, Members: []string{"a", "b"}}
		require.NoError(t, g.Patch([]byte(`{"Operations":`+raw+`}`)), raw)
		require.ElementsMatch(t, want.Members, g.Members, raw)
		g.Members, want.Members = nil, nil
		require.Equal(t, want, g, raw)
	}
	for raw, want := range map[string]string{
		`[{"op":"remove","path":"displayName"}]`: scim.InvalidValue, `[{"op":"add","path":"members","value":[{}]}]`: scim.InvalidValue,
		`[{"op":"add","path":"members[value eq \"c\"]"}]`:                                     scim.InvalidPath,
		`[{"op":"remove","path":"members[display eq \"c\"]"}]`:                                scim.InvalidPath,
		`[{"op":"add","path":"members","value":[` + strings.Repeat(`"x",`, 10_000) + `"x"]}]`: scim.TooMany,
	} {
		g := scim.Group{DisplayName: "staff", Members: []string{"a", "b"}}
		require.Equal(t, want, kindOf(t, g.Patch([]byte(`{"Operations":`+raw+`}`))), "%.80s", raw)
		require.Equal(t, []string{"a", "b"}, g.Members)
	}
}

var attributes = map[string]scim.Attribute{"username": {Field: "name", Kind: scim.Folded}, "externalid": {Field: "external"},
	"active": {Field: "on", Kind: scim.Truth}, "meta.lastmodified": {Field: "at", Kind: scim.Time}, "members": {Field: "members",
		Kind: scim.Set}}

// fields are those of a list that the filters are for.
var fields = list.Fields{"name": list.Text("t.name"), "external": list.Text("t.external"), "on": list.Bool("t.on"), "at": list.Time("t.at"),
	"members": list.Texts("t.members")}

func TestFilters(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		`userName eq "Ada@Example.org"`:                              `name == "ada@example.org"`,
		`USERNAME Eq "a\"b\\c"`:                                      `name == "a\"b\\c"`,
		`externalId sw "a%_\\"`:                                      `external like "a\\%\\_\\\\%"`,
		`externalId co "X"`:                                          `external contains "X"`,
		`active eq true and not (userName pr)`:                       `(on == true & !(name != ""))`,
		`active eq "True"`:                                           `on == true`,
		`userName eq "a" or userName eq "b" and active eq false`:     `(name == "a" | (name == "b" & on == false))`,
		`(userName eq "a" or userName eq "b") and active eq false`:   `((name == "a" | name == "b") & on == false)`,
		`meta.lastModified ge "2026-01-01T00:00:00Z"`:                `at >= "2026-01-01T00:00:00Z"`,
		`members eq "ABC"`:                                           `members contains "abc"`,
		`urn:ietf:params:scim:schemas:core:2.0:User:userName eq "a"`: `name == "a"`,
		`  `: "",
	} {
		got, err := scim.Filter(text, attributes)
		require.NoError(t, err, text)
		require.Equal(t, want, got, text)
		_, err = list.Filter(&list.Builder{}, fields, got)
		require.NoError(t, err, text)
	}
	for _, text := range []string{`userName`, `userName eq`, `userName eq "a`, `userName is "a"`, `password eq "a"`,
		`userName eq "a" or`, `(userName eq "a"`,
		`userName eq "a")`, `not userName eq "a"`, `userName eq a`, `userName eq 7`, `active gt true`, `members co "a"`,
		`meta.lastModified co "a"`,
		`userName eq "a" ; DROP TABLE users`, `userName eq "` + strings.Repeat("a", 100_000) + `"`, strings.Repeat("(", 3000),
		strings.Repeat(`active eq true or `, 40) + `active eq true`, `emails[type eq "work"] eq "a"`, "userName eq \"\x00\"",
		`userName eq "\u0000"`} {
		_, err := scim.Filter(text, attributes)
		require.Equal(t, scim.InvalidFilter, kindOf(t, err), "%.60s", text)
	}
}

// onlyOurs matches SQL that is made of our own words and placeholders alone.
var onlyOurs = regexp.MustCompile(`^(\(|\)| |true|false|AND|OR|IS|NOT|NULL|TRUE|LIKE|ANY|strpos|t\.(name|external|on|at|members)|` +
	`\$\d+|::(text|boolean|timestamptz)|=|<>|<=|>=|<|>|,|0)*$`)

func FuzzFilter(f *testing.F) {
	for _, seed := range []string{`userName eq "a" and (active eq true or not (externalId sw "\"|x"))`,
		`meta.lastModified gt "2026-01-01"`, `members eq "'"`} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		out, err := scim.Filter(text, attributes)
		if err != nil {
			return
		}
		sql, err := list.Filter(&list.Builder{}, fields, out)
		if err == nil && !onlyOurs.MatchString(sql) {
			t.Fatalf("%q became %q and %s", text, out, sql)
		}
		if err != nil && len(out) < 4096 && !strings.Contains(err.Error(), "is not a time") && !strings.Contains(err.Error(), "nested") {
			t.Fatalf("%q became %q, which cannot be read: %v", text, out, err)
		}
	})
}

func FuzzPatch(f *testing.F) {
	f.Add([]byte(`{"Operations":[{"op":"replace","path":"emails[type eq \"work\"].value","value":"x"}]}`))
	f.Add([]byte(`{"Operations":[{"op":"add","value":{"members":[{"value":"a"}],"active":"True"}}]}`))
	f.Fuzz(func(t *testing.T, raw []byte) {
		u, g := ada, scim.Group{DisplayName: "g", Members: []string{"a"}}
		if err := u.Patch(raw); err != nil && u != ada {
			t.Fatal("half of a PATCH was done")
		} else if err == nil && (u.UserName == "" || len(u.UserName) > 255) {
			t.Fatalf("a user called %q", u.UserName)
		}
		if err := g.Patch(raw); err != nil && (g.DisplayName != "g" || len(g.Members) != 1) {
			t.Fatal("half of a PATCH was done")
		}
	})
}
