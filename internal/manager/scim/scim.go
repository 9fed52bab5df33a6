// Package scim is the wire of SCIM 2.0 (RFC 7643, RFC 7644) without its HTTP and its storage: users and groups as clients write them, their
// PATCH with the dialects of Microsoft Entra and Okta, filters, schemas and errors. It is pure. httpapi/scim answers requests with it,
// tenancy/provision keeps what they say.
//
// Attributes that are not kept here are ignored, as the standard allows. Values that cannot be are refused.
package scim

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"
)

// The names of schemas and messages.
const (
	SchemaUser    = "urn:ietf:params:scim:schemas:core:2.0:User"
	SchemaGroup   = "urn:ietf:params:scim:schemas:core:2.0:Group"
	SchemaList    = "urn:ietf:params:scim:api:messages:2.0:ListResponse"
	SchemaPatch   = "urn:ietf:params:scim:api:messages:2.0:PatchOp"
	SchemaError   = "urn:ietf:params:scim:api:messages:2.0:Error"
	SchemaConfig  = "urn:ietf:params:scim:schemas:core:2.0:ServiceProviderConfig"
	SchemaType    = "urn:ietf:params:scim:schemas:core:2.0:ResourceType"
	SchemaSchema  = "urn:ietf:params:scim:schemas:core:2.0:Schema"
	ContentType   = "application/scim+json"
	maxText       = 255
	maxOperations = 1000
	// MaxMembers is how many members a group has, MaxBody the size of a request.
	MaxMembers = 10_000
	MaxBody    = 2 << 20
)

// The types of errors (RFC 7644, 3.12).
const (
	InvalidFilter = "invalidFilter"
	TooMany       = "tooMany"
	Uniqueness    = "uniqueness"
	Mutability    = "mutability"
	InvalidSyntax = "invalidSyntax"
	InvalidPath   = "invalidPath"
	NoTarget      = "noTarget"
	InvalidValue  = "invalidValue"
	InvalidVers   = "invalidVers"
)

// Error is an error as SCIM tells it.
type Error struct {
	Status int
	Type   string // "" where the standard has none
	Detail string
}

func (e *Error) Error() string { return e.Detail }

// MarshalJSON writes the message of RFC 7644, 3.12.
func (e *Error) MarshalJSON() ([]byte, error) {
	return json.Marshal(struct {
		Schemas []string `json:"schemas"`
		Status  string   `json:"status"`
		Type    string   `json:"scimType,omitempty"`
		Detail  string   `json:"detail"`
	}{[]string{SchemaError}, fmt.Sprint(e.Status), e.Type, e.Detail})
}

func bad(kind, words string, args ...any) error {
	return &Error{400, kind, fmt.Sprintf(words, args...)}
}

// User is what clients say of a user.
type User struct {
	UserName, ExternalID                                     string
	FormattedName, GivenName, FamilyName, DisplayName, Email string
	Active                                                   bool
}

// FullName is the name of a person in one text.
func (u *User) FullName() string {
	for _, n := range []string{u.DisplayName, u.FormattedName, strings.TrimSpace(u.GivenName + " " + u.FamilyName)} {
		if n != "" {
			return n
		}
	}
	return ""
}

// Address is the e-mail address: that of emails, else the user name where it is one.
func (u *User) Address() string {
	if u.Email == "" && strings.Contains(u.UserName, "@") {
		return u.UserName
	}
	return u.Email
}

// Group is what clients say of a group. Members are ids of users, sorted.
type Group struct {
	DisplayName, ExternalID string
	Members                 []string
}

// object is a JSON object whose names are without capitals.
type object map[string]json.RawMessage

func readObject(raw []byte) (object, error) {
	var all map[string]json.RawMessage
	if !utf8.Valid(raw) {
		return nil, bad(InvalidSyntax, "the body is no text in UTF-8")
	}
	if err := json.Unmarshal(raw, &all); err != nil || all == nil {
		return nil, bad(InvalidSyntax, "this is no JSON object")
	}
	out := object{}
	for name, v := range all {
		key := attribute(name)
		if _, twice := out[key]; twice {
			return nil, bad(InvalidSyntax, "%.60q is there twice", name)
		}
		out[key] = v
	}
	return out, nil
}

// attribute is a name of an attribute without the name of its schema and without capitals.
func attribute(name string) string {
	name = strings.ToLower(name)
	for _, s := range []string{SchemaUser, SchemaGroup} {
		if rest, ok := strings.CutPrefix(name, strings.ToLower(s)+":"); ok {
			return rest
		}
	}
	return name
}

func isNull(v json.RawMessage) bool { return len(v) == 0 || string(v) == "null" }

// text reads a text; null is none.
func text(name string, v json.RawMessage) (string, error) {
	if isNull(v) {
		return "", nil
	}
	var out string
	if err := json.Unmarshal(v, &out); err != nil {
		return "", bad(InvalidValue, "%s is no text", name)
	}
	if len(out) > maxText || strings.ContainsFunc(out, func(r rune) bool { return unicode.IsControl(r) || r == utf8.RuneError }) {
		return "", bad(InvalidValue, "%s has more than %d bytes, or characters that cannot be printed", name, maxText)
	}
	return strings.TrimSpace(out), nil
}

