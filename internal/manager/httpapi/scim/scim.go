// Package scim answers SCIM 2.0 (RFC 7644) below /scim/v2: it decodes, calls one use case of tenancy/provision, encodes. The messages
// themselves are those of package internal/manager/scim. httpapi mounts it and does the rest.
package scim

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"berth.dev/berth/internal/fault"
	"berth.dev/berth/internal/manager/httpapi/route"
	wire "berth.dev/berth/internal/manager/scim"
	"berth.dev/berth/internal/manager/tenancy/provision"
)

// Prefix begins the paths of SCIM.
const Prefix = "/scim/v2/"

// Handlers answer the routes. Provision is required.
type Handlers struct{ Provision *provision.Service }

// Routes are all of them.
func (h *Handlers) Routes() []route.Route {
	return []route.Route{
		route.Signed.To("GET /scim/v2/ServiceProviderConfig", h.config),
		route.Signed.To("GET /scim/v2/ResourceTypes", h.types),
		route.Signed.To("GET /scim/v2/ResourceTypes/{id}", h.types),
		route.Signed.To("GET /scim/v2/Schemas", h.schemas),
		route.Signed.To("GET /scim/v2/Schemas/{id}", h.schemas),
		route.Signed.To("GET /scim/v2/Users", h.listUsers),
		route.Unfrozen.To("POST /scim/v2/Users", h.createUser),
		route.Signed.To("GET /scim/v2/Users/{id}", h.getUser),
		route.Unfrozen.To("PUT /scim/v2/Users/{id}", h.replaceUser),
		route.Unfrozen.To("PATCH /scim/v2/Users/{id}", h.patchUser),
		route.Unfrozen.To("DELETE /scim/v2/Users/{id}", h.deleteUser),
		route.Signed.To("GET /scim/v2/Groups", h.listGroups),
		route.Unfrozen.To("POST /scim/v2/Groups", h.createGroup),
		route.Signed.To("GET /scim/v2/Groups/{id}", h.getGroup),
		route.Unfrozen.To("PUT /scim/v2/Groups/{id}", h.replaceGroup),
		route.Unfrozen.To("PATCH /scim/v2/Groups/{id}", h.patchGroup),
		route.Unfrozen.To("DELETE /scim/v2/Groups/{id}", h.deleteGroup),
	}
}

// ErrorOf is any error as SCIM tells it; status and words are those of its problem document.
func ErrorOf(err error, status int, words string) *wire.Error {
	var is *wire.Error
	var tooLarge *http.MaxBytesError
	switch {
	case errors.As(err, &is):
		return is
	case errors.As(err, &tooLarge):
		return &wire.Error{Status: http.StatusRequestEntityTooLarge, Detail: fmt.Sprintf("the body is larger than %d bytes",
			tooLarge.Limit)}
	case fault.Is(err, fault.Invalid) && status == http.StatusBadRequest:
		return &wire.Error{Status: status, Type: wire.InvalidValue, Detail: words}
	}
	return &wire.Error{Status: status, Detail: words}
}

func reply(c route.Call, status int, v any) error {
	body, err := json.Marshal(v)
	if err != nil {
		return fmt.Errorf("encode the reply: %w", err)
	}
	return c.Reply(status, wire.ContentType, nil, body)
}

// one replies with a resource, its address and its version.
func one(c route.Call, status int, location, version string, v any) error {
	body, err := json.Marshal(v)
	if err != nil {
		return fmt.Errorf("encode the reply: %w", err)
	}
	return c.Reply(status, wire.ContentType, map[string]string{"Location": location, "ETag": version}, body)
}

type meta struct {
	ResourceType string `json:"resourceType"`
	Created      string `json:"created,omitempty"`
	LastModified string `json:"lastModified,omitempty"`
	Version      string `json:"version,omitempty"`
	Location     string `json:"location"`
}

type ref struct {
	Value   string `json:"value"`
	Ref     string `json:"$ref,omitempty"`
	Display string `json:"display,omitempty"`
}

type name struct {
	Formatted  string `json:"formatted,omitempty"`
	GivenName  string `json:"givenName,omitempty"`
	FamilyName string `json:"familyName,omitempty"`
}

type email struct {
	Value   string `json:"value"`
	Type    string `json:"type"`
	Primary bool   `json:"primary"`
}

