package graphapi_test

import (
	"encoding/base64"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"
	"github.com/vektah/gqlparser/v2/ast"
	"github.com/vektah/gqlparser/v2/parser"

	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/manager/authz"
	"berth.dev/berth/internal/manager/managertest"
	"berth.dev/berth/internal/manager/nouns"
)

var update = flag.Bool("update", false, "write testdata/operations.txt")

// operation is a query or a mutation of a documented client.
type operation struct{ name, text string }

var startOfOperation = regexp.MustCompile(`(?m)^(query|mutation) (\w+)`)

// operationsOf reads a file of testdata.
func operationsOf(t testing.TB, file string) (out []operation) {
	t.Helper()
	raw, err := os.ReadFile("testdata/" + file)
	require.NoError(t, err)
	text := string(raw)
	at := startOfOperation.FindAllStringSubmatchIndex(text, -1)
	for i, m := range at {
		end := len(text)
		if i+1 < len(at) {
			end = at[i+1][0]
		}
		out = append(out, operation{name: text[m[4]:m[5]], text: strings.TrimSpace(text[m[0]:end])})
	}
	return out
}

// documented are the files of testdata that hold what official clients ask.
var documented = []string{"client.graphql", "webui.graphql", "webui-classic.graphql"}

// filled is a desk with something of everything, and who asks.
type filled struct {
	*desk
	people  map[string]authz.Actor
	session cluster.SessionID
	folder  string
	image   string
	serial  int
}

// roles are who asks, in the order of the table.
var roles = []string{"superadmin", "domain admin", "user", "stranger"}

func fill(t testing.TB, change ...func(*nouns.Deps)) *filled {
	t.Helper()
	d := newFolderDesk(t, change...)
	f := &filled{desk: d, people: map[string]authz.Actor{"superadmin": d.admin}}
	f.people["domain admin"] = d.person("boss", authz.RoleAdmin, true)
	f.people["user"] = d.person("ada", authz.RoleUser, true)
	f.people["stranger"] = d.world.Stranger("elsewhere")
	d.world.Agent("a1", 8, 16*managertest.GiB)
	first := d.world.Create("first").ID
	f.session = d.world.Running("labs", "a1")
	d.exec(`INSERT INTO session_dependencies (session_id, depends_on) VALUES ($1, $2)`, first, f.session)
	d.exec(`INSERT INTO resource_presets (id, name, resource_slots) VALUES (gen_random_uuid(), 'tiny', '{"cpu":1000}')`)
	d.exec(`INSERT INTO keypair_resource_policies (name) VALUES ('spare')`)
	require.NoError(t, d.store.Pool().QueryRow(t.Context(), `SELECT id::text FROM images`).Scan(&f.image))
	_, f.folder = d.create("notes")
	return f
}

func node(kind, id string) string { return base64.StdEncoding.EncodeToString([]byte(kind + ":" + id)) }

// target makes things that a mutation may change or delete: all have the name in their names, and the ids end with the number.
func (f *filled) target(name string) {
	id := f.targetID()
	var b pgx.Batch
	b.Queue(`INSERT INTO domains (name) VALUES ($1)`, name)
	b.Queue(`INSERT INTO projects (id, name, domain_name, resource_policy) VALUES ($1, $2, 'default', 'default')`, id, name)
	b.Queue(`INSERT INTO users (id, username, email, domain_name, resource_policy) VALUES ($1, $2, $2 || '@x', 'default', 'default')`, id,
		name)
	b.Queue(`INSERT INTO keypairs (access_key, secret_sealed, user_id, resource_policy) VALUES ($1, '', $2, 'default')`,
		"KEY"+strings.ToUpper(name), id)
	b.Queue(`INSERT INTO keypair_resource_policies (name) VALUES ($1)`, name)
	b.Queue(`INSERT INTO user_resource_policies (name) VALUES ($1)`, name)
	b.Queue(`INSERT INTO project_resource_policies (name) VALUES ($1)`, name)
	b.Queue(`INSERT INTO resource_groups (name) VALUES ($1)`, name)
	b.Queue(`INSERT INTO resource_presets (id, name, resource_slots) VALUES ($1, $2, '{"cpu":1000}')`, id, name)
	b.Queue(`INSERT INTO images (id, reference, registry, name, tag, architecture, digest, size_bytes, scope)
		VALUES ($1::uuid, 'local/' || $2 || ':1', 'local', $2, '1', 'x86_64', 'sha256:0', 1, 'global')`, id, name)
	b.Queue(`INSERT INTO image_aliases (alias, image_id) VALUES ('alias' || $2, $1::uuid)`, id, name)
	require.NoError(f.t, f.store.Pool().SendBatch(f.t.Context(), &b).Close())
}

