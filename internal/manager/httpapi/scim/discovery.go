package scim

import (
	"net/http"

	"berth.dev/berth/internal/manager/authz"
	"berth.dev/berth/internal/manager/httpapi/route"
	wire "berth.dev/berth/internal/manager/scim"
	"berth.dev/berth/internal/manager/tenancy/provision"
)

// object is a JSON object of what never changes.
type object = map[string]any

// config is ServiceProviderConfig (RFC 7643, 5).
func (h *Handlers) config(c route.Call) error {
	if _, err := authz.Provisions(c.Actor()); err != nil {
		return err
	}
	can := func(is bool) object { return object{"supported": is} }
	return reply(c, http.StatusOK, object{"schemas": []string{wire.SchemaConfig}, "patch": can(true),
		"bulk":           object{"supported": false, "maxOperations": 0, "maxPayloadSize": 0},
		"filter":         object{"supported": true, "maxResults": provision.MaxCount},
		"changePassword": can(false), "sort": can(false), "etag": can(true),
		"authenticationSchemes": []object{{"type": "oauthbearertoken", "name": "API token", "primary": true,
			"description": "An API token that is bound to an identity provider"}},
		"meta": meta{ResourceType: "ServiceProviderConfig", Location: Prefix + "ServiceProviderConfig"}})
}

// several replies with one of some resources by its id, or with all of them.
func several(c route.Call, ids []string, all []any) error {
	if _, err := authz.Provisions(c.Actor()); err != nil {
		return err
	}
	id := c.Path("id")
	if id == "" {
		return reply(c, http.StatusOK, listing{[]string{wire.SchemaList}, len(all), 1, len(all), all})
	}
	for i := range ids {
		if ids[i] == id {
			return reply(c, http.StatusOK, all[i])
		}
	}
	return &wire.Error{Status: http.StatusNotFound, Detail: "there is nothing of that id"}
}

func (h *Handlers) types(c route.Call) error {
	of := func(name, schema string) any {
		return object{"schemas": []string{wire.SchemaType}, "id": name, "name": name, "endpoint": "/" + name + "s", "schema": schema,
			"schemaExtensions": []any{}, "meta": meta{ResourceType: "ResourceType", Location: Prefix + "ResourceTypes/" + name}}
	}
	return several(c, []string{"User", "Group"}, []any{of("User", wire.SchemaUser), of("Group", wire.SchemaGroup)})
}

// attribute describes an attribute (RFC 7643, 7).
func attribute(name, kind string, more object) object {
	out := object{"name": name, "type": kind, "multiValued": false, "required": false, "caseExact": false, "mutability": "readWrite",
		"returned": "default", "uniqueness": "none", "description": name}
	for k, v := range more {
		out[k] = v
	}
	return out
}

func (h *Handlers) schemas(c route.Call) error {
	text := func(name string) object { return attribute(name, "string", nil) }
	fixed := object{"mutability": "readOnly"}
	value := attribute("value", "string", object{"caseExact": true, "mutability": "immutable"})
	of := func(id, name string, attributes ...object) any {
		return object{"schemas": []string{wire.SchemaSchema}, "id": id, "name": name, "description": name, "attributes": attributes,
			"meta": meta{ResourceType: "Schema", Location: Prefix + "Schemas/" + id}}
	}
	exact := attribute("externalId", "string", object{"caseExact": true})
	return several(c, []string{wire.SchemaUser, wire.SchemaGroup}, []any{
		of(wire.SchemaUser, "User", attribute("userName", "string", object{"required": true, "uniqueness": "server"}), exact,
			attribute("name", "complex", object{"subAttributes": []object{text("formatted"), text("givenName"), text("familyName")}}),
			text("displayName"), attribute("active", "boolean", nil),
			attribute("emails", "complex", object{"multiValued": true, "subAttributes": []object{text("value"), text("type"),
				attribute("primary", "boolean", nil)}}),
			attribute("groups", "complex", object{"multiValued": true, "mutability": "readOnly", "subAttributes": []object{
				attribute("value", "string", fixed), attribute("display", "string", fixed)}})),
		of(wire.SchemaGroup, "Group", attribute("displayName", "string", object{"required": true, "uniqueness": "server"}), exact,
			attribute("members", "complex", object{"multiValued": true, "subAttributes": []object{value}})),
	})
}
