package e2e_test

import (
	"crypto/rand"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io/fs"
	"maps"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"berth.dev/berth/internal/manager/seal"
)

// secretWord is text of a secret file that is long enough to be one.
var secretWord = regexp.MustCompile(`[A-Za-z0-9+/=_.-]{20,}`)

// secretsOf are the secrets that a cluster made for itself: what its client.env and its files of keys and tokens hold.
func (p *platform) secretsOf() map[string]string {
	p.t.Helper()
	out := map[string]string{}
	for _, line := range p.env() {
		switch name, value, _ := strings.Cut(line, "="); name {
		case "BACKEND_SECRET_KEY", "BERTH_ADMIN_PASSWORD":
			out[name] = value
		}
	}
	require.Len(p.t, out, 2)
	name := regexp.MustCompile(`(?i)(token|secret|password|\.key$)`)
	require.NoError(p.t, filepath.WalkDir(p.dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() && (d.Name() == "volumes" || d.Name() == "postgres") {
			return fs.SkipDir
		}
		info, err := d.Info()
		if d.IsDir() || err != nil || !name.MatchString(d.Name()) || info.Size() > 16<<10 || !info.Mode().IsRegular() {
			return nil
		}
		require.Zero(p.t, info.Mode().Perm()&0o077, "%s may be read by others", path)
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		for i, word := range secretWord.FindAllString(string(text), 50) {
			if !strings.HasPrefix(word, "-----") {
				out[fmt.Sprintf("%s word %d", strings.TrimPrefix(path, p.dir), i)] = word
			}
		}
		return nil
	}))
	return out
}

// vaultSecrets are the keys that the cluster keeps sealed in its database, in every form that they might be written in: of the
// authority of nodes, of grants, of tickets.
func (p *platform) vaultSecrets() map[string]string {
	p.t.Helper()
	key, err := seal.Load(filepath.Join(p.dir, "manager", "master.key"), rand.Reader)
	require.NoError(p.t, err)
	db := p.database()
	rows, err := db.Query(p.t.Context(), `SELECT key, value FROM cluster_settings WHERE key LIKE 'vault/%'`)
	require.NoError(p.t, err)
	out := map[string]string{}
	for rows.Next() {
		var name string
		var raw json.RawMessage
		require.NoError(p.t, rows.Scan(&name, &raw))
		var sealed []byte
		require.NoError(p.t, json.Unmarshal(raw, &sealed))
		text, err := key.Open(sealed, name)
		require.NoError(p.t, err)
		var found any
		if json.Unmarshal([]byte(text.Reveal()), &found) == nil {
			secretFields(out, name, "", found)
		}
	}
	require.NoError(p.t, rows.Err())
	return out
}

// secretFields collects the values of fields that hold secrets.
func secretFields(out map[string]string, where, name string, value any) {
	switch v := value.(type) {
	case map[string]any:
		for field, in := range v {
			secretFields(out, where, field, in)
		}
	case []any:
		for i, in := range v {
			secretFields(out, fmt.Sprintf("%s %d", where, i), name, in)
		}
	case string:
		// Records of nodes have a field of that name, too: what everybody may know of a public key.
		if !secretField.MatchString(name) || len(v) < 20 || strings.HasPrefix(where, "vault/node-certificate") {
			return
		}
		out[where+" "+name] = v
		if raw, err := base64.StdEncoding.DecodeString(v); err == nil {
			out[where+" "+name+", raw"] = string(raw)
			out[where+" "+name+", in hexadecimal"] = hex.EncodeToString(raw)
			out[where+" "+name+", for addresses"] = base64.RawURLEncoding.EncodeToString(raw)
		}
	}
}

var secretField = regexp.MustCompile(`(?i)^(key|secret|seed|private|token)s?$`)