type user struct {
	Schemas     []string `json:"schemas"`
	ID          string   `json:"id"`
	ExternalID  string   `json:"externalId,omitempty"`
	UserName    string   `json:"userName"`
	Name        *name    `json:"name,omitempty"`
	DisplayName string   `json:"displayName,omitempty"`
	Emails      []email  `json:"emails,omitempty"`
	Active      bool     `json:"active"`
	Groups      []ref    `json:"groups,omitempty"`
	Meta        meta     `json:"meta"`
}

type group struct {
	Schemas     []string `json:"schemas"`
	ID          string   `json:"id"`
	ExternalID  string   `json:"externalId,omitempty"`
	DisplayName string   `json:"displayName"`
	Members     []ref    `json:"members,omitempty"`
	Meta        meta     `json:"meta"`
}

type listing struct {
	Schemas      []string `json:"schemas"`
	TotalResults int      `json:"totalResults"`
	StartIndex   int      `json:"startIndex"`
	ItemsPerPage int      `json:"itemsPerPage"`
	Resources    []any    `json:"Resources"`
}

func isoTime(t time.Time) string { return t.UTC().Format("2006-01-02T15:04:05.000Z") }

func userView(u *provision.User) user {
	out := user{Schemas: []string{wire.SchemaUser}, ID: u.ID, ExternalID: u.ExternalID, UserName: u.UserName, DisplayName: u.DisplayName,
		Active: u.Active, Meta: meta{ResourceType: "User", Created: isoTime(u.Created), LastModified: isoTime(u.Changed),
			Version: provision.Version(u.Version), Location: Prefix + "Users/" + u.ID}}
	if u.FormattedName+u.GivenName+u.FamilyName != "" {
		out.Name = &name{u.FormattedName, u.GivenName, u.FamilyName}
	}
	if u.Email != "" {
		out.Emails = []email{{u.Email, "work", true}}
	}
	for _, g := range u.Groups {
		out.Groups = append(out.Groups, ref{g.ID, Prefix + "Groups/" + g.ID, g.Name})
	}
	return out
}

func groupView(g *provision.Group) group {
	out := group{Schemas: []string{wire.SchemaGroup}, ID: g.ID, ExternalID: g.ExternalID, DisplayName: g.DisplayName,
		Meta: meta{ResourceType: "Group", Created: isoTime(g.Created), LastModified: isoTime(g.Changed),
			Version:  provision.Version(g.Version),
			Location: Prefix + "Groups/" + g.ID}}
	for _, m := range g.Members {
		out.Members = append(out.Members, ref{m.ID, Prefix + "Users/" + m.ID, m.Name})
	}
	return out
}

// page reads what a list is asked for.
func page(q url.Values) (provision.Page, error) {
	p := provision.Page{Filter: q.Get("filter"), Start: 1, Count: provision.MaxCount}
	for _, v := range []struct {
		name string
		to   *int
	}{{"startIndex", &p.Start}, {"count", &p.Count}} {
		if text := q.Get(v.name); text != "" {
			n, err := strconv.Atoi(text)
			if err != nil || n > 10_000_000 {
				return p, &wire.Error{Status: http.StatusBadRequest, Type: wire.InvalidValue, Detail: v.name +
					" is no number, or too large"}
			}
			*v.to = max(n, 0) // smaller ones are taken for these (RFC 7644, 3.4.2.4)
		}
	}
	p.Start = max(p.Start, 1)
	return p, nil
}

func list(c route.Call, p provision.Page, total int, resources []any) error {
	return reply(c, http.StatusOK, listing{[]string{wire.SchemaList}, total, p.Start, len(resources), resources})
}

func (h *Handlers) listUsers(c route.Call) error {
	p, err := page(c.Query())
	if err != nil {
		return err
	}
	users, total, err := h.Provision.ListUsers(c.Context(), c.Actor(), p)
	if err != nil {
		return err
	}
	out := make([]any, len(users))
	for i := range users {
		out[i] = userView(&users[i])
	}
	return list(c, p, total, out)
}

func answerUser(c route.Call, status int, u *provision.User, err error) error {
	if err != nil {
		return err
	}
	v := userView(u)
	return one(c, status, v.Meta.Location, v.Meta.Version, v)
}

