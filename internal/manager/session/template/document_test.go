package template_test

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/fault"
	"berth.dev/berth/internal/manager/session/request"
	"berth.dev/berth/internal/manager/session/template"
)

const train = `
apiVersion: "6"
kind: taskTemplate
metadata: {name: train, tag: nightly}
spec:
  session_type: batch
  kernel:
    image: python:3.11
    environ: {EPOCHS: 3, MODE: full}
    run: {bootstrap: "echo hello", startup_command: python3 train.py}
    git: {repository: "https://example.org/team/it's code.git", branch: main, dest_dir: code}
  scaling_group: gpus
  mounts: {data: /home/work/data, models: ""}
  resources: {cpu: 2, mem: 4g}
`

func read(t *testing.T, kind template.Kind, payload string) []template.Written {
	t.Helper()
	out, err := template.Read(kind, payload)
	require.NoError(t, err)
	return out
}

func TestReadsWhatClientsWrite(t *testing.T) {
	t.Parallel()
	payload := strings.Replace(train, "it's code.git", "code.git", 1)
	want := read(t, template.Session, payload)
	require.Len(t, want, 1)
	require.Equal(t, "train", want[0].Name)
	var doc template.SessionDocument
	require.NoError(t, json.Unmarshal(want[0].Document, &doc))
	require.Equal(t, "taskTemplate", doc.Kind)
	require.Equal(t, cluster.Batch, doc.Spec.SessionType)
	require.Equal(t, "2", doc.Spec.Resources["cpu"])
	require.Equal(t, "python3 train.py", doc.Spec.Kernel.Run.StartupCommand)

	same := map[string]string{
		"the document as JSON": string(want[0].Document),
		"a list":               "[" + string(want[0].Document) + "]",
		"beside a name":        `{"name": "train", "template": ` + string(want[0].Document) + `}`,
	}
	for name, payload := range same {
		require.Equal(t, want, read(t, template.Session, payload), name)
	}
	two := read(t, template.Session, payload+"\n---\n"+strings.Replace(payload, "name: train", "name: other", 1))
	require.Equal(t, []string{"train", "other"}, []string{two[0].Name, two[1].Name})
	named := read(t, template.Session, `[{"name": "mine", "template": `+string(want[0].Document)+`}]`)
	require.Equal(t, "mine", named[0].Name)
}

func TestRefusesWhatItCannotStart(t *testing.T) {
	t.Parallel()
	good := func(spec string) string {
		return `{"apiVersion":"6","kind":"taskTemplate","metadata":{"name":"x"},"spec":` + spec + `}`
	}
	nodes := func(nodes string) string {
		return `{"apiVersion":"6","kind":"clusterTemplate","metadata":{"name":"x"},"spec":{"nodes":` + nodes + `}}`
	}
	const id = "00000000-0000-4000-8000-000000000001"
	for _, c := range []struct {
		what    string
		kind    template.Kind
		payload string
		says    string
	}{
		{"nothing", template.Session, "", "holds no template"},
		{"no YAML", template.Session, "a: [", "neither JSON nor YAML"},
		{"a text", template.Session, `"hello"`, "is an object"},
		{"an unknown field", template.Session, good(`{"kernel":{"image":"x","imagine":1}}`), "imagine"},
		{"no image", template.Session, good(`{"kernel":{}}`), "needs an image"},
		{"another kind", template.Session, strings.Replace(good(`{"kernel":{"image":"x"}}`), "taskTemplate", "pod", 1), "kind"},
		{"no name", template.Session, strings.Replace(good(`{"kernel":{"image":"x"}}`), `"name":"x"`, `"name":""`, 1), "name of a template"},
		{"a control character", template.Session, strings.Replace(good(`{"kernel":{"image":"x"}}`), `"name":"x"`, `"name":"x\n"`, 1), "name"},
		{"a password", template.Session,
			good(`{"kernel":{"image":"x","git":{"repository":"https://h/r","credential":{"username":"u","password":"p"}}}}`), "no passwords"},
		{"an option as branch", template.Session,
			good(`{"kernel":{"image":"x","git":{"repository":"https://h/r","branch":"--upload-pack=x"}}}`),
			"not allowed"},
		{"a local repository", template.Session, good(`{"kernel":{"image":"x","git":{"repository":"/etc"}}}`), "no address"},
		{"another protocol", template.Session, good(`{"kernel":{"image":"x","git":{"repository":"ext::sh -c id"}}}`), "no address"},
		{"a bad variable", template.Session, good(`{"kernel":{"image":"x","environ":{"A=B":"1"}}}`), "environment variable"},
		{"an object for a text", template.Session, good(`{"kernel":{"image":"x"},"resources":{"cpu":{}}}`), "cpu"},
		{"two of a name", template.Session,
			"[" + good(`{"kernel":{"image":"x"}}`) + "," + good(`{"kernel":{"image":"x"}}`) + "]", "two templates"},
		{"no nodes", template.Cluster, nodes(`[]`), "kinds of nodes"},
		{"no main", template.Cluster, nodes(`[{"role":"sub","sessionTemplate":"` + id + `"}]`), "exactly one node"},
		{"two mains", template.Cluster, nodes(`[{"role":"main","sessionTemplate":"` + id + `","replicas":2}]`), "exactly one node"},
		{"less than none", template.Cluster, nodes(`[{"role":"sub","sessionTemplate":"` + id + `","replicas":-1}]`), "replicas"},
		{"a bad role", template.Cluster, nodes(`[{"role":"Worker 1","sessionTemplate":"` + id + `"}]`), "not the name of a role"},
		{"a role twice", template.Cluster, nodes(`[{"role":"main","sessionTemplate":"` + id + `"},{"role":"w","sessionTemplate":"` + id +
			`"},{"role":"w","sessionTemplate":"` + id + `"}]`), "named by two nodes"},
		{"no id", template.Cluster, nodes(`[{"role":"main","sessionTemplate":"mine"}]`), "no id"},
		{"too much", template.Session, strings.Repeat(" ", template.MaxPayload) + "x", "more than"},
		{"a bomb", template.Session, "a: &a [1,1,1,1,1,1,1,1,1]\n" + bomb("a"), ""},
	} {
		_, err := template.Read(c.kind, c.payload)
		require.Truef(t, fault.Is(err, fault.Invalid), "%s: %v", c.what, err)
		require.Contains(t, err.Error(), c.says, c.what)
	}
}

