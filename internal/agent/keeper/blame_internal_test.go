package keeper

import (
	"errors"
	"fmt"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"berth.dev/berth/internal/agent/host"
	"berth.dev/berth/internal/agent/runtime"
	"berth.dev/berth/internal/fault"
)

// TestWhoIsToBlame: only what is known to be of the agent's making counts as such, and only what may be otherwise elsewhere is tried there.
func TestWhoIsToBlame(t *testing.T) {
	for name, c := range map[string]struct {
		step              Step
		err               error
		agents, elsewhere bool
	}{
		"the agent's disk": {StepScratch, fmt.Errorf("write: %w", syscall.ENOSPC), true, true},
		"the engine":       {StepCreate, fault.Unavailablef("no answer").WithReason(runtime.ReasonEngine), true, true},
		"the session's disk": {StepScratch, fault.Exhaustedf("full").WithReason(host.ReasonOwnDisk).WithCause(syscall.ENOSPC), false,
			false},
		"the session's home": {StepScratch, fault.Invalidf("no").WithReason(host.ReasonHome), false, false},
		"whatever else":      {StepScratch, errors.New("strange"), false, true},
		"a target":           {StepCreate, fmt.Errorf("mkdir: %w", syscall.ENAMETOOLONG), false, true},
		"a volume":           {StepMount, fault.Unavailablef("the volume does not answer"), false, true},
	} {
		require.Equal(t, c.agents, agentsFault(c.step, c.err), name)
		require.Equal(t, c.elsewhere, elsewhere(c.err), name)
	}
}
