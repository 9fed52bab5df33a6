package graphapi_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// columnsOfClients are the fields by which the official clients filter and order the lists of the classic interface.
var columnsOfClients = []struct{ list, args, fields, orderOnly string }{
	{"agent_list", "", "id status status_changed region scaling_group schedulable addr first_contact lost_at version",
		"available_slots occupied_slots"},
	{"compute_session_list", "", `id type name priority image agent_ids agent_id agents domain_name group_name user_email user_id full_name
access_key scaling_group cluster_mode cluster_size status status_info result created_at terminated_at starts_at scheduled_at
startup_command`, ""},
	{"user_list", "", `uuid username email need_password_change full_name description is_active status status_info created_at modified_at
domain_name role resource_policy allowed_client_ip totp_activated totp_activated_at sudo_session_enabled main_access_key`, ""},
	{"keypair_list", "", `access_key user_id email full_name is_active is_admin resource_policy created_at last_used rate_limit num_queries
ssh_public_key projects`, ""},
	{"vfolder_list", "", `id host quota_scope_id name group group_name user user_email creator domain_name unmanaged_path usage_mode
permission ownership_type max_files max_size created_at last_used cloneable status`, "cur_size"},
	{"compute_container_list", `session_id: "%s", `, `image architecture agent agent_addr cluster_idx local_rank cluster_role
cluster_hostname status status_info created_at status_changed terminated_at scheduled_at`, ""},
	{"endpoint_list", "", "name model domain url lifecycle_stage created_user_email", ""},
}

// TestListsHaveTheColumnsOfClients filters and orders each list by each of its documented fields. A field that a list does not have
// is an error that names it.
func TestListsHaveTheColumnsOfClients(t *testing.T) {
	t.Parallel()
	f := fill(t)
	total := func(list, args string) (int, string) {
		t.Helper()
		got := f.answer(fmt.Sprintf("query { %s(limit: 10, offset: 0%s) { total_count } }", list, args), nil, f.admin)
		if len(got.Errors) > 0 {
			return 0, got.Errors[0].Message
		}
		n := 0
		_, err := fmt.Sscanf(string(got.Data[list]), `{"total_count":%d}`, &n)
		require.NoError(t, err, "%s", got.Data[list])
		return n, ""
	}
	for _, c := range columnsOfClients {
		args := ""
		if c.args != "" {
			args = ", " + strings.TrimSuffix(fmt.Sprintf(c.args, f.session), ", ")
		}
		all, problem := total(c.list, args)
		require.Empty(t, problem, c.list)
		for _, field := range strings.Fields(c.fields) {
			with, problem := total(c.list, args+fmt.Sprintf(`, filter: "%s isnot null"`, field))
			require.Empty(t, problem, "%s by %s", c.list, field)
			without, problem := total(c.list, args+fmt.Sprintf(`, filter: "%s is null"`, field))
			require.Empty(t, problem, "%s by %s", c.list, field)
			require.Equal(t, all, with+without, "%s by %s", c.list, field)
		}
		for _, field := range strings.Fields(c.fields + " " + c.orderOnly) {
			n, problem := total(c.list, args+fmt.Sprintf(`, order: "-%s"`, field))
			require.Empty(t, problem, "%s in the order of %s", c.list, field)
			require.Equal(t, all, n, "%s in the order of %s", c.list, field)
		}
		if c.list == "endpoint_list" { // there are no endpoints, whatever is asked
			continue
		}
		_, problem = total(c.list, args+`, filter: "no_such_field isnot null"`)
		require.Contains(t, problem, "no_such_field", c.list)
		_, problem = total(c.list, args+`, order: "no_such_field"`)
		require.Contains(t, problem, "no_such_field", c.list)
	}
}
