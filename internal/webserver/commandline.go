package webserver

import (
	"bytes"
	"cmp"
	"crypto/rand"
	"encoding/base64"
	"errors"
	"html/template"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"unicode"

	"berth.dev/berth/api"
	"berth.dev/berth/api/login"
)

// commandLine is a command line that asks to be logged in as the user of the browser: the address of the page says who asks.
type commandLine struct {
	// Key is the public key that the login is encrypted to, see package login.
	Key string
	// Name is what the command line calls itself and its machine.
	Name string
	// Port is where it listens on the browser's own machine; 0 when it does not.
	Port int
}

// maxName bounds the name in characters, maxKey the key.
const (
	maxName = 80
	maxKey  = 100
)

func readCommandLine(q url.Values) (commandLine, bool) {
	c := commandLine{Key: q.Get("key"), Name: q.Get("name")}
	if _, err := login.Seal(c.Key, ""); err != nil || len(c.Key) > maxKey {
		return c, false
	}
	if text := q.Get("port"); text != "" {
		n, err := strconv.Atoi(text)
		if err != nil || n < 1024 || n > 65535 {
			return c, false
		}
		c.Port = n
	}
	c.Name = strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) {
			return -1
		}
		return r
	}, c.Name)
	if runes := []rune(c.Name); len(runes) > maxName {
		c.Name = string(runes[:maxName])
	}
	return c, c.Name != ""
}

// query is the command line as an address has it.
func (c commandLine) query() url.Values {
	q := url.Values{"key": {c.Key}, "name": {c.Name}}
	if c.Port != 0 {
		q.Set("port", strconv.Itoa(c.Port))
	}
	return q
}

// commandLinePath is the page on which a user of a browser logs a command line in.
const commandLinePath = "/server/cli"

// serveCommandLine shows who asks, and logs the command line in when the user says so. The login is one of its own, which ends without the
// browser's. Its token leaves this server encrypted.
func (s *Server) serveCommandLine(v *visit) {
	if v.Method != http.MethodGet && v.Method != http.MethodHead && v.Method != http.MethodPost {
		v.w.Header().Set("Allow", "GET, HEAD, POST")
		v.problem(http.StatusMethodNotAllowed, slugMethod, "only GET and POST are allowed here")
		return
	}
	c, ok := readCommandLine(v.URL.Query())
	if !ok {
		s.page(v, http.StatusBadRequest, page{Title: "This address is incomplete",
			Text: "Copy the whole address that the command line shows, or begin again there."}, "")
		return
	}
	_, err := s.logins.find(v.ctx(), v.token())
	switch {
	case errors.Is(err, errNoLogin):
		p := page{Title: "Log in first", Text: "You are not logged in here. Log in, then open this address again."}
		all, _ := s.providers(v) // without them the page is the same, less its links
		for _, one := range all.Items {
			next := url.Values{"next": {commandLinePath + "?" + c.query().Encode()}}
			start := flowPath + "/" + url.PathEscape(one.Name) + "/start?" + next.Encode()
			p.Links = append(p.Links, link{start, "Log in with " + cmp.Or(one.Title, one.Name)})
		}
		s.page(v, http.StatusUnauthorized, p, "")
		return
	case err != nil:
		v.away()
		return
	}
	if v.Method != http.MethodPost {
		s.page(v, http.StatusOK, page{Title: "Log in a command line?", Ask: c.Name, Again: "?" + c.query().Encode()},
			"'self' "+c.loopback())
		return
	}
	s.approve(v, c)
}

// loopback is where the command line listens, "" when it does not.
func (c commandLine) loopback() string {
	if c.Port == 0 {
		return ""
	}
	return "http://127.0.0.1:" + strconv.Itoa(c.Port)
}

