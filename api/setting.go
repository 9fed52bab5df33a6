package api

import (
	"encoding/json"
	"fmt"
)

// Empty is the answer of requests that have nothing to say: {}.
type Empty struct{}

// Done is the answer of requests that say no more than that they worked.
type Done struct {
	Success bool `json:"success"`
}

// Said is an answer that is a sentence for people.
type Said struct {
	Msg string `json:"msg"`
}

// Announcement is a text that all clients show.
type Announcement struct {
	Enabled bool   `json:"enabled"`
	Message string `json:"message"`
}

// ManagerStatus is how the managers of a cluster stand.
type ManagerStatus struct {
	Nodes          []ManagerNode `json:"nodes"`
	Status         string        `json:"status"` // running or frozen
	ActiveSessions int           `json:"active_sessions"`
}

// ManagerNode is one manager.
type ManagerNode struct {
	ID               string       `json:"id"`
	Processes        int          `json:"num_proc"`
	ServiceAddr      string       `json:"service_addr"`
	HeartbeatTimeout int          `json:"heartbeat_timeout"` // seconds
	SSL              bool         `json:"ssl_enabled"`
	ActiveSessions   int          `json:"active_sessions"`
	Status           string       `json:"status"`
	Version          string       `json:"version"`
	APIVersion       VersionParts `json:"api_version"`
}

// VersionParts is an API version such as v8.20240915; in JSON [8, "20240915"].
type VersionParts struct {
	Major int
	Date  string
}

// MarshalJSON writes the pair form of the wire.
func (v VersionParts) MarshalJSON() ([]byte, error) { return json.Marshal([]any{v.Major, v.Date}) }

// UnmarshalJSON reads the pair form of the wire.
func (v *VersionParts) UnmarshalJSON(b []byte) error {
	pair := [2]any{&v.Major, &v.Date}
	if err := json.Unmarshal(b, &pair); err != nil {
		return fmt.Errorf("read API version: %w", err)
	}
	return nil
}

// StatusChange is the body of PUT /manager/status.
type StatusChange struct {
	Status string `json:"status"`
}

// SchedulerOperation is the body of POST /manager/scheduler/operation.
type SchedulerOperation struct {
	Op   string   `json:"op"`   // include-agents or exclude-agents
	Args []string `json:"args"` // ids of agents
}

// Dotfile is a file that is put into the home directory of sessions. Lists leave Perm out.
type Dotfile struct {
	Path       string `json:"path"`
	Perm       string `json:"perm,omitempty"` // the same as Permission
	Permission string `json:"permission"`     // octal, such as 644
	Data       string `json:"data"`
}

// BootstrapScript is the body of POST /user-config/bootstrap-script.
type BootstrapScript struct {
	Script string `json:"script"`
}