func (f *filled) targetID() string { return fmt.Sprintf("00000000-0000-4000-9000-%012d", f.serial) }

// variables are what a client would send with an operation: to make something under a new name, or to change something that was made for
// it.
func (f *filled) variables(op *ast.OperationDefinition, actor authz.Actor) map[string]any {
	f.serial++
	fresh := fmt.Sprintf("new%d", f.serial)
	out := map[string]any{}
	mutation := op.Operation == ast.Mutation
	if field, ok := op.SelectionSet[0].(*ast.Field); ok && mutation && !strings.HasPrefix(field.Name, "create") {
		fresh = fmt.Sprintf("made%d", f.serial)
		f.target(fresh)
		if strings.HasPrefix(field.Name, "disassociate") {
			f.exec(`INSERT INTO resource_groups_for_domains (resource_group, domain_name) VALUES ($1, $1)`, fresh)
			f.exec(`INSERT INTO resource_groups_for_projects (resource_group, project_id) VALUES ($1, $2)`, fresh, f.targetID())
		}
	}
	for _, v := range op.VariableDefinitions {
		if v.DefaultValue != nil {
			continue
		}
		if value, ok := f.value(op.Name, v.Variable, v.Type, fresh, mutation, actor); ok {
			out[v.Variable] = value
		}
	}
	return out
}

func (f *filled) value(op, name string, kind *ast.Type, fresh string, mutation bool, actor authz.Actor) (any, bool) {
	project, zero := string(f.project()), "00000000-0000-4000-8000-00000000dead"
	if in, ok := f.input(op, kind.Name(), fresh); ok {
		return in, true
	}
	switch name {
	case "limit", "first", "tokenListLimit":
		return 10, true
	case "offset", "tokenListOffset":
		return 0, true
	case "domain_name", "domainName", "domain":
		if mutation {
			return fresh, true
		}
		return "default", true
	case "email":
		if mutation {
			return fresh + "@x", true
		}
		return actor.Email, true
	case "access_key", "accessKey", "ak":
		if mutation {
			return "KEY" + strings.ToUpper(fresh), true
		}
		return string(actor.AccessKey), true
	case "projectId", "projectID", "project_id", "group_id", "gid", "user_group", "scope_group":
		if op == "SwitchToProjectButtonQuery" {
			return node("GroupNode", project), true
		}
		if mutation && !strings.Contains(op, "FolderCreate") {
			return f.targetID(), true
		}
		return project, true
	case "scopeId", "scope_id":
		if mutation {
			return "project:" + zero, true
		}
		return "project:" + project, true
	case "currentUserScopeId", "modelStoreScopeId":
		return "project:" + project, true
	case "target", "alias":
		if op == "dealias_image" {
			return "alias" + fresh, true
		}
		if name == "target" {
			return "local/" + fresh + ":1", true
		}
	case "filter":
		if kind.NonNull {
			return `name like "n%"`, true
		}
	case "projectIds":
		return []string{project}, true
	case "scaling_groups":
		return []string{"default"}, true
	case "user_id":
		if mutation {
			return actor.Email, true
		}
		return string(actor.UserID), true
	case "uuid", "sessionID", "sessionId", "id", "image_id":
		switch {
		case strings.Contains(op, "UserEmail"):
			return string(actor.UserID), true
		case op == "ImageTagsUNSAFELazySessionImageTagQuery":
			return string(f.session), true
		case strings.Contains(strings.ToLower(op), "image"):
			if mutation {
				return f.targetID(), true
			}
			return f.image, true
		case op == "AgentDetailDrawerRefetchQuery":
			return node("AgentNode", "a1"), true
		case op == "storage_info" || op == "StorageHostSettingPageQuery":
			return "local:volume1", true
		case op == "group_node":
			return node("GroupNode", project), true
		case op == "ImportFromHuggingFaceModalQuery":
			return project, true
		case strings.Contains(op, "Notification"):
			return node("ComputeSessionNode", string(f.session)), true
		case op == "AgentSettingModalMutation":
			return "a1", true
		case mutation:
			return f.targetID(), true
		}
		return string(f.session), true
	case "vfolderId", "vfolderUUID":
		return f.folder, true
	case "quota_scope_id", "user_quota_scope_id":
		return "user:" + string(actor.UserID), true
	case "project_quota_scope_id":
		return "project:" + project, true
	case "storage_host_name":
		return "local:volume2", true
	case "agent_id", "agentId":
		return "a1", true
	case "resourceGroup", "resource_group_id", "scaling_group":
		if mutation {
			return fresh, true
		}
		return "default", true
	case "name", "keypair_resource_policy_name", "resourcePolicyName", "user_RP_name", "project_RP_name":
		if mutation {
			return fresh, true
		}
		return "default", true
	case "reference":
		if mutation {
			return "local/" + fresh + ":1", true
		}
		return "python", true
	case "architecture":
		return "x86_64", true
	}
	if !kind.NonNull {
		return nil, false
	}
	switch kind.Name() {
	case "Boolean":
		return false, true
	case "Int":
		return 1, true
	case "UUID", "ID", "GlobalIDField":
		return zero, true
	case "AutoScalingMetricSource":
		return "KERNEL", true
	case "AutoScalingMetricComparator":
		return "LESS_THAN", true
	}
	if kind.Elem != nil {
		return []string{}, true
	}
	return fresh, true
}

