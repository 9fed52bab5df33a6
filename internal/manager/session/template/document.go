// Package template keeps templates of sessions: what somebody wrote down once to start sessions from. A session template describes one
// kernel; a cluster template names the session templates of the roles of a cluster. Documents are those of the wire (see
// docs/api-extensions.md); a document is checked when it is stored, so that one that is stored can be started.
package template

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"

	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/fault"
	"berth.dev/berth/internal/manager/session/request"
)

// Kind tells what a template describes.
type Kind string

// The kinds of templates.
const (
	Session Kind = "session"
	Cluster Kind = "cluster"
)

// What documents call the kinds.
const (
	kindSession = "taskTemplate"
	kindCluster = "clusterTemplate"
)

const (
	// MaxPayload bounds what one request brings, in bytes.
	MaxPayload = 1 << 20

	maxDocuments = 100
	maxDocument  = 64 << 10
	maxName      = 64
	maxNodes     = 32
	maxReplicas  = 256
)

// Metadata names a template.
type Metadata struct {
	Name string `json:"name"`
	Tag  string `json:"tag,omitempty"`
}

// SessionDocument is the body of a session template.
type SessionDocument struct {
	APIVersion string      `json:"apiVersion"`
	Kind       string      `json:"kind"`
	Metadata   Metadata    `json:"metadata"`
	Spec       SessionSpec `json:"spec"`
}

// SessionSpec is what sessions of the template are made of; what is absent is the default of a session that names nothing.
type SessionSpec struct {
	SessionType   cluster.SessionType `json:"sessionType,omitempty"`
	Kernel        Kernel              `json:"kernel"`
	ResourceGroup string              `json:"scaling_group,omitempty"`
	// Mounts are folders by name, with the paths where they are mounted ("" is the usual one).
	Mounts map[string]string `json:"mounts,omitempty"`
	// Resources are amounts of slots as people write them.
	Resources texts    `json:"resources,omitempty"`
	Agents    []string `json:"agentList,omitempty"`
}

// Kernel is the container of a session template.
type Kernel struct {
	Image        string `json:"image"`
	Architecture string `json:"architecture,omitempty"`
	Environ      texts  `json:"environ,omitempty"`
	Run          *Run   `json:"run,omitempty"`
	Git          *Git   `json:"git,omitempty"`
}

// Run is what a session runs when it starts.
type Run struct {
	Bootstrap      string `json:"bootstrap,omitempty"`
	StartupCommand string `json:"startupCommand,omitempty"`
}

// Git is a repository that is cloned before the bootstrap script runs.
type Git struct {
	Repository     string      `json:"repository"`
	Commit         string      `json:"commit,omitempty"`
	Branch         string      `json:"branch,omitempty"`
	Credential     *Credential `json:"credential,omitempty"`
	DestinationDir string      `json:"destinationDir,omitempty"`
}

// Credential is refused: it is here so that it is refused with words.
type Credential struct {
	Username string `json:"username"`
	Password string `json:"password"`
}

// ClusterDocument is the body of a cluster template.
type ClusterDocument struct {
	APIVersion string      `json:"apiVersion"`
	Kind       string      `json:"kind"`
	Mode       string      `json:"mode,omitempty"` // single-node or multi-node
	Metadata   Metadata    `json:"metadata"`
	Spec       ClusterSpec `json:"spec"`
}

// ClusterSpec is what holds for all nodes of a cluster, and the nodes.
type ClusterSpec struct {
	Environ texts             `json:"environ,omitempty"`
	Mounts  map[string]string `json:"mounts,omitempty"`
	Nodes   []ClusterNode     `json:"nodes"`
}

// ClusterNode is a number of kernels of one role.
type ClusterNode struct {
	Role            string `json:"role"`
	SessionTemplate string `json:"sessionTemplate"` // id
	Replicas        int    `json:"replicas"`
}

// texts are texts by name; numbers and flags count as what is written.
type texts map[string]string

// UnmarshalJSON takes texts, numbers and flags.
func (t *texts) UnmarshalJSON(raw []byte) error {
	var in map[string]json.RawMessage
	if err := json.Unmarshal(raw, &in); err != nil {
		return fmt.Errorf("read texts by name: %w", err)
	}
	*t = make(texts, len(in))
	for k, v := range in {
		text := string(v)
		switch {
		case text[0] == '"':
			if err := json.Unmarshal(v, &text); err != nil {
				return fmt.Errorf("read %s: %w", k, err)
			}
		case text == "null":
			continue
		case text[0] == '{' || text[0] == '[':
			return fmt.Errorf("%s must be a text or a number", k)
		}
		(*t)[k] = text
	}
	return nil
}

// Written is one template of a payload.
type Written struct {
	Name     string
	Document json.RawMessage // checked and in one spelling
}

