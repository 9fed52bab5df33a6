package plan

import (
	"bytes"
	"encoding/csv"
	"errors"
	"io"
	"slices"
	"strings"
	"unicode/utf8"
)

// columns are those of a table of users, in the order in which they are written.
var columns = []string{"email", "username", "full_name", "description", "domain", "projects", "role", "status", "policy", "keypair_policy",
	"allowed_from"}

// formulas are the beginnings of cells that spreadsheets take for formulas.
const formulas = "=+-@\t\r"

// Harmless is a cell that no spreadsheet takes for a formula: an apostrophe goes before it. original takes it away again.
func Harmless(cell string) string {
	if rest := strings.TrimLeft(cell, "'"); rest != "" && strings.ContainsRune(formulas, rune(rest[0])) {
		return "'" + cell
	}
	return cell
}

func original(cell string) string {
	if rest := strings.TrimLeft(cell, "'"); len(rest) < len(cell) && rest != "" && strings.ContainsRune(formulas, rune(rest[0])) {
		return cell[1:]
	}
	return cell
}

// column is the name of a column as people write it: "E-Mail", "Full name".
func column(title string) string {
	name := strings.NewReplacer(" ", "_", "-", "_").Replace(strings.ToLower(strings.TrimSpace(title)))
	if name == "e_mail" {
		return "email"
	}
	return name
}

// ReadCSV reads a table of users: a line of titles, then a user each. An empty cell leaves a property as it is.
func ReadCSV(raw []byte, _ *Snapshot) (File, []Problem) {
	var p problems
	f := File{}
	switch {
	case len(raw) > MaxBytes:
		p.add(0, "the table is larger than %d MiB: split it", MaxBytes>>20)
		return f, p.all()
	case !utf8.Valid(raw) || bytes.IndexByte(raw, 0) >= 0:
		p.add(0, "the table is no UTF-8 text: save it as \"CSV UTF-8\"")
		return f, p.all()
	}
	if rest, ok := bytes.CutPrefix(raw, []byte("\uFEFF")); ok {
		raw = rest
		f.notes = append(f.notes, "the table begins with a byte order mark, which is left out")
	}
	if bytes.Contains(raw, []byte("\r\n")) {
		f.notes = append(f.notes, "its lines end as on Windows (CRLF), which changes nothing")
	}
	r := csv.NewReader(bytes.NewReader(raw))
	r.ReuseRecord, r.TrimLeadingSpace = true, true
	titles, _, _ := strings.Cut(string(raw), "\n")
	if strings.Contains(titles, ";") && !strings.Contains(titles, ",") {
		r.Comma = ';'
		f.notes = append(f.notes, "its columns are separated by semicolons")
	}
	first, err := r.Read()
	if errors.Is(err, io.EOF) {
		p.add(0, "the table is empty: its first line names the columns, such as email,full_name,projects")
		return f, p.all()
	}
	if err != nil {
		p.add(1, "this is no table: %s", err)
		return f, p.all()
	}
	at := map[int]string{}
	for i, title := range first {
		name := column(title)
		switch {
		case name == "password":
			p.add(1, "passwords do not belong into tables: leave the column out and use --passwords FILE")
		case !slices.Contains(columns, name):
			p.add(1, "there is no column %q; there are %s", clip(title), strings.Join(columns, ", "))
		}
		for j := range at {
			if at[j] == name {
				p.add(1, "the columns %d and %d both are %s", j+1, i+1, name)
			}
		}
		at[i] = name
	}
	if !slices.Contains(slices.Collect(func(yield func(string) bool) {
		for _, name := range at {
			if !yield(name) {
				return
			}
		}
	}), "email") {
		p.add(1, "the table has no column email")
	}
	if len(p.list) > 0 {
		return f, p.all()
	}
	for {
		row, err := r.Read()
		if errors.Is(err, io.EOF) {
			return f, p.all()
		}
		var bad *csv.ParseError
		if errors.As(err, &bad) {
			if errors.Is(err, csv.ErrFieldCount) {
				p.add(bad.Line, "the row has %d cells, and there are %d columns", len(row), len(first))
				continue
			}
			p.add(bad.Line, "the row cannot be read: %s", bad.Err)
			return f, p.all()
		}
		if err != nil {
			p.add(0, "the table cannot be read: %s", err)
			return f, p.all()
		}
		line, _ := r.FieldPos(0)
		if len(f.entries) == MaxObjects {
			p.add(line, "the table has more than %d users: split it", MaxObjects)
			return f, p.all()
		}
		f.row(row, at, line, &p)
	}
}

// row reads a user.
func (f *File) row(cells []string, at map[int]string, line int, p *problems) {
	e := entry{key: Key{Kind: User}, line: line, set: map[string]value{}, lists: map[string][]item{}}
	for i, cell := range cells {
		cell = original(strings.TrimSpace(cell))
		if cell == "" {
			continue
		}
		switch name := at[i]; name {
		case "email":
			e.key.Name = cell
		case "domain":
			e.domain = cell
		case "projects":
			e.lists[name] = []item{}
			for _, t := range separated(cell) {
				e.lists[name] = append(e.lists[name], item{t, line})
			}
		case "allowed_from":
			e.set[name] = value{List(separated(cell)), line}
		default:
			fd, _ := fieldOf(User, name)
			canonical, err := scalar(fd, cell)
			if err != nil {
				p.add(line, "%s", err)
				continue
			}
			e.set[name] = value{canonical, line}
		}
	}
	if e.key.Name == "" {
		p.add(line, "the row has no email address")
		return
	}
	f.add(e, p)
}

// separated are the parts of a cell that lists something.
func separated(cell string) []string {
	var out []string
	for part := range strings.FieldsFuncSeq(cell, func(r rune) bool { return strings.ContainsRune(",;|", r) }) {
		if part = strings.TrimSpace(part); part != "" && !slices.Contains(out, part) {
			out = append(out, part)
		}
	}
	return out
}

// WriteCSV writes the users of a tenancy as a table in which no cell is a formula.
func WriteCSV(s *Snapshot) []byte {
	projects := map[string][]string{}
	for _, key := range s.sorted(Project) {
		for who := range s.Objects[key].Members {
			projects[who] = append(projects[who], key.Name)
		}
	}
	var b bytes.Buffer
	w := csv.NewWriter(&b)
	_ = w.Write(columns) // a buffer takes everything
	for _, key := range s.sorted(User) {
		u := s.Objects[key]
		if u.left() {
			continue
		}
		row := make([]string, len(columns))
		for i, name := range columns {
			cell := u.Attrs[name]
			switch name {
			case "email":
				cell = key.Name
			case "domain":
				cell = u.Domain
			case "projects":
				cell = strings.Join(projects[key.Name], "|")
			case "allowed_from":
				networks, _ := Decode[[]string](cell)
				cell = strings.Join(networks, "|")
			}
			row[i] = Harmless(cell)
		}
		_ = w.Write(row)
	}
	w.Flush()
	return b.Bytes()
}
