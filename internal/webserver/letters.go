package webserver

import (
	"encoding/json"
	"net/http"
	"net/url"
	"strings"
)

// Pages for who has an e-mail of the managers in hand, or wants one: a new password, and the account that somebody is invited to. They need
// no login and run no scripts. The managers decide; a token goes from the address into the form, and no further.

const (
	resetPath      = "/server/reset"
	invitationPath = "/server/invitation"
	maxToken       = 200
)

// field is one line of a form.
type field struct{ Name, Label, Type, Value, Fill string }

var (
	addressField = field{"email", "Your e-mail address", "email", "", "username"}
	newPassword  = []field{
		{"password", "New password", "password", "", "new-password"}, {"again", "The same once more", "password", "", "new-password"},
	}
	newNames = []field{{"username", "User name", "text", "", "username"}, {"full_name", "Full name", "text", "", "name"}}
)

func (s *Server) serveLetter(v *visit) {
	var given url.Values
	switch v.Method {
	case http.MethodGet, http.MethodHead:
		s.showLetter(v, v.URL.Query().Get("token"), http.StatusOK, "")
		return
	case http.MethodPost:
		raw, err := v.read(maxLoginBody)
		if err != nil {
			v.unread(err)
			return
		}
		if given, err = url.ParseQuery(string(raw)); err != nil {
			v.problem(http.StatusBadRequest, slugParams, "the body is no form")
			return
		}
	default:
		v.w.Header().Set("Allow", "GET, HEAD, POST")
		v.problem(http.StatusMethodNotAllowed, slugMethod, "only GET and POST are allowed here")
		return
	}
	token := given.Get("token")
	switch {
	case token == "" && v.URL.Path == resetPath:
		s.tellManager(v, "", "/auth/reset-password", map[string]string{"email": given.Get("email")},
			page{Title: "Look into your mailbox", Text: "If there is an account with this address, an e-mail is on its way. " +
				"A new password can be set with it within 30 minutes."})
	case given.Get("password") != given.Get("again"):
		s.showLetter(v, token, http.StatusBadRequest, "The two passwords differ. Type the same one twice.")
	case v.URL.Path == resetPath:
		s.tellManager(v, token, "/auth/reset-password/confirm", map[string]string{"token": token, "new_password": given.Get("password")},
			page{Title: "Your password is set", Text: "Log in with it now.", Links: []link{{"/", "Go on"}}})
	default:
		body := map[string]string{"token": token, "password": given.Get("password")}
		for _, f := range newNames {
			if text := strings.TrimSpace(given.Get(f.Name)); text != "" {
				body[f.Name] = text
			}
		}
		s.tellManager(v, token, "/auth/invitations/accept", body,
			page{Title: "Your account is made", Text: "Log in with your e-mail address and this password.", Links: []link{{"/", "Go on"}}})
	}
}

// showLetter shows the form of the visit's address; words say what was wrong with the last one.
func (s *Server) showLetter(v *visit, token string, status int, words string) {
	p := page{Title: "Set a new password", Button: "Set it", Text: words, Again: resetPath, Fields: newPassword}
	switch {
	case len(token) > maxToken || token == "" && v.URL.Path == invitationPath:
		s.page(v, http.StatusBadRequest, page{Title: "This address is incomplete", Text: "Copy the whole address from the e-mail."}, "")
		return
	case token == "":
		p.Title, p.Button, p.Fields = "Forgotten your password?", "Send me an e-mail", []field{addressField}
	case v.URL.Path == invitationPath:
		p.Title, p.Button, p.Again = "Make your account", "Make it", invitationPath
		p.Fields = append(append([]field{}, newNames...), newPassword...)
	}
	if token != "" {
		p.Fields = append([]field{{"token", "", "hidden", token, ""}}, p.Fields...)
	}
	s.page(v, status, p, "'self'")
}

// tellManager asks a manager for what a form says. A refusal shows the form again.
func (s *Server) tellManager(v *visit, token, address string, body map[string]string, done page) {
	r, err := s.ask(v.ctx(), address, body)
	if err != nil {
		v.w.Header().Set("Retry-After", "2")
		s.page(v, http.StatusServiceUnavailable, page{Title: "Try again in some seconds", Text: "No manager of the cluster answers."}, "")
		return
	}
	if r.status < 300 && json.Valid(r.body) {
		s.page(v, http.StatusOK, done, "")
		return
	}
	p := r.problem()
	if r.status < 400 || p.Msg == "" {
		s.page(v, http.StatusBadGateway, page{Title: "That did not work", Text: "The manager could not do it."}, "")
		return
	}
	s.showLetter(v, token, r.status, p.Msg)
}