// TestAttackSecrets does with a cluster what brings secrets into it, and then looks for each of them in everything that the run put out.
func TestAttackSecrets(t *testing.T) {
	t.Parallel()
	p := up(t)
	secrets := p.secretsOf()
	require.Contains(t, strings.Join(slices.Collect(maps.Keys(secrets)), "\n"), "master.key", "the master key is one of them")
	mark := func(name string) string {
		word := "s3cret-" + name + "-8b1f60c2d7"
		secrets[name] = word
		return word
	}
	admin := newConsole(t, p.env())
	member := newConsole(t, p.member("keeper"))
	secrets["member's secret key"] = member.token

	// Logins and passwords.
	for _, word := range []string{mark("wrong password"), mark("other wrong password")} {
		body, err := json.Marshal(map[string]string{"type": "keypair", "domain": "default", "username": "keeper@berth.local", "password": word})
		require.NoError(t, err)
		resp, err := http.Post(admin.endpoint+"/auth/authorize", "application/json", strings.NewReader(string(body)))
		require.NoError(t, err)
		require.NoError(t, resp.Body.Close())
		require.Equal(t, 401, resp.StatusCode)
	}
	admin.try("POST", "/auth/update-password", `{"old_password":"`+mark("old password")+`","new_password":"`+mark("new password")+
		`","new_password2":"`+secrets["new password"]+`"}`)
	// SSH keys and dotfiles, of both kinds of owners.
	var pair struct {
		Private string `json:"ssh_private_key"`
	}
	member.into(&pair, 200, "PATCH", "/auth/ssh-keypair", "")
	lines := strings.Split(strings.TrimSpace(pair.Private), "\n")
	require.Greater(t, len(lines), 2)
	secrets["SSH key"] = lines[len(lines)/2]
	for _, c := range []*console{admin, member} {
		c.try("POST", "/user-config/dotfiles", `{"path":".netrc","permission":"600","data":"`+mark("dotfile")+`"}`)
	}
	// A session with values in its environment and its bootstrap script, which a command of it fails with.
	lab := fmt.Sprintf("vault-%d", os.Getpid()) // names of images are looked at on an engine that stories share
	script := filepath.Join(p.dir, "bootstrap.sh")
	require.NoError(t, os.WriteFile(script, []byte("export X="+mark("bootstrap script")+"\n"), 0o600))
	p.must("session", "create", "web-demo", "--name", lab, "-r", "cpu=1", "-r", "mem=512m", "-e", "API_TOKEN="+mark("environment value"),
		"--bootstrap", script)
	require.NoError(t, os.Remove(script))
	p.run("", "session", "exec", lab, "--", "sh", "-c", "exit 3")
	p.run(mark("standard input"), "session", "exec", lab, "--", "cat")
	id := p.sessions()[lab].ID
	admin.try("GET", "/stream/session/"+id+"/pty?secret="+mark("query of a stream"), "")
	// An app, whose address holds a token.
	p.eventually("an app proxy is connected", func() bool {
		status, _ := admin.try("GET", "/scaling-groups/default/wsproxy-version", "")
		return status == 200
	})
	app := admin.launch(id, "web")
	entered, err := url.Parse(app.Enter)
	require.NoError(t, err)
	for name, values := range entered.Query() {
		if len(values[0]) >= 20 {
			secrets["app address's "+name] = values[0]
		}
	}
	v := newVisitor(t, "").enters(app)
	if at, err := url.Parse(app.Base); err == nil {
		for _, cookie := range v.client.Jar.Cookies(at) {
			secrets["app cookie "+cookie.Name] = cookie.Value
		}
	}
	// Folders: a transfer's token, and the keys of an object store that does not answer.
	p.onDisk("keys")
	ticket := admin.ticket("keys", "request-upload", `{"path":"f","size":5}`)
	require.Equal(t, 204, ticket.uses(t, "PATCH", "0", "bytes"))
	require.NotEqual(t, 200, ticket.uses(t, "GET", "", ""))
	secrets["transfer token"] = ticket.Token
	for _, verb := range []string{"import", "export"} {
		admin.try("POST", "/folders/keys/"+verb, `{"path":"in","prefix":"x","store":{"bucket":"b",
			"endpoint":"https://127.0.0.1:1","access_key":"`+mark("store access key "+verb)+`","secret_key":"`+mark("store secret key "+verb)+`"}}`)
	}
	// What an administrator makes: tokens that let hosts and managers join, the key of a storage proxy. Only who asks sees them.
	for _, role := range []string{"agent", "appproxy"} {
		secrets["join token of an "+role] = strings.TrimSpace(p.must("admin", "join-token", "create", "--role", role, "--name", "new-"+role))
	}
	for i, word := range secretWord.FindAllString(p.must("admin", "storage-key", "--name", "elsewhere"), -1) {
		secrets[fmt.Sprintf("storage proxy's key %d", i)] = word
	}
	p.must("admin", "join-token", "list")
	secrets["password after a reset"] = func() string {
		var fresh struct{ Password string }
		require.NoError(t, json.Unmarshal([]byte(p.must("admin", "reset-password", "--json")), &fresh))
		return fresh.Password
	}()
	p.must("admin", "rotate-master-key")
	for name, word := range p.secretsOf() {
		secrets[name+" after the rotation"] = word
	}
	sealed := p.vaultSecrets()
	require.Greater(t, len(sealed), 8, "%v", slices.Collect(maps.Keys(sealed)))
	maps.Copy(secrets, sealed)
	t.Cleanup(func() { // what the story leaves on the engine
		if ids := committed(t, lab); len(ids) > 0 {
			_, _ = docker(append([]string{"rmi", "-f"}, ids...)...)
		}
	})
	// A commit, and requests that fail with a secret in them.
	p.must("session", "commit", lab)
	for _, target := range []string{"/nothing/", "/session/", "/folders/", "/session/" + lab + "/download?file="} {
		admin.try("GET", target+mark("bad request to "+strings.Trim(target, "/"))+"?token="+mark("bad query to "+strings.Trim(target, "/")), "")
	}
	admin.try("POST", "/session", `{"name":"`+strings.Repeat("x", 300)+`","config":{"environ":{"K":"`+mark("refused environment value")+`"}}}`)
	admin.try("POST", "/admin/gql", `{"query":"{keypair{nothing}}","variables":{"password":"`+mark("variable")+`"}}`)

	outputs := p.outputs(id, lab)
	p.must("session", "rm", "--yes", lab)
	for name, text := range p.outputs("", lab) {
		outputs[name+" after the session's end"] = text
	}
	// The scan is worth something only when the outputs tell of the run at all.
	require.Contains(t, outputs["the log"], "/auth/authorize")
	require.Contains(t, outputs["arguments of processes"], "berth")
	require.NotEmpty(t, outputs["the committed image"])
	require.Contains(t, strings.Join(slices.Collect(maps.Keys(outputs)), "\n"), "labels and arguments of container")
	// What a caller names in an address is part of the record of that request; its query is not.
	for name := range secrets {
		if strings.HasPrefix(name, "bad request to ") {
			delete(secrets, name)
		}
	}
	for where, text := range outputs {
		require.NotEmpty(t, text, where)
		for what, word := range secrets {
			if at := strings.Index(text, word); at >= 0 {
				t.Errorf("%s shows the %s: …%s…", where, what, text[max(0, at-150):min(len(text), at+len(word)+20)])
			}
		}
	}
	// The database holds what users gave to keep in the clear, and of the platform's own secrets none. Nor does etcd.
	for where, dump := range map[string]string{"the database": p.everyTable(), "etcd": p.etcdFiles()} {
		require.Contains(t, dump, map[string]string{"the database": "keeper@berth.local", "etcd": "berth"}[where])
		for what, word := range secrets {
			at := strings.Index(dump, word)
			if given := strings.HasPrefix(word, "s3cret-"); at >= 0 && !given {
				t.Errorf("%s holds the %s: …%q…", where, what, dump[max(0, at-300):at])
			}
		}
	}
	t.Logf("looked for %d secrets in %d outputs", len(secrets), len(outputs))
	p.clean()
}

