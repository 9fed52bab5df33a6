package httpapi_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"berth.dev/berth/api"
)

// requests are the bodies that clients send. The handlers read them member by member, because clients of different ages
// send the same parameter in the query, under other names or as text.
var requests = []any{
	api.AgentChange{}, api.BootstrapScript{}, api.CircuitChange{}, api.CloneRequest{}, api.CompleteRequest{}, api.CreateSession{},
	api.DownloadRequest{}, api.ExecuteRequest{}, api.BatchCommands{}, api.FileDeletion{}, api.FileMove{}, api.FolderOptions{},
	api.FolderRef{}, api.FolderRename{}, api.FullNameChange{}, api.GroupNetworkChange{}, api.IdleBinding{}, api.IdleSpec{},
	api.InvitationChange{}, api.InvitationRef{},
	api.InviteRequest{}, api.KeepAliveRequest{}, api.LeaseRequest{}, api.LeaveRequest{},
	api.LoginRequest{}, api.NewDirectories{}, api.NewFolder{},
	api.NewSSHKeypair{}, api.ObjectTransfer{}, api.OwnerChange{}, api.PasswordChange{}, api.PresetCheckRequest{}, api.QuotaChange{},
	api.SchedulerOperation{}, api.SchedulerPolicyChange{}, api.ShareChange{}, api.ShareChanges{}, api.ShareRequest{}, api.StartAppRequest{},
	api.StatusChange{}, api.StopAppRequest{}, api.UploadRequest{}, api.VisibilityChange{},
}

// TestRequestsAreRead finds every member of the requests among the names that the handlers read.
func TestRequestsAreRead(t *testing.T) {
	t.Parallel()
	read := map[string]bool{"keep": true, "resume": true, "from": true} // decoded as an api.ExecuteRequest
	files, err := filepath.Glob("*.go")
	require.NoError(t, err)
	for _, part := range []string{"administration", "credentials", "notice"} {
		more, err := filepath.Glob(part + "/*.go")
		require.NoError(t, err)
		files = append(files, more...)
	}
	for _, name := range files {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		f, err := parser.ParseFile(token.NewFileSet(), name, nil, parser.SkipObjectResolution)
		require.NoError(t, err)
		ast.Inspect(f, func(n ast.Node) bool {
			lit, ok := n.(*ast.BasicLit)
			if !ok || lit.Kind != token.STRING {
				return true
			}
			if text, err := strconv.Unquote(lit.Value); err == nil {
				for alias := range strings.SplitSeq(text, "|") {
					read[alias] = true
				}
			}
			return true
		})
	}
	var check func(kind reflect.Type, path string)
	check = func(kind reflect.Type, path string) {
		for kind.Kind() == reflect.Pointer || kind.Kind() == reflect.Slice || kind.Kind() == reflect.Map {
			kind = kind.Elem()
		}
		if kind.Kind() != reflect.Struct {
			return
		}
		for i := range kind.NumField() {
			f := kind.Field(i)
			member, _, _ := strings.Cut(f.Tag.Get("json"), ",")
			if member != "" {
				require.True(t, read[member], "no handler reads %s.%s", path, member)
			}
			if f.Type.PkgPath() != "time" {
				check(f.Type, path+"."+f.Name)
			}
		}
	}
	for _, r := range requests {
		check(reflect.TypeOf(r), reflect.TypeOf(r).Name())
	}
}

// TestAnswersAreTypesOfTheAPI keeps the JSON of the wire in package api, where every type has a golden file: this package
// gives no member a JSON name and answers with no map or struct of its own making.
func TestAnswersAreTypesOfTheAPI(t *testing.T) {
	t.Parallel()
	files, err := filepath.Glob("*.go")
	require.NoError(t, err)
	answers := 0
	for _, name := range files {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		set := token.NewFileSet()
		f, err := parser.ParseFile(set, name, nil, parser.SkipObjectResolution)
		require.NoError(t, err)
		ast.Inspect(f, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.Field:
				require.False(t, n.Tag != nil && strings.Contains(n.Tag.Value, "json:"), "%s: a JSON name", set.Position(n.Pos()))
			case *ast.CallExpr:
				sel, ok := n.Fun.(*ast.SelectorExpr)
				if !ok || !slices.Contains([]string{"ok", "json", "send", "WithData"}, sel.Sel.Name) || len(n.Args) == 0 {
					return true
				}
				answers++
				lit, ok := n.Args[len(n.Args)-1].(*ast.CompositeLit)
				if !ok {
					return true
				}
				switch kind := lit.Type.(type) {
				case *ast.SelectorExpr:
					require.Contains(t, []string{"api", "admin", "credential", "wire"}, kind.X.(*ast.Ident).Name, "%s", set.Position(n.Pos()))
				case *ast.MapType:
					require.NotEqual(t, "any", kind.Value.(*ast.Ident).Name, "%s: a map of anything", set.Position(n.Pos()))
				}
			}
			return true
		})
	}
	require.Greater(t, answers, 80)
}
