package e2e_test

import (
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"net/http"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

var update = flag.Bool("update", false, "write what the test sees to its files")

// asked are the groups of commands that stories walk through in full.
var asked = regexp.MustCompile(`^(admin|session-template|dotfile|server-logs) |^(login|logout|update-password.*)$|` +
	`^vfolder (invite|invitations|share|unshare|leave|list-invited)$`)

// leftOut are commands of these groups for which there is no story.
var leftOut = regexp.MustCompile(`^admin prometheus-query-definition `) // asks a Prometheus behind the manager, by the second API

const goodPassword = "Good-horse-42-battery"

// organisation is a domain with an administrator, users, a project, and a resource group and a folder host for them.
type organisation struct {
	p    *platform
	envs map[string][]string // by role: super, admin, user
}

// withKey is an environment of the superadmin's client that signs with the keypair of another user.
func (p *platform) withKey(domain, project, email, password string) []string {
	p.t.Helper()
	raw, err := json.Marshal(map[string]string{"type": "keypair", "domain": domain, "username": email, "password": password})
	require.NoError(p.t, err)
	client := &http.Client{Timeout: time.Minute}
	resp, err := client.Post(p.of("BACKEND_ENDPOINT")+"/auth/authorize", "application/json", bytes.NewReader(raw))
	require.NoError(p.t, err)
	defer resp.Body.Close()
	var got struct {
		Data struct {
			AccessKey string `json:"access_key"`
			SecretKey string `json:"secret_key"`
		}
	}
	require.NoError(p.t, json.NewDecoder(resp.Body).Decode(&got))
	require.NotEmpty(p.t, got.Data.SecretKey, resp.Status)
	return []string{"BACKEND_ENDPOINT=" + p.of("BACKEND_ENDPOINT"), "BACKEND_ENDPOINT_TYPE=api", "BACKEND_ACCESS_KEY=" + got.Data.AccessKey,
		"BACKEND_SECRET_KEY=" + got.Data.SecretKey, "BACKEND_DOMAIN=" + domain, "BACKEND_GROUP=" + project}
}

func newOrganisation(t *testing.T) *organisation {
	t.Helper()
	p := up(t)
	p.must("domain", "create", "phys")
	p.must("project", "create", "lab", "--domain", "phys")
	o := &organisation{p: p, envs: map[string][]string{"super": p.env()}}
	for name, role := range map[string]string{"admin": "admin", "user": "user", "bob": "user"} {
		r := p.run(goodPassword+"\n", "user", "create", name+"@phys.example", "--domain", "phys", "--project", "lab", "--role", role,
			"--password-stdin")
		require.Zero(t, r.code, r.stderr)
		o.envs[name] = p.withKey("phys", "lab", name+"@phys.example", goodPassword)
	}
	super := newOfficial(t, p.env())
	p.eventually("the storage proxy is known", func() bool { return strings.Contains(super.must("vfolder", "list-hosts"), hostOf) })
	super.must("admin", "domain", "update", "phys", "--vfolder-host-perms", `{"`+hostOf+`": ["create-vfolder", "modify-vfolder",
		"delete-vfolder", "mount-in-session", "upload-file", "download-file", "invite-others", "set-user-specific-permission"]}`)
	super.must("admin", "scaling-group", "associate-scaling-group", "default", "phys")
	return o
}

var roles = []string{"user", "admin", "super"} // the order in which they are asked

// adminRow is a line of testdata/official/administration.txt.
type adminRow struct {
	line    int
	only    string            // generation
	expects map[string]string // by role
	keep    string
	command string
	want    string
}

var adminLine = regexp.MustCompile(`^(?:\[(\d+)\] )?(\w+|-) +(\w+|-) +(\w+|-) *([\w{}-]*) *: (.*?)(?: => (.*))?$`)

func adminRows(t *testing.T) (out []adminRow) {
	t.Helper()
	text, err := os.ReadFile("testdata/official/administration.txt")
	require.NoError(t, err)
	for i, line := range strings.Split(string(text), "\n") {
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		m := adminLine.FindStringSubmatch(line)
		require.NotNil(t, m, "line %d: %s", i+1, line)
		out = append(out, adminRow{line: i + 1, only: m[1], expects: map[string]string{"super": m[2], "admin": m[3], "user": m[4]},
			keep: m[5], command: m[6], want: m[7]})
	}
	return out
}

// words splits a command; single quotes hold what has blanks.
func words(command string) (out []string) {
	for i, part := range strings.Split(command, "'") {
		if i%2 == 1 {
			out = append(out, part)
		} else {
			out = append(out, strings.Fields(part)...)
		}
	}
	return out
}

// walkthrough is one generation of the client in the hands of several users.
type walkthrough struct {
	t       testing.TB
	gen     string
	clients map[string]*driven
	vars    map[string]string
	known   []string        // the client's commands
	ran     map[string]bool // of them
}

func (w *walkthrough) fill(text, who string) string {
	for range 2 { // names of variables hold variables
		text = strings.ReplaceAll(text, "{who}", who)
		for k, v := range w.vars {
			text = strings.ReplaceAll(text, "{"+k+"}", v)
		}
	}
	return strings.ReplaceAll(text, "{self}", w.vars["self-"+who])
}

// note remembers that a command was run.
func (w *walkthrough) note(args []string) {
	for n := min(len(args), 4); n > 0; n-- {
		if name := strings.Join(args[:n], " "); slices.Contains(w.known, name) {
			w.ran[name] = true
			return
		}
	}
}

// as runs a command that has to succeed.
func (w *walkthrough) as(who string, args ...string) string {
	w.t.Helper()
	w.note(args)
	return w.clients[who].must(args...)
}

// not runs a command that has to be refused in words.
func (w *walkthrough) not(who string, args ...string) string {
	w.t.Helper()
	w.note(args)
	return w.clients[who].refused(args...)
}

var (
	refusal   = regexp.MustCompile(`may not|nobody|No such|may be|Forbidden|needs|Identifier is not valid`)
	warning   = regexp.MustCompile(`(?m)^.*APIVersionWarning.*\n(.*warnings?\.warn.*\n)?`)
	notOfOurs = regexp.MustCompile(`not part of this version|does not mount|are not scanned|"rescan_images"|may not`)
)

func (w *walkthrough) row(r adminRow, who string) {
	w.t.Helper()
	expect := r.expects[who]
	if expect == "-" {
		return
	}
	command, want := w.fill(r.command, who), w.fill(r.want, who)
	args := words(command)
	w.note(args)
	template := fmt.Sprintf(`apiVersion: "6"
kind: taskTemplate
metadata: {name: tpl-%s-%s}
spec: {session_type: batch, kernel: {image: python, run: {startup_command: "echo hi"}}, resources: {cpu: 1, mem: 256m}}
`, who, w.gen)
	code, said := w.clients[who].run(driverAsk{Args: args, Stdin: "y\ny\n", Files: map[string]string{"f.txt": "hello\n", "t.yaml": template}})
	said = warning.ReplaceAllString(said, "")
	about := fmt.Sprintf("line %d as %s: backend.ai %s -> %d\n%s", r.line, who, command, code, said)
	if expect != "crash" {
		assert.NotContains(w.t, said, "Traceback", about)
	}
	switch expect {
	case "ok":
		assert.Zero(w.t, code, about)
		assert.NotRegexp(w.t, `✗|✘`, said, about)
		found := regexp.MustCompile(want).FindStringSubmatch(said)
		assert.NotNil(w.t, found, about)
		if r.keep != "" && len(found) > 1 {
			w.vars[w.fill(r.keep, who)] = found[1]
		}
	case "no":
		assert.NotZero(w.t, code, about)
		if who != "super" {
			assert.Regexp(w.t, refusal, said, about)
		}
	case "told":
		assert.Regexp(w.t, refusal, said, about)
	case "none":
		assert.Contains(w.t, said, "No matching entry found", about)
	case "not":
		assert.Regexp(w.t, notOfOurs, said, about)
	case "crash":
		assert.NotZero(w.t, code, about)
	default:
		w.t.Fatalf("line %d: %q is no expectation", r.line, expect)
	}
}

// begin makes the walkthrough of a generation and compares the client's commands with the list of testdata.
func (o *organisation) begin(t *testing.T, g generation) *walkthrough {
	t.Helper()
	w := &walkthrough{t: t, gen: strings.SplitN(g.version, ".", 2)[0], clients: map[string]*driven{}, ran: map[string]bool{}}
	for name, env := range o.envs {
		w.clients[name] = drive(t, g, name, env)
	}
	for _, c := range w.clients["super"].ask(driverAsk{List: true}).Commands {
		if asked.MatchString(c) {
			w.known = append(w.known, c)
		}
	}
	file, text := "testdata/official/commands-"+g.version+".txt", strings.Join(w.known, "\n")+"\n"
	if *update {
		require.NoError(t, os.WriteFile(file, []byte(text), 0o644))
	}
	listed, err := os.ReadFile(file)
	require.NoError(t, err)
	require.Equal(t, string(listed), text, "the client's commands are those of %s; -update writes them", file)
	w.vars = map[string]string{"gen": w.gen, "self-super": o.p.of("BERTH_ADMIN_EMAIL"), "self-admin": "admin@phys.example",
		"self-user": "user@phys.example"}
	return w
}

// TestOfficialAdministration walks through all commands by which the official clients administer a cluster, as superadmin, as
// administrator of a domain and as user, and lets users share folders.
func TestOfficialAdministration(t *testing.T) {
	t.Parallel()
	needEngine(t)
	o := newOrganisation(t)
	for _, g := range generations {
		t.Run(g.version, func(t *testing.T) {
			w := o.begin(t, g)
			w.prepare()
			w.sharing()
			w.errorLogs()
			for _, r := range adminRows(t) {
				if r.only != "" && r.only != w.gen {
					continue
				}
				for _, who := range roles {
					w.row(r, who)
				}
			}
			w.freezing()
			var missed []string
			for _, c := range w.known {
				if !w.ran[c] && !leftOut.MatchString(c) && !inSessionMode.MatchString(c) {
					missed = append(missed, c)
				}
			}
			require.Empty(t, missed, "commands that no story runs")
		})
	}
	o.p.clean()
}

// inSessionMode are commands of TestOfficialLogins.
var inSessionMode = regexp.MustCompile(`^(login|logout|update-password.*)$`)

var anID = regexp.MustCompile(`[0-9a-f]{8}-[0-9a-f-]{27}`)

// prepare gives each a session and a folder, so that no list is empty: the older client takes an empty one for an error.
func (w *walkthrough) prepare() {
	w.t.Helper()
	for _, who := range roles {
		said := w.as(who, "session", "create", "--name", "of-"+who, "-r", "cpu=1", "-r", "mem=256m", "python")
		id := anID.FindString(said)
		require.NotEmpty(w.t, id, said)
		w.vars["session-"+who] = id
		w.as(who, "vfolder", "create", "data-"+who+w.gen, hostOf)
	}
	w.vars["lab"] = anID.FindString(w.as("super", "admin", "group", "info", "lab"))
	require.NotEmpty(w.t, w.vars["lab"])
	w.vars["bob"] = anID.FindString(w.as("super", "admin", "user", "info", "-e", "bob@phys.example"))
	now := time.Now().UTC()
	month := time.Date(now.Year(), now.Month(), 1, 0, 0, 0, 0, time.UTC)
	w.vars["month"], w.vars["first"] = month.Format("200601"), month.Format("20060102")
	w.vars["last"] = month.AddDate(0, 1, -1).Format("20060102")
}

// sharing: a folder goes from one user to another by invitation, and a project's folder to a member with a permission of their own.
func (w *walkthrough) sharing() {
	t := w.t
	t.Helper()
	folder := "data-user" + w.gen
	w.as("user", "vfolder", "mkdir", folder, "in")
	w.not("bob", "vfolder", "ls", folder)
	require.Contains(t, w.as("user", "vfolder", "invite", folder, "bob@phys.example", "--perm", "ro"), "bob@phys.example")
	w.note([]string{"vfolder", "invitations"})
	code, said := w.clients["bob"].run(driverAsk{Args: []string{"vfolder", "invitations"}, Stdin: "1\na\n"})
	require.Zero(t, code, said)
	require.Contains(t, said, "user@phys.example")
	require.Contains(t, w.as("bob", "vfolder", "ls", folder), "in")
	require.Contains(t, w.as("bob", "vfolder", "list-invited"), folder)
	w.not("bob", "vfolder", "mkdir", folder, "mine") // read only
	w.not("bob", "vfolder", "invite", folder, "admin@phys.example", "--perm", "rw")

	id, bob := w.folderID(folder), w.vars["bob"]
	require.Contains(t, w.as("user", "admin", "vfolder", "shared-vfolder-info", id), "bob@phys.example")
	require.Contains(t, w.as("user", "admin", "vfolder", "list-shared-vfolders"), folder) // one's own; also of superadmins
	require.NotContains(t, w.as("super", "admin", "vfolder", "list-shared-vfolders"), folder)
	require.NotContains(t, w.as("bob", "admin", "vfolder", "list-shared-vfolders"), "admin@phys.example")
	w.not("bob", "admin", "vfolder", "update-shared-vf-permission", id, bob, "-p", "wd")
	w.as("user", "admin", "vfolder", "update-shared-vf-permission", id, bob, "-p", "rw")
	w.as("bob", "vfolder", "mkdir", folder, "mine")
	w.not("bob", "admin", "vfolder", "remove-shared-vf-permission", id, w.vars["bob"]+"0")
	w.as("user", "admin", "vfolder", "remove-shared-vf-permission", id, bob)
	w.not("bob", "vfolder", "ls", folder)

	// Again, and bob leaves by himself.
	w.as("user", "vfolder", "invite", folder, "bob@phys.example", "--perm", "rw")
	w.clients["bob"].run(driverAsk{Args: []string{"vfolder", "invitations"}, Stdin: "1\na\n"})
	w.as("bob", "vfolder", "ls", folder)
	w.as("bob", "vfolder", "leave", folder)
	w.not("bob", "vfolder", "ls", folder)
	// An invitation that is rejected gives nothing.
	w.as("user", "vfolder", "invite", folder, "bob@phys.example", "--perm", "rw")
	w.clients["bob"].run(driverAsk{Args: []string{"vfolder", "invitations"}, Stdin: "1\nr\n"})
	w.not("bob", "vfolder", "ls", folder)

	// The domain's administrator makes a folder of the project; members read it, and one of them writes.
	team := "team" + w.gen
	w.not("user", "vfolder", "create", "-g", "lab", team, hostOf)
	w.as("admin", "vfolder", "create", "-g", "lab", "-p", "ro", team, hostOf)
	w.as("bob", "vfolder", "ls", team)
	w.not("bob", "vfolder", "mkdir", team, "of-bob")
	w.not("user", "vfolder", "share", team, "bob@phys.example", "--perm", "rw")
	require.Contains(t, w.as("admin", "vfolder", "share", team, "bob@phys.example", "--perm", "rw"), "bob@phys.example")
	w.as("bob", "vfolder", "mkdir", team, "of-bob")
	w.not("user", "vfolder", "mkdir", team, "of-user")
	w.as("admin", "vfolder", "unshare", team, "bob@phys.example")
	w.not("bob", "vfolder", "mkdir", team, "of-bob-again")

	// Only superadmins give a folder to somebody else.
	w.not("user", "admin", "vfolder", "change-vfolder-ownership", id, "bob@phys.example")
	w.not("admin", "admin", "vfolder", "change-vfolder-ownership", id, "bob@phys.example")
	w.as("super", "admin", "vfolder", "change-vfolder-ownership", id, "bob@phys.example")
	w.as("bob", "vfolder", "ls", folder)
	w.not("user", "vfolder", "ls", folder)
	w.as("super", "admin", "vfolder", "change-vfolder-ownership", id, "user@phys.example")
}

// folderID is the id of a folder of the user.
func (w *walkthrough) folderID(name string) string {
	w.t.Helper()
	id := regexp.MustCompile(`(?i)\bid: *"?([0-9a-f-]{32,36})`).FindStringSubmatch(w.as("user", "vfolder", "info", name))
	require.NotNil(w.t, id)
	return id[1]
}

// errorLogs: a user's client reported an error; the user and those above read it, others do not.
func (w *walkthrough) errorLogs() {
	w.t.Helper()
	script := `
import asyncio, sys
from ai.backend.client.request import Request
from ai.backend.client.session import AsyncSession
async def main():
    async with AsyncSession():
        rqst = Request("POST", "/logs/error")
        rqst.set_json({"severity": "error", "source": "story", "message": "it broke", "context_lang": "en",
            "context_env": {"a": 1}, "request_url": "/x", "request_status": 500, "traceback": "line 1"})
        async with rqst.fetch() as r:
            print(await r.json())
asyncio.run(main())`
	said := w.clients["user"].ask(driverAsk{Python: script})
	require.Zero(w.t, said.Code, said.Stdout+said.Stderr)
	for _, who := range roles {
		out := w.as(who, "server-logs", "list", "--mark-read", "-l", "5", "-n", "1")
		require.Contains(w.t, out, "it broke", who)
	}
	require.NotContains(w.t, w.as("bob", "server-logs", "list"), "it broke")
	w.not("bob", "server-logs", "list", "-l", "101")
}

// freezing: a freeze with --force-kill ends the sessions of everybody.
func (w *walkthrough) freezing() {
	w.t.Helper()
	require.Contains(w.t, w.as("super", "admin", "manager", "freeze", "--force-kill"), "frozen")
	w.not("user", "session", "create", "--name", "too-late", "-r", "cpu=1", "-r", "mem=256m", "python")
	w.clients["super"].eventually(func(said string) bool {
		return strings.Contains(said, "frozen") && regexp.MustCompile(`\b0\b`).MatchString(said)
	},
		"admin", "manager", "status")
	require.Contains(w.t, w.as("super", "admin", "manager", "freeze", "--wait"), "All sessions are terminated")
	w.as("super", "admin", "manager", "unfreeze")
}
