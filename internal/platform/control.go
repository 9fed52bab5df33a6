package platform

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"time"

	"berth.dev/berth/api"
	"berth.dev/berth/internal/chassis"
	"berth.dev/berth/internal/embedded"
	"berth.dev/berth/internal/fault"
)

// controlSocket is where a running cluster answers `berth status`, `berth doctor` and `berth admin`.
func (d StateDir) controlSocket() string {
	return filepath.Join(embedded.SocketDir(string(d), "ctl", "berth.sock"), "berth.sock")
}

func (p *platform) serveStatus(w http.ResponseWriter, r *http.Request) {
	_, services := p.health.Ready(r.Context())
	p.mu.Lock()
	out := p.report
	proxy, apps := p.storage, p.apps
	p.mu.Unlock()
	out.Volumes = volumeLines(proxy)
	if apps != nil {
		status := apps.Status()
		out.Apps = &status
	}
	out.Services = services
	writeJSON(w, out)
}

func (p *platform) serveFindings(w http.ResponseWriter, r *http.Request) {
	p.mu.Lock()
	m, a, proxy, apps, web := p.manager, p.agent, p.storage, p.apps, p.web
	p.mu.Unlock()
	if m == nil || a == nil || proxy == nil {
		http.Error(w, "the cluster is still starting", http.StatusServiceUnavailable)
		return
	}
	found := []Finding{}
	rows, err := m.Findings(r.Context())
	if err != nil {
		found = append(found, Finding{Kind: "database", Object: "rows", Problem: err.Error(), Next: "berth status"})
	}
	for _, f := range rows {
		found = append(found, Finding{Warning: f.Severity == "warning", Kind: f.Kind, Object: f.Object, Problem: f.Detail, Next: f.Next})
	}
	found = append(found, TransportFindings(m.Transport(), m.APIAddr())...)
	found = append(found, plainAppsFindings(p.settings)...)
	found = append(found, WebServerFindings(web)...)
	local, err := a.Findings(r.Context())
	if err != nil {
		found = append(found, Finding{Kind: "agent", Object: "state", Problem: err.Error(), Next: "berth status"})
	}
	found = append(found, StorageFindings(proxy.Findings())...)
	if apps != nil {
		found = append(found, AppProxyFindings(apps.Findings())...)
	}
	writeJSON(w, append(found, AgentFindings(local)...))
}

// serveReset answers on the control socket, which only the cluster's own user and root may open.
func (p *platform) serveReset(w http.ResponseWriter, r *http.Request) {
	p.mu.Lock()
	m := p.manager
	p.mu.Unlock()
	if m == nil {
		http.Error(w, "the cluster is still starting", http.StatusServiceUnavailable)
		return
	}
	email, password, err := m.Nouns().Tenancy.ResetAdminPassword(r.Context())
	if err != nil {
		http.Error(w, err.Error(), http.StatusServiceUnavailable)
		return
	}
	p.log.Warn("the administrator's password was reset from this machine", "user", email)
	writeJSON(w, Login{email, password.Reveal()})
}

func writeJSON(w http.ResponseWriter, v any) {
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(v) // a caller that left needs no answer
}

// maxAnswer bounds what is read from the control socket.
const maxAnswer = 8 << 20

// ask reads one document from the control socket of a running cluster.
func (d StateDir) ask(ctx context.Context, path string, out any) error {
	return d.call(ctx, http.MethodGet, path, nil, out)
}

// call sends a request to the control socket and reads the answer. in is nil for a request without a body, out for an answer that
// says nothing.
func (d StateDir) call(ctx context.Context, method, path string, in, out any) error {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	client := &http.Client{Transport: &http.Transport{
		DisableKeepAlives: true,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			var dialer net.Dialer
			return dialer.DialContext(ctx, "unix", d.controlSocket())
		},
	}, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	var question io.Reader
	if in != nil {
		text, err := json.Marshal(in)
		if err != nil {
			return err
		}
		question = bytes.NewReader(text)
	}
	req, err := http.NewRequestWithContext(ctx, method, "http://berth"+path, question)
	if err != nil {
		return err
	}
	resp, err := client.Do(req)
	if err != nil {
		return fault.Unavailablef("the cluster in %s does not answer", d).WithCause(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswer))
	if err != nil {
		return err
	}
	if resp.StatusCode != http.StatusOK {
		if err := faultOf(body); err != nil {
			return err
		}
		return fault.Unavailablef("the cluster in %s answers: %s", d, strings.TrimSpace(string(body)))
	}
	if out == nil {
		return nil
	}
	return json.Unmarshal(body, out)
}

// Status asks a running cluster how it is.
func (d StateDir) Status(ctx context.Context) (Report, error) {
	var r Report
	err := d.ask(ctx, "/status", &r)
	return r, err
}

// Client speaks to the cluster as its administrator.
func (d StateDir) Client() (*api.Client, error) {
	cfg, err := api.LoadConfig(api.Lookup{StateDir: string(d)})
	if err != nil {
		return nil, err
	}
	return api.New(cfg, api.WithUserAgent("berth/"+chassis.Build().Version))
}

func allLive() api.SessionFilter { return api.SessionFilter{Statuses: api.LiveStatuses} }

// Count asks the API of a running cluster what there is.
func (d StateDir) Count(ctx context.Context) (Counts, error) {
	client, err := d.Client()
	if err != nil {
		return Counts{}, err
	}
	defer client.Close()
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	c := Counts{Agents: map[string]int{}, Sessions: map[string]int{}}
	for _, status := range []string{"ALIVE", "LOST"} {
		agents, err := client.Agents(ctx, status)
		if err != nil {
			return Counts{}, err
		}
		if len(agents) > 0 {
			c.Agents[status] = len(agents)
		}
	}
	sessions, err := client.Sessions(ctx, allLive())
	if err != nil {
		return Counts{}, err
	}
	for _, s := range sessions {
		c.Sessions[s.Status]++
	}
	return c, nil
}

// Findings asks a running cluster what is not as it should be.
func (d StateDir) Findings(ctx context.Context) ([]Finding, error) {
	var found []Finding
	err := d.ask(ctx, "/findings", &found)
	return found, err
}
