package login_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/spf13/cobra"
	"github.com/stretchr/testify/require"

	"berth.dev/berth/api"
	clientlogin "berth.dev/berth/api/login"
	"berth.dev/berth/internal/cli/frame"
	"berth.dev/berth/internal/cli/login"
	"berth.dev/berth/internal/testkit/await"
)

// web is a web server of a cluster with one user, ada, whose password is "right" and whose domain is physics.
type web struct {
	*httptest.Server
	otp    string // the second factor; "" for none
	logins map[string]bool
	full   bool
	opened int
}

func newWeb(t *testing.T) *web {
	w := &web{logins: map[string]bool{}}
	mux := http.NewServeMux()
	answer := func(rw http.ResponseWriter, v any) {
		rw.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(rw).Encode(v)
	}
	refuse := func(rw http.ResponseWriter, slug, text string) {
		answer(rw, map[string]any{"authenticated": false,
			"data": map[string]string{"type": api.ProblemPrefix + slug, "title": "no", "details": text}})
	}
	mux.HandleFunc("POST /server/login-check", func(rw http.ResponseWriter, r *http.Request) {
		answer(rw, map[string]any{"authenticated": w.logins[r.Header.Get(api.HeaderLogin)], "data": nil})
	})
	mux.HandleFunc("POST /server/logout", func(_ http.ResponseWriter, r *http.Request) { delete(w.logins, r.Header.Get(api.HeaderLogin)) })
	mux.HandleFunc("POST /server/login", func(rw http.ResponseWriter, r *http.Request) {
		var in struct {
			Username, Password, OTP string
			Force                   bool
		}
		if json.NewDecoder(r.Body).Decode(&in) != nil || in.Username != "ada" || in.Password != "right" {
			refuse(rw, "auth-failed", "User credential mismatch.")
			return
		}
		switch {
		case w.otp != "" && in.OTP == "":
			refuse(rw, "require-totp-authentication", "OTP not provided")
		case w.otp != in.OTP:
			refuse(rw, "auth-failed", "Invalid TOTP code provided")
		case w.full && !in.Force:
			refuse(rw, "active-login-session-exists", "you have as many logins as allowed")
		default:
			token := "token-" + string(rune('a'+w.opened))
			w.opened++
			w.logins[token] = true
			rw.Header().Set(api.HeaderLogin, token)
			answer(rw, map[string]any{"authenticated": true, "data": map[string]string{"access_key": "AK", "role": "user", "status": "active"}})
		}
	})
	mux.HandleFunc("POST /func/admin/gql", func(rw http.ResponseWriter, r *http.Request) {
		if !w.logins[r.Header.Get(api.HeaderLogin)] || r.Header.Get("Authorization") != "" {
			rw.WriteHeader(http.StatusUnauthorized)
			answer(rw, api.Problem{Type: api.ProblemPrefix + api.SlugLoginExpired, Msg: "this login has ended", Next: "log in again"})
			return
		}
		answer(rw, json.RawMessage(`{"data":{"user":{"email":"ada","domain_name":"physics","groups":[{"name":"lasers"},{"name":"optics"}]}}}`))
	})
	mux.HandleFunc("GET /func/auth/logins", func(rw http.ResponseWriter, r *http.Request) {
		if !w.logins[r.Header.Get(api.HeaderLogin)] {
			rw.WriteHeader(http.StatusUnauthorized)
			answer(rw, api.Problem{Type: api.ProblemPrefix + api.SlugLoginExpired, Msg: "this login has ended", Next: "log in again"})
			return
		}
		answer(rw, api.LoginList{Items: []api.LoginSession{{ID: "one", Agent: r.UserAgent()}}})
	})
	w.Server = httptest.NewServer(mux)
	t.Cleanup(w.Close)
	return w
}

type person struct {
	t   *testing.T
	env map[string]string
}

func newPerson(t *testing.T) *person {
	home := t.TempDir()
	return &person{t, map[string]string{"HOME": home, "XDG_CONFIG_HOME": filepath.Join(home, "conf"), api.EnvStateDir: home}}
}

func (p *person) do(stdin string, args ...string) (out, errs string, code int) {
	p.t.Helper()
	var o, e bytes.Buffer
	code = p.runWith(strings.NewReader(stdin), &o, &e, args...)
	return o.String(), e.String(), code
}

func (p *person) run(in io.Reader, errs io.Writer, args ...string) int {
	return p.runWith(in, io.Discard, errs, args...)
}

func (p *person) runWith(in io.Reader, out, errs io.Writer, args ...string) int {
	ctx, cancel := context.WithTimeout(p.t.Context(), time.Minute)
	defer cancel()
	f := frame.New("test")
	f.Getenv = func(name string) string { return p.env[name] }
	root := &cobra.Command{Use: "berth"}
	for _, c := range login.Commands(f) {
		f.Flags(c)
		root.AddCommand(c)
	}
	root.SetArgs(args)
	root.SetIn(in)
	root.SetOut(out)
	root.SetErr(errs)
	return frame.Execute(ctx, root)
}

