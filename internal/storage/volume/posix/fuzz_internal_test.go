package posix

import "testing"

// FuzzCursor reads what a client says where a listing goes on.
func FuzzCursor(f *testing.F) {
	for _, seed := range []string{"", "nYWJj", "p1.2", "p", "n", "p.-1", "x"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		c, err := parseCursor(text)
		if err != nil || text == "" {
			return
		}
		again, err := parseCursor(c.String())
		if err != nil || again != c {
			t.Fatalf("%q is %+v, and its text %q is %+v (%v)", text, c, c.String(), again, err)
		}
	})
}