// Read reads the templates of a payload: JSON or YAML, in one or several documents. Each is a template, one with a name beside it
// ({name, template}), or a list of these. The error is Invalid and says which one is wrong.
func Read(kind Kind, payload string) ([]Written, error) {
	if len(payload) > MaxPayload {
		return nil, fault.Invalidf("the templates have more than %d bytes", MaxPayload)
	}
	items, err := documents(payload)
	if err != nil {
		return nil, err
	}
	if len(items) == 0 {
		return nil, fault.Invalidf("the request holds no template").WithNext("write one into payload, as JSON or YAML")
	}
	out := make([]Written, 0, len(items))
	for i, item := range items {
		w, err := readOne(kind, item)
		if err != nil {
			return nil, fmt.Errorf("read template %d: %w", i+1, err)
		}
		if slices.ContainsFunc(out, func(o Written) bool { return o.Name == w.Name }) {
			return nil, fault.Invalidf("two templates of the request are called %s", w.Name)
		}
		out = append(out, w)
	}
	return out, nil
}

// documents splits a payload.
func documents(payload string) ([]any, error) {
	var next func(any) error
	if json.Valid([]byte(payload)) {
		d := json.NewDecoder(strings.NewReader(payload))
		d.UseNumber()
		next = d.Decode
	} else {
		next = yaml.NewDecoder(strings.NewReader(payload)).Decode
	}
	var items []any
	for {
		var doc any
		err := next(&doc)
		if errors.Is(err, io.EOF) {
			return items, nil
		}
		if err != nil {
			return nil, fault.Invalidf("the template is neither JSON nor YAML: %s", fault.Clip(err.Error(), 200))
		}
		if list, ok := doc.([]any); ok {
			items = append(items, list...)
		} else if doc != nil {
			items = append(items, doc)
		}
		if len(items) > maxDocuments {
			return nil, fault.Invalidf("the request holds more than %d templates", maxDocuments)
		}
	}
}

func readOne(kind Kind, item any) (Written, error) {
	body, ok := item.(map[string]any)
	if !ok {
		return Written{}, fault.Invalidf("a template is an object with apiVersion, kind, metadata and spec")
	}
	name := ""
	if inner, wrapped := body["template"].(map[string]any); wrapped {
		if n, ok := body["name"].(string); ok {
			name = n
		}
		body = inner
	}
	respell(body)
	raw, err := json.Marshal(body)
	if err != nil { // YAML knows keys that are no texts
		return Written{}, fault.Invalidf("the template is no JSON document: %s", fault.Clip(err.Error(), 200))
	}
	if len(raw) > maxDocument {
		return Written{}, fault.Invalidf("the template has more than %d bytes", maxDocument)
	}
	if kind == Cluster {
		var d ClusterDocument
		if err := strict(raw, &d); err != nil {
			return Written{}, err
		}
		return written(&d, &d.Metadata, name, d.check)
	}
	var d SessionDocument
	if err := strict(raw, &d); err != nil {
		return Written{}, err
	}
	return written(&d, &d.Metadata, name, d.check)
}

func written(document any, m *Metadata, name string, check func() error) (Written, error) {
	if name != "" {
		m.Name = name
	}
	if err := checkMetadata(*m); err != nil {
		return Written{}, err
	}
	if err := check(); err != nil {
		return Written{}, err
	}
	raw, err := json.Marshal(document)
	if err != nil {
		return Written{}, fmt.Errorf("write the template: %w", err)
	}
	return Written{Name: m.Name, Document: raw}, nil
}

// strict decodes and refuses what it does not know, so that nothing that somebody wrote is dropped without a word.
func strict(raw []byte, into any) error {
	d := json.NewDecoder(bytes.NewReader(raw))
	d.DisallowUnknownFields()
	if err := d.Decode(into); err != nil {
		return fault.Invalidf("the template is not understood: %s", fault.Clip(strings.TrimPrefix(err.Error(), "json: "), 200)).
			WithNext("see the fields of templates in docs/api-extensions.md")
	}
	return nil
}

// spellings are other spellings of keys that clients write.
var spellings = map[string]string{
	"api_version": "apiVersion", "session_type": "sessionType", "type": "sessionType", "startup_command": "startupCommand",
	"startup": "startupCommand", "dest_dir": "destinationDir", "destination_dir": "destinationDir", "agent_list": "agentList",
	"scalingGroup": "scaling_group", "session_template": "sessionTemplate",
}

// free are the objects whose keys are the user's own.
var free = []string{"environ", "mounts", "resources"}

func respell(v any) {
	switch v := v.(type) {
	case map[string]any:
		for _, k := range sorted(v) {
			if !slices.Contains(free, k) {
				respell(v[k])
			}
			if v[k] == nil {
				delete(v, k)
				continue
			}
			if to, ok := spellings[k]; ok {
				if _, both := v[to]; !both {
					v[to] = v[k]
				}
				delete(v, k)
			}
		}
	case []any:
		for _, e := range v {
			respell(e)
		}
	}
}

