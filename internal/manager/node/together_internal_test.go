package node

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"berth.dev/berth/internal/cluster"
)

// TestReportRest: reports of many sessions gather, those of one session do not wait, however many kernels it has.
func TestReportRest(t *testing.T) {
	batch := func(sessions, kernels int) []*report {
		var out []*report
		for i := range kernels {
			out = append(out, &report{list: []cluster.KernelObservation{{Session: cluster.SessionID(fmt.Sprint("s", i%sessions))}}})
		}
		return out
	}
	took := 3 * time.Millisecond
	assert.Zero(t, reportRest(batch(1, 16), took))
	assert.Zero(t, reportRest(batch(crowd-1, 2*crowd), took))
	assert.Equal(t, took, reportRest(batch(crowd, crowd), took))
	assert.Equal(t, mostRest, reportRest(batch(crowd, crowd), time.Second))
}
