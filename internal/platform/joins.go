package platform

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"time"

	"berth.dev/berth/internal/chassis"
	"berth.dev/berth/internal/fault"
	"berth.dev/berth/internal/manager"
	"berth.dev/berth/internal/manager/link/ca"
	"berth.dev/berth/internal/membership"
	"berth.dev/berth/internal/wire/proxy"
)

// JoinToken is what is known of a join token: everything but its secret.
type JoinToken = ca.Token

// NewJoinToken asks for a join token.
type NewJoinToken struct {
	Role    string        `json:"role"`
	Name    string        `json:"name"`
	Replace bool          `json:"replace"`
	Life    time.Duration `json:"life"`
	By      string        `json:"by"`
}

// MadeJoinToken is a new token with its text, which nobody can read later.
type MadeJoinToken struct {
	JoinToken
	Text string `json:"token"`
}

// Joins is how an administrator of a manager's host decides who may join the cluster.
type Joins interface {
	Create(ctx context.Context, r NewJoinToken) (MadeJoinToken, error)
	List(ctx context.Context) ([]JoinToken, error)
	Revoke(ctx context.Context, id string) error
	// RevokeCertificates ends the certificates of a node. It joins again with a token that replaces it.
	RevokeCertificates(ctx context.Context, role, name string) error
}

// authority is Joins in the process that has the cluster's authority.
type authority struct{ *ca.Authority }

func (a authority) Create(ctx context.Context, r NewJoinToken) (MadeJoinToken, error) {
	role, err := ca.ParseRole(r.Role)
	if err != nil {
		return MadeJoinToken{}, err
	}
	text, t, err := a.NewToken(ctx, ca.TokenRequest{Node: ca.Node{Role: role, Name: r.Name}, Replace: r.Replace, Life: r.Life, By: r.By})
	if err != nil {
		return MadeJoinToken{}, err
	}
	return MadeJoinToken{JoinToken: t, Text: text.String()}, nil
}

func (a authority) List(ctx context.Context) ([]JoinToken, error) { return a.Tokens(ctx) }
func (a authority) Revoke(ctx context.Context, id string) error   { return a.RevokeToken(ctx, id) }

func (a authority) RevokeCertificates(ctx context.Context, role, name string) error {
	r, err := ca.ParseRole(role)
	if err != nil {
		return err
	}
	return a.Authority.RevokeCertificates(ctx, ca.Node{Role: r, Name: name})
}

// JoinsInDatabase decides without the manager, on its database and with its master key. The caller calls done.
func JoinsInDatabase(ctx context.Context, cfg manager.Config) (j Joins, done func(), err error) {
	a, done, err := manager.OpenAuthority(ctx, cfg)
	if err != nil {
		return nil, nil, err
	}
	return authority{a}, done, nil
}

// InviteManager makes a join token for another manager, beside a manager of the cluster.
func InviteManager(ctx context.Context, cfg manager.Config, r NewJoinToken) (MadeJoinToken, error) {
	t, err := manager.InviteManager(ctx, cfg, r.Name, r.By, r.Life)
	if err != nil {
		return MadeJoinToken{}, err
	}
	return MadeJoinToken{JoinToken: JoinToken{ID: t.ID, Role: RoleManager, Name: t.Name, By: r.By, Expires: t.Expires}, Text: t.Text}, nil
}

// maxTokenFile bounds the file of a join token.
const maxTokenFile = 4 << 10

// JoinManagers lets the manager of cfg join its cluster with the token of a file.
func JoinManagers(ctx context.Context, cfg manager.Config, file string) error {
	f, err := os.Open(file)
	if err != nil {
		return fault.Invalidf("the join token cannot be read").WithCause(err)
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, maxTokenFile))
	if err != nil {
		return fmt.Errorf("read the join token: %w", err)
	}
	return manager.JoinManager(ctx, cfg, string(text))
}

// JoinsOf asks the process that `berth up` started.
func JoinsOf(dir StateDir) (Joins, error) {
	if _, running := dir.Owner(); !running {
		return nil, fault.Unavailablef("no cluster runs in %s", dir).WithNext("berth up --detach --state-dir %s, then try again", dir)
	}
	return controlled{dir}, nil
}

// The paths of the control socket.
const (
	pathJoinTokens   = "/admin/join-tokens"
	pathCertificates = "/admin/certificates"
)

// controlled is Joins over the control socket.
type controlled struct{ dir StateDir }

func (c controlled) Create(ctx context.Context, r NewJoinToken) (made MadeJoinToken, err error) {
	err = c.dir.call(ctx, http.MethodPost, pathJoinTokens, r, &made)
	return made, err
}

func (c controlled) List(ctx context.Context) (list []JoinToken, err error) {
	err = c.dir.ask(ctx, pathJoinTokens, &list)
	return list, err
}