// bomb is a document whose aliases unfold to a billion of values.
func bomb(last string) string {
	var b strings.Builder
	for _, name := range "bcdefghij" {
		b.WriteString(string(name) + ": &" + string(name) + " [" + strings.Repeat("*"+last+",", 9) + "]\n")
		last = string(name)
	}
	return b.String()
}

func TestFillsWhatARequestDoesNotSay(t *testing.T) {
	t.Parallel()
	var doc template.SessionDocument
	require.NoError(t, json.Unmarshal(read(t, template.Session, strings.Replace(train, "it's code", "it's", 1))[0].Document, &doc))
	r := doc.Fill(request.Session{})
	require.NoError(t, r.Check())
	require.Equal(t, "train", r.Name)
	require.Equal(t, "nightly", *r.Tag)
	require.Equal(t, cluster.Batch, r.Type)
	require.Equal(t, []string{"data", "models"}, r.Mounts)
	require.Equal(t, map[string]string{"data": "/home/work/data"}, r.MountMap)
	require.Equal(t, map[string]string{"cpu": "2", "mem": "4g"}, r.Resources)
	require.Equal(t, "[ -e 'code' ] || git clone --branch 'main' -- "+
		"'https://example.org/team/it'\\''s.git' 'code'\necho hello", *r.BootstrapScript)

	own := ""
	r = doc.Fill(request.Session{Name: "mine", Type: cluster.Interactive, Image: "r", BootstrapScript: &own, MountIDs: []string{"x"},
		Resources: map[string]string{"cpu": "1"}, Environ: map[string]string{"MODE": "quick"}, ResourceGroup: "g"})
	require.Equal(t, "mine", r.Name)
	require.Equal(t, "r", r.Image)
	require.Equal(t, cluster.Interactive, r.Type)
	require.Empty(t, r.Mounts, "a request that names folders has those alone")
	require.Equal(t, map[string]string{"cpu": "1"}, r.Resources)
	require.Equal(t, map[string]string{"MODE": "quick", "EPOCHS": "3"}, r.Environ)
	require.Empty(t, *r.BootstrapScript)
	require.Equal(t, "g", r.ResourceGroup)
	r = doc.Fill(request.Session{Resources: map[string]string{}, Environ: map[string]string{}})
	require.Empty(t, r.Resources)
	require.Empty(t, r.Environ)
	require.Equal(t, "full", doc.Spec.Kernel.Environ["MODE"], "the template stays as it is")
}

