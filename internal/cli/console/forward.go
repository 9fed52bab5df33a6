package console

import (
	"log"
	"net/http"
	"net/http/httputil"
	"net/url"
	"strings"

	"berth.dev/berth/api"
)

// forwarded are the header fields of a browser that a manager gets; what else a browser sends is for whom it talks to.
var forwarded = map[string]bool{
	"Accept": true, "Accept-Language": true, "Content-Type": true, "Content-Length": true, "Range": true, "If-Range": true,
	"If-None-Match": true, "Last-Event-Id": true, "X-Backendai-Version": true, "Connection": true, "Upgrade": true,
	"Sec-Websocket-Key": true, "Sec-Websocket-Version": true, "Sec-Websocket-Protocol": true, "Sec-Websocket-Extensions": true,
}

// forward answers requests with what a manager answers to them as the client's user, WebSockets and event streams included. The path of a
// request is one of the API. Whoever reaches the handler acts as that user: the caller decides who does.
func forward(c *api.Client) http.Handler {
	_, transport := c.Way()
	return &httputil.ReverseProxy{
		Rewrite: func(r *httputil.ProxyRequest) {
			base, _ := c.Way()
			out := r.Out
			out.URL = &url.URL{Scheme: base.Scheme, Host: base.Host, Path: strings.TrimRight(base.Path, "/") + r.In.URL.Path,
				RawQuery: r.In.URL.RawQuery}
			if r.In.URL.RawPath != "" {
				out.URL.RawPath = strings.TrimRight(base.EscapedPath(), "/") + r.In.URL.RawPath
			}
			out.Host = base.Host
			for name := range out.Header {
				if !forwarded[name] {
					out.Header.Del(name)
				}
			}
			out.Header.Set(api.HeaderDomain, c.Config().Domain)
			kind, digest := "text/plain", api.BodyDigest(nil)
			switch {
			case out.Header.Get("Upgrade") != "":
				kind = "application/octet-stream"
			case r.In.ContentLength != 0:
				kind, digest = "application/octet-stream", api.StreamBody
			}
			if out.Header.Get("Content-Type") == "" {
				out.Header.Set("Content-Type", kind)
			}
			c.Prove(out, digest)
		},
		Transport:     transport,
		FlushInterval: -1,
		ErrorLog:      log.New(quiet{}, "", 0),
		ErrorHandler: func(w http.ResponseWriter, _ *http.Request, err error) {
			w.Header().Set("Cache-Control", "no-store")
			refuse(w, http.StatusServiceUnavailable, "service-unavailable", "the cluster does not answer: "+err.Error(),
				"look at the network, and try again")
		},
	}
}
