package httpapi_test

import "testing"

// What administrators set and see of quotas, and what they are refused.
func TestQuotas(t *testing.T) {
	t.Parallel()
	a := newAdmins(t)
	s := a.site
	g := recordAnswers(t, "quotas")
	defer g.compare()
	g.ask(s, "GET", "/quotas", "")
	g.ask(s, "POST", "/quotas", `{"path":"default","limit":{"cpu":"8"},"weight":2}`)
	g.ask(s, "POST", "/quotas", `{"path":"default/default","guaranteed":{"cpu":"4"},"dry_run":true}`)
	g.ask(s, "POST", "/quotas", `{"path":"default/default","guaranteed":{"cpu":"9"}}`)
	g.ask(s, "POST", "/quotas", `{"path":"default/default","guaranteed":{"cpu":"some"}}`)
	g.ask(s, "POST", "/quotas", `{"path":"default/default","weight":"much"}`)
	g.ask(s, "POST", "/quotas", `{"limit":{"cpu":"8"}}`)
	g.ask(a.owner, "POST", "/quotas", `{"path":"default","limit":{"cpu":"8"}}`)
	g.ask(a.owner, "GET", "/quotas?path=default", "")
	g.ask(s, "GET", "/quotas?path=default", "")
	g.ask(s, "GET", "/quotas?path=none/none", "")
	g.ask(s, "DELETE", "/quotas", "")
	g.ask(s, "DELETE", "/quotas?path=default", "")
	g.ask(s, "DELETE", "/quotas?path=default", "")
	g.ask(s, "POST", "/quotas/place", `{"group":"default","parent":"default"}`)
	g.ask(s, "POST", "/quotas/place", `{"group":"default","parent":""}`)
	g.ask(s, "POST", "/quotas/place", `{"parent":"default"}`)
	g.ask(a.owner, "POST", "/quotas/place", `{"group":"default"}`)
}
