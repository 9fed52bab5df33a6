// Package dbtype holds the Go types of jsonb columns for the generated queries. Nothing else belongs here.
package dbtype

import "encoding/json"

// Strings is a jsonb object of texts.
type Strings map[string]string

// Object is any jsonb object.
type Object map[string]any

// Raw is any jsonb value as it is stored.
type Raw = json.RawMessage