func TestFillsAClusterOfSeveralKernels(t *testing.T) {
	t.Parallel()
	const id = "00000000-0000-4000-8000-000000000001"
	var doc template.ClusterDocument
	require.NoError(t, json.Unmarshal(read(t, template.Cluster, `{"api_version":"6","kind":"cluster_template","mode":"multi-node",
"metadata":{"name":"team"},"spec":{"environ":{"A":"1"},"nodes":[{"role":"main","session_template":"`+strings.ToUpper(id)+`","replicas":1},
{"role":"sub","session_template":"`+id+`","replicas":3}]}}`)[0].Document, &doc))
	var main template.SessionDocument
	require.NoError(t, json.Unmarshal(read(t, template.Session, strings.Replace(train, "it's code", "code", 1))[0].Document, &main))
	r, err := doc.Fill(request.Session{ClusterSize: 1}, map[string]*template.SessionDocument{id: &main})
	require.NoError(t, err)
	require.NoError(t, r.Check())
	require.Equal(t, "team", r.Name)
	require.Equal(t, 4, r.ClusterSize)
	require.Equal(t, "multi-node", r.ClusterMode)
	require.Equal(t, map[string]string{"A": "1", "EPOCHS": "3", "MODE": "full"}, r.Environ)
}

// TestFillsRolesOfACluster: nodes with a session template of their own are roles that get what it says, and nothing of the main kernel's.
func TestFillsRolesOfACluster(t *testing.T) {
	t.Parallel()
	const mainID, workerID = "00000000-0000-4000-8000-000000000001", "00000000-0000-4000-8000-000000000002"
	session := func(spec string) *template.SessionDocument {
		var d template.SessionDocument
		require.NoError(t, json.Unmarshal(read(t, template.Session,
			`{"apiVersion":"6","kind":"taskTemplate","metadata":{"name":"x"},"spec":`+spec+`}`)[0].Document, &d))
		return &d
	}
	var doc template.ClusterDocument
	require.NoError(t, json.Unmarshal(read(t, template.Cluster, `{"apiVersion":"6","kind":"clusterTemplate","mode":"multi-node",
"metadata":{"name":"team"},"spec":{"environ":{"ALL":"1"},"mounts":{"data":""},"nodes":[{"role":"main","sessionTemplate":"`+mainID+`"},
{"role":"sub","sessionTemplate":"`+workerID+`","replicas":3},{"role":"logger","sessionTemplate":"`+mainID+`"}]}}`)[0].Document, &doc))
	main := session(`{"kernel":{"image":"python","environ":{"MAIN":"1"},"run":{"bootstrap":"echo main"}},"resources":{"cpu":1}}`)
	fill := func(r request.Session, worker string) (request.Session, error) {
		return doc.Fill(r, map[string]*template.SessionDocument{mainID: main, workerID: session(worker)})
	}
	r, err := fill(request.Session{}, `{"kernel":{"image":"torch","environ":{"W":"1"}},"resources":{"cpu":4},"mounts":{"data":""}}`)
	require.NoError(t, err)
	require.NoError(t, r.Check())
	require.Equal(t, 1, r.ClusterSize)
	require.Equal(t, 5, r.Containers())
	require.Equal(t, []request.Role{
		{Name: "sub", Count: 3, Image: "torch", Resources: map[string]string{"cpu": "4"}, Environ: map[string]string{"ALL": "1", "W": "1"},
			Alone: true, BootstrapScript: new("")},
		{Name: "logger", Count: 1},
	}, r.Roles)
	require.Equal(t, map[string]string{"ALL": "1", "MAIN": "1"}, r.Environ)
	own := []request.Role{{Name: "mine", Count: 1}}
	r, err = fill(request.Session{Roles: own}, `{"kernel":{"image":"torch"}}`)
	require.NoError(t, err)
	require.Equal(t, own, r.Roles, "roles of the request stand in the place of the template's")

	for what, worker := range map[string]string{
		"a startup command":    `{"kernel":{"image":"torch","run":{"startupCommand":"work"}}}`,
		"resource group other": `{"kernel":{"image":"torch"},"scaling_group":"other"}`,
		"agents":               `{"kernel":{"image":"torch"},"agentList":["a1"]}`,
		"folder secrets":       `{"kernel":{"image":"torch"},"mounts":{"secrets":""}}`,
		"folder data":          `{"kernel":{"image":"torch"},"mounts":{"data":"/elsewhere"}}`,
	} {
		_, err := fill(request.Session{}, worker)
		require.True(t, fault.Is(err, fault.Invalid), what)
		require.ErrorContains(t, err, "role sub names "+what)
	}
}

func FuzzRead(f *testing.F) {
	f.Add(train)
	f.Add(`{"kind":"clusterTemplate"}`)
	f.Fuzz(func(t *testing.T, payload string) {
		for _, kind := range []template.Kind{template.Session, template.Cluster} {
			first, err := template.Read(kind, payload)
			if err != nil {
				if !fault.Is(err, fault.Invalid) {
					t.Fatalf("not Invalid: %v", err)
				}
				continue
			}
			for _, w := range first { // what is stored can be read again and stays as it is
				again, err := template.Read(kind, string(w.Document))
				if err != nil || len(again) != 1 || string(again[0].Document) != string(w.Document) {
					t.Fatalf("%s reads as %s: %v", w.Document, again, err)
				}
			}
		}
	})
}
