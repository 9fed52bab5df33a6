// Package authztest holds the tests that look at the authorisation of the manager as a whole: that every method of every noun
// decides about its actor as docs/authorisation.md says, and that every limit which administrators set is enforced somewhere.
package authztest

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"berth.dev/berth/internal/manager/store/storetest"
)

// enforced says by table and column which test proves that a limit is enforced. The test names the column.
var enforced = map[string]map[string]string{
	"keypair_resource_policies": {
		"default_for_unspecified": "TestCommitsNeverExceedALimit", "total_resource_slots": "TestCommitsNeverExceedALimit",
		"max_concurrent_sessions": "TestCommitsNeverExceedALimit", "max_concurrent_sftp_sessions": "TestCommitsNeverExceedALimit",
		"max_pending_session_count":          "TestWaitingSessionsNeverExceedTheirLimits",
		"max_pending_session_resource_slots": "TestWaitingSessionsNeverExceedTheirLimits",
		"max_priority":                       "TestLimitsOfOneSession", "max_containers_per_session": "TestLimitsOfOneSession",
		"max_session_lifetime":  "TestIdleSessionsAreWarnedOnceAndEndedOnceAcrossLeaders",
		"idle_timeout":          "TestIdleSessionsAreWarnedOnceAndEndedOnceAcrossLeaders",
		"max_keep_alive":        "TestOwnersKeepSessionsAliveAsLongAsTheirPolicyAllows",
		"allowed_vfolder_hosts": "TestHostRefusalNamesHostAndPermission",
	},
	"user_resource_policies": {
		"max_concurrent_logins": "TestConcurrentLoginsAreBounded",
		"max_vfolder_count":     "TestConcurrentCreatesStayBelowTheLimit", "max_quota_scope_size": "TestAScopeGetsItsLimitAtFirst",
		"max_customized_image_count": "TestCustomizedImagesAreLimited",
		"max_customized_image_bytes": "TestCustomizedImagesAreLimited",
	},
	"project_resource_policies": {"max_vfolder_count": "TestProjectsHaveLimits", "max_quota_scope_size": "TestProjectsHaveLimits"},
	"domains": {
		"is_active": "TestWhoIsRefusedAtTheDoor", "total_resource_slots": "TestCommitsNeverExceedALimit",
		"allowed_vfolder_hosts":     "TestProjectsHaveLimits",
		"allowed_docker_registries": "TestDomainsAllowRegistries",
	},
	"projects": {
		"is_active":             "TestProjectsThatEndedGetNoFolders",
		"total_resource_slots":  "TestCommitsNeverExceedALimit",
		"allowed_vfolder_hosts": "TestProjectsHaveLimits",
	},
	"users": {"status": "TestWhoIsRefusedAtTheDoor", "allowed_client_ip": "TestUsersComeFromAllowedAddresses"},
	"keypairs": {"is_active": "TestActorsAreBelievedForAMomentAndForgottenAtOnce", "rate_limit": "TestKeypairsHaveTheirOwnRate",
		"concurrency_limit": "TestCommitsNeverExceedALimit", "expires_at": "TestRotationMovesEverything"},
}

// waiting are limits of what does not exist yet, with the package that will enforce them: when it comes, so must a test above.
var waiting = map[string]map[string]string{
	"user_resource_policies":    {"max_session_count_per_model_session": "serving"},
	"project_resource_policies": {"max_network_count": "network"},
}

// plain are the columns that limit nothing: names, times, references, and settings of the user's own.
var plain = map[string][]string{
	"keypair_resource_policies": {"name", "created_at"},
	"user_resource_policies":    {"name", "created_at"},
	"project_resource_policies": {"name", "created_at"},
	"domains":                   {"name", "description", "created_at", "modified_at", "integration_id", "dotfiles"},
	"projects": {
		"id",
		"name",
		"description",
		"created_at",
		"modified_at",
		"domain_name",
		"integration_id",
		"type",
		"resource_policy",
		"dotfiles",
		"parent_id",
	},
	"users": {
		"id",
		"username",
		"email",
		"password_hash",
		"need_password_change",
		"password_changed_at",
		"full_name",
		"description",
		"status_info",
		"domain_name",
		"role",
		"resource_policy",
		"totp_activated", "login_directory",
		"sudo_session_enabled",
		"main_access_key",
		"container_uid",
		"container_main_gid",
		"container_gids",
		"integration_id",
		"created_at",
		"modified_at",
		"is_service",
	},
	"keypairs": {
		"access_key",
		"secret_sealed",
		"user_id",
		"is_admin",
		"resource_policy",
		"num_queries",
		"last_used",
		"ssh_public_key",
		"ssh_private_sealed",
		"dotfiles",
		"bootstrap_script",
		"replaced_by",
		"deleted_at",
		"created_at",
		"modified_at",
	},
}

// Every column in which administrators limit somebody has a test that proves that the limit holds.
func TestEveryLimitIsEnforced(t *testing.T) {
	t.Parallel()
	s := storetest.New(t)
	rows, err := s.Pool().Query(t.Context(), `SELECT table_name::text, column_name::text FROM information_schema.columns
WHERE table_schema = 'public' AND (table_name LIKE '%\_resource\_policies' OR table_name = ANY($1)) ORDER BY 1, 2`,
		slices.Collect(maps.Keys(enforced)))
	require.NoError(t, err)
	defer rows.Close()
	there := map[string][]string{}
	for rows.Next() {
		var table, column string
		require.NoError(t, rows.Scan(&table, &column))
		there[table] = append(there[table], column)
	}
	require.NoError(t, rows.Err())
	tests := bodiesOfTests(t)
	for table, columns := range there {
		for _, column := range columns {
			test, is := enforced[table][column]
			noun, later := waiting[table][column]
			switch {
			case is:
				body, found := tests[test]
				require.True(t, found, "%s.%s: there is no %s", table, column, test)
				require.Contains(t, body, column, "%s does not speak of %s.%s", test, table, column)
			case later:
				_, err := os.Stat(filepath.Join("..", noun))
				require.ErrorIs(
					t,
					err,
					fs.ErrNotExist,
					"%s.%s: package %s is there now; name the test that proves that the limit holds",
					table,
					column,
					noun,
				)
			default:
				require.Contains(
					t,
					plain[table],
					column,
					"%s.%s: name the test that proves that the limit holds, or say that it is none",
					table,
					column,
				)
			}
		}
	}
	for _, declared := range []map[string]map[string]string{enforced, waiting} {
		for table, columns := range declared {
			for column := range columns {
				require.Contains(t, there[table], column, "%s.%s is gone", table, column)
				require.NotContains(t, plain[table], column)
			}
		}
	}
	for table, columns := range plain {
		for _, column := range columns {
			require.Contains(t, there[table], column, "%s.%s is gone", table, column)
		}
	}
}

// bodiesOfTests are the texts of the manager's tests by their names.
func bodiesOfTests(t *testing.T) map[string]string {
	t.Helper()
	out := map[string]string{}
	err := filepath.WalkDir("..", func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || !strings.HasSuffix(path, "_test.go") {
			return err
		}
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		set := token.NewFileSet()
		f, err := parser.ParseFile(set, path, text, parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		for _, decl := range f.Decls {
			if fn, ok := decl.(*ast.FuncDecl); ok && fn.Recv == nil && strings.HasPrefix(fn.Name.Name, "Test") {
				out[fn.Name.Name] = string(text[set.Position(fn.Pos()).Offset:set.Position(fn.End()).Offset])
			}
		}
		return nil
	})
	require.NoError(t, err)
	return out
}
