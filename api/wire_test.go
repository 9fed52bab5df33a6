package api_test

import (
	"bytes"
	"encoding/json"
	"flag"
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"berth.dev/berth/api"
)

var update = flag.Bool("update", false, "write the golden files anew")

// wireTypes are all types whose JSON form is part of the wire. Each has a golden file below testdata/wire; -update writes them.
var wireTypes = []any{
	api.Agent{}, api.AgentChange{}, api.AgentCondition{}, api.AgentDetails{}, api.AgentSession{}, api.AgentWork{}, api.Announcement{},
	api.App{}, api.AuthTest{}, api.BatchCommands{}, api.BootstrapScript{}, api.Circuit{}, api.CircuitChange{}, api.ClientAddress{},
	api.CloneOptions{}, api.CloneRequest{}, api.CommitStarted{}, api.CommitStatus{}, api.CompleteOptions{}, api.CompleteRequest{},
	api.Completion{}, api.CompletionReply{}, api.ConsoleItem{}, api.Container{}, api.CreateSession{}, api.SessionRole{}, api.CreatedSession{},
	api.DependencyNode{}, api.DestroyedSession{}, api.DirectAccess{}, api.Done{}, api.Dotfile{}, api.DownloadRequest{}, api.Empty{},
	api.Entry{}, api.Event{}, api.ExecuteFailure{}, api.ExecuteRefusal{}, api.ExecuteReply{}, api.ExecuteRequest{}, api.ExecuteResult{},
	api.ExitStatus{}, api.Explanation{}, api.FileDeletion{}, api.FileInfo{}, api.FileList{}, api.FileMove{}, api.FilesReply{},
	api.Folder{}, api.FolderEntry{}, api.FolderHost{}, api.FolderHosts{}, api.FolderID{},
	api.FolderItem{}, api.FolderOptions{}, api.FolderPage{}, api.FolderRef{}, api.FolderRename{}, api.FolderShare{},
	api.FolderShareList{}, api.FolderSummary{}, api.FolderUsage{}, api.FullNameChange{}, api.GraphQLError{}, api.GraphQLReply{},
	api.GraphQLRequest{}, api.GroupNetwork{}, api.GroupNetworkChange{}, api.GroupStatus{}, api.GroupUse{}, api.Hello{},
	api.HostPermissions{}, api.IdleBinding{}, api.IdleCheck{}, api.IdleChecker{}, api.IdleCheckerList{}, api.IdleExtra{},
	api.IdleReport{}, api.IdleReportList{}, api.IdleSpec{}, api.Image{}, api.ImageImport{}, api.ImportedImage{}, api.InputOptions{},
	api.UnknownImage{}, api.UnknownImages{}, api.Invitation{}, api.InvitationChange{}, api.InvitationList{}, api.InvitationRef{},
	api.InviteRequest{}, api.InvitedUsers{}, api.KeepAliveRequest{}, api.KeptAlive{}, api.KeyValue{}, api.Keypair{}, api.Launch{},
	api.LeaseRequest{}, api.ExecuteMessage{}, api.LeaveRequest{}, api.Login{}, api.LoginList{}, api.LoginReply{}, api.LoginSession{},
	api.LoginToken{}, api.LoginsEnded{}, api.PasswordReplaced{}, api.PasswordReplacement{}, api.SignOutRequest{}, api.LoginRequest{},
	api.LogsReply{}, api.LogsText{}, api.ManagerNode{}, api.ManagerStatus{}, api.MountOption{}, api.MountReport{}, api.MountedVolumes{},
	api.MutationReply{}, api.NewDirectories{}, api.NewFolder{}, api.NewSSHKeypair{}, api.NumberFormat{}, api.ObjectStore{},
	api.ObjectTransfer{}, api.OwnerChange{}, api.PTYMessage{}, api.PasswordChange{}, api.PasswordMismatch{}, api.PathResult{},
	api.PathResults{}, api.PathsReply{}, api.PlannedKernel{}, api.Preset{}, api.PresetCheck{}, api.PresetCheckRequest{}, api.PresetList{},
	api.Problem{}, api.ProxyVersion{}, api.Published{}, api.PullProgress{}, api.Quota{}, api.QuotaChange{}, api.QuotaLimit{},
	api.ResourceGroup{}, api.ResourceGroupName{}, api.ResourceGroupNames{}, api.Roles{}, api.SSHKeypair{}, api.SSHPublicKey{}, api.Said{},
	api.SchedulerOperation{}, api.SchedulerPolicy{}, api.SchedulerPolicyChange{}, api.SchedulerStatus{}, api.SchedulingPolicies{},
	api.ServicePort{}, api.Session{}, api.SessionConfig{}, api.SessionDetails{}, api.SessionEvent{}, api.SessionID{},
	api.SessionInfo{}, api.ObjectChange{},
	api.SessionKernel{}, api.SessionMatch{}, api.SessionMatches{}, api.SessionMount{}, api.SessionMove{}, api.ShareChange{},
	api.ShareChanges{}, api.ShareRequest{}, api.SharedTo{}, api.SharedUsers{}, api.SlotDetails{}, api.StartAppRequest{},
	api.StatusChange{}, api.StatusHistory{}, api.StopAppRequest{}, api.TaskEvent{}, api.TaskStarted{}, api.TerminalSize{}, api.Ticket{},
	api.TicketReply{}, api.Time{}, api.UnsharedUsers{}, api.UploadRequest{}, api.UsageRecalculated{}, api.UsedBytes{},
	api.UserPermission{}, api.VersionParts{}, api.VisibilityChange{}, api.VolumeInfo{}, api.VolumeUsage{}, api.WaitReply{},
}

