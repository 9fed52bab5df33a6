package ldap

import (
	"testing"

	"github.com/go-ldap/ldap/v3"
	"github.com/stretchr/testify/require"
)

// GroupName is groupName with a base as text.
func GroupName(t *testing.T, dn, base string) string {
	t.Helper()
	if base == "" {
		return groupName(dn, nil)
	}
	parsed, err := ldap.ParseDN(base)
	require.NoError(t, err)
	return groupName(dn, parsed)
}
