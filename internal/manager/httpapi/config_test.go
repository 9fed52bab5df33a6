package httpapi_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// The shared configuration is a few settings with other names: what is not among them is not there and cannot be written.
func TestSharedConfiguration(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	get := func(key, prefix string) string {
		a := s.call("POST", "/config/get", `{"key":"`+key+`","prefix":`+prefix+`}`)
		require.Equal(t, 200, a.status, a.body)
		return strings.TrimSpace(a.body)
	}
	set := func(want int, key, value string) {
		t.Helper()
		a := s.call("POST", "/config/set", `{"key":"`+key+`","value":`+value+`}`)
		require.Equal(t, want, a.status, a.body)
	}
	const visible = "config/api/resources/group_resource_visibility"
	require.JSONEq(t, `{"result":"true"}`, get(visible, "false"))
	require.JSONEq(t, `{"result":null}`, get("config/redis", "true"))
	require.JSONEq(t, `{"result":null}`, get("config/docker", "false"))
	require.JSONEq(t, `{"result":{"docker":{"image":{"auto_pull":"digest"}},"api":{"resources":{"group_resource_visibility":"true",
		"slot_aliases":"{\"gpu\":[\"cuda\",\"rocm\"],\"npu\":[\"*\"]}"}}}}`, get("config", "true"))
	require.JSONEq(t, `{"result":"digest"}`, get("config/docker/image/auto_pull", "true"))

	set(200, visible, `"false"`)
	require.JSONEq(t, `{"result":"false"}`, get(visible, "false"))
	set(200, "config", `{"api":{"resources":{"group_resource_visibility":true}},"docker":{"image":{"auto_pull":"digest"}}}`)
	require.JSONEq(t, `{"result":"true"}`, get(visible, "false"))
	// One bad leaf, and nothing is written.
	set(400, "config", `{"api":{"resources":{"group_resource_visibility":false}},"redis":{"addr":"x"}}`)
	require.JSONEq(t, `{"result":"true"}`, get(visible, "false"))
	for _, bad := range []string{`"maybe"`, `null`, `[1]`, `{}`} {
		set(400, visible, bad)
	}
	set(400, "config", strings.Repeat(`{"a":`, 30)+`1`+strings.Repeat(`}`, 30))
	set(400, "config/redis/addr", `"x"`)
	set(400, "", `"x"`)
	const pull = "config/docker/image/auto_pull"
	for value, note := range map[string]string{"none": "", "tag": "tried on another agent", "digest": ""} {
		a := s.call("POST", "/config/set", `{"key":"`+pull+`","value":"`+value+`"}`)
		require.Equal(t, 200, a.status, a.body)
		require.Contains(t, a.body, `"result":"ok"`)
		require.Contains(t, a.body, note)
		require.Equal(t, note != "", strings.Contains(a.body, `"notes"`), a.body)
		require.JSONEq(t, `{"result":"`+value+`"}`, get(pull, "false"))
	}
	set(200, "config/docker", `{"image":{"auto_pull":"none"}}`)
	for _, bad := range []string{`"always"`, `""`, `true`, `null`} {
		set(400, pull, bad)
	}
	require.JSONEq(t, `{"result":"none"}`, get(pull, "false"))
	require.Equal(t, 200, s.call("POST", "/config/delete", `{"key":"`+pull+`"}`).status)
	require.JSONEq(t, `{"result":"digest"}`, get(pull, "false"))
	set(404, "volumes/default_host", `"no:where"`)

	const aliases = "config/api/resources/slot_aliases"
	set(200, aliases, `"{\"gpu\":[\"cuda\"]}"`)
	require.JSONEq(t, `{"result":"{\"gpu\":[\"cuda\"]}"}`, get(aliases, "false"))
	for _, bad := range []string{`"gpu"`, `"{\"mem\":[\"cuda\"]}"`, `"{\"gpu\":[]}"`, `"{\"gpu\":[\"*\"],\"npu\":[\"*\"]}"`, `"null"`} {
		set(400, aliases, bad)
	}
	require.Equal(t, 200, s.call("POST", "/config/delete", `{"key":"`+aliases+`"}`).status)
	require.JSONEq(t, `{"result":"{\"gpu\":[\"cuda\",\"rocm\"],\"npu\":[\"*\"]}"}`, get(aliases, "false"))

	set(200, "manager/status", `"frozen"`)
	require.Equal(t, 400, s.call("POST", "/config/delete", `{"key":"manager","prefix":true}`).status)
	require.JSONEq(t, `{"result":"frozen"}`, get("manager/status", "false"))
	require.Equal(t, 200, s.call("POST", "/config/delete", `{"key":"manager/status"}`).status)
	require.JSONEq(t, `{"result":"running"}`, get("manager/status", "false"))
	require.Equal(t, 400, s.call("POST", "/config/delete", `{"key":"config/redis/addr"}`).status)
	require.Equal(t, 403, s.call("POST", "/config/delete", `{"key":"volumes/_types/user"}`).status)
	require.Equal(t, 400, s.call("PUT", "/manager/status", `{"status":"running","force_kill":true}`).status)
}