// notWire are types with JSON names that no manager sends or reads.
var notWire = []string{"Config", "TreeUsage"}

// golden is the content of a golden file: a value with every member and one with none.
type golden struct {
	Filled json.RawMessage `json:"filled"`
	Zero   json.RawMessage `json:"zero"`
}

func encoded(t *testing.T, v any, indent string) []byte {
	t.Helper()
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	e.SetIndent("", indent)
	require.NoError(t, e.Encode(v))
	return b.Bytes()
}

func TestWireTypes(t *testing.T) {
	t.Parallel()
	for _, v := range wireTypes {
		kind := reflect.TypeOf(v)
		t.Run(kind.Name(), func(t *testing.T) {
			t.Parallel()
			filled := filledValue(kind, "", 0).Interface()
			got := encoded(t, golden{Filled: encoded(t, filled, ""), Zero: encoded(t, v, "")}, "  ")
			file := filepath.Join("testdata", "wire", kind.Name()+".json")
			if *update {
				require.NoError(t, os.MkdirAll(filepath.Dir(file), 0o755))
				require.NoError(t, os.WriteFile(file, got, 0o644))
			}
			want, err := os.ReadFile(file)
			require.NoError(t, err, "run the test with -update")
			require.Equal(t, string(want), string(got), "the wire form of %s has changed", kind.Name())

			// What was written is read, and what a later version adds does no harm.
			var g golden
			require.NoError(t, json.Unmarshal(want, &g))
			back := reflect.New(kind)
			require.NoError(t, json.Unmarshal(withUnknown(t, g.Filled), back.Interface()))
			if !readsOtherwise(kind) {
				require.JSONEq(t, string(g.Filled), string(encoded(t, back.Interface(), "")))
			}
			require.NoError(t, json.Unmarshal(g.Zero, reflect.New(kind).Interface()))
		})
	}
}

// withUnknown adds a member to an object.
func withUnknown(t *testing.T, text json.RawMessage) json.RawMessage {
	t.Helper()
	var m map[string]any
	if json.Unmarshal(text, &m) != nil {
		return text
	}
	m["of_a_later_version"] = []int{1}
	return encoded(t, m, "")
}

var (
	textType = reflect.TypeFor[api.JSONText]()
	rawType  = reflect.TypeFor[json.RawMessage]()
)

// readsOtherwise reports whether a type holds JSON texts, which are written bare once they were read.
func readsOtherwise(kind reflect.Type) bool {
	switch {
	case kind == textType:
		return true
	case kind.Kind() == reflect.Slice && kind.Elem() != kind, kind.Kind() == reflect.Pointer, kind.Kind() == reflect.Map:
		return kind.Elem().Kind() != reflect.Struct && readsOtherwise(kind.Elem()) ||
			kind.Elem().Kind() == reflect.Struct && structReads(kind.Elem())
	case kind.Kind() == reflect.Struct:
		return structReads(kind)
	}
	return false
}

func structReads(kind reflect.Type) bool {
	for i := range kind.NumField() {
		f := kind.Field(i).Type
		if f.Kind() == reflect.Slice && f.Elem() == kind { // a tree
			continue
		}
		if readsOtherwise(f) {
			return true
		}
	}
	return false
}

