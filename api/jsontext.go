package api

import (
	"bytes"
	"encoding/json"
)

// JSONText is a JSON value that the wire carries as text inside a string, or bare. A value that was read is written bare,
// so that readers of our output need not decode twice; TextOf makes one that is written as the wire carries it.
type JSONText json.RawMessage

// TextOf is a value that is written as text inside a string.
func TextOf(v any) JSONText {
	inner, err := json.Marshal(v)
	if err != nil {
		inner = []byte("{}")
	}
	return BareOf(string(inner))
}

// BareOf is a value that is written bare.
func BareOf(v any) JSONText {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	if e.Encode(v) != nil {
		return nil
	}
	return bytes.TrimSpace(b.Bytes())
}

// UnmarshalJSON takes a string holding JSON, a bare value, or null.
func (t *JSONText) UnmarshalJSON(b []byte) error {
	var s string
	if json.Unmarshal(b, &s) == nil {
		if s == "" {
			*t = JSONText("null")
			return nil
		}
		if !json.Valid([]byte(s)) {
			*t = append(JSONText(nil), b...)
			return nil
		}
		b = []byte(s)
	}
	*t = append(JSONText(nil), b...)
	return nil
}

// MarshalJSON writes the bare value.
func (t JSONText) MarshalJSON() ([]byte, error) {
	if len(t) == 0 {
		return []byte("null"), nil
	}
	return t, nil
}

// Map returns the members of an object, nil when the value is no object. Values that
// are not strings come as their JSON text.
func (t JSONText) Map() map[string]string {
	var raw map[string]json.RawMessage
	if json.Unmarshal(t, &raw) != nil {
		return nil
	}
	m := make(map[string]string, len(raw))
	for k, v := range raw {
		var s string
		if json.Unmarshal(v, &s) != nil {
			s = string(v)
		}
		m[k] = s
	}
	return m
}

// String is the bare JSON text.
func (t JSONText) String() string { return string(t) }