// input is a value of an input type.
func (f *filled) input(op, kind, fresh string) (any, bool) {
	zero := "00000000-0000-4000-8000-00000000dead"
	revision := map[string]any{"deploymentId": zero, "modelMountConfig": map[string]any{"vfolderId": f.folder, "mountDestination": "/m"}}
	all := map[string]any{
		"UserInput": map[string]any{"username": fresh, "password": "correct horse", "need_password_change": false, "full_name": "N",
			"domain_name": "default", "role": "user", "status": "active", "description": "", "totp_activated": false,
			"sudo_session_enabled": false, "group_ids": []string{string(f.project())}, "container_uid": nil},
		"ModifyUserInput": map[string]any{"full_name": "M"}, "PurgeUserInput": map[string]any{"purge_shared_vfolders": false},
		"KeyPairInput": map[string]any{"is_active": true, "is_admin": false, "resource_policy": "default",
			"rate_limit": 1000},
		"ModifyKeyPairInput": map[string]any{"rate_limit": 900},
		"CreateKeyPairResourcePolicyInput": map[string]any{"default_for_unspecified": "LIMITED", "max_concurrent_sessions": 3,
			"max_containers_per_session": 1, "idle_timeout": 600},
		"ModifyKeyPairResourcePolicyInput": map[string]any{"max_concurrent_sessions": 4},
		"CreateUserResourcePolicyInput":    map[string]any{"max_vfolder_count": 3},
		"ModifyUserResourcePolicyInput":    map[string]any{"max_vfolder_count": 4},
		"CreateProjectResourcePolicyInput": map[string]any{"max_vfolder_count": 3},
		"ModifyProjectResourcePolicyInput": map[string]any{"max_vfolder_count": 4},
		"DomainInput": map[string]any{"description": "d", "is_active": true, "total_resource_slots": "{}", "allowed_vfolder_hosts": "{}",
			"allowed_docker_registries": []string{}, "integration_id": ""},
		"ModifyDomainInput": map[string]any{"description": "e"},
		"GroupInput": map[string]any{"description": "g", "is_active": true, "domain_name": "default", "total_resource_slots": "{}",
			"allowed_vfolder_hosts": "{}"},
		"ModifyGroupInput": map[string]any{"description": "h"},
		"CreateScalingGroupInput": map[string]any{"driver": "static", "scheduler": "fifo", "driver_opts": "{}", "scheduler_opts": "{}",
			"description": "", "is_active": true, "is_public": true},
		"ModifyScalingGroupInput":   map[string]any{"description": "s"},
		"CreateResourcePresetInput": map[string]any{"resource_slots": `{"cpu":"1","mem":"1g"}`},
		"ModifyResourcePresetInput": map[string]any{"resource_slots": `{"cpu":"2","mem":"1g"}`},
		"ModifyAgentInput":          map[string]any{"schedulable": true},
		"QuotaScopeInput":           map[string]any{"hard_limit_bytes": 1000000},
		"ModifyImageInput":          map[string]any{"labels": []any{map[string]any{"key": "a", "value": "b"}}},
		"ModifyComputeSessionInput": map[string]any{"id": node("compute_session_node", string(f.session)), "name": fresh + "-lab"},
		"CreateVFolderV2Input":      map[string]any{"name": fresh, "host": "local:volume1", "usageMode": "general", "permission": "rw"},
		"CreateVFolderInScopeInput": map[string]any{"name": fresh, "host": "local:volume1"},
		"PurgeImageOptions":         map[string]any{"remove_from_registry": true},
		"ModifyNetworkInput":        map[string]any{"name": fresh}, "ModifyEndpointInput": map[string]any{"replicas": 1},
		"ModifyEndpointAutoScalingRuleInput": map[string]any{"threshold": "1"}, "ContainerRegistryTypeField": "docker",
		"CreateContainerRegistryNodeInputV2": map[string]any{"url": "https://r", "type": "docker", "registry_name": "r"},
		"ModifyContainerRegistryNodeInputV2": map[string]any{"url": "https://r"},
		"DeleteDeploymentInput":              map[string]any{"id": zero}, "UpdateDeploymentInput": map[string]any{"id": zero},
		"AddRevisionInput": revision,
		"CreateDeploymentInput": map[string]any{"metadata": map[string]any{"projectId": zero, "domainName": "default",
			"resourceGroupName": "default"},
			"networkAccess": map[string]any{}, "defaultDeploymentStrategy": map[string]any{"type": "ROLLING"}, "replicaCount": 1},
		"ActivateRevisionInput": map[string]any{"deploymentId": zero, "revisionId": zero}, "DeleteAccessTokenInput": map[string]any{"id": zero},
		"CreateAccessTokenInput":     map[string]any{"modelDeploymentId": zero, "expiresAt": "2030-01-01T00:00:00Z"},
		"DeleteAutoScalingRuleInput": map[string]any{"id": zero}, "UpdateAutoScalingRuleInput": map[string]any{"id": zero},
		"CreateAutoScalingRuleInput": map[string]any{"modelDeploymentId": zero, "metricSource": "KERNEL", "metricName": "cpu", "stepSize": 1,
			"timeWindow": 60},
		"DeployVFolderV2Input": map[string]any{"projectId": zero, "revisionPresetId": zero, "resourceGroup": "default"},
		"UserUtilizationMetricQueryInput": map[string]any{"metric_name": "cpu_util", "start": "2026-01-01T00:00:00Z",
			"end":  "2026-01-02T00:00:00Z",
			"step": "60s"},
		"AuditLogScope":   map[string]any{"entity": []any{map[string]any{"entityType": "SESSION", "entityId": "labs"}}},
		"UserV2Filter":    map[string]any{"email": map[string]any{"iContains": "@"}, "status": map[string]any{"in": []string{"ACTIVE"}}},
		"UserV2OrderBy":   []any{map[string]any{"field": "EMAIL", "direction": "ASC"}},
		"ProjectV2Filter": map[string]any{"name": map[string]any{"contains": "e"}},
	}
	v, ok := all[kind]
	return v, ok
}

