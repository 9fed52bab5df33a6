package front

import (
	"net/url"
	"strings"
	"testing"
)

// FuzzRedirect: what a stranger writes as the place to go on to leads nowhere but to the same host, however a browser reads it.
func FuzzRedirect(f *testing.F) {
	for _, s := range []string{"/", "/lab?x=1#y", "//evil.example", "/\\evil.example", "/%2f%2fevil", "https://evil.example/", "/a//b",
		"/.//evil", "/x/..//evil", "/\tx", "/:80"} {
		f.Add(s)
	}
	base := &url.URL{Scheme: "https", Host: "app.example.org", Path: "/setup"}
	f.Fuzz(func(t *testing.T, text string) {
		to := relative(text)
		if to == "" {
			return
		}
		// Browsers take a backslash for a slash, and leave tabs and line breaks out.
		read := strings.NewReplacer("\\", "/", "\t", "", "\n", "", "\r", "").Replace(to)
		if strings.HasPrefix(read, "//") || !strings.HasPrefix(read, "/") {
			t.Fatalf("%q leads to %q", text, to)
		}
		u, err := base.Parse(read)
		if err != nil || u.Host != base.Host || u.Scheme != base.Scheme {
			t.Fatalf("%q leads to %v, %v", text, u, err)
		}
	})
}

// FuzzLaunch: parameters of strangers make a request of bounded values, or none.
func FuzzLaunch(f *testing.F) {
	f.Add("token=t&session_id=s&app=jupyter&port=10205&mode=port&open_to_public=true")
	f.Add("token=t&session_id=s&app=a&app_port=null&mode=none")
	f.Fuzz(func(t *testing.T, query string) {
		q, err := url.ParseQuery(query)
		if err != nil {
			return
		}
		r, err := launchOf(q)
		if err != nil {
			return
		}
		if r.Token == "" || r.Session == "" || r.App == "" || len(r.Token) > 256 || len(r.Session) > 128 || len(r.App) > 128 ||
			r.Port < 0 || r.Port > 65535 || r.ProxyPort < 0 || r.ProxyPort > 65535 {
			t.Fatalf("%q became %+v", query, r)
		}
	})
}
