package graphapi_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/manager/authz"
	"berth.dev/berth/internal/manager/session/request"
)

// sessionFields is what the Web UI asks of a session in its lists, its dashboard and its details.
const sessionFields = `id name row_id status type service_ports user_id agent_ids status_info status_data created_at starts_at
	terminated_at occupied_slots requested_slots tag kernel_nodes{edges{node{live_stat cluster_role id image{base_image_name version
	architecture name tags{key value} labels{key value} registry namespace tag id} row_id cluster_hostname cluster_idx status status_info
	agent_id container_id exit_code}} count} project_id resource_opts vfolder_mounts scaling_group startup_command
	dependees{edges{node{id row_id name status}} count} dependents{edges{node{id row_id name status}} count} access_key commit_status
	priority cluster_mode cluster_size`

type sessionNode struct {
	ID       string `json:"id"`
	RowID    string `json:"row_id"`
	Name     string `json:"name"`
	Status   string `json:"status"`
	Type     string `json:"type"`
	TypeName string `json:"__typename"`
	Kernels  struct {
		Count int
		Edges []struct {
			Node struct {
				RowID string `json:"row_id"`
				Role  string `json:"cluster_role"`
				Image *struct{ Registry, Tag string }
			}
		}
	} `json:"kernel_nodes"`
	Dependees, Dependents sessionConnection
}

type sessionConnection struct {
	Count int
	Edges []struct{ Node sessionNode }
}

func (c sessionConnection) names() []string {
	out := []string{}
	for _, e := range c.Edges {
		out = append(out, e.Node.Name)
	}
	return out
}

func (d *desk) session(r request.Session) cluster.SessionID {
	d.t.Helper()
	if r.Image == "" {
		r.Image = "python"
	}
	made, err := d.world.Sessions.Create(d.t.Context(), d.actor, r)
	require.NoError(d.t, err)
	return made.ID
}

func TestSessionNodes(t *testing.T) {
	t.Parallel()
	d := newDesk(t)
	d.world.Agent("a1", 8, 16<<30)
	d.exec(`UPDATE keypair_resource_policies SET max_containers_per_session = 2`)
	first := d.session(request.Session{Name: "first-one", ClusterSize: 2})
	d.session(request.Session{Name: "second-one", Type: cluster.Batch, StartupCommand: "true", Dependencies: []string{"first-one"}})
	d.session(request.Session{Name: "third-one"})
	d.exec(`UPDATE sessions SET status = 'TERMINATED', ended_at = now() WHERE name = 'third-one'`)

	var page struct {
		Nodes, All, Batch, Running sessionConnection
	}
	const list = `query($scopeId:ScopeField $first:Int=20 $offset:Int=0 $filter:String $order:String){
		nodes:compute_session_nodes(scope_id:$scopeId, first:$first, offset:$offset, filter:$filter, order:$order){edges{node{` +
		sessionFields + `}} count}
		all:compute_session_nodes(scope_id:$scopeId, first:0, offset:0, filter:"status != \"TERMINATED\" & status != \"CANCELLED\""){count}
		batch:compute_session_nodes(scope_id:$scopeId, first:0, offset:0,
			filter:"status != \"TERMINATED\" & status != \"CANCELLED\" & type == \"batch\""){count edges{node{name}}}
		running:compute_session_nodes(first:5, filter:"status == \"running\" | status == \"RUNNING_DEGRADED\"", scope_id:$scopeId){count}}`
	for _, scope := range []any{"project:" + string(d.project()), "domain:default", "user:" + string(d.admin.UserID), nil} {
		require.Empty(t, d.ask(list, map[string]any{"scopeId": scope, "order": "name"}, &page))
		require.Equal(t, []string{"first-one", "second-one", "third-one"}, page.Nodes.names(), scope)
		require.Equal(t, []int{3, 2, 1, 0}, []int{page.Nodes.Count, page.All.Count, page.Batch.Count, page.Running.Count})
		require.Empty(t, page.Batch.Edges, "first 0 counts only")
	}
	one, two := page.Nodes.Edges[0].Node, page.Nodes.Edges[1].Node
	require.Equal(t, []string{string(first), string(first), "PENDING", "interactive"},
		[]string{one.RowID, rawID(t, one.ID), one.Status, one.Type})
	require.Equal(t, []int{2, 2}, []int{one.Kernels.Count, len(one.Kernels.Edges)})
	require.Equal(t, "main", one.Kernels.Edges[0].Node.Role)
	require.NotNil(t, one.Kernels.Edges[0].Node.Image)
	require.Equal(t, "local", one.Kernels.Edges[0].Node.Image.Registry)
	require.Equal(t, []string{"second-one"}, one.Dependents.names())
	require.Equal(t, []string{"first-one"}, two.Dependees.names())

	var single struct {
		S    *sessionNode `json:"compute_session_node"`
		Node *sessionNode
	}
	const detail = `query($id:GlobalIDField!){compute_session_node(id:$id){__typename ` + sessionFields + `}}`
	for _, id := range []string{one.ID, one.RowID} {
		single.S = nil
		require.Empty(t, d.ask(detail, map[string]any{"id": id}, &single))
		require.NotNil(t, single.S)
		require.Equal(t, []string{"first-one", "ComputeSessionNode"}, []string{single.S.Name, single.S.TypeName})
	}
	const node = `query($id:ID!){node(id:$id){__typename id ...on ComputeSessionNode{name status kernel_nodes{count}}}}`
	require.Empty(t, d.ask(node, map[string]any{"id": one.ID}, &single))
	require.Equal(t, "first-one", single.Node.Name)

	d.actor = d.person("eve", authz.RoleUser, true)
	single.S = &sessionNode{}
	require.Empty(t, d.ask(detail, map[string]any{"id": one.ID}, &single))
	require.Nil(t, single.S, "a stranger sees nothing")
	require.Empty(t, d.ask(list, map[string]any{"scopeId": "user:" + string(d.admin.UserID), "order": "name"}, &page))
	require.Zero(t, page.Nodes.Count)
}