func (p *person) must(stdin string, args ...string) string {
	p.t.Helper()
	out, errs, code := p.do(stdin, args...)
	require.Zero(p.t, code, "%v: %s%s", args, out, errs)
	return out + errs
}

func (p *person) file(name string) string {
	raw, err := os.ReadFile(filepath.Join(p.env["XDG_CONFIG_HOME"], "berth", "profiles", name+".env"))
	if err != nil {
		return ""
	}
	return string(raw)
}

func TestLoginIsKeptInAProfile(t *testing.T) {
	t.Parallel()
	w, p := newWeb(t), newPerson(t)
	said := p.must("right\n", "login", w.URL, "--user", "ada", "--password-stdin")
	require.Contains(t, said, "as ada; profile 127.0.0.1 is in use")
	kept := p.file("127.0.0.1")
	require.Contains(t, kept, "BERTH_LOGIN='token-a'")
	require.Contains(t, kept, "BACKEND_ENDPOINT='"+w.URL+"/func'")
	require.Contains(t, kept, "BACKEND_DOMAIN='physics'", "sessions would be created in a domain of others")
	require.Contains(t, kept, "BACKEND_GROUP='lasers'")
	require.NotContains(t, kept, "right", "the password is kept")
	require.Contains(t, p.must("", "login", "list"), "berth/test")

	// Logging in again goes where the profile goes, as whom it went, and ends the login that nobody needs any more.
	p.must("right\n", "login", "--password-stdin")
	require.NotContains(t, p.file("127.0.0.1"), "token-a")
	require.Len(t, w.logins, 1)

	p.must("right\n", "login", w.URL, "--profile", "lab", "--user", "ada", "--password-stdin", "--project", "optics")
	require.Contains(t, p.file("lab"), "BACKEND_GROUP='optics'")
	require.Contains(t, p.must("", "profile", "list"), "*  lab")
	require.Contains(t, p.must("", "profile", "list", "--json"), `"as": "login"`)
	require.NotContains(t, p.must("", "profile", "list", "--json"), "token-")
	p.must("", "profile", "use", "127.0.0.1")

	require.Contains(t, p.must("", "logout"), "logged out")
	require.NotContains(t, p.file("127.0.0.1"), "BERTH_LOGIN")
	require.Len(t, w.logins, 1, "the other profile's login goes on")
	require.Contains(t, p.must("", "logout"), "holds no login")
	p.must("", "profile", "rm", "lab")
	require.Empty(t, p.file("lab"))
}

// A page encrypts the login to the key in its address; whoever pastes something else is told, and may go on.
func TestLoginByBrowser(t *testing.T) {
	t.Parallel()
	w, p := newWeb(t), newPerson(t)
	w.logins["from-the-page"] = true
	in, pasted := io.Pipe()
	said := &lines{found: make(chan string, 100)}
	done := make(chan int, 1)
	go func() { done <- p.run(in, said, "login", w.URL, "--browser") }()
	address := await.Value(t, said.found)
	for !strings.Contains(address, "/server/cli?") {
		address = await.Value(t, said.found)
	}
	u, err := url.Parse(strings.TrimSpace(address))
	require.NoError(t, err)
	require.Contains(t, u.Query().Get("name"), "berth/test on ")
	other, err := clientlogin.NewHandover()
	require.NoError(t, err)
	wrong, err := clientlogin.Seal(other.Key(), "from-the-page")
	require.NoError(t, err)
	code, err := clientlogin.Seal(u.Query().Get("key"), "from-the-page")
	require.NoError(t, err)
	_, err = fmt.Fprintf(pasted, "%s\n%s\n", wrong, code)
	require.NoError(t, err)
	require.Zero(t, await.Value(t, done))
	require.Contains(t, p.file("127.0.0.1"), "BERTH_LOGIN='from-the-page'")
	require.NoError(t, pasted.Close())

	_, errs, code2 := p.do("", "login", w.URL, "--browser")
	require.NotZero(t, code2, "nobody can answer any more")
	require.Contains(t, errs, "no code came")
}

// lines are those of what a command says.
type lines struct {
	part  string
	found chan string
}

func (l *lines) Write(b []byte) (int, error) {
	l.part += string(b)
	for {
		line, rest, ok := strings.Cut(l.part, "\n")
		if !ok {
			return len(b), nil
		}
		l.found <- line
		l.part = rest
	}
}

