package proxy_test

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"berth.dev/berth/internal/wire/proxy"
)

// Bytes of version 1 have one target, which takes all visitors.
func TestCircuitOfVersion1(t *testing.T) {
	t.Parallel()
	var c proxy.Circuit
	require.NoError(t, json.Unmarshal([]byte(`{"id":"c","revision":7,"epoch":2,"mode":"port","port":9001,"app":"jupyter","protocol":"http",
		"session":"s","name":"mine","kernel":"k-1","target":8888,"agent":{"id":"i-1","address":"10.0.0.1:7000"},"owner":"u","limits":{}}`), &c))
	require.Equal(t, proxy.Circuit{ID: "c", Revision: 7, Epoch: 2, Mode: proxy.ModePort, Port: 9001, App: "jupyter", Protocol: "http",
		Session: "s", Name: "mine", Owner: "u",
		Targets: []proxy.Target{{Kernel: "k-1", Port: 8888, Agent: proxy.AgentAddress{ID: "i-1", Address: "10.0.0.1:7000"}, Weight: 1}}}, c)
}

// What is written is read again, and a proxy of version 1 reads the first target that takes visitors.
func TestCircuitBothWays(t *testing.T) {
	t.Parallel()
	c := proxy.Circuit{ID: "c", Mode: proxy.ModePort, Port: 9001, Targets: []proxy.Target{
		{Kernel: "k-0", Port: 8888, Agent: proxy.AgentAddress{ID: "i-0"}, Weight: 0},
		{Kernel: "k-1", Port: 8889, Agent: proxy.AgentAddress{ID: "i-1"}, Weight: 3},
	}}
	raw, err := json.Marshal(proxy.Event{Circuits: []proxy.Circuit{c}})
	require.NoError(t, err)
	var e proxy.Event
	require.NoError(t, json.Unmarshal(raw, &e))
	require.Equal(t, []proxy.Circuit{c}, e.Circuits)
	var old struct {
		Circuits []struct {
			Kernel string             `json:"kernel"`
			Target int                `json:"target"`
			Agent  proxy.AgentAddress `json:"agent"`
		} `json:"circuits"`
	}
	require.NoError(t, json.Unmarshal(raw, &old))
	require.Equal(t, []any{"k-1", 8889, "i-1"}, []any{old.Circuits[0].Kernel, old.Circuits[0].Target, string(old.Circuits[0].Agent.ID)})
}

func TestTooManyTargets(t *testing.T) {
	t.Parallel()
	var c proxy.Circuit
	require.NoError(t, json.Unmarshal([]byte(`{"targets":[`+strings.Repeat(`{"port":1},`, proxy.MaxTargets)+`{"port":2}]}`), &c))
	require.Len(t, c.Targets, proxy.MaxTargets)
}
