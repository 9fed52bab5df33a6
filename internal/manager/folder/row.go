package folder

import "time"

func text(p *string) string {
	if p == nil {
		return ""
	}
	return *p
}

func orNil(s string) *string {
	if s == "" {
		return nil
	}
	return &s
}

func utc(t *time.Time) *time.Time {
	if t == nil {
		return nil
	}
	u := t.UTC()
	return &u
}