// TestFailedSessionsAreListedAmongTheEnded: what is there now is what clients list without more; a failed session holds nothing.
func TestFailedSessionsAreListedAmongTheEnded(t *testing.T) {
	t.Parallel()
	d := newDesk(t)
	d.world.Agent("a1", 8, 16<<30)
	d.session(request.Session{Name: "failed-one"})
	d.session(request.Session{Name: "waiting-one"})
	d.exec(`UPDATE sessions SET status = 'ERROR', ended_at = now() WHERE name = 'failed-one'`)
	for statuses, want := range map[string][]string{
		"PENDING,SCHEDULED,PULLING,PREPARED,PREPARING,CREATING,RUNNING,RUNNING_DEGRADED,TERMINATING,ERROR": {"waiting-one"},
		"CANCELLED,TERMINATED": {"failed-one"},
		"ERROR":                {"failed-one"},
		"TERMINATED":           {},
		"PENDING,ERROR":        {"failed-one", "waiting-one"},
		"PENDING,RUNNING,TERMINATED,CANCELLED,ERROR": {"failed-one", "waiting-one"},
	} {
		var out struct {
			L struct{ Items []struct{ Name string } } `json:"compute_session_list"`
		}
		d.ask(`query($s:String){compute_session_list(limit:10, offset:0, order:"name", status:$s){items{name}}}`,
			map[string]any{"s": statuses}, &out)
		got := []string{}
		for _, i := range out.L.Items {
			got = append(got, i.Name)
		}
		require.Equal(t, want, got, statuses)
	}
}