// answer is the raw answer to an operation.
type answer struct {
	Data   map[string]json.RawMessage
	Errors []struct {
		Message string
		Path    []any
	}
}

func (f *filled) answer(text string, vars map[string]any, a authz.Actor) (out answer) {
	f.t.Helper()
	f.actor = a
	body, code := f.post(text, vars)
	require.Equal(f.t, 200, code, body)
	require.NoError(f.t, json.Unmarshal([]byte(body), &out), body)
	return out
}

// answerJSON asks as the superadmin, with variables as text.
func (f *filled) answerJSON(text, vars string) answer {
	f.t.Helper()
	var v map[string]any
	require.NoError(f.t, json.Unmarshal([]byte(vars), &v))
	return f.answer(text, v, f.admin)
}

// shape says in few words what a field holds: null, how many items, ok, or the kind of a refusal.
func shape(raw json.RawMessage) string {
	var list []json.RawMessage
	if json.Unmarshal(raw, &list) == nil && string(raw) != "null" {
		return count(len(list))
	}
	var o map[string]json.RawMessage
	if string(raw) == "null" || json.Unmarshal(raw, &o) != nil {
		return string(raw)
	}
	for _, key := range []string{"items", "edges"} {
		if it, ok := o[key]; ok {
			return shape(it)
		}
	}
	if ok, has := o["ok"]; has {
		return map[string]string{"true": "ok", "false": "refused"}[string(ok)]
	}
	if n, has := o["count"]; has && len(o) == 1 {
		return "count " + string(n)
	}
	return "object"
}