func (h *Handlers) createUser(c route.Call) error {
	raw, err := c.Raw(wire.MaxBody)
	if err != nil {
		return err
	}
	u, err := wire.DecodeUser(raw)
	if err != nil {
		return err
	}
	made, err := h.Provision.CreateUser(c.Context(), c.Actor(), u)
	return answerUser(c, http.StatusCreated, &made, err)
}

func (h *Handlers) getUser(c route.Call) error {
	u, err := h.Provision.GetUser(c.Context(), c.Actor(), c.Path("id"))
	return answerUser(c, http.StatusOK, &u, err)
}

func (h *Handlers) replaceUser(c route.Call) error {
	raw, err := c.Raw(wire.MaxBody)
	if err != nil {
		return err
	}
	fresh, err := wire.DecodeUser(raw)
	if err != nil {
		return err
	}
	u, err := h.Provision.ChangeUser(c.Context(), c.Actor(), c.Path("id"), c.Header("If-Match"), func(u *wire.User) error {
		*u = fresh
		return nil
	})
	return answerUser(c, http.StatusOK, &u, err)
}

func (h *Handlers) patchUser(c route.Call) error {
	raw, err := c.Raw(wire.MaxBody)
	if err != nil {
		return err
	}
	u, err := h.Provision.ChangeUser(c.Context(), c.Actor(), c.Path("id"), c.Header("If-Match"),
		func(u *wire.User) error { return u.Patch(raw) })
	return answerUser(c, http.StatusOK, &u, err)
}

func (h *Handlers) deleteUser(c route.Call) error {
	if err := h.Provision.DeleteUser(c.Context(), c.Actor(), c.Path("id"), c.Header("If-Match")); err != nil {
		return err
	}
	return c.Nothing()
}

// members reports whether the members of groups are asked for.
func members(q url.Values) bool {
	for n := range strings.SplitSeq(q.Get("excludedAttributes"), ",") {
		if strings.EqualFold(strings.TrimSpace(n), "members") {
			return false
		}
	}
	return true
}

func (h *Handlers) listGroups(c route.Call) error {
	p, err := page(c.Query())
	if err != nil {
		return err
	}
	groups, total, err := h.Provision.ListGroups(c.Context(), c.Actor(), p, members(c.Query()))
	if err != nil {
		return err
	}
	out := make([]any, len(groups))
	for i := range groups {
		out[i] = groupView(&groups[i])
	}
	return list(c, p, total, out)
}

func answerGroup(c route.Call, status int, g *provision.Group, err error) error {
	if err != nil {
		return err
	}
	v := groupView(g)
	return one(c, status, v.Meta.Location, v.Meta.Version, v)
}

func (h *Handlers) createGroup(c route.Call) error {
	raw, err := c.Raw(wire.MaxBody)
	if err != nil {
		return err
	}
	g, err := wire.DecodeGroup(raw)
	if err != nil {
		return err
	}
	made, err := h.Provision.CreateGroup(c.Context(), c.Actor(), g)
	return answerGroup(c, http.StatusCreated, &made, err)
}

func (h *Handlers) getGroup(c route.Call) error {
	g, err := h.Provision.GetGroup(c.Context(), c.Actor(), c.Path("id"), members(c.Query()))
	return answerGroup(c, http.StatusOK, &g, err)
}

func (h *Handlers) replaceGroup(c route.Call) error {
	raw, err := c.Raw(wire.MaxBody)
	if err != nil {
		return err
	}
	fresh, err := wire.DecodeGroup(raw)
	if err != nil {
		return err
	}
	g, err := h.Provision.ChangeGroup(c.Context(), c.Actor(), c.Path("id"), c.Header("If-Match"), func(g *wire.Group) error {
		*g = fresh
		return nil
	})
	return answerGroup(c, http.StatusOK, &g, err)
}

func (h *Handlers) patchGroup(c route.Call) error {
	raw, err := c.Raw(wire.MaxBody)
	if err != nil {
		return err
	}
	g, err := h.Provision.ChangeGroup(c.Context(), c.Actor(), c.Path("id"), c.Header("If-Match"),
		func(g *wire.Group) error { return g.Patch(raw) })
	return answerGroup(c, http.StatusOK, &g, err)
}

func (h *Handlers) deleteGroup(c route.Call) error {
	if err := h.Provision.DeleteGroup(c.Context(), c.Actor(), c.Path("id"), c.Header("If-Match")); err != nil {
		return err
	}
	return c.Nothing()
}