// TestKernelsOfRoles: the same resource options are told of a kernel wherever one asks for it, those of its role over the session's; of its
// role's variables nothing is. A role selects kernels before they are paged.
func TestKernelsOfRoles(t *testing.T) {
	t.Parallel()
	d := newDesk(t)
	d.world.Agent("a1", 16, 32<<30)
	id := d.session(request.Session{Name: "mixed", ClusterSize: 2, ClusterMode: "multi-node",
		Environ:   map[string]string{"TOKEN": "hidden-word"},
		Resources: map[string]string{"cpu": "1", "mem": "1g"}, ResourceOpts: map[string]string{"shmem": "64m", "isolation": "none"},
		Roles: []request.Role{
			{Name: "worker", Count: 2, ResourceOpts: map[string]string{"shmem": "128m"}, Environ: map[string]string{"OTHER": "hidden-word"},
				BootstrapScript: new("echo hidden-word")},
			{Name: "logger", Count: 1},
		}})
	type kernel struct {
		KernelID string `json:"kernel_id"`
		RowID    string `json:"row_id"`
		Host     string `json:"cluster_hostname"`
		Opts     string `json:"resource_opts"`
	}
	const one = `cluster_hostname resource_opts`
	var got struct {
		Session struct{ Containers []kernel } `json:"compute_session"`
		Node    struct {
			Kernels struct {
				Edges []struct{ Node kernel }
			} `json:"kernel_nodes"`
		} `json:"compute_session_node"`
		List  struct{ Items []kernel } `json:"compute_container_list"`
		Pages struct {
			Items []kernel
			Total int `json:"total_count"`
		}
		None struct {
			Items []kernel
			Total int `json:"total_count"`
		}
	}
	require.Empty(t, d.ask(`query($id:UUID!,$node:GlobalIDField!,$of:ID!){
		compute_session(id:$id){containers{kernel_id `+one+`}}
		compute_session_node(id:$node){kernel_nodes{edges{node{row_id `+one+`}}}}
		compute_container_list(limit:10, offset:0, session_id:$of){items{kernel_id `+one+`}}
		pages:compute_container_list(limit:1, offset:1, session_id:$of, role:"worker"){items{kernel_id `+one+`} total_count}
		none:compute_container_list(limit:5, offset:0, session_id:$of, role:"x' OR true --"){items{kernel_id} total_count}}`,
		map[string]any{"id": string(id), "node": string(id), "of": string(id)}, &got))
	const plain, worker = `{"isolation":"none","shmem":"67108864"}`, `{"isolation":"none","shmem":"134217728"}`
	want := map[string]string{"main1": plain, "sub1": plain, "sub2": worker, "sub3": worker, "sub4": plain}
	check := func(what string, list []kernel) {
		t.Helper()
		seen := map[string]string{}
		for _, k := range list {
			seen[k.Host] = k.Opts
			require.JSONEq(t, want[k.Host], k.Opts, "%s of %s", k.Host, what)
		}
		require.Len(t, seen, len(want), what)
	}
	check("the session", got.Session.Containers)
	var nodes []kernel
	for _, e := range got.Node.Kernels.Edges {
		nodes = append(nodes, e.Node)
	}
	check("the node", nodes)
	check("the list", got.List.Items)
	require.Equal(t, 2, got.Pages.Total)
	require.Len(t, got.Pages.Items, 1)
	require.Equal(t, "sub3", got.Pages.Items[0].Host)
	require.Zero(t, got.None.Total)
	for _, k := range got.List.Items {
		var single struct {
			C kernel `json:"compute_container"`
		}
		require.Empty(t, d.ask(`query($id:UUID!){compute_container(container_id:$id){`+one+`}}`, map[string]any{"id": k.KernelID}, &single))
		require.JSONEq(t, want[k.Host], single.C.Opts, "%s alone", k.Host)
	}

	const everything = `query($id:UUID!,$node:GlobalIDField!,$of:ID!){
		compute_session(id:$id){id name status_info status_data startup_command resource_opts containers{status_info status_data ` + one + `}}
		compute_session_node(id:$node){` + sessionFields + `}
		compute_container_list(limit:10, offset:0, session_id:$of){items{status_data ` + one + `}}}`
	vars := map[string]any{"id": string(id), "node": string(id), "of": string(id)}
	body, _ := d.post(everything, vars)
	require.Contains(t, body, "mixed")
	require.NotContains(t, body, "hidden-word")
	d.actor = d.person("eve", authz.RoleUser, true)
	body, _ = d.post(everything, vars)
	for _, word := range []string{"mixed", "sub1", "shmem", "hidden-word"} {
		require.NotContains(t, body, word, "a stranger sees nothing")
	}
}
