package openid_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"berth.dev/berth/internal/chassis"
	"berth.dev/berth/internal/manager/authz"
	"berth.dev/berth/internal/manager/tenancy/openid"
)

// The example of docs/administration.md is read as it is meant.
func TestTheDocumentedConfiguration(t *testing.T) {
	t.Parallel()
	raw, err := os.ReadFile("../../../../docs/administration.md")
	require.NoError(t, err)
	_, rest, found := strings.Cut(string(raw), "## Logins at an identity provider")
	require.True(t, found)
	_, rest, found = strings.Cut(rest, "```toml\n")
	require.True(t, found)
	text, _, found := strings.Cut(rest, "```")
	require.True(t, found)
	file := filepath.Join(t.TempDir(), "berth.toml")
	require.NoError(t, os.WriteFile(file, []byte(text), 0o600))
	type manager struct {
		WebOrigins []string
		OIDC       map[string]openid.Config `config:"oidc"`
	}
	cfg, err := chassis.LoadFile(struct{ Manager manager }{}, file, nil)
	require.NoError(t, err)
	is := cfg.Value.Manager
	require.NoError(t, openid.Validate(is.OIDC, is.WebOrigins))
	corp := is.OIDC["corp"]
	require.Equal(t, "berth", corp.ClientID)
	require.Equal(t, time.Minute, corp.ClockSkew)
	require.True(t, corp.Rules.Create)
	require.Len(t, corp.Rules.Groups, 2)
	require.Equal(t, []string{"vision"}, corp.Rules.Groups[0].Projects)
	require.Equal(t, authz.RoleAdmin, corp.Rules.Groups[1].Role)
}
