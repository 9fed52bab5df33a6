package httpapi_test

import (
	"encoding/json"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"berth.dev/berth/internal/manager/httpapi"
	"berth.dev/berth/internal/manager/nouns"
	"berth.dev/berth/internal/manager/scim"
	"berth.dev/berth/internal/manager/tenancy/identity"
	"berth.dev/berth/internal/manager/tenancy/provision"
)

// scimError checks that an answer is an error of RFC 7644, 3.12, and returns its words.
func (a answer) scimError(t *testing.T, status int, kind string) string {
	t.Helper()
	require.Equal(t, status, a.status, a.body)
	require.Equal(t, scim.ContentType, a.header.Get("Content-Type"))
	var e struct {
		Schemas          []string
		Status           string
		ScimType, Detail string
	}
	a.into(t, &e)
	require.Equal(t, []string{scim.SchemaError}, e.Schemas)
	require.Equal(t, []any{http.StatusText(status), kind}, []any{http.StatusText(a.status), e.ScimType}, a.body)
	require.NotEmpty(t, e.Detail)
	return e.Detail
}

func TestSCIM(t *testing.T) {
	t.Parallel()
	s := newSite(t, func(d *nouns.Deps, _ *httpapi.Deps) {
		d.Provisioners = map[string]provision.Provider{"okta": {MostRemovals: 1, Rules: identity.Rules{Domain: "default", Create: true}}}
	})
	a := s.call("POST", "/auth/service-accounts", `{"name":"scim"}`)
	require.Equal(t, 201, a.status, a.body)
	secret := s.token(`{"name":"okta","for":"scim@default.service.invalid","scim_provider":"okta"}`).Secret
	do := func(method, path, body string) answer {
		t.Helper()
		r := s.request(method, "/scim/v2"+path, scim.ContentType, body)
		r.Header.Set("Authorization", "Bearer "+secret)
		return s.send(r)
	}
	for _, path := range []string{"/ServiceProviderConfig", "/ResourceTypes", "/ResourceTypes/User", "/Schemas", "/Schemas/" +
		scim.SchemaGroup, "/Users",
		"/Groups"} {
		a := do("GET", path, "")
		require.Equal(t, 200, a.status, a.body)
		require.Equal(t, scim.ContentType, a.header.Get("Content-Type"))
	}
	do("GET", "/Schemas/none", "").scimError(t, 404, "")

	made := do("POST", "/Users", `{"schemas":["`+scim.SchemaUser+`"],"userName":"ada@example.org","externalId":"7",
"name":{"givenName":"Ada",
"familyName":"Lovelace"},"emails":[{"value":"ada@example.org","primary":true}],"active":true,"password":"ignored"}`)
	require.Equal(t, 201, made.status, made.body)
	require.NotContains(t, made.body, "ignored")
	var u struct {
		ID, UserName string
		Active       bool
		Meta         struct{ Location, Version, ResourceType string }
	}
	made.into(t, &u)
	require.Equal(t, []any{"ada@example.org", true, "User", "/scim/v2/Users/" + u.ID}, []any{u.UserName, u.Active, u.Meta.ResourceType,
		u.Meta.Location})
	require.Equal(t, []string{u.Meta.Location, u.Meta.Version}, []string{made.header.Get("Location"), made.header.Get("ETag")})

	do("POST", "/Users", `{"userName":"ada@example.org"}`).scimError(t, 409, scim.Uniqueness)
	do("POST", "/Users", `{"userName":"`+strings.Repeat("a", 100_000)+`@example.org"}`).scimError(t, 400, scim.InvalidValue)
	do("POST", "/Users", `{`).scimError(t, 400, scim.InvalidSyntax)
	do("POST", "/Users", "").scimError(t, 400, scim.InvalidSyntax)
	do("POST", "/Users", `{"x":"`+strings.Repeat("a", scim.MaxBody)+`"}`).scimError(t, 413, "")
	do("GET", "/Users?filter=userName+eq+%22x%22%3B--", "").scimError(t, 400, scim.InvalidFilter)
	do("GET", "/Users?startIndex=x", "").scimError(t, 400, scim.InvalidValue)
	do("GET", "/Users/nobody", "").scimError(t, 404, "")
	do("GET", "/Users/11111111-1111-4111-8111-111111111111", "").scimError(t, 404, "")
	do("PATCH", "/Users/"+u.ID, `{"Operations":[{"op":"replace","path":"userName","value":null}]}`).scimError(t, 400, scim.InvalidValue)
	do("GET", "/Nothing", "").scimError(t, 404, "")

	var page struct {
		TotalResults, StartIndex, ItemsPerPage int
		Resources                              []json.RawMessage
	}
	a = do("GET", "/Users?filter=userName+eq+%22ADA@example.org%22&startIndex=0&count=5000", "")
	require.Equal(t, 200, a.status, a.body)
	a.into(t, &page)
	require.Equal(t, []int{1, 1, 1, 1}, []int{page.TotalResults, page.StartIndex, page.ItemsPerPage, len(page.Resources)})

	group := do("POST", "/Groups", `{"displayName":"Staff","members":[{"value":"`+u.ID+`"}]}`)
	require.Equal(t, 201, group.status, group.body)
	require.Contains(t, group.body, u.ID)
	require.NotContains(t, do("GET", "/Groups?excludedAttributes=members", "").body, u.ID)

	r := s.request("PATCH", "/scim/v2/Users/"+u.ID, scim.ContentType, `{"Operations":[{"op":"Replace","path":"active","value":"False"}]}`)
	r.Header.Set("Authorization", "Bearer "+secret)
	r.Header.Set("If-Match", `W/"999"`)
	s.send(r).scimError(t, 412, "")
	a = do("PATCH", "/Users/"+u.ID, `{"Operations":[{"op":"Replace","path":"active","value":"False"}]}`)
	require.Equal(t, 200, a.status, a.body)
	require.Contains(t, a.body, `"active":false`)
	second := do("POST", "/Users", `{"userName":"bob@example.org"}`)
	require.Equal(t, 201, second.status)
	second.into(t, &u)
	require.Contains(t, do("DELETE", "/Users/"+u.ID, "").scimError(t, 429, ""), "allow-removals okta 2")
	require.Equal(t, 204, s.call("POST", "/directory/removals", `{"provider":"okta","allow_removals":2}`).status)
	require.Equal(t, 204, do("DELETE", "/Users/"+u.ID, "").status)
	do("DELETE", "/Users/"+u.ID, "").scimError(t, 404, "")

	// The token is good for nothing else, and nothing else is good for SCIM; strangers hear errors in the same form.
	for _, path := range []string{"/auth/test", "/folders", "/auth/tokens", "/audit", "/directory"} {
		s.with(secret, "GET", path, "").problem(t, 403, "generic-forbidden")
	}
	s.call("GET", "/scim/v2/Users", "").scimError(t, 403, "")
	s.call("GET", "/scim/v2/Schemas", "").scimError(t, 403, "")
	s.with("berth_wrong", "GET", "/scim/v2/Users", "").scimError(t, 401, "")
	s.send(s.request("GET", "/scim/v2/Users", "", "")).scimError(t, 401, "")
	s.call("GET", "/directory", "").problem(t, 400, "not-implemented")
}