// outputs are all that a run put out for others than the owner of what it is about: logs, events, states, the engine's records, and what
// every user of this machine can read.
func (p *platform) outputs(session, name string) map[string]string {
	p.t.Helper()
	out := map[string]string{}
	log, err := os.ReadFile(filepath.Join(p.dir, "berth.log"))
	require.NoError(p.t, err)
	out["the log"] = string(log)
	for _, args := range [][]string{{"doctor"}, {"doctor", "--json"}, {"status", "--json"}, {"session", "list", "--all", "--json"},
		{"agent", "list"}, {"folder", "ls"}, {"image", "list", "--json"}} {
		r := p.run("", args...)
		out["berth "+strings.Join(args, " ")] = r.stdout + r.stderr
	}
	// Rows that are a record of what happened, as any administrator reads them.
	db := p.database()
	for table, query := range map[string]string{
		"session_events": `SELECT coalesce(string_agg(e::text, E'\n'), '') FROM session_events e`,
		"states": `SELECT coalesce(string_agg(status_info || status_data::text, E'\n'), '') FROM
			(SELECT status_info, status_data FROM sessions UNION ALL SELECT status_info, status_data FROM kernels) s`,
		"background_tasks": `SELECT coalesce(string_agg(b::text, E'\n'), 'none') FROM background_tasks b`,
		"keypairs":         `SELECT coalesce(string_agg((to_jsonb(k) - 'dotfiles' - 'bootstrap_script')::text, E'\n'), '') FROM keypairs k`,
		"users":            `SELECT coalesce(string_agg(u::text, E'\n'), '') FROM users u`,
		"rights_epochs":    `SELECT coalesce(string_agg(r::text, E'\n'), 'none') FROM rights_epochs r`,
	} {
		var text string
		require.NoError(p.t, db.QueryRow(p.t.Context(), query).Scan(&text), table)
		out["table "+table] = text
	}
	out["arguments of processes"] = arguments(p.t)
	out["files that every user can read"] = "none\n" + p.readable()
	if session != "" {
		for _, filter := range []string{"label=berth.session=" + session, "name=" + session} {
			ids, err := docker("ps", "-aq", "--filter", filter)
			require.NoError(p.t, err)
			for _, id := range strings.Fields(ids) {
				text, err := docker("inspect", "--format", "{{json .Config.Labels}} {{json .Args}} {{json .Config.Cmd}} {{json .Name}}", id)
				require.NoError(p.t, err)
				out["labels and arguments of container "+id] = text
			}
		}
		for _, id := range committed(p.t, name) {
			text, err := docker("inspect", id)
			require.NoError(p.t, err)
			history, err := docker("history", "--no-trunc", id)
			require.NoError(p.t, err)
			out["the committed image"] = text + history
		}
	}
	return out
}