// filledValue is a value of a type with something in every member, the same in every run.
func filledValue(kind reflect.Type, name string, depth int) reflect.Value {
	v := reflect.New(kind).Elem()
	switch kind {
	case textType:
		v.Set(reflect.ValueOf(api.TextOf(map[string]string{name: "<&>"})))
		return v
	case rawType:
		v.SetBytes([]byte(`{"` + name + `":"raw"}`))
		return v
	case reflect.TypeFor[api.Time]():
		v.Set(reflect.ValueOf(api.Time{Time: time.Date(2026, 1, 2, 3, 4, 5, 678_900_000, time.UTC)}))
		return v
	case reflect.TypeFor[time.Time]():
		v.Set(reflect.ValueOf(time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)))
		return v
	case reflect.TypeFor[json.Number]():
		v.SetString("7")
		return v
	case reflect.TypeFor[api.PTYMessage]():
		v.Set(reflect.ValueOf(api.PTYMessage{Type: api.PTYOut, Bytes: []byte("out")}))
		return v
	case reflect.TypeFor[api.ConsoleItem]():
		v.Set(reflect.ValueOf(api.ConsoleMedia("image/png", "data")))
		return v
	}
	switch kind.Kind() {
	case reflect.String:
		v.SetString(or(name, "text"))
	case reflect.Bool:
		v.SetBool(true)
	case reflect.Float64:
		v.SetFloat(float64(len(name)) + 0.5)
	case reflect.Int, reflect.Int64:
		v.SetInt(int64(len(name)) + 1)
	case reflect.Uint16:
		v.SetUint(uint64(len(name)) + 1)
	case reflect.Interface:
		v.Set(reflect.ValueOf(name))
	case reflect.Pointer:
		v.Set(reflect.New(kind.Elem()))
		v.Elem().Set(filledValue(kind.Elem(), name, depth))
	case reflect.Array:
		for i := range v.Len() {
			v.Index(i).Set(filledValue(kind.Elem(), name, depth))
		}
	case reflect.Slice:
		n := 1
		if depth > 4 {
			n = 0 // a tree
		}
		v.Set(reflect.MakeSlice(kind, n, n))
		for i := range n {
			v.Index(i).Set(filledValue(kind.Elem(), name, depth+1))
		}
	case reflect.Map:
		v.Set(reflect.MakeMap(kind))
		v.SetMapIndex(reflect.ValueOf("key").Convert(kind.Key()), filledValue(kind.Elem(), name, depth+1))
	case reflect.Struct:
		for i := range kind.NumField() {
			f := kind.Field(i)
			if f.IsExported() {
				member, _, _ := strings.Cut(f.Tag.Get("json"), ",")
				v.Field(i).Set(filledValue(f.Type, or(member, f.Name), depth+1))
			}
		}
	default:
		panic("a wire type has a member of type " + kind.String())
	}
	return v
}

func or(a, b string) string {
	if a != "" {
		return a
	}
	return b
}

// TestEveryWireTypeHasAGoldenFile reads the sources: whatever has JSON names must be listed above, and nothing else has a file.
func TestEveryWireTypeHasAGoldenFile(t *testing.T) {
	t.Parallel()
	listed := map[string]bool{}
	for _, v := range wireTypes {
		name := reflect.TypeOf(v).Name()
		require.False(t, listed[name], "%s is listed twice", name)
		listed[name] = true
	}
	for name := range taggedTypes(t) {
		require.True(
			t, listed[name] || slices.Contains(notWire, name), "type %s has JSON names but no golden file: add it to wireTypes", name,
		)
	}
	files, err := filepath.Glob(filepath.Join("testdata", "wire", "*.json"))
	require.NoError(t, err)
	for _, f := range files {
		name := strings.TrimSuffix(filepath.Base(f), ".json")
		require.True(t, listed[name], "%s is of no type: remove it", f)
	}
}

// taggedTypes are the exported struct types of the package with JSON names, and those without members.
func taggedTypes(t *testing.T) map[string]*ast.StructType {
	t.Helper()
	out := map[string]*ast.StructType{}
	files, err := filepath.Glob("*.go")
	require.NoError(t, err)
	for _, name := range files {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		f, err := parser.ParseFile(token.NewFileSet(), name, nil, parser.SkipObjectResolution)
		require.NoError(t, err)
		ast.Inspect(f, func(n ast.Node) bool {
			spec, ok := n.(*ast.TypeSpec)
			if !ok || !spec.Name.IsExported() {
				return true
			}
			s, ok := spec.Type.(*ast.StructType)
			if !ok {
				return true
			}
			tagged := len(s.Fields.List) == 0
			for _, field := range s.Fields.List {
				tagged = tagged || field.Tag != nil && strings.Contains(field.Tag.Value, `json:"`)
			}
			if tagged {
				out[spec.Name.Name] = s
			}
			return true
		})
	}
	require.Greater(t, len(out), 100)
	return out
}

// TestNoJSONNamesInsideFunctions keeps the wire in types that have golden files: a struct inside a function has none.
func TestNoJSONNamesInsideFunctions(t *testing.T) {
	t.Parallel()
	found := map[string]bool{}
	files, err := filepath.Glob("*.go")
	require.NoError(t, err)
	for _, name := range files {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		f, err := parser.ParseFile(token.NewFileSet(), name, nil, parser.SkipObjectResolution)
		require.NoError(t, err)
		for _, d := range f.Decls {
			fn, ok := d.(*ast.FuncDecl)
			if !ok {
				continue
			}
			ast.Inspect(fn, func(n ast.Node) bool {
				if field, ok := n.(*ast.Field); ok && field.Tag != nil && strings.Contains(field.Tag.Value, "json:") {
					found[name+": "+fn.Name.Name] = true
				}
				return true
			})
		}
	}
	// GraphQL answers are named by their queries, app proxies are not managers, and two read a part of a free text.
	allowed := []string{
		"app.go: PublishApp", "image.go: Images", "keypair.go: Keypair", "problem.go: readProblem",
		"resource_group.go: ResourceGroups", "session.go: Pull", "session.go: Reason", "session_list.go: Session", "agent.go: Agent",
	}
	for _, name := range slices.Sorted(maps.Keys(found)) {
		require.Contains(t, allowed, name, "move it to a type of the package")
	}
}
