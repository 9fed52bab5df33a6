package authz_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/fault"
	"berth.dev/berth/internal/manager/authz"
)

func actor(role authz.Role, user, domain string) authz.Actor {
	return authz.Actor{UserID: cluster.UserID(user), AccessKey: cluster.AccessKey("AK-" + user), Email: user + "@x", Role: role, Domain: domain}
}

// The whole table: who may read, change and act for what.
func TestDecisions(t *testing.T) {
	t.Parallel()
	object := func(user, domain string, role authz.Role) authz.Owned {
		return authz.Owned{Noun: "session", Name: "s", UserID: cluster.UserID(user), AccessKey: cluster.AccessKey("AK-" + user), Domain: domain, OwnerRole: role}
	}
	const ok, no, hidden = "ok", "denied", "hidden"
	outcome := func(err error) string {
		switch {
		case err == nil:
			return ok
		case fault.Is(err, fault.Denied):
			return no
		case fault.Is(err, fault.NotFound):
			return hidden
		}
		return err.Error()
	}
	for name, c := range map[string]struct {
		actor             authz.Actor
		object            authz.Owned
		read, write, acts string
	}{
		"owner":                   {actor(authz.RoleUser, "u", "d"), object("u", "d", authz.RoleUser), ok, ok, ok},
		"stranger":                {actor(authz.RoleUser, "v", "d"), object("u", "d", authz.RoleUser), hidden, hidden, no},
		"admin of the domain":     {actor(authz.RoleAdmin, "v", "d"), object("u", "d", authz.RoleUser), ok, ok, ok},
		"admin elsewhere":         {actor(authz.RoleAdmin, "v", "e"), object("u", "d", authz.RoleUser), hidden, hidden, no},
		"admin over a superadmin": {actor(authz.RoleAdmin, "v", "d"), object("u", "d", authz.RoleSuperadmin), hidden, hidden, no},
		"superadmin":              {actor(authz.RoleSuperadmin, "v", "e"), object("u", "d", authz.RoleSuperadmin), ok, ok, ok},
		"monitor":                 {actor(authz.RoleMonitor, "v", "e"), object("u", "d", authz.RoleUser), ok, no, no},
		"nobody":                  {authz.Actor{}, object("u", "d", authz.RoleUser), hidden, hidden, no},
		"nobody and nothing":      {authz.Actor{}, authz.Owned{Noun: "session"}, hidden, hidden, no},
		"half an actor":           {authz.Actor{UserID: "u", Role: authz.RoleSuperadmin}, object("u", "d", authz.RoleUser), hidden, hidden, no},
		"empty domain":            {actor(authz.RoleAdmin, "v", ""), object("u", "", authz.RoleUser), hidden, hidden, no},
	} {
		require.Equal(t, c.read, outcome(authz.Read(c.actor, c.object)), "%s reads", name)
		require.Equal(t, c.write, outcome(authz.Write(c.actor, c.object)), "%s writes", name)
		require.Equal(t, c.acts, outcome(authz.ActFor(c.actor, c.object)), "%s acts for", name)
	}
	for role, want := range map[authz.Role][4]string{
		authz.RoleSuperadmin: {ok, ok, ok, ok}, authz.RoleAdmin: {no, no, ok, ok}, authz.RoleMonitor: {no, ok, no, no}, authz.RoleUser: {no, no, no, no}, "": {no, no, no, no},
	} {
		a := actor(role, "u", "d")
		require.Equal(t, want, [4]string{outcome(authz.NeedSuperadmin(a, "x")), outcome(authz.NeedReadAll(a, "x")), outcome(authz.NeedAdmin(a, "x")), outcome(authz.NeedDomainAdmin(a, "d", "x"))}, role)
	}
	require.Equal(t, no, outcome(authz.NeedDomainAdmin(actor(authz.RoleAdmin, "u", "d"), "e", "x")))
	require.Error(t, authz.NeedSuperadmin(authz.Actor{Role: authz.RoleSuperadmin}, "x"))
}
