package webserver

import (
	"net/http"
	"strings"

	"berth.dev/berth/web"
)

// serveOwn answers with a file of the console. An address that is no file is a page, except below assets: there it is a file of an earlier
// version, and the page that asks for it has to hear so.
func (s *Server) serveOwn(v *visit, name string) {
	switch {
	case web.ServeFile(v.w, v.Request, s.files, name):
	case strings.HasPrefix(name, web.Assets):
		v.problem(http.StatusNotFound, slugNotFound, "no such file in this version of the console")
	default:
		s.serveIndex(v)
	}
}
