package httpapi

import (
	"bytes"
	"encoding/json"
	"net/http"

	"go.yaml.in/yaml/v3"

	"berth.dev/berth/api"
	wire "berth.dev/berth/api/template"
	"berth.dev/berth/internal/manager/httpapi/params"
	"berth.dev/berth/internal/manager/session/template"
)

// kindOnWire is what lists call the kinds of templates.
var kindOnWire = map[template.Kind]string{template.Session: "task", template.Cluster: "cluster"}

func (a *API) templateRoutes() {
	for _, kind := range []template.Kind{template.Session, template.Cluster} {
		base := "/template/" + string(kind)
		a.handle(unfrozen, a.createTemplates(kind), "POST "+base)
		a.handle(signedOnly, a.listTemplates(kind), "GET "+base)
		a.handle(signedOnly, a.getTemplate(kind), "GET "+base+"/{id}")
		a.handle(unfrozen, a.replaceTemplate(kind), "PUT "+base+"/{id}")
		a.handle(unfrozen, a.deleteTemplate(kind), "DELETE "+base+"/{id}")
	}
	a.handle(unfrozen, a.waiting(a.createFromTemplate(template.Session)), withKernel("POST", "/_/create-from-template")...)
	a.handle(unfrozen, a.waiting(a.createFromTemplate(template.Cluster)), withKernel("POST", "/_/create-cluster")...)
}

// payload is a text, or the document itself.
func payload(p *params.Set) string {
	v, ok := p.Members()["payload"]
	if !ok || v == nil {
		return p.Need("payload")
	}
	if text, ok := v.(string); ok {
		return text
	}
	raw, err := json.Marshal(v)
	if err != nil {
		p.Fail("payload", "must be JSON or YAML")
	}
	return string(raw)
}

func (a *API) createTemplates(kind template.Kind) handler {
	return func(c *call) error {
		p, err := c.params()
		if err != nil {
			return err
		}
		text := payload(p)
		whose := template.Whose{Owner: owner(p), Project: p.Text("group|group_name|group_id", "default"),
			Domain: p.Text("domain|domain_name", "")}
		if err := p.Err(); err != nil {
			return err
		}
		made, err := a.templates.Create(c.ctx(), c.actor, kind, whose, text)
		if err != nil {
			return err
		}
		out := make([]wire.Created, len(made))
		for i, t := range made {
			out[i] = wire.Created{ID: t.ID, User: string(t.Owner)}
		}
		return c.ok(out)
	}
}

func (a *API) listTemplates(kind template.Kind) handler {
	return func(c *call) error {
		p, err := c.params()
		if err != nil {
			return err
		}
		all, project := p.Flag("all", false), p.Text("group_id|group", "")
		if err := p.Err(); err != nil {
			return err
		}
		found, err := a.templates.List(c.ctx(), c.actor, kind, all, project)
		if err != nil {
			return err
		}
		out := make([]wire.Template, len(found))
		for i, t := range found {
			out[i] = wire.Template{Name: t.Name, ID: t.ID, CreatedAt: api.Time{Time: t.CreatedAt}, IsOwner: t.Owner == c.actor.UserID,
				User: string(t.Owner), ProjectID: string(t.Project), UserEmail: t.OwnerEmail, Project: t.ProjectName,
				Domain: t.Domain, Type: kindOnWire[t.Kind], Template: t.Document}
		}
		return c.ok(out)
	}
}

func (a *API) getTemplate(kind template.Kind) handler {
	return func(c *call) error {
		p, err := c.params()
		if err != nil {
			return err
		}
		format := p.Text("format", "yaml")
		if format != "yaml" && format != "json" {
			p.Fail("format", "must be yaml or json")
		}
		if err := p.Err(); err != nil {
			return err
		}
		t, err := a.templates.Get(c.ctx(), c.actor, kind, c.r.PathValue("id"))
		if err != nil {
			return err
		}
		if format == "json" {
			return c.ok(wire.Info{Template: t.Document, Name: t.Name, User: string(t.Owner), ProjectID: string(t.Project),
				Domain: t.Domain})
		}
		text, err := yamlOf(t.Document)
		if err != nil {
			return err
		}
		return c.stream("text/yaml", bytes.NewReader(text))
	}
}

// yamlOf writes a JSON document as YAML, its fields in the same order.
func yamlOf(document json.RawMessage) ([]byte, error) {
	var node yaml.Node
	if err := yaml.Unmarshal(document, &node); err != nil {
		return nil, err
	}
	unquote(&node)
	return yaml.Marshal(&node)
}

// unquote takes the style of JSON off: lines instead of braces, quotes only where they are needed.
func unquote(n *yaml.Node) {
	n.Style &^= yaml.FlowStyle
	if n.Kind == yaml.ScalarNode && n.Tag == "!!str" {
		n.Style = 0
	}
	for _, child := range n.Content {
		unquote(child)
	}
}

func (a *API) replaceTemplate(kind template.Kind) handler {
	return func(c *call) error {
		p, err := c.params()
		if err != nil {
			return err
		}
		text := payload(p)
		if err := p.Err(); err != nil {
			return err
		}
		if err := a.templates.Replace(c.ctx(), c.actor, kind, c.r.PathValue("id"), text); err != nil {
			return err
		}
		return c.ok(api.Done{Success: true})
	}
}

func (a *API) deleteTemplate(kind template.Kind) handler {
	return func(c *call) error {
		if err := a.templates.Delete(c.ctx(), c.actor, kind, c.r.PathValue("id")); err != nil {
			return err
		}
		return c.json(http.StatusOK, api.Done{Success: true})
	}
}

// createFromTemplate creates a session; what the request says itself counts instead of what the template says.
func (a *API) createFromTemplate(kind template.Kind) handler {
	return func(c *call) error {
		p, err := c.params()
		if err != nil {
			return err
		}
		id := p.Need("template_id|templateId")
		req, h := createRequest(p, func(name string) string { return p.Text(name, "") }), readHold(p)
		if err := p.Err(); err != nil {
			return err
		}
		fill := a.templates.Session
		if kind == template.Cluster {
			fill = a.templates.Cluster
		}
		if req, err = fill(c.ctx(), c.actor, id, req); err != nil {
			return err
		}
		return a.start(c, req, h)
	}
}