func TestALoginThatEndedSaysWhatToDo(t *testing.T) {
	t.Parallel()
	w, p := newWeb(t), newPerson(t)
	p.must("right", "login", w.URL, "--user", "ada", "--password-stdin")
	clear(w.logins)
	_, errs, code := p.do("", "login", "list")
	require.Equal(t, frame.ExitDenied, code)
	require.Contains(t, errs, "next: berth login")
}

func TestLoginsThatDoNotOpen(t *testing.T) {
	t.Parallel()
	w, p := newWeb(t), newPerson(t)
	in := func(stdin string, more ...string) (string, int) {
		_, errs, code := p.do(stdin, append([]string{"login", w.URL, "--user", "ada", "--password-stdin"}, more...)...)
		require.Empty(t, p.file("127.0.0.1"), "a profile was written")
		return errs, code
	}
	errs, code := in("wrong\n")
	require.NotZero(t, code)
	require.Contains(t, errs, "User credential mismatch.")
	require.NotContains(t, errs, "wrong\n")
	errs, code = in("")
	require.Equal(t, frame.ExitUsage, code)
	require.Contains(t, errs, "must not be empty")
	w.otp = "123456"
	errs, _ = in("right")
	require.Contains(t, errs, "next: berth login --otp CODE")
	errs, _ = in("right", "--otp", "1")
	require.Contains(t, errs, "Invalid TOTP")
	w.full = true
	errs, _ = in("right", "--otp", "123456")
	require.Contains(t, errs, "next: berth login --force")
	p.must("right", "login", w.URL, "--user", "ada", "--password-stdin", "--otp", "123456", "--force")

	_, errs, code = p.do("", "login", w.URL)
	require.Equal(t, frame.ExitUsage, code)
	require.Contains(t, errs, "no terminal")
	_, errs, code = newPerson(t).do("x", "login", "--password-stdin")
	require.Equal(t, frame.ExitUsage, code)
	require.Contains(t, errs, "no web server is known")
	_, errs, _ = p.do("x", "login", "ftp://x", "--password-stdin")
	require.Contains(t, errs, "is not of the form")
}

// A manager, a stranger's page and a redirect get no password.
func TestPasswordsGoToWebServersAlone(t *testing.T) {
	t.Parallel()
	for name, h := range map[string]http.HandlerFunc{
		"not found": http.NotFound,
		"a page":    func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("<html>")) },
		"json":      func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte(`{"version":"1"}`)) },
		"redirect": func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, "https://elsewhere.invalid/", http.StatusFound)
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var bodies []string
			s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				var b bytes.Buffer
				_, _ = b.ReadFrom(r.Body)
				bodies = append(bodies, b.String())
				h(w, r)
			}))
			defer s.Close()
			p := newPerson(t)
			_, errs, code := p.do("hunter2", "login", s.URL, "--user", "ada", "--password-stdin")
			require.NotZero(t, code)
			require.NotContains(t, strings.Join(bodies, ""), "hunter2")
			require.NotContains(t, errs, "hunter2")
		})
	}
}

func TestLogoutKeepsTheLoginWhileTheServerIsAway(t *testing.T) {
	t.Parallel()
	w, p := newWeb(t), newPerson(t)
	p.must("right", "login", w.URL, "--user", "ada", "--password-stdin")
	w.Close()
	_, errs, code := p.do("", "logout")
	require.NotZero(t, code)
	require.Contains(t, errs, "try again")
	require.Contains(t, p.file("127.0.0.1"), "BERTH_LOGIN", "a login that goes on was forgotten")
	p.must("", "profile", "rm", "127.0.0.1")
}

func TestProfilesOfKeypairsAndTokens(t *testing.T) {
	t.Parallel()
	p := newPerson(t)
	p.must("s3cret\n", "profile", "set", "lab", "--endpoint", "https://lab:8090", "--access-key", "AKIA1")
	require.Contains(t, p.file("lab"), "BACKEND_SECRET_KEY='s3cret'")
	p.must("tok\n", "profile", "set", "lab", "--token", "--project", "optics")
	require.NotContains(t, p.file("lab"), "AKIA1", "two ways in")
	require.Contains(t, p.file("lab"), "BACKEND_ENDPOINT='https://lab:8090'")
	for _, bad := range [][]string{
		{"profile", "set", "x"}, {"profile", "set", "x", "--endpoint", "lab"}, {"profile", "set", "X", "--endpoint", "https://x"},
		{"profile", "set", "x", "--endpoint", "https://x", "--token"}, {"profile", "use"}, {"profile", "use", "none"},
		{"profile", "use", "lab", "--none"}, {"profile", "rm", "none"},
		{"profile", "set", "x", "--endpoint", "https://x", "--token", "--access-key", "y"},
	} {
		_, errs, code := p.do("", bad...)
		require.NotZero(t, code, "%v", bad)
		require.NotEmpty(t, errs, "%v", bad)
	}
}
