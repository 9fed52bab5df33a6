package e2e_test

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// npu describes one device of a vendor by files alone: /dev/null under another name, a variable, a group, and a library that may not be
// written. Its last hook is one that need not run.
const npu = `
cdiVersion: 0.7.0
kind: vendor.com/npu
containerEdits:
  mounts: [{hostPath: %s, containerPath: /usr/lib/npu, options: [ro, nosuid, nodev, bind]}]
  hooks: [{hookName: createContainer, path: /usr/bin/npu-hook, args: [npu-hook, update-ldcache]}]
devices:
- name: npu0
  containerEdits:
    env: [NPU_CARD=zero]
    deviceNodes: [{path: /dev/npu0, hostPath: /dev/null, permissions: rw}]
    additionalGids: [4711]
`

// TestDevicesOfAnyVendor: a session has what the specification of its device gives, the next one waits for it.
func TestDevicesOfAnyVendor(t *testing.T) {
	t.Parallel()
	needEngine(t)
	dir := t.TempDir()
	lib, specs, class := filepath.Join(dir, "lib"), filepath.Join(dir, "cdi"), filepath.Join(dir, "npu.toml")
	for _, d := range []string{lib, specs} {
		require.NoError(t, os.Mkdir(d, 0o755))
	}
	write := func(file, text string) { require.NoError(t, os.WriteFile(file, []byte(text), 0o644)) }
	require.NoError(t, os.Chmod(lib, 0o777))
	write(filepath.Join(lib, "version"), "7.1\n")
	write(filepath.Join(specs, "npu.yaml"), fmt.Sprintf(npu, lib))
	write(class, fmt.Sprintf("slot = \"npu.device\"\nkind = \"vendor.com/npu\"\nspec_dirs = [%q]\nignore_hooks = [\"update-ldcache\"]\n"+
		"env = { NPU_VISIBLE = \"{names}\" }\n", specs))
	p := upWith(t, "", "BERTH_AGENT__CDI_DEVICES="+class)
	create := func(name string) {
		t.Helper()
		p.must("session", "create", "python", "--detach", "--name", name, "-r", "cpu=1", "-r", "mem=128m", "-r", "npu.device=1")
	}
	create("first")
	p.reaches("first", "RUNNING")
	inside := func(command string) string {
		t.Helper()
		return p.must("session", "exec", "first", "--", "sh", "-c", command)
	}
	require.Equal(t, "zero npu0\n7.1\n", inside("echo $NPU_CARD $NPU_VISIBLE; cat /usr/lib/npu/version"))
	require.Equal(t, "1:3\n", inside("stat -c %t:%T /dev/npu0 && echo written > /dev/npu0"), "it is /dev/null")
	require.Contains(t, inside("id -G"), "4711")
	require.NotContains(t, inside("id -G")+" ", " 0 ")
	require.Contains(t, inside("touch /usr/lib/npu/new 2>&1 || true"), "Read-only file system")

	create("second")
	text, e := p.why("second", "capacity")
	require.Equal(t, map[string]string{"npu.device": "1"}, e.Shortfall, text)
	p.must("session", "rm", "-y", "first")
	p.reaches("second", "RUNNING")
	p.clean()
}
