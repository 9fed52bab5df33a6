package cuda

import (
	"fmt"

	"berth.dev/berth/internal/agent/device/cuda/nvmlwire"
)

// fatal are the XID errors after which a card cannot be used until it is reset, in NVIDIA's numbers. All others are errors of programs, or
// of one program's memory that the driver has contained (94), and leave the card usable.
var fatal = map[uint64]string{
	46:  "the GPU has stopped processing",
	48:  "the GPU's memory has an error of two bits",
	54:  "the GPU lacks auxiliary power",
	62:  "the GPU's microcontroller has halted",
	64:  "the GPU could not retire or remap a bad row of its memory",
	74:  "a link of NVLink has failed",
	79:  "the GPU has fallen off the bus",
	92:  "the GPU's memory has many errors of one bit",
	95:  "the GPU's memory has an error that was not contained",
	109: "the GPU does not switch between programs any more",
	119: "the GPU's system processor does not answer",
	120: "the GPU's system processor has failed",
	140: "the GPU's memory has an error that was not corrected",
	143: "the GPU could not be initialised",
}

// problem says in words what an event means for the card; "" when the card is as usable as before.
func problem(e nvmlwire.Event) string {
	if words := fatal[e.XID]; words != "" {
		return fmt.Sprintf("XID %d: %s", e.XID, words)
	}
	return ""
}
