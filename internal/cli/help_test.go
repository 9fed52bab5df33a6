package cli

import (
	"bytes"
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/stretchr/testify/require"
)

var update = flag.Bool("update", false, "write the golden files anew")

// TestHelp compares the help of every verb with its golden file, so that a change of
// what people read is seen in review. Run with -update to accept it.
func TestHelp(t *testing.T) {
	root := &cobra.Command{Use: "berth"}
	root.AddCommand(Commands("test")...)
	seen := map[string]bool{}
	var walk func(c *cobra.Command)
	walk = func(c *cobra.Command) {
		for _, sub := range c.Commands() {
			if sub.Name() == "help" || sub.Name() == "completion" {
				continue
			}
			name := strings.ReplaceAll(strings.TrimPrefix(sub.CommandPath(), "berth "), " ", "_") + ".txt"
			seen[name] = true
			t.Run(name, func(t *testing.T) {
				var b bytes.Buffer
				sub.SetOut(&b)
				sub.InitDefaultHelpFlag()
				require.NoError(t, sub.Help())
				path := filepath.Join("testdata", "help", name)
				if *update {
					require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o755))
					require.NoError(t, os.WriteFile(path, b.Bytes(), 0o644))
				}
				want, err := os.ReadFile(path)
				require.NoError(t, err)
				require.Equal(t, string(want), b.String())
				require.NotEmpty(t, sub.Short)
				require.NotEmpty(t, sub.Long)
				if sub.HasParent() && !sub.HasSubCommands() {
					require.NotEmpty(t, sub.Example)
				}
			})
			walk(sub)
		}
	}
	walk(root)
	files, err := os.ReadDir(filepath.Join("testdata", "help"))
	require.NoError(t, err)
	for _, f := range files {
		require.True(t, seen[f.Name()], "golden file %s belongs to no verb", f.Name())
	}
}
