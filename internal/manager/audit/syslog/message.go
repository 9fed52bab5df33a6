package syslog

import (
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"time"

	"berth.dev/berth/internal/manager/audit"
)

// The severities of RFC 5424 in use.
const (
	warning = 4 // of what was denied
	notice  = 5
)

// line is an entry as JSON, with the names of `berth audit export`.
type line struct {
	ID             int64    `json:"id"`
	At             string   `json:"at"`
	Action         string   `json:"action"`
	Object         string   `json:"object"`
	Result         string   `json:"result"`
	Reason         string   `json:"reason,omitempty"`
	UserID         string   `json:"user_id"`
	Email          string   `json:"email"`
	Role           string   `json:"role"`
	Domain         string   `json:"domain_name"`
	AccessKey      string   `json:"access_key"`
	ActingFor      string   `json:"acting_for,omitempty"`
	Token          string   `json:"token,omitempty"`
	Address        string   `json:"address"`
	RequestID      string   `json:"request_id"`
	Means          string   `json:"means,omitempty"`
	Attempts       int64    `json:"attempts,omitempty"`
	Changes        []change `json:"changes"`
	ChangeCount    int      `json:"change_count"`
	ChangesLeftOut bool     `json:"changes_left_out,omitempty"`
}

type change struct {
	Table  string          `json:"table"`
	Key    string          `json:"key"`
	Before json.RawMessage `json:"before,omitempty"`
	After  json.RawMessage `json:"after,omitempty"`
}

// message writes an entry in the format of RFC 5424. It is pure.
func message(e *audit.Entry, facility, limit int, host string) ([]byte, error) {
	l := line{ID: e.ID, At: e.At.UTC().Format(time.RFC3339Nano), Action: e.Action, Object: e.Object, Result: e.Result, Reason: e.Reason,
		UserID: e.UserID, Email: e.Email, Role: e.Role, Domain: e.Domain, AccessKey: e.AccessKey, ActingFor: e.ActingFor, Address: e.Address,
		RequestID: e.RequestID, Token: e.Token, Means: e.Means, Changes: []change{}, ChangeCount: e.ChangeCount}
	if e.Attempts > 1 {
		l.Attempts = e.Attempts
	}
	for _, c := range e.Changes {
		l.Changes = append(l.Changes, change{Table: c.Table, Key: c.Key, Before: c.Before, After: c.After})
	}
	severity := notice
	if e.Result == audit.Denied {
		severity = warning
	}
	// 32473 is the enterprise number for examples: this project has none of its own.
	data := "[audit@32473"
	for _, p := range [][2]string{{"id", strconv.FormatInt(e.ID, 10)}, {"action", e.Action}, {"object", e.Object}, {"result", e.Result},
		{"user", e.Email}, {"domain", e.Domain}, {"actingFor", e.ActingFor}, {"token", e.Token}, {"means", e.Means}, {"address", e.Address},
		{"request", e.RequestID}} {
		if p[1] != "" {
			data += " " + p[0] + `="` + escape.Replace(p[1]) + `"`
		}
	}
	head := fmt.Sprintf("<%d>1 %s %s berth - %s %s] ", facility*8+severity, e.At.UTC().Format("2006-01-02T15:04:05.000000Z07:00"),
		printable(host, 255), printable(e.Action, 32), data)
	text, err := json.Marshal(l)
	if err == nil && len(head)+len(text) > limit {
		l.Changes, l.ChangesLeftOut = []change{}, true
		text, err = json.Marshal(l)
	}
	if err != nil {
		return nil, fmt.Errorf("write entry %d of the audit log: %w", e.ID, err)
	}
	return append([]byte(head), text...), nil
}

// escape is how values of structured data are written.
var escape = strings.NewReplacer(`\`, `\\`, `"`, `\"`, `]`, `\]`, "\n", " ", "\r", " ")

// printable makes a text a field of a header: at most n visible characters of ASCII, "-" for none.
func printable(text string, n int) string {
	text = strings.Map(func(r rune) rune {
		if r <= ' ' || r > '~' {
			return -1
		}
		return r
	}, text)
	if text == "" {
		return "-"
	}
	return text[:min(len(text), n)]
}