// etcdFiles is what the files of etcd hold, without the room that it keeps for later.
func (p *platform) etcdFiles() string {
	p.t.Helper()
	var b strings.Builder
	require.NoError(p.t, filepath.WalkDir(filepath.Join(p.dir, "etcd"), func(path string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return err
		}
		text, err := os.ReadFile(path)
		for part := range strings.SplitSeq(string(text), strings.Repeat("\x00", 64)) {
			b.WriteString(part)
		}
		return err
	}))
	return b.String()
}

// everyTable is what all tables hold, as text.
func (p *platform) everyTable() string {
	p.t.Helper()
	db := p.database()
	rows, err := db.Query(p.t.Context(), `SELECT quote_ident(table_name) FROM information_schema.tables
		WHERE table_schema = 'public' AND table_type = 'BASE TABLE' ORDER BY 1`)
	require.NoError(p.t, err)
	tables, err := pgx.CollectRows(rows, pgx.RowTo[string])
	require.NoError(p.t, err)
	require.Greater(p.t, len(tables), 20)
	var b strings.Builder
	for _, table := range tables {
		var text string
		require.NoError(p.t, db.QueryRow(p.t.Context(), `SELECT coalesce(string_agg(t::text, E'\n'), '') FROM `+table+` t`).Scan(&text), table)
		b.WriteString(table + ":\n" + text + "\n")
	}
	return b.String()
}

// committed are the ids of the engine's images that were made of a session of a name.
func committed(t testing.TB, name string) (ids []string) {
	t.Helper()
	images, err := docker("images", "--no-trunc", "--format", "{{.ID}} {{.Repository}}")
	require.NoError(t, err)
	for line := range strings.Lines(images) {
		if id, repository, _ := strings.Cut(strings.TrimSpace(line), " "); strings.HasSuffix(repository, "/"+name) {
			ids = append(ids, id)
		}
	}
	return ids
}

// arguments are the command lines of all processes, which every user sees.
func arguments(t testing.TB) string {
	t.Helper()
	files, err := filepath.Glob("/proc/[0-9]*/cmdline")
	require.NoError(t, err)
	var b strings.Builder
	for _, file := range files {
		if text, err := os.ReadFile(file); err == nil && !strings.Contains(string(text), "e2e.test") {
			b.WriteString(strings.ReplaceAll(string(text), "\x00", " ") + "\n")
		}
	}
	return b.String()
}

// readable are the contents of the files of the state directory that every user can reach and read, but for the bytes of folders.
func (p *platform) readable() string {
	p.t.Helper()
	var b strings.Builder
	deadline := time.Now().Add(patience)
	require.NoError(p.t, filepath.WalkDir(p.dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return nil // it went meanwhile
		}
		info, err := d.Info()
		if err != nil {
			return nil
		}
		if d.IsDir() {
			if path != p.dir && (info.Mode().Perm()&0o001 == 0 || d.Name() == "volumes") {
				return fs.SkipDir
			}
			return nil
		}
		if info.Mode().IsRegular() && info.Mode().Perm()&0o004 != 0 && info.Size() < 1<<20 && time.Now().Before(deadline) {
			if text, err := os.ReadFile(path); err == nil {
				b.WriteString(path + ": " + string(text) + "\n")
			}
		}
		return nil
	}))
	return b.String()
}
