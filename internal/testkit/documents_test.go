package testkit_test

import (
	"bytes"
	"context"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/spf13/cobra"
	"github.com/stretchr/testify/require"

	"berth.dev/berth/api"
	"berth.dev/berth/internal/cli"
	"berth.dev/berth/internal/cli/frame"
	"berth.dev/berth/internal/manager"
	"berth.dev/berth/internal/manager/ldap/ldaptest"
	"berth.dev/berth/internal/manager/session/request"
	"berth.dev/berth/internal/manager/tenancy/identity"
	"berth.dev/berth/internal/testkit"
)

// TestAdministrationDocument runs every command of docs/administration.md, in its order, on one cluster. What a reader would have made
// before is made here.
func TestAdministrationDocument(t *testing.T) { // not parallel: the command line finds the cluster by the environment
	c := testkit.New(t, testkit.Options{Manager: withSCIM})
	cfg := c.Client().Config()
	t.Setenv(api.EnvEndpoint, cfg.Endpoint)
	t.Setenv(api.EnvAccessKey, string(cfg.AccessKey))
	t.Setenv(api.EnvSecretKey, string(cfg.SecretKey))
	c.Exec(`INSERT INTO projects (id, name, domain_name, resource_policy) VALUES ('00000000-0000-4000-8000-000000000001', 'physics',
		'default', 'default')`)
	c.Exec(`INSERT INTO users (id, username, email, domain_name, role, resource_policy) VALUES ('00000000-0000-4000-8000-000000000002',
		'grace', 'grace@example.org', 'default', 'user', 'default')`)
	c.Exec(`INSERT INTO keypairs (access_key, secret_sealed, user_id, resource_policy) VALUES ('AKIAIOSFODNN7EXAMPLE', '',
		'00000000-0000-4000-8000-000000000002', 'default')`)
	c.Running(c.Create(request.Session{Name: "my-lab"}))

	require.Greater(t, runDocument(t, "administration.md"), 15, "the document's commands are in blocks of sh")
}

// withSCIM sets up the identity provider of the documents.
func withSCIM(c *manager.Config) {
	c.SCIM = map[string]manager.SCIMConfig{"okta": {Rules: identity.Rules{Domain: "default", Create: true}}}
}

// TestDirectoryDocument runs every command of docs/directory.md on a cluster with a directory.
func TestDirectoryDocument(t *testing.T) { // not parallel: the command line finds the cluster by the environment
	s := ldaptest.Start(t)
	s.Person("ada", "ada-password")
	s.Group("staff", "ada")
	c := testkit.New(t, testkit.Options{Manager: func(c *manager.Config) {
		withSCIM(c)
		c.Directory.Config = s.Config()
	}})
	cfg := c.Client().Config()
	t.Setenv(api.EnvEndpoint, cfg.Endpoint)
	t.Setenv(api.EnvAccessKey, string(cfg.AccessKey))
	t.Setenv(api.EnvSecretKey, string(cfg.SecretKey))
	require.Equal(t, 7, runDocument(t, "directory.md"))
	out, code := berth(t, "user", "info", "ada@example.org")
	require.Zero(t, code, out)
	s.Remove("uid=ada," + ldaptest.People)
	out, code = berth(t, "directory", "sync")
	require.NotZero(t, code, "a directory without people closes everybody out")
	require.Contains(t, out, "the directory has nobody")
	require.Contains(t, out, "--allow-removals 1")
	out, code = berth(t, "directory", "sync", "--allow-removals", "1")
	require.Zero(t, code, out)
	require.Contains(t, out, "- ada@example.org is deactivated")
}

// runDocument runs the commands of a document, and tells how many there are.
func runDocument(t *testing.T, name string) int {
	t.Helper()
	text, err := os.ReadFile("../../docs/" + name)
	require.NoError(t, err)
	t.Chdir(t.TempDir())
	require.NoError(t, os.WriteFile("org.yaml", []byte("policies: {keypair: {tiny: {max_sessions: 1}}}\n"), 0o600))
	require.NoError(t, os.WriteFile("users.csv", []byte("email,full_name\nyan@example.org,Yan\n"), 0o600))
	n, shell := 0, false
	for line := range strings.Lines(string(text)) {
		switch line = strings.TrimSpace(line); {
		case strings.HasPrefix(line, "```"):
			shell = line == "```sh"
		case shell && line != "":
			words := shellWords(line)
			require.Equal(t, "berth", words[0], line)
			if out, code := berth(t, words[1:]...); code != 0 {
				t.Errorf("%s\n%s", line, out)
			}
			n++
		}
	}
	return n
}

// berth runs a command of the client in this process.
func berth(t *testing.T, args ...string) (out string, code int) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	root := &cobra.Command{Use: "berth"}
	root.AddCommand(cli.Commands("test")...)
	var buf bytes.Buffer
	root.SetArgs(args)
	root.SetIn(strings.NewReader(""))
	root.SetOut(&buf)
	root.SetErr(&buf)
	code = frame.Execute(ctx, root)
	return buf.String(), code
}

// shellWords are the words of a line as a shell reads them, without comments and redirections.
func shellWords(line string) (words []string) {
	var word strings.Builder
	begun, quote := false, rune(0)
	end := func() {
		if begun {
			words = append(words, word.String())
		}
		word.Reset()
		begun = false
	}
	for _, r := range line {
		switch {
		case quote != 0:
			if r == quote {
				quote = 0
			} else {
				word.WriteRune(r)
			}
		case r == '\'' || r == '"':
			quote, begun = r, true
		case r == ' ':
			end()
		case (r == '#' || r == '>') && !begun:
			return words
		default:
			word.WriteRune(r)
			begun = true
		}
	}
	end()
	return words
}

func TestShellWords(t *testing.T) {
	t.Parallel()
	for line, want := range map[string][]string{
		`berth a  --b 'c d' # e`: {"berth", "a", "--b", "c d"}, `berth a --from "" > x.csv`: {"berth", "a", "--from", ""},
		`berth --filter 'x == "1"'`: {"berth", "--filter", `x == "1"`},
	} {
		require.Equal(t, want, shellWords(line))
	}
}
