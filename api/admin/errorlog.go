package admin

import "encoding/json"

// ErrorLogs are errors that clients reported: the answer of GET /logs/error.
type ErrorLogs struct {
	Logs  []ErrorLog `json:"logs"`
	Count int        `json:"count"` // of all pages
}

// ErrorLog is one of them.
type ErrorLog struct {
	ID            string          `json:"log_id"`
	CreatedAt     float64         `json:"created_at"` // seconds since 1970
	Severity      string          `json:"severity"`
	Source        string          `json:"source"`
	User          string          `json:"user"` // id
	Read          bool            `json:"is_read"`
	Message       string          `json:"message"`
	Language      string          `json:"context_lang"`
	Context       json.RawMessage `json:"context_env"`
	RequestURL    *string         `json:"request_url"`
	RequestStatus *int            `json:"request_status"`
	Traceback     *string         `json:"traceback"`
}

// ConfigValue is the answer of POST /config/get: a text, an object of texts and objects, or null for what is not there.
type ConfigValue struct {
	Result any `json:"result"`
}

// ConfigDone is the answer of POST /config/set and /config/delete.
type ConfigDone struct {
	Result string `json:"result"` // "ok"
	// Notes say what of the values is not obeyed.
	Notes []string `json:"notes,omitempty"`
}
