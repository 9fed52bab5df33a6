package e2e_test

import (
	"encoding/json"
	"net/http"
	"net/url"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// console sends requests as the web console does, signed with the administrator's keypair.
type console struct {
	t             testing.TB
	endpoint      string
	access, token string
}

func newConsole(t testing.TB, env []string) *console {
	c := &console{t: t}
	for _, line := range env {
		switch name, value, _ := strings.Cut(line, "="); name {
		case "BACKEND_ENDPOINT":
			c.endpoint = strings.TrimRight(value, "/")
		case "BACKEND_ACCESS_KEY":
			c.access = value
		case "BACKEND_SECRET_KEY":
			c.token = value
		}
	}
	return c
}

// send sends a request and returns the body of its answer, which has to have the status.
func (c *console) send(status int, method, target, body string) string {
	c.t.Helper()
	got, text := c.try(method, target, body)
	require.Equal(c.t, status, got, "%s %s: %s", method, target, text)
	return text
}

func (c *console) into(v any, status int, method, target, body string) {
	c.t.Helper()
	text := c.send(status, method, target, body)
	require.NoError(c.t, json.Unmarshal([]byte(text), v), text)
}

func (c *console) graph(v any, query string, vars map[string]any) {
	c.t.Helper()
	body, err := json.Marshal(map[string]any{"query": query, "variables": vars})
	require.NoError(c.t, err)
	reply := struct {
		Data   any
		Errors []any
	}{Data: v}
	c.into(&reply, 200, "POST", "/admin/gql", string(body))
	require.Empty(c.t, reply.Errors)
}

// follow waits for the end of a background task and returns its events.
func (c *console) follow(task string) string {
	c.t.Helper()
	events := c.send(200, "GET", "/events/background-task?task_id="+task, "")
	require.Contains(c.t, events, "event: server_close\n")
	return events
}

// upload moves a file to the storage proxy in two pieces, asking first how far it is.
func (c *console) upload(folder, name, text string) {
	c.t.Helper()
	var ticket struct{ Token, URL string }
	size, err := json.Marshal(len(text))
	require.NoError(c.t, err)
	c.into(&ticket, 200, "POST", "/folders/"+folder+"/request-upload", `{"path":"./`+name+`","size":`+string(size)+`}`)
	at := ticket.URL + "?token=" + url.QueryEscape(ticket.Token)
	for _, piece := range []string{text[:len(text)/2], text[len(text)/2:]} {
		head, err := http.NewRequestWithContext(c.t.Context(), "HEAD", at, nil)
		require.NoError(c.t, err)
		head.Header.Set("Tus-Resumable", "1.0.0")
		resp, err := http.DefaultClient.Do(head)
		require.NoError(c.t, err)
		_ = resp.Body.Close()
		require.Equal(c.t, 200, resp.StatusCode)
		require.NotEmpty(c.t, resp.Header.Get("Upload-Length"))
		patch, err := http.NewRequestWithContext(c.t.Context(), "PATCH", at, strings.NewReader(piece))
		require.NoError(c.t, err)
		patch.Header.Set("Tus-Resumable", "1.0.0")
		patch.Header.Set("Upload-Offset", resp.Header.Get("Upload-Offset"))
		patch.Header.Set("Content-Type", "application/offset+octet-stream")
		resp, err = http.DefaultClient.Do(patch)
		require.NoError(c.t, err)
		_ = resp.Body.Close()
		require.Equal(c.t, 204, resp.StatusCode)
	}
}

// TestConsoleFolders goes through the requests of the web console about one folder, with its background tasks.
func TestConsoleFolders(t *testing.T) {
	t.Parallel()
	p := up(t)
	c := newConsole(t, p.env())
	p.eventually("the storage proxy is known", func() bool { return strings.Contains(p.run("", "folder", "hosts").stdout, "local:volume1") })
	var made struct {
		CreateVfolderV2 struct {
			Vfolder struct {
				ID       string
				Status   string
				Metadata struct{ QuotaScopeID string }
			}
		}
	}
	c.graph(&made, `mutation($input:CreateVFolderV2Input!){createVfolderV2(input:$input){vfolder{id status metadata{name quotaScopeId}}}}`,
		map[string]any{"input": map[string]any{"name": "data", "host": "local:volume1", "cloneable": true}})
	require.Equal(t, "READY", made.CreateVfolderV2.Vfolder.Status)
	var nodes struct {
		Nodes struct {
			Edges []struct {
				Node struct {
					ID          string `json:"row_id"`
					Status      string
					Permissions []string
				}
			}
			Count int
		} `json:"vfolder_nodes"`
	}
	list := func(filter string) int {
		c.graph(&nodes, `query($filter:String){vfolder_nodes(filter:$filter, first:10, offset:0, `+
			`order:"-created_at"){edges{node{row_id status permissions}} count}}`, map[string]any{"filter": filter})
		return nodes.Nodes.Count
	}
	require.Equal(t, 1, list(`status == "READY"`))
	id := nodes.Nodes.Edges[0].Node.ID
	require.Contains(t, nodes.Nodes.Edges[0].Node.Permissions, "delete_content")

	for _, name := range []string{"a.txt", "dir/b.txt"} {
		if dir, _, deep := strings.Cut(name, "/"); deep {
			c.send(200, "POST", "/folders/"+id+"/mkdir", `{"path":"./`+dir+`","parents":true,"exist_ok":true}`)
		}
		c.upload(id, name, strings.Repeat("text of "+name+"\n", 1000))
	}
	var files struct{ Items []struct{ Name, Type string } }
	c.into(&files, 200, "GET", "/folders/"+strings.ReplaceAll(id, "-", "")+"/files?path=.", "")
	require.Len(t, files.Items, 2)
	var quota struct {
		Scope struct {
			Details struct {
				Used  *int64 `json:"usage_bytes"`
				Limit *int64 `json:"hard_limit_bytes"`
			}
		} `json:"quota_scope"`
	}
	scope := map[string]any{"s": made.CreateVfolderV2.Vfolder.Metadata.QuotaScopeID, "h": "local:volume1"}
	c.graph(&quota, `query($s:String! $h:String!){
		quota_scope(quota_scope_id:$s, storage_host_name:$h){details{usage_bytes hard_limit_bytes}}}`, scope)
	require.NotNil(t, quota.Scope.Details.Used)
	require.Nil(t, quota.Scope.Details.Limit)

	var task struct {
		ID string `json:"bgtask_id"`
	}
	c.into(&task, 201, "POST", "/folders/"+id+"/clone",
		`{"target_name":"copy","target_host":"local:volume1","usage_mode":"general","permission":"rw"}`)
	require.Contains(t, c.follow(task.ID), "event: bgtask_done\n")
	require.Equal(t, 2, list(`status == "ready"`))
	c.into(&files, 200, "GET", "/folders/copy/files?path=./dir", "")
	require.Equal(t, "b.txt", files.Items[0].Name)

	c.into(&task, 202, "POST", "/folders/"+id+"/delete-files-async", `{"files":["./dir","./a.txt"],"recursive":true}`)
	require.Contains(t, c.follow(task.ID), "event: bgtask_done\n")
	c.into(&files, 200, "GET", "/folders/"+id+"/files?path=.", "")
	require.Empty(t, files.Items)
	c.send(204, "DELETE", "/folders", `{"vfolder_id":"`+id+`"}`)
	require.Equal(t, 1, list(`status in ["DELETE_PENDING"]`))
	c.send(204, "POST", "/folders/restore-from-trash-bin", `{"vfolder_id":"`+id+`"}`)
	require.Equal(t, 2, list(`status == "READY"`))
	c.send(204, "DELETE", "/folders", `{"vfolder_id":"`+id+`"}`)
	c.send(204, "POST", "/folders/delete-from-trash-bin", `{"vfolder_id":"`+id+`"}`)
	p.eventually("the folder is gone", func() bool { return list("") == 1 })
	p.clean()
}
