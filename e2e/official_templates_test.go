package e2e_test

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// TestOfficialTemplates: somebody keeps a template with the official client and with ours, and starts sessions from it.
func TestOfficialTemplates(t *testing.T) {
	t.Parallel()
	needEngine(t)
	p := up(t)
	o := newOfficial(t, p.env())
	tag := fmt.Sprintf("%x", time.Now().UnixNano()&0xffffff)
	write := func(variable string) string {
		file := filepath.Join(t.TempDir(), "t.yaml")
		text := `apiVersion: "6"
kind: taskTemplate
metadata: {name: tpl-` + tag + `}
spec:
  session_type: batch
  kernel:
    image: python
    environ: {WORD: ` + variable + `}
    run: {bootstrap: "echo prepared > /tmp/prepared", startup_command: 'cat /tmp/prepared && echo "$WORD"'}
  resources: {cpu: 1, mem: 256m}
`
		require.NoError(t, os.WriteFile(file, []byte(text), 0o600))
		return file
	}
	id := regexp.MustCompile(`[0-9a-f]{8}-[0-9a-f-]{27}`).FindString(o.must("session-template", "create", "-f", write("hello")))
	require.NotEmpty(t, id)
	require.Contains(t, o.must("session-template", "list"), id)
	require.Contains(t, o.must("session-template", "get", id), "WORD: hello")

	first := "first-" + tag
	o.must("session", "create-from-template", id, "--name", first, "--type", "batch") // it always writes a type, interactive by default
	p.must("session", "wait", first, "--for", "ended")
	require.Equal(t, "prepared\nhello\n", p.must("session", "logs", first))

	o.must("session-template", "update", id, "-f", write("again"))
	require.Contains(t, p.must("template", "show", "tpl-"+tag), `"again"`)
	second := "second-" + tag
	p.must("template", "start", "tpl-"+tag, "--name", second)
	p.must("session", "wait", second, "--for", "ended")
	require.Equal(t, "prepared\nagain\n", p.must("session", "logs", second))

	refused := p.run("", "template", "create", write("no: [such"))
	require.NotZero(t, refused.code)
	require.Contains(t, refused.stderr, "neither JSON nor YAML")
	o.must("session-template", "delete", id, "--force")
	require.NotContains(t, p.must("template", "list"), id)
	p.clean()
}