// approve opens the login of a command line.
func (s *Server) approve(v *visit, c commandLine) {
	r, err := s.ask(v.ctx(), "/auth/logins/sibling", login.Sibling{Token: v.token(), Agent: c.Name})
	if err != nil {
		v.away()
		return
	}
	l, err := r.login()
	if err != nil {
		text := "The manager did not open a login."
		if p := r.problem(); p.Msg != "" {
			text = p.Msg
		}
		s.page(v, http.StatusConflict, page{Title: "The command line is not logged in", Text: text}, "")
		return
	}
	code, err := login.Seal(c.Key, api.Secret(l.SessionToken))
	if err != nil {
		panic(err) // the key was read before
	}
	if c.Port != 0 {
		v.w.Header().Set("Location", c.loopback()+"/?"+url.Values{"code": {code}}.Encode())
		v.w.Header().Set("Cache-Control", "no-store")
		v.write(http.StatusSeeOther, nil)
		return
	}
	s.page(v, http.StatusOK, page{Title: "One more step", Code: code,
		Text: "Copy this code into the terminal in which you began. It is of use nowhere else."}, "")
}

type page struct {
	Title, Text string
	// Ask is who asks for a login, Again where the answer goes.
	Ask, Again string
	Code       string
	Nonce      string
	Links      []link
	// Fields and Button are a form; where its answer goes is Again, too.
	Fields []field
	Button string
}

type link struct{ Href, Text string }

var pages = template.Must(template.New("page").Parse(`<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width,initial-scale=1"><title>{{.Title}}</title>
<style nonce="{{.Nonce}}">body{font:16px/1.5 system-ui,sans-serif;max-width:38rem;margin:12vh auto;padding:0 1rem}
code{background:#8882;border-radius:4px;padding:.4rem .6rem;display:block;overflow-wrap:anywhere;user-select:all}
button,input{font:inherit;padding:.4rem 1.2rem}label{display:block;margin:0 0 1rem}label input{display:block;width:100%;
box-sizing:border-box;padding:.4rem}</style></head>
<body><h1>{{.Title}}</h1>
{{with .Text}}<p>{{.}}</p>{{end}}
{{if .Ask}}<p><b>{{.Ask}}</b> asks to act as you until you log it out.</p>
<p>Go on only if you began this a moment ago, in a terminal of yours. Otherwise close this page: nothing has happened.</p>
<form method="post" action="{{.Again}}"><button>Log it in</button></form>{{end}}
{{if .Fields}}<form method="post" action="{{.Again}}">
{{range .Fields}}{{if .Label}}<label>{{.Label}} <input name="{{.Name}}" type="{{.Type}}" autocomplete="{{.Fill}}"></label>
{{else}}<input name="{{.Name}}" type="hidden" value="{{.Value}}">
{{end}}{{end}}<button>{{.Button}}</button></form>{{end}}
{{range .Links}}<p><a href="{{.Href}}">{{.Text}}</a></p>
{{end}}{{with .Code}}<code id="code">{{.}}</code>{{end}}
</body></html>
`))

// page shows a page of this server's own; forms is where its form may lead.
func (s *Server) page(v *visit, status int, p page, forms string) {
	p.Nonce = newNonce()
	v.show(status, pages, p, p.Nonce, forms)
}

// newNonce is what a policy names the styles and scripts of one answer by.
func newNonce() string {
	var raw [18]byte
	_, _ = rand.Read(raw[:]) // never fails
	return base64.RawURLEncoding.EncodeToString(raw[:])
}

// show answers with a page of this server's own, which runs no scripts.
func (v *visit) show(status int, text *template.Template, data any, nonce, forms string) {
	var b bytes.Buffer
	if err := text.Execute(&b, data); err != nil {
		panic(err) // own text only
	}
	if forms == "" {
		forms = "'none'"
	}
	h := v.w.Header()
	h.Set("Content-Security-Policy", "default-src 'none'; style-src 'nonce-"+nonce+"'; base-uri 'none'; form-action "+
		strings.TrimSpace(forms)+"; frame-ancestors 'none'")
	h.Set("Content-Type", contentTypes[".html"])
	h.Set("Cache-Control", "no-store")
	v.write(status, b.Bytes())
}