// truth reads true and false; Microsoft Entra writes them as texts.
func truth(name string, v json.RawMessage) (bool, error) {
	switch strings.ToLower(strings.Trim(string(v), `"`)) {
	case "true":
		return true, nil
	case "false":
		return false, nil
	}
	return false, bad(InvalidValue, "%s is neither true nor false", name)
}

// list reads an array; one that is alone stands for an array of one.
func list(name string, v json.RawMessage) ([]json.RawMessage, error) {
	if isNull(v) {
		return nil, nil
	}
	var out []json.RawMessage
	if err := json.Unmarshal(v, &out); err == nil {
		if len(out) > MaxMembers {
			return nil, bad(TooMany, "%s has more than %d values", name, MaxMembers)
		}
		return out, nil
	}
	return []json.RawMessage{v}, nil
}

// email reads emails: the primary one, else that of work, else the first.
func email(v json.RawMessage) (string, error) {
	all, err := list("emails", v)
	if err != nil {
		return "", err
	}
	best, rank := "", -1
	for _, one := range all {
		value, is := "", 0
		if plain, err := text("emails", one); err == nil {
			value = plain
		} else {
			o, err := readObject(one)
			if err != nil {
				return "", bad(InvalidValue, "emails holds what is no address")
			}
			if value, err = text("emails.value", o["value"]); err != nil {
				return "", err
			}
			if kind, err := text("emails.type", o["type"]); err == nil && strings.EqualFold(kind, "work") {
				is = 1
			}
			if primary, err := truth("emails.primary", o["primary"]); err == nil && primary {
				is = 2
			}
		}
		if value != "" && is > rank {
			best, rank = value, is
		}
	}
	return best, nil
}

// readOnly are attributes that only the server sets.
var readOnly = []string{"id", "meta", "groups", "schemas"}

// set sets an attribute of a user by its name without capitals. What is not kept is ignored.
func (u *User) set(name string, v json.RawMessage) (err error) {
	plain := map[string]*string{"username": &u.UserName, "externalid": &u.ExternalID, "displayname": &u.DisplayName,
		"name.formatted": &u.FormattedName, "name.givenname": &u.GivenName, "name.familyname": &u.FamilyName}
	if to, ok := plain[name]; ok {
		*to, err = text(name, v)
		return err
	}
	switch name {
	case "active":
		if isNull(v) {
			return bad(InvalidValue, "active is neither true nor false")
		}
		u.Active, err = truth(name, v)
	case "emails":
		u.Email, err = email(v)
	case "name":
		if isNull(v) {
			u.FormattedName, u.GivenName, u.FamilyName = "", "", ""
			return nil
		}
		o, err := readObject(v)
		if err != nil {
			return bad(InvalidValue, "name is no object")
		}
		for part, value := range o {
			if err := u.set("name."+part, value); err != nil {
				return err
			}
		}
	}
	return err
}

// DecodeUser reads a whole user. Without active, the user is.
func DecodeUser(raw []byte) (User, error) {
	u := User{Active: true}
	o, err := readObject(raw)
	if err != nil {
		return u, err
	}
	for name, v := range o {
		if name == "active" && isNull(v) {
			continue
		}
		if err := u.set(name, v); err != nil {
			return u, err
		}
	}
	return u, u.check()
}

func (u *User) check() error {
	if u.UserName == "" {
		return bad(InvalidValue, "userName is required")
	}
	return nil
}

// member reads the id of a member.
func member(v json.RawMessage) (string, error) {
	if id, err := text("members", v); err == nil {
		return id, nil
	}
	o, err := readObject(v)
	if err != nil {
		return "", bad(InvalidValue, "members holds what is no member")
	}
	return text("members.value", o["value"])
}

func members(v json.RawMessage) ([]string, error) {
	all, err := list("members", v)
	if err != nil {
		return nil, err
	}
	out := make([]string, 0, len(all))
	for _, one := range all {
		id, err := member(one)
		if err != nil {
			return nil, err
		}
		if id == "" {
			return nil, bad(InvalidValue, "a member has no value")
		}
		out = append(out, strings.ToLower(id))
	}
	return out, nil
}

func (g *Group) set(name string, v json.RawMessage) (err error) {
	switch name {
	case "displayname":
		g.DisplayName, err = text("displayName", v)
	case "externalid":
		g.ExternalID, err = text("externalId", v)
	case "members":
		g.Members, err = members(v)
	}
	return err
}

// DecodeGroup reads a whole group.
func DecodeGroup(raw []byte) (Group, error) {
	g := Group{}
	o, err := readObject(raw)
	if err != nil {
		return g, err
	}
	for name, v := range o {
		if err := g.set(name, v); err != nil {
			return g, err
		}
	}
	return g, g.check()
}

func (g *Group) check() error {
	slices.Sort(g.Members)
	g.Members = slices.Compact(g.Members)
	if g.DisplayName == "" {
		return bad(InvalidValue, "displayName is required")
	}
	if len(g.Members) > MaxMembers {
		return bad(TooMany, "a group has %d members at most", MaxMembers)
	}
	return nil
}
