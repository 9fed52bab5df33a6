package front

import (
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"html/template"
	"net/http"
	"strconv"
	"strings"

	"berth.dev/berth/internal/fault"
)

// page is a message of the proxy itself to a visitor.
type page struct {
	status int
	slug   string // for programs
	title  string // what happened
	words  string // more of it
	next   string // what to do
	retry  int    // seconds after which a browser should try by itself; 0 for never
	link   string // where next leads; own texts only
	linkTo string
}

const style = `body{font:16px/1.5 system-ui,sans-serif;color:#1d2433;background:#f5f6f8;margin:0}` +
	`main{max-width:34rem;margin:14vh auto 0;padding:2rem;background:#fff;border-radius:10px;box-shadow:0 1px 4px #0002}` +
	`h1{font-size:1.35rem;margin:0 0 .6rem}p{margin:.5rem 0}` +
	`code{background:#eef0f4;border-radius:4px;padding:.1rem .35rem;overflow-wrap:anywhere}` +
	`small{color:#6a7285}a{color:#1857c4}@media(prefers-color-scheme:dark){body{background:#14171d;color:#e3e7ef}main{background:#1d222b}` +
	`code{background:#2a313d}small{color:#97a0b3}a{color:#7fb0ff}}`

// policy is the Content-Security-Policy of the proxy's pages: nothing but their own style sheet, and no frames.
var policy = func() string {
	sum := sha256.Sum256([]byte(style))
	return "default-src 'none'; style-src 'sha256-" + base64.StdEncoding.EncodeToString(sum[:]) + "'; base-uri 'none'; form-action " +
		"'none'; frame-ancestors 'none'"
}()

var pages = template.Must(template.New("page").Parse(`<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width,initial-scale=1">` +
	`{{if .Retry}}<meta http-equiv="refresh" content="{{.Retry}}">{{end}}<title>{{.Title}}</title><style>` + style + `</style></head>
<body><main><h1>{{.Title}}</h1>{{if .Words}}<p>{{.Words}}</p>{{end}}{{if .Next}}<p>{{.Next}}</p>{{end}}` +
	`{{if .LinkTo}}<p><a href="{{.LinkTo}}">{{.Link}}</a></p>{{end}}<p><small>Berth app proxy · {{.Slug}}</small></p></main></body></html>
`))

// WantsHTML reports whether the client accepts HTML, which browsers do.
func WantsHTML(r *http.Request) bool {
	return r.Header.Get("Upgrade") == "" && strings.Contains(r.Header.Get("Accept"), "text/html")
}

// ServeHTTP answers with the page: as HTML when WantsHTML, else as JSON.
func (p page) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	h := w.Header()
	h.Set("Cache-Control", "no-store")
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Referrer-Policy", "no-referrer")
	if p.retry > 0 {
		h.Set("Retry-After", strconv.Itoa(p.retry))
	}
	if !WantsHTML(r) {
		h.Set("Content-Type", "application/problem+json")
		w.WriteHeader(p.status)
		if r.Method != http.MethodHead {
			// error_code is what the web console looks for, msg and title what the API's clients read. A reader that left needs nothing.
			_ = json.NewEncoder(w).Encode(map[string]any{
				"type": "about:blank", "title": p.title, "status": p.status, "error_code": p.slug, "reason": p.slug,
				"msg": strings.TrimSpace(p.title + " " + p.words), "next": p.next,
			})
		}
		return
	}
	h.Set("Content-Type", "text/html; charset=utf-8")
	h.Set("Content-Security-Policy", policy)
	w.WriteHeader(p.status)
	if r.Method != http.MethodHead {
		_ = pages.Execute(w, map[string]any{"Title": p.title, "Words": p.words, "Next": p.next, "Slug": p.slug, "Retry": p.retry,
			"Link": p.link, "LinkTo": template.URL(p.linkTo)}) //nolint:gosec // own texts only
	}
}

// statuses of fault kinds.
var statuses = map[fault.Kind]int{
	fault.NotFound: http.StatusNotFound, fault.Conflict: http.StatusConflict, fault.Denied: http.StatusForbidden,
	fault.Unauthenticated: http.StatusUnauthorized, fault.Invalid: http.StatusBadRequest, fault.Exhausted: http.StatusTooManyRequests,
	fault.Unavailable: http.StatusServiceUnavailable, fault.Timeout: http.StatusGatewayTimeout, fault.Internal: http.StatusInternalServerError,
}

// pageOf says what an error is. The words of internal errors are not for visitors.
func pageOf(title string, err error) page {
	kind := fault.KindOf(err)
	p := page{status: statuses[kind], slug: fault.ReasonOf(err), title: title, next: fault.NextOf(err)}
	if p.slug == "" {
		p.slug = kind.String()
	}
	switch kind {
	case fault.Internal:
	case fault.Unavailable, fault.Timeout:
		p.words, p.retry = sentence(err), 3
	default:
		p.words = sentence(err)
	}
	return p
}

// sentence writes an error's words for people, without the causes below it.
func sentence(err error) string {
	text := err.Error()
	if f := firstFault(err); f != nil && f.Msg != "" {
		text = f.Msg
	}
	if text == "" {
		return ""
	}
	text = strings.ToUpper(text[:1]) + text[1:]
	if !strings.HasSuffix(text, ".") {
		text += "."
	}
	return text
}
