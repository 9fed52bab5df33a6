package e2e_test

import (
	"encoding/json"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"berth.dev/berth/internal/agent"
	berthplatform "berth.dev/berth/internal/platform"
	"berth.dev/berth/internal/platform/doctor"
)

// TestDownLeavesNoContainers: `berth down --sessions` returns when the containers are gone, not when the sessions are said to
// have ended.
func TestDownLeavesNoContainers(t *testing.T) {
	t.Parallel()
	p := up(t)
	p.must("session", "create", "base", "--name", "crate", "-r", "cpu=1", "-r", "mem=128m")
	filter := "label=berth.session=" + p.sessions()["crate"].ID
	require.Len(t, containers(t, filter), 1)
	p.must("down", "--sessions")
	require.Empty(t, containers(t, filter))
}

// TestDoctorOfAStoppedCluster: `berth doctor` asks the engine what a stopped cluster left. A container with a record is no leak, because
// the next start takes it over; one without is named, with its kernel and what to do.
func TestDoctorOfAStoppedCluster(t *testing.T) {
	t.Parallel()
	p := up(t)
	p.must("session", "create", "base", "--name", "crate", "-r", "cpu=1", "-r", "mem=128m")
	label := "label=berth.cluster=" + agent.Config{StateDir: filepath.Join(p.dir, "agent")}.Scope()
	p.must("down")
	left := containers(t, label)
	require.Len(t, left, 1)
	p.clean()

	out, err := docker("inspect", left[0])
	require.NoError(t, err)
	var original []struct {
		Name, Image string
		Config      struct{ Labels map[string]string }
	}
	require.NoError(t, json.Unmarshal([]byte(out), &original))
	leak, labels := uuid.NewString(), original[0].Config.Labels
	name := strings.Replace(strings.TrimPrefix(original[0].Name, "/"), labels["berth.kernel"], leak, 1)
	require.Contains(t, name, leak)
	labels["berth.kernel"] = leak
	create := []string{"create", "--name", name}
	for k, v := range labels {
		create = append(create, "--label", k+"="+v)
	}
	_, err = docker(append(create, original[0].Image, "true")...)
	require.NoError(t, err)
	t.Cleanup(func() { _, _ = docker("rm", "-f", name) })

	r := p.run("", "doctor", "--json")
	require.NotZero(t, r.code, "a leak is no health")
	var found doctor.Checkup
	require.NoError(t, json.Unmarshal([]byte(r.stdout), &found))
	require.False(t, found.Running)
	require.NotEmpty(t, found.Versions["engine"])
	wrong := slices.DeleteFunc(found.Findings, func(f berthplatform.Finding) bool { return f.Warning })
	require.Len(t, wrong, 1, r.stdout)
	require.Equal(t, "container", wrong[0].Kind)
	require.Contains(t, wrong[0].Object, leak)
	require.Contains(t, wrong[0].Next, "start the agent")
	p.must("down", "--sessions")
	require.Empty(t, containers(t, label), "down takes what has no record, too")
}