func count(n int) string {
	if n == 0 {
		return "empty"
	}
	return "items"
}

// checkText holds what clients decode without asking: texts of JSON, and lists that are never null.
func checkText(t *testing.T, op string, v any) {
	t.Helper()
	switch v := v.(type) {
	case []any:
		for _, one := range v {
			checkText(t, op, one)
		}
	case map[string]any:
		for key, one := range v {
			switch key {
			case "available_slots", "occupied_slots", "occupying_slots", "total_resource_slots", "requested_slots":
				require.IsType(t, "", one, "%s: %s", op, key)
				require.True(t, json.Valid([]byte(one.(string))), "%s: %s is %v", op, key, one)
			case "allowed_vfolder_hosts", "status_data", "resource_opts", "service_ports", "driver_opts", "scheduler_opts", "live_stat",
				"last_stat", "hardware_metadata", "local_config", "idle_checks", "usage", "gpu_alloc_map", "compute_plugins":
				if text, ok := one.(string); ok {
					require.True(t, json.Valid([]byte(text)), "%s: %s is %v", op, key, one)
				}
			case "containers", "dependencies", "groups", "items", "edges", "permissions", "resource_limits", "labels":
				require.NotNil(t, one, "%s: %s", op, key)
			case "user_info":
				require.NotNil(t, one, "%s: %s", op, key)
			}
			checkText(t, op, one)
		}
	}
}

// keepsSecret says that a stranger's answer holds nothing of what is there.
func (f *filled) keepsSecret(op string, data map[string]json.RawMessage) {
	f.t.Helper()
	text := fmt.Sprintf("%s", data)
	for _, secret := range []string{string(f.session), f.folder, string(f.project()), string(f.admin.UserID), string(f.admin.AccessKey),
		f.admin.Email, "ada@x", "boss@x", "a1"} {
		require.NotContains(f.t, text, `"`+secret+`"`, op)
	}
}

// TestDocumentedOperations runs everything that the official clients are known to ask, as everybody. It holds the answers' outlines
// against testdata/operations.txt: what each field of the root answers to whom.
func TestDocumentedOperations(t *testing.T) {
	t.Parallel()
	f := fill(t)
	var table []string
	for _, file := range documented {
		for _, op := range operationsOf(t, file) {
			doc, err := parser.ParseQuery(&ast.Source{Input: op.text})
			require.NoError(t, err, op.name)
			for _, role := range roles {
				actor := f.people[role]
				got := f.answer(op.text, f.variables(doc.Operations[0], actor), actor)
				if doc.Operations[0].Operation == ast.Query && role == "stranger" {
					f.keepsSecret(op.name, got.Data)
				}
				var roots []string
				for name, raw := range got.Data {
					var v any
					require.NoError(t, json.Unmarshal(raw, &v))
					checkText(t, op.name, v)
					if v != nil {
						roots = append(roots, name+"="+shape(raw))
					}
				}
				for _, e := range got.Errors {
					require.NotContains(t, e.Message, "the server failed", op.name)
					require.NotEmpty(t, e.Path, "%s: %s", op.name, e.Message) // of a field, not of the document
					roots = append(roots, fmt.Sprintf("%v!", e.Path[0]))
				}
				for name, raw := range got.Data {
					failed := slices.ContainsFunc(roots, func(r string) bool { return r == name+"!" })
					if string(raw) == "null" && !failed {
						roots = append(roots, name+"=null")
					}
				}
				slices.Sort(roots)
				table = append(table, fmt.Sprintf("%s %s, %s: %s", strings.TrimSuffix(file, ".graphql"), op.name, role,
					strings.Join(slices.Compact(roots), " ")))
			}
		}
	}
	text := strings.Join(table, "\n") + "\n"
	if *update {
		require.NoError(t, os.WriteFile("testdata/operations.txt", []byte(text), 0o600))
	}
	want, err := os.ReadFile("testdata/operations.txt")
	require.NoError(t, err)
	require.Equal(t, string(want), text, "go test ./internal/manager/graphapi -run TestDocumentedOperations -update records the answers")
}
