package httpapi_test

import "testing"

// TestTenancyAnswers: what the wire says of tenancies as files, as a superadmin, as an administrator of nothing, and with bad input.
func TestTenancyAnswers(t *testing.T) {
	t.Parallel()
	a := newAdmins(t)
	s := a.site
	g := recordAnswers(t, "tenancy")
	defer g.compare()
	const file = `{"text":"domains:\n  physics:\n    total: {cpu: 4}\n    projects: {lasers: {members: [ada@x]}}\n    users: {ada@x: {}}\n"}`
	g.ask(s, "POST", "/tenancy/plan", file)
	g.ask(s, "POST", "/tenancy/plan", `{"format":"csv","text":"email;role\nada@x;user\n"}`)
	g.ask(s, "POST", "/tenancy/plan", `{"text":"domains: {physics: {colour: red}}"}`)
	g.ask(s, "POST", "/tenancy/plan", `{"format":"toml","text":""}`)
	g.ask(s, "POST", "/tenancy/plan", `{"format":"csv","text":"email","prune":true}`)
	g.ask(a.owner, "POST", "/tenancy/plan", file)
	g.ask(s, "POST", "/tenancy/apply", `{"changes":[{"kind":"domain","name":"physics","make":true,"to":{"total":"{\"cpu\":\"4\"}"}},
{"kind":"user","name":"ada@x","domain_name":"physics","make":true,"to":{"full_name":"Ada"},"password":"correct horse battery"},
{"kind":"domain","name":"physics","from":{"total":"{}"},"to":{"total":"{\"cpu\":\"4\"}"}},
{"kind":"domain","name":"physics","from":{"total":"{}"},"to":{"total":"{\"cpu\":\"8\"}"}},
{"kind":"domain","name":"physics","to":{"total":"8"}},{"kind":"moon","name":"physics"}]}`)
	g.ask(s, "POST", "/tenancy/apply", `{"changes":[{"kind":"user","name":"ada@x","domain_name":"physics","make":true}]}`)
	g.ask(s, "POST", "/tenancy/apply", `{"changes":[{"kind":"user","name":"b@x","domain_name":"physics","make":true,"letter":true}]}`)
	g.ask(s, "POST", "/tenancy/apply", `{"changes":[{"name":"x"}]}`)
	g.ask(s, "POST", "/tenancy/apply", `{"changes":"all"}`)
	g.ask(s, "POST", "/tenancy/apply", `{}`)
	g.ask(a.owner, "POST", "/tenancy/apply", `{}`)
	g.ask(s, "GET", "/tenancy/export?domain=physics", "")
	g.ask(s, "GET", "/tenancy/export?domain=physics&format=csv", "")
	g.ask(s, "GET", "/tenancy/export?domain=none", "")
	g.ask(a.owner, "GET", "/tenancy/export", "")
	g.ask(s, "GET", "/tenancy/preview?kind=user&ref=ada@x", "")
	g.ask(s, "GET", "/tenancy/preview?kind=user&ref=ada@x&end=purged", "")
	g.ask(s, "GET", "/tenancy/preview?kind=domain&ref=physics&end=inactive", "")
	g.ask(s, "GET", "/tenancy/preview?kind=domain&ref=physics&end=purged&contents=true&end_sessions=true", "")
	g.ask(s, "GET", "/tenancy/preview?kind=project&ref=default", "")
	g.ask(s, "GET", "/tenancy/preview?kind=domain&ref=default", "")
	g.ask(s, "GET", "/tenancy/preview?kind=moon&ref=default", "")
	g.ask(s, "GET", "/tenancy/preview?kind=user&ref=ada@x&end=sold", "")
	g.ask(s, "GET", "/tenancy/preview?kind=user&ref=nobody@x", "")
	g.ask(s, "GET", "/tenancy/preview", "")
	g.ask(a.owner, "GET", "/tenancy/preview?kind=user&ref=ada@x", "")
	g.ask(a.owner, "GET", "/tenancy/preview?kind=domain&ref=default", "")
}