func sorted(m map[string]any) []string {
	keys := make([]string, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}

func checkMetadata(m Metadata) error {
	if m.Name == "" || len(m.Name) > maxName || strings.TrimSpace(m.Name) != m.Name || strings.ContainsFunc(m.Name, unprintable) {
		return fault.Invalidf("%.80q cannot be the name of a template", m.Name).
			WithNext("write 1 to %d printable characters into metadata.name", maxName)
	}
	return nil
}

func unprintable(r rune) bool { return r < ' ' || r == 0x7f || r == '\uFFFD' }

func checkKind(apiVersion, kind, want string) error {
	snake := map[string]string{kindSession: "task_template", kindCluster: "cluster_template"}[want]
	if kind != want && kind != snake {
		return fault.Invalidf("kind is %.40q", kind).WithNext("write kind: %s", want)
	}
	if apiVersion == "" || len(apiVersion) > 16 {
		return fault.Invalidf("a template needs an apiVersion").WithNext("write apiVersion: \"6\"")
	}
	return nil
}

func (d *SessionDocument) check() error {
	if err := checkKind(d.APIVersion, d.Kind, kindSession); err != nil {
		return err
	}
	d.Kind = kindSession
	if d.Spec.Kernel.Image == "" {
		return fault.Invalidf("a session template needs an image").WithNext("write it into spec.kernel.image")
	}
	if g := d.Spec.Kernel.Git; g != nil {
		if err := g.check(); err != nil {
			return err
		}
	}
	trial := d.Fill(request.Session{Name: "trial"})
	if trial.Type == cluster.Batch && trial.StartupCommand == "" {
		trial.StartupCommand = "true" // whoever starts a session of it gives the command
	}
	return trial.Check()
}

func (g *Git) check() error {
	if g.Credential != nil && (g.Credential.Username != "" || g.Credential.Password != "") {
		return fault.Invalidf("a template holds no passwords: whoever may use it could read them").
			WithNext("leave spec.kernel.git.credential out and put the password into a dotfile .git-credentials")
	}
	g.Credential = nil
	scheme, _, found := strings.Cut(g.Repository, "://")
	if !found || !slices.Contains([]string{"https", "http", "ssh", "git"}, scheme) || strings.ContainsAny(g.Repository, "\x00\n ") {
		return fault.Invalidf("%.80q is no address of a repository", g.Repository).WithNext("write for example https://example.org/team/code.git")
	}
	for _, word := range []string{g.Branch, g.Commit, g.DestinationDir} {
		if strings.HasPrefix(word, "-") || strings.ContainsAny(word, "\x00\n") {
			return fault.Invalidf("%.80q is not allowed in spec.kernel.git", word)
		}
	}
	return nil
}

func (d *ClusterDocument) check() error {
	if err := checkKind(d.APIVersion, d.Kind, kindCluster); err != nil {
		return err
	}
	d.Kind = kindCluster
	switch d.Mode {
	case "":
		d.Mode = "single-node"
	case "single-node", "multi-node":
	default:
		return fault.Invalidf("%.40q is not a cluster mode", d.Mode).WithNext("use single-node or multi-node")
	}
	if n := len(d.Spec.Nodes); n == 0 || n > maxNodes {
		return fault.Invalidf("a cluster template has 1 to %d kinds of nodes, not %d", maxNodes, n)
	}
	mains := 0
	for i := range d.Spec.Nodes {
		n := &d.Spec.Nodes[i]
		id, ok := cluster.CanonicalUUID(n.SessionTemplate)
		if !ok {
			return fault.Invalidf("%.60q is no id of a session template", n.SessionTemplate).
				WithNext("write the id that creating the session template answered into spec.nodes[%d].sessionTemplate", i)
		}
		n.SessionTemplate = id
		if n.Role == "" {
			return fault.Invalidf("node %d of the cluster template has no role", i+1).WithNext("write main, or a name such as sub")
		}
		if err := request.CheckRoleName(n.Role); err != nil {
			return fmt.Errorf("node %d of the cluster template: %w", i+1, err)
		}
		if n.Role != cluster.RoleMain && slices.ContainsFunc(d.Spec.Nodes[:i], func(o ClusterNode) bool { return o.Role == n.Role }) {
			return fault.Invalidf("role %s is named by two nodes of the cluster template", n.Role).
				WithNext("name it once, with the number of all its replicas")
		}
		if n.Role == "main" {
			mains += max(n.Replicas, 1)
		}
		if n.Replicas == 0 {
			n.Replicas = 1
		}
		if n.Replicas < 1 || n.Replicas > maxReplicas {
			return fault.Invalidf("role %s has %d replicas; 1 to %d are allowed", n.Role, n.Replicas, maxReplicas)
		}
	}
	if mains != 1 {
		return fault.Invalidf("a cluster has exactly one node of the role main, not %d", mains)
	}
	return nil
}
