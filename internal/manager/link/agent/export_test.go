package agent

import "time"

// WaitForStreams changes how long requests wait for the streams of an agent that is just connecting.
func (l *Link) WaitForStreams(d time.Duration) { l.hub.wait = d }
