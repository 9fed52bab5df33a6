package httpapi

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"time"

	"berth.dev/berth/api"
)

// json answers with a JSON document.
func (c *call) json(status int, v any) error {
	var buf bytes.Buffer
	e := json.NewEncoder(&buf)
	e.SetEscapeHTML(false)
	if err := e.Encode(v); err != nil {
		return fmt.Errorf("encode the reply: %w", err)
	}
	h := c.w.Header()
	h["Content-Type"] = []string{"application/json"}
	h["Content-Length"] = []string{strconv.Itoa(buf.Len())}
	c.w.WriteHeader(status)
	if c.r.Method != http.MethodHead {
		_, _ = c.w.Write(buf.Bytes()) // the client has gone when this fails
	}
	c.w.Flush() // the client does not wait for what is done after the reply, such as the log
	return nil
}

// ok answers 200 with a JSON document.
func (c *call) ok(v any) error { return c.json(http.StatusOK, v) }

// nothing answers 204.
func (c *call) nothing() error {
	c.w.WriteHeader(http.StatusNoContent)
	return nil
}

func sortedKeys[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }

// isoTime is the wire's text of a moment: ISO 8601 in UTC with microseconds and an offset.
func isoTime(t time.Time) string { return api.TimeText(t) }

func isoTimeOrNil(t *time.Time) *string {
	if t == nil {
		return nil
	}
	s := isoTime(*t)
	return &s
}

func timeOrNil(t *time.Time) *api.Time {
	if t == nil {
		return nil
	}
	return &api.Time{Time: *t}
}

// texts are values of a kind of text as plain texts, never nil.
func texts[T ~string](list []T) []string {
	out := make([]string, len(list))
	for i, v := range list {
		out[i] = string(v)
	}
	return out
}

// orNil is nil for the empty text, which the wire shows as null.
func orNil[S ~string](s S) *string {
	if s == "" {
		return nil
	}
	return new(string(s))
}