func (c controlled) Revoke(ctx context.Context, id string) error {
	return c.dir.call(ctx, http.MethodDelete, pathJoinTokens+"/"+url.PathEscape(id), nil, nil)
}

func (c controlled) RevokeCertificates(ctx context.Context, role, name string) error {
	return c.dir.call(ctx, http.MethodDelete, pathCertificates+"/"+url.PathEscape(role)+"/"+url.PathEscape(name), nil, nil)
}

// maxQuestion bounds what is read of a request on the control socket.
const maxQuestion = 64 << 10

// serveJoins adds what Joins asks for to the control socket, which only the cluster's own user and root may open.
func (p *platform) serveJoins(mux *http.ServeMux) {
	answer := func(pattern string, do func(ctx context.Context, j Joins, r *http.Request) (any, error)) {
		mux.HandleFunc(pattern, func(w http.ResponseWriter, r *http.Request) {
			r.Body = http.MaxBytesReader(w, r.Body, maxQuestion)
			j, err := p.joins()
			var out any
			if err == nil {
				out, err = do(r.Context(), j, r)
			}
			if err != nil {
				writeFault(w, err)
				return
			}
			writeJSON(w, out)
		})
	}
	answer("POST "+pathJoinTokens, func(ctx context.Context, j Joins, r *http.Request) (any, error) {
		var q NewJoinToken
		if err := json.NewDecoder(r.Body).Decode(&q); err != nil {
			return nil, fault.Invalidf("the request cannot be read").WithCause(err)
		}
		made, err := j.Create(ctx, q)
		if err == nil {
			p.log.Warn("a join token was made from this machine", "token", made.ID, "role", made.Role, "name", made.Name,
				"replace", made.Replace, "by", made.By)
		}
		return made, err
	})
	answer("GET "+pathJoinTokens, func(ctx context.Context, j Joins, _ *http.Request) (any, error) { return j.List(ctx) })
	answer("DELETE "+pathJoinTokens+"/{id}", func(ctx context.Context, j Joins, r *http.Request) (any, error) {
		return struct{}{}, j.Revoke(ctx, r.PathValue("id"))
	})
	answer("DELETE "+pathCertificates+"/{role}/{name}", func(ctx context.Context, j Joins, r *http.Request) (any, error) {
		err := j.RevokeCertificates(ctx, r.PathValue("role"), r.PathValue("name"))
		if err == nil {
			p.log.Warn("certificates were revoked from this machine", "role", r.PathValue("role"), "name", r.PathValue("name"))
		}
		return struct{}{}, err
	})
}

// joins is nil until the manager runs.
func (p *platform) joins() (Joins, error) {
	p.mu.Lock()
	m := p.manager
	p.mu.Unlock()
	if m == nil || m.Authority() == nil {
		return nil, fault.Unavailablef("the cluster is still starting").WithNext("try again in a moment")
	}
	return authority{m.Authority()}, nil
}

// problem is a fault on the control socket.
type problem struct {
	Kind    fault.Kind `json:"kind"`
	Reason  string     `json:"reason,omitempty"`
	Message string     `json:"message"`
	Next    string     `json:"next,omitempty"`
}

func writeFault(w http.ResponseWriter, err error) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(http.StatusConflict)
	// A caller that left needs no answer.
	_ = json.NewEncoder(w).Encode(problem{fault.KindOf(err), fault.ReasonOf(err), err.Error(), fault.NextOf(err)})
}

// faultOf reads what writeFault wrote; nil when it is something else.
func faultOf(body []byte) error {
	var p problem
	if json.Unmarshal(body, &p) != nil || p.Message == "" {
		return nil
	}
	f := fault.New(p.Kind, "%s", p.Message).WithReason(p.Reason)
	f.Next = p.Next
	return f
}

// Admit lets an agent or app proxy of the manager's own process join without an operator: it returns a token that nobody else sees,
// or an empty one for a member that has a valid certificate. stateDir is the node's. An agent takes the place of one of that name,
// because whoever has the manager decides about that; an app proxy becomes one replica more.
func (m *Manager) Admit(ctx context.Context, role, name, stateDir string) (chassis.Secret, error) {
	commonName := name
	if role == RoleAppProxy {
		commonName = proxy.NamePrefix + name
	}
	if membership.Belongs(filepath.Join(stateDir, "node"), commonName, m.Authority().Certificate(), time.Now()) {
		return chassis.Secret{}, nil
	}
	made, err := authority{m.Authority()}.Create(ctx,
		NewJoinToken{Role: role, Name: name, Replace: role == RoleAgent, By: "the manager's process"})
	if err != nil {
		return chassis.Secret{}, err
	}
	return chassis.NewSecret(made.Text), nil
}

// removeOldToken removes the file by which earlier versions let agents and app proxies of this machine join. What it holds opens
// nothing any more.
func (d StateDir) removeOldToken() { _ = os.Remove(d.Path("agent", "join.token")) }
