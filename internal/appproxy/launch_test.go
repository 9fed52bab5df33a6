package appproxy_test

import (
	"net/http"
	"testing"

	"github.com/stretchr/testify/require"

	"berth.dev/berth/internal/wire/proxy"
)

// A manager of the version before does not bind tokens.
func TestLaunchWithAnOlderManager(t *testing.T) {
	t.Parallel()
	s := newSite(t, nil, func(m *manager) { m.version = 0 })
	added := s.get(s.browser(), s.p.URL()+"/v2/proxy/launch-token/s-1/add?app=jupyter")
	require.Equal(t, 200, added.status, added.body)
	require.Contains(t, added.json(t)["url"], "token=launch-token")
	require.Empty(t, s.m.bound)
}

// Browsers fetch addresses ahead, and programs look at them: whoever only looks uses no launch token up.
func TestLookingLaunchesNothing(t *testing.T) {
	t.Parallel()
	s := newSite(t, nil)
	s.m.template = func(proxy.LaunchRequest) (proxy.Circuit, error) { return labelled(1, "lab-1"), nil }
	b := s.browser()
	auth := s.p.URL() + "/v2/proxy/auth?session_id=s-1&app=jupyter&token=launch-token"
	require.Equal(t, 204, s.do(b, http.MethodHead, auth, "").status)
	for _, purpose := range []string{"prefetch", "prefetch;prerender"} {
		require.Equal(t, 204, s.get(b, auth, "Sec-Purpose", purpose).status)
	}
	require.Equal(t, 204, s.get(b, auth, "Purpose", "prefetch").status)
	require.Empty(t, s.m.launched)
	require.Equal(t, 200, s.get(b, auth, "Accept", "application/json").status)
	require.Len(t, s.m.launched, 1)
}
