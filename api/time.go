package api

import "time"

// Time is a moment in the text form of the wire: ISO 8601 in UTC with up to microseconds and an offset.
type Time struct{ time.Time }

// wireTime is the layout that managers write.
const wireTime = "2006-01-02T15:04:05.999999+00:00"

// TimeText is the text form of a moment.
func TimeText(t time.Time) string { return t.UTC().Format(wireTime) }

// MarshalText writes the text form.
func (t Time) MarshalText() ([]byte, error) { return []byte(TimeText(t.Time)), nil }

// MarshalJSON writes the text form.
func (t Time) MarshalJSON() ([]byte, error) { return []byte(`"` + TimeText(t.Time) + `"`), nil }
