package e2e_test

import (
	"encoding/csv"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// organisationFile is 3 domains with 20 projects and 500 users; change alters some of it.
func organisationFile(change func(user int) string) string {
	var b strings.Builder
	b.WriteString("policies:\n  keypair:\n    small: {max_sessions: 2, resources: {cpu: 4, mem: 8g}}\n" +
		"  user:\n    students: {max_folders: 10}\n")
	b.WriteString("domains:\n")
	domains := []string{"physics", "chemistry", "biology"}
	for d, domain := range domains {
		fmt.Fprintf(&b, "  %s:\n    total: {cpu: 64}\n    projects:\n", domain)
		for p := d; p < 20; p += len(domains) {
			fmt.Fprintf(&b, "      project %d:\n        members:\n", p)
			for u := p; u < 500; u += 60 {
				if u%len(domains) == d {
					fmt.Fprintf(&b, "        - user%d@example.org\n", u)
				}
			}
		}
		b.WriteString("    users:\n")
		for u := d; u < 500; u += len(domains) {
			fmt.Fprintf(&b, "      user%d@example.org: {full_name: User %d, policy: students%s}\n", u, u, change(u))
		}
	}
	b.WriteString("resource_groups:\n  default: {domains: [default, physics, chemistry, biology]}\n")
	return b.String()
}

// TestAnOrganisationIsAFile keeps three domains, twenty projects and five hundred users in a file, and brings fifty more by a table.
func TestAnOrganisationIsAFile(t *testing.T) {
	t.Parallel()
	needEngine(t)
	p := up(t)
	dir := t.TempDir()
	write := func(name, text string) string {
		path := filepath.Join(dir, name)
		require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
		return path
	}
	same := func(int) string { return "" }
	org := write("org.yaml", organisationFile(same))

	// Nobody can be asked here, so nothing happens without --yes; and a dry run only tells.
	r := p.run("", "tenancy", "apply", org)
	require.Equal(t, 2, r.code, r.stderr)
	require.Contains(t, r.stderr, "use --yes")
	r = p.run("", "tenancy", "apply", org, "--dry-run")
	require.Zero(t, r.code, r.stderr)
	require.Contains(t, r.stderr, "525 to make")
	require.NotContains(t, p.must("domain", "list"), "physics")

	// Whoever applies it is killed in the middle, and applies it again.
	first := exec.Command(binary, "tenancy", "apply", org, "--yes") //nolint:noctx // it is killed
	first.Env = p.environ()
	require.NoError(t, first.Start())
	p.eventually("some users are there", func() bool { return strings.Contains(p.must("user", "list"), "@example.org") })
	require.NoError(t, first.Process.Kill())
	_ = first.Wait()
	begin := time.Now()
	r = p.run("", "tenancy", "apply", org, "--yes")
	require.Zero(t, r.code, r.stderr)
	t.Logf("the rest was applied in %s: %s", time.Since(begin).Round(time.Millisecond), r.stderr)
	var users []struct {
		Email string `json:"email"`
	}
	require.NoError(t, json.Unmarshal([]byte(p.must("user", "list", "--json")), &users))
	require.Len(t, users, 501)
	r = p.run("", "tenancy", "apply", org, "--yes")
	require.Zero(t, r.code)
	require.Contains(t, r.stderr, "0 to make, 0 to change, 0 to make inactive, 526 as they should be")
	require.Contains(t, p.must("audit", "list", "--action", "user.create", "--filter", `object == "user7@example.org"`), "user7@example.org")

	// It is changed: some names, a role, a status.
	changed := write("changed.yaml", organisationFile(func(u int) string {
		switch {
		case u == 0:
			return ", role: admin"
		case u%100 == 1:
			return ", status: inactive"
		}
		return ""
	}))
	r = p.run("", "tenancy", "diff", changed)
	require.Zero(t, r.code, r.stderr)
	require.Contains(t, r.stdout, "~ user user0@example.org: role user -> admin")
	require.Contains(t, r.stdout, "~ user user101@example.org: status active -> inactive (is let in nowhere; sessions and folders stay)")
	require.Contains(t, r.stderr, "0 to make, 1 to change, 5 to make inactive")
	p.must("tenancy", "apply", changed, "--yes")
	require.Empty(t, p.must("tenancy", "diff", changed))
	// What is exported changes nothing, and what the file leaves out is made inactive when that is asked for.
	require.Empty(t, p.must("tenancy", "diff", write("export.yaml", p.must("tenancy", "export")), "--prune"))
	r = p.run("", "tenancy", "diff", write("one.yaml", "domains: {physics: {users: {user0@example.org: {}}}, default: {}}"), "--prune")
	require.Zero(t, r.code, r.stderr)
	require.Contains(t, r.stdout, "~ domain chemistry: active true -> false")
	require.Contains(t, r.stdout, "~ user user3@example.org: status active -> inactive")

	// Mistakes have lines, and change nothing.
	r = p.run("", "tenancy", "apply", write("bad.yaml",
		"domains:\n  physics:\n    colour: red\n    users:\n      user1@example.org: {}\n"), "--yes")
	require.Equal(t, 1, r.code)
	require.Contains(t, r.stderr, `line 3: "colour" is unknown in a domain`)
	r = p.run("", "tenancy", "apply", write("bad.yaml", "domains:\n  physics:\n    users:\n      user1@example.org: {}\n"), "--yes")
	require.Contains(t, r.stderr, "line 4: user user1@example.org is in domain chemistry")

	// Fifty users come by a table, with passwords that are written once.
	var table strings.Builder
	table.WriteString("\uFEFFFull name;E-Mail;Domain;Projects\r\n")
	for i := range 50 {
		fmt.Fprintf(&table, "'=Guest %d;guest%d@example.org;physics;project 0\r\n", i, i)
	}
	users50 := write("users.csv", table.String())
	r = p.run("", "user", "import", users50, "--dry-run")
	require.Zero(t, r.code, r.stderr)
	require.Contains(t, r.stdout, `+ user guest7@example.org in domain physics: full_name "=Guest 7"`)
	require.Contains(t, r.stderr, "its columns are separated by semicolons")
	book := filepath.Join(dir, "passwords.csv")
	p.must("user", "import", users50, "--yes", "--passwords", book)
	info, err := os.Stat(book)
	require.NoError(t, err)
	require.Equal(t, os.FileMode(0o600), info.Mode().Perm())
	text, err := os.ReadFile(book)
	require.NoError(t, err)
	rows, err := csv.NewReader(strings.NewReader(string(text))).ReadAll()
	require.NoError(t, err)
	require.Len(t, rows, 51)
	require.Greater(t, len(rows[1][1]), 20)
	r = p.run("", "user", "import", users50, "--yes", "--passwords", book)
	require.Zero(t, r.code, "nothing is left to do, and the passwords stay: %s", r.stderr)
	require.Contains(t, p.must("user", "export"), "'=Guest 7")
	require.Empty(t, p.must("user", "import", write("again.csv", p.must("user", "export")), "--yes"))
	require.Equal(t, 2, p.run("", "user", "import", write("more.csv", "email\nlast@example.org\n"), "--yes", "--passwords", book).code,
		"a file of passwords is never written over")
	p.clean()
}
