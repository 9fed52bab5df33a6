package store

import (
	"encoding/json"
	"fmt"

	"berth.dev/berth/internal/cluster"
)

// Standing reads what an agent's row says about whether it may get kernels. The caller fills in what else the row knows.
func Standing(conditions, trial json.RawMessage) (s cluster.AgentStanding, err error) {
	if len(conditions) > 0 {
		if err := json.Unmarshal(conditions, &s.Reported); err != nil {
			return s, fmt.Errorf("read conditions: %w", err)
		}
	}
	if s.Trial, err = ReadTrial(trial); err != nil {
		return s, err
	}
	return s, nil
}

// ReadTrial reads an agent's trial.
func ReadTrial(raw json.RawMessage) (t cluster.Trial, err error) {
	if len(raw) > 0 {
		if err := json.Unmarshal(raw, &t); err != nil {
			return t, fmt.Errorf("read the trial of an agent: %w", err)
		}
	}
	return t, nil
}

// WriteTrial is an agent's trial as its row keeps it.
func WriteTrial(t cluster.Trial) (json.RawMessage, error) {
	raw, err := json.Marshal(t)
	if err != nil {
		return nil, fmt.Errorf("write the trial of an agent: %w", err)
	}
	return raw, nil
}
