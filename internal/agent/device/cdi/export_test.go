package cdi

import "berth.dev/berth/internal/agent/device"

// What only tests of this package reach.
var (
	Run          = run
	SameDir      = sameDir
	ParseMetrics = parseMetrics
	ParseHealth  = parseHealth
)

// Apply reads a specification and returns what each of its devices can be given without an engine.
func Apply(text []byte, kind string) (map[string]device.Grant, error) {
	entries, err := parseSpec(text, kind)
	if err != nil {
		return nil, err
	}
	out := map[string]device.Grant{}
	for _, e := range entries {
		if given, problem := editsOf([]*unit{{entry: e}}, nil); problem == "" {
			out[e.name] = given.grant()
		}
	}
	return out, nil
}
