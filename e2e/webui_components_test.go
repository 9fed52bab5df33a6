package e2e_test

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/http/cookiejar"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/vektah/gqlparser/v2/ast"
	"github.com/vektah/gqlparser/v2/formatter"
	"github.com/vektah/gqlparser/v2/parser"
)

// forNewerManagers are the documents of the official Web UI's components that it sends only to managers that say they are newer than
// ours (24.09.12), and what they are about.
var forNewerManagers = map[string]string{
	"BAIActivateArtifactsModalArtifactsFragmentRestoreArtifactsMutation": "artifacts",
	"BAIAdminImageSelectPaginatedQuery":                                  "version 2 of images",
	"BAIAdminImageSelectValueQuery":                                      "version 2 of images",
	"BAIAdminKeypairResourcePolicySelectPaginatedQuery":                  "version 2 of policies",
	"BAIAdminSessionSelectPaginatedQuery":                                "version 2 of sessions",
	"BAIAdminSessionSelectValueQuery":                                    "version 2 of sessions",
	"BAIAvailablePresetSelectPaginatedQuery":                             "presets of deployments",
	"BAIAvailablePresetSelectValueQuery":                                 "presets of deployments",
	"BAIBucketSelectQuery":                                               "artifacts",
	"BAIDeactivateArtifactsModalDeleteArtifactsMutation":                 "artifacts",
	"BAIDeleteArtifactRevisionsModalCleanupVersionMutation":              "artifacts",
	"BAIHuggingFaceRegistrySettingModalMutation":                         "artifacts",
	"BAIImportArtifactModalImportArtifactsMutation":                      "artifacts",
	"BAIObjectStorageSelectQuery":                                        "artifacts",
	"BAIProjectVfolderSelectPaginatedQuery":                              "version 2 of folders",
	"BAIPullingArtifactRevisionAlertCancelMutation":                      "artifacts",
	"BAIRuntimeVariantPresetSettingModalCreateMutation":                  "presets of deployments",
	"BAIRuntimeVariantPresetSettingModalUpdateMutation":                  "presets of deployments",
	"useViewerQuery": "the viewer, since 25.14.2",
}

var documentOfComponent = regexp.MustCompile("text: ?`((?:query|mutation) (\\w+)[^`]*)`")

var unknownToUs = regexp.MustCompile("Cannot query field|Unknown (type|argument)")

// asSent is a document as the Web UI sends it to a manager of version 24.09.12: fields that are since a newer one are left out, and then
// fragments that are empty and variables that nobody uses. It is "" when nothing is left to ask.
func asSent(t *testing.T, text string) string {
	t.Helper()
	doc, err := parser.ParseQuery(&ast.Source{Input: text})
	require.NoError(t, err)
	var strip func(set ast.SelectionSet) ast.SelectionSet
	strip = func(set ast.SelectionSet) (kept ast.SelectionSet) {
		for _, s := range set {
			if f, ok := s.(*ast.Field); ok {
				if f.Directives.ForName("since") != nil {
					continue
				}
				f.SelectionSet = strip(f.SelectionSet)
			}
			kept = append(kept, s)
		}
		return kept
	}
	empty := map[string]bool{}
	fragments := doc.Fragments
	doc.Fragments = nil
	for _, f := range fragments {
		if f.SelectionSet = strip(f.SelectionSet); len(f.SelectionSet) == 0 {
			empty[f.Name] = true
		} else {
			doc.Fragments = append(doc.Fragments, f)
		}
	}
	op := doc.Operations[0]
	var kept ast.SelectionSet
	for _, s := range strip(op.SelectionSet) {
		if f, ok := s.(*ast.FragmentSpread); !ok || !empty[f.Name] {
			kept = append(kept, s)
		}
	}
	if op.SelectionSet = kept; len(kept) == 0 {
		return ""
	}
	var out strings.Builder
	formatter.NewFormatter(&out).FormatQueryDocument(doc)
	return out.String()
}

