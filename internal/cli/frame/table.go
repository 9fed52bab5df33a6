package frame

import (
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"
	"unicode"

	"charm.land/lipgloss/v2"

	"berth.dev/berth/api"
)

// Table is aligned text: a line of titles and a line per row.
type Table struct {
	Titles []string
	Rows   [][]string
}

// Write prints the table; titles and statuses are coloured when colour is set.
func (t Table) Write(w io.Writer, colour bool) error {
	for _, row := range t.Rows {
		for i := range row {
			row[i] = plain(row[i])
		}
	}
	widths := make([]int, len(t.Titles))
	for _, row := range append([][]string{t.Titles}, t.Rows...) {
		for i, cell := range row {
			widths[i] = max(widths[i], lipgloss.Width(cell))
		}
	}
	var b strings.Builder
	line := func(row []string, style func(cell string) string) {
		pad := 0 // Written before the next cell, so that no line ends in spaces.
		for i, cell := range row {
			if cell != "" {
				b.WriteString(strings.Repeat(" ", pad))
				pad = 0
			}
			pad += widths[i] - lipgloss.Width(cell) + 2
			if colour {
				cell = style(cell)
			}
			b.WriteString(cell)
		}
		b.WriteByte('\n')
	}
	line(t.Titles, func(cell string) string { return lipgloss.NewStyle().Bold(true).Render(cell) })
	for _, row := range t.Rows {
		line(row, statusStyle)
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// plain replaces what terminals obey: other users and agents choose many of the texts that are shown.
func plain(text string) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsControl(r) && r != '\n' && r != '\t' {
			return unicode.ReplacementChar
		}
		return r
	}, text)
}

// statusStyle colours a cell that is a status and leaves others alone.
func statusStyle(cell string) string {
	colour := ""
	switch cell {
	case api.StatusRunning, api.ResultSuccess, api.FolderReady, api.FolderMounted, "ALIVE":
		colour = "2"
	case api.StatusError, api.ResultFailure, api.FolderError, api.FolderDeleteError, "LOST":
		colour = "1"
	case api.StatusPending, api.StatusScheduled, api.StatusPreparing, api.StatusPulling, api.StatusPrepared,
		api.StatusCreating, api.StatusRestarting, api.StatusTerminating,
		api.FolderCloning, api.FolderPerforming, api.FolderDeletePending, api.FolderDeleteOngoing:
		colour = "3"
	default:
		return cell
	}
	return lipgloss.NewStyle().Foreground(lipgloss.Color(colour)).Render(cell)
}

// Fields is a two-column detail view; empty values are left out.
type Fields [][2]string

// Add appends a field that is not empty.
func (f *Fields) Add(name, value string) {
	if value != "" {
		*f = append(*f, [2]string{name, value})
	}
}

func (f Fields) Write(w io.Writer, colour bool) error {
	width := 0
	for _, p := range f {
		width = max(width, len(p[0]))
	}
	var b strings.Builder
	for _, p := range f {
		name, value := p[0], plain(p[1])
		pad := strings.Repeat(" ", width-len(name)+2)
		if colour {
			name, value = lipgloss.NewStyle().Bold(true).Render(name), statusStyle(value)
		}
		b.WriteString(name + pad + value + "\n")
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// BytesText prints a number of bytes with a binary unit.
func BytesText(n float64) string {
	units := []string{"B", "KiB", "MiB", "GiB", "TiB", "PiB"}
	i := 0
	for n >= 1024 && i < len(units)-1 {
		n /= 1024
		i++
	}
	s := strconv.FormatFloat(n, 'f', 1, 64)
	return strings.TrimSuffix(s, ".0") + " " + units[i]
}

// Age prints how long ago an ISO time was, "" when it is none.
func Age(iso string, now time.Time) string {
	t, ok := ParseTime(iso)
	if !ok {
		return ""
	}
	d := max(now.Sub(t), 0)
	switch {
	case d < time.Minute:
		return strconv.Itoa(int(d.Seconds())) + "s"
	case d < time.Hour:
		return strconv.Itoa(int(d.Minutes())) + "m"
	case d < 48*time.Hour:
		return strconv.Itoa(int(d.Hours())) + "h"
	}
	return strconv.Itoa(int(d.Hours())/24) + "d"
}

// ParseTime reads the forms of times that managers write.
func ParseTime(iso string) (time.Time, bool) {
	for _, layout := range []string{time.RFC3339Nano, "2006-01-02T15:04:05.999999", "2006-01-02 15:04:05.999999-07:00"} {
		if t, err := time.Parse(layout, iso); err == nil {
			return t, true
		}
	}
	return time.Time{}, false
}

// Count prints a number of things.
func Count(n int, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return fmt.Sprintf("%d %ss", n, noun)
}

// Deref is what a pointer points at, the zero value for none.
func Deref[T any](p *T) T {
	var zero T
	if p == nil {
		return zero
	}
	return *p
}