// harmless are variables for a document: the first page of everything, or nothing that is selected. They are not whole for what changes
// something and for what needs the id of an object: one that must be there is missing, so nothing is done.
func harmless(t *testing.T, text string) (map[string]any, bool) {
	t.Helper()
	doc, err := parser.ParseQuery(&ast.Source{Input: text})
	require.NoError(t, err)
	op, out, missing := doc.Operations[0], map[string]any{}, false
	for _, v := range op.VariableDefinitions {
		switch {
		case !v.Type.NonNull || v.DefaultValue != nil:
		case op.Operation == ast.Mutation:
			missing = true
		case v.Variable == "offset":
			out[v.Variable] = 0
		case v.Type.NamedType == "Int":
			out[v.Variable] = 10
		case v.Type.NamedType == "Boolean":
			out[v.Variable] = false
		case v.Variable == "filter":
			out[v.Variable] = ""
		case v.Type.Elem != nil:
			out[v.Variable] = []string{}
		default:
			missing = true
		}
	}
	require.True(t, missing || op.Operation == ast.Query, op.Name)
	return out, !missing
}

// TestOfficialWebUIComponents asks the cluster all that the official Web UI's components ask, through the web server after a login by
// password: documents for managers like ours are answered, the others are refused as unknown fields.
func TestOfficialWebUIComponents(t *testing.T) {
	t.Parallel()
	needEngine(t)
	ctx, cancel := context.WithTimeout(t.Context(), 2*patience)
	defer cancel()
	file, err := exec.CommandContext(ctx, "../scripts/webui-components.sh").Output()
	if err != nil && os.Getenv("CI") == "" {
		t.Skipf("the components of the official Web UI cannot be had here (npm registry, scripts/webui-components.sh): %v", err)
	}
	require.NoError(t, err, "scripts/webui-components.sh")
	bundle, err := os.ReadFile(strings.TrimSpace(string(file)))
	require.NoError(t, err)

	p := up(t)
	jar, err := cookiejar.New(nil)
	require.NoError(t, err)
	client := &http.Client{Jar: jar, Timeout: time.Minute}
	post := func(path string, body any) (answer struct {
		Authenticated bool
		Data          map[string]any
		Errors        []struct{ Message string }
	}) {
		t.Helper()
		raw, err := json.Marshal(body)
		require.NoError(t, err)
		r, err := client.Post(p.web()+path, "application/json", bytes.NewReader(raw))
		require.NoError(t, err)
		defer r.Body.Close()
		text, err := io.ReadAll(r.Body)
		require.NoError(t, err)
		require.NoError(t, json.Unmarshal(text, &answer), "%s: %s", path, text)
		return answer
	}
	login := map[string]string{"username": p.of("BERTH_ADMIN_EMAIL"), "password": p.of("BERTH_ADMIN_PASSWORD")}
	require.True(t, post("/server/login", login).Authenticated)

	known, answered, newer := 0, 0, map[string]string{}
	for _, m := range documentOfComponent.FindAllStringSubmatch(string(bundle), -1) {
		name, text := m[2], asSent(t, strings.ReplaceAll(m[1], `\n`, "\n"))
		if text == "" {
			continue
		}
		variables, whole := harmless(t, text)
		answer := post("/func/admin/gql", map[string]any{"query": text, "variables": variables})
		var first string
		if len(answer.Errors) > 0 {
			first = answer.Errors[0].Message
		}
		if about, ok := forNewerManagers[name]; ok && unknownToUs.MatchString(first) {
			newer[name] = about
			continue
		}
		known++
		if !whole { // a document is checked before its variables, and one of them is missing
			require.Regexp(t, `must be defined`, first, name)
			continue
		}
		require.Empty(t, first, name)
		require.NotEmpty(t, answer.Data, name)
		answered++
	}
	require.Equal(t, forNewerManagers, newer)
	t.Logf("%d documents are known, %d queries were answered", known, answered)
	require.GreaterOrEqual(t, known, 30)
	require.GreaterOrEqual(t, answered, 20)
	p.clean()
}
