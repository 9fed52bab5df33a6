package plan

import (
	"fmt"
	"slices"
	"strings"
)

// maxPeople bounds how many members a line names.
const maxPeople = 20

// Words are a change for people: a line, and one for each note.
func (c Change) Words() []string {
	var lines []string
	switch c.Kind {
	case Members:
		lines = c.memberWords()
	case Access:
		for _, who := range sortedKeys(c.To) {
			sign, verb := "+", "may use"
			if c.To[who] == Refused {
				sign, verb = "-", "may no more use"
			}
			lines = append(lines, fmt.Sprintf("%s %s %s resource group %s", sign, strings.Replace(who, ":", " ", 1), verb, c.Name))
		}
	default:
		lines = append(lines, c.objectWords())
	}
	for _, n := range c.Notes {
		lines = append(lines, "    note: "+n)
	}
	return lines
}

func (c Change) objectWords() string {
	sign := "~"
	if c.Make {
		sign = "+"
	}
	head := sign + " " + c.Key().String()
	if c.Kind == User && c.Make {
		head += " in domain " + c.Domain
	}
	var parts []string
	for _, f := range fields[c.Kind] {
		to, ok := c.To[f.name]
		if !ok {
			continue
		}
		if c.Make {
			parts = append(parts, f.name+" "+Shown(to))
		} else {
			parts = append(parts, fmt.Sprintf("%s %s -> %s", f.name, Shown(c.From[f.name]), Shown(to)))
		}
	}
	effect := ""
	switch {
	case c.Make:
	case c.Kind == User && c.From["status"] == "active":
		effect = " (is let in nowhere; sessions and folders stay)"
	case c.To["active"] == "false":
		effect = map[Kind]string{Domain: " (its users are let in nowhere; sessions run on)",
			Project: " (starts no sessions; sessions run on)", ResourceGroup: " (starts no sessions; sessions run on)"}[c.Kind]
	}
	if len(parts) == 0 {
		return head
	}
	return head + ": " + strings.Join(parts, ", ") + effect
}

// Shown is a value in words, on one line.
func Shown(v string) string {
	switch v {
	case "", "[]", "{}":
		return "none"
	}
	if strings.HasPrefix(v, "{") || strings.HasPrefix(v, "[") {
		return clip(strings.NewReplacer(`"`, "", "[", "", "]", "", "{", "", "}", "", ":", "=").Replace(strings.ReplaceAll(v, ",", ", ")))
	}
	if strings.ContainsFunc(v, func(r rune) bool { return r <= ' ' || r == 0x7f }) {
		return fmt.Sprintf("%q", clip(v))
	}
	return clip(v)
}

func (c Change) memberWords() []string {
	by := map[string][]string{}
	for _, who := range sortedKeys(c.To) {
		switch to := c.To[who]; {
		case to == Admin:
			by["admin"] = append(by["admin"], who)
		case to == Nobody:
			by["leaves"] = append(by["leaves"], who)
		case c.From[who] == Admin:
			by["dismissed"] = append(by["dismissed"], who)
		default:
			by["joins"] = append(by["joins"], who)
		}
	}
	var lines []string
	for _, kind := range []struct{ name, sign, words string }{
		{"joins", "+", "gets %s"}, {"admin", "+", "is administered by %s"}, {"dismissed", "-", "is administered no more by %s"},
		{"leaves", "-", "is closed to %s (what they run there ends)"},
	} {
		people := by[kind.name]
		if len(people) == 0 {
			continue
		}
		text := strings.Join(people[:min(len(people), maxPeople)], ", ")
		if n := len(people) - maxPeople; n > 0 {
			text += fmt.Sprintf(" and %d more", n)
		}
		who := fmt.Sprintf(kind.words, text)
		lines = append(lines, fmt.Sprintf("%s project %s/%s %s", kind.sign, c.Domain, c.Name, who))
	}
	return lines
}

// ends reports whether somebody or something becomes inactive.
func (c *Change) ends() bool {
	return !c.Make && slices.Contains([]string{"false", "inactive", "deleted"}, c.To["active"]+c.To["status"])
}

// Summary counts what a plan does.
func (p Plan) Summary() string {
	made, changed, ended := 0, 0, 0
	for _, c := range p.Changes {
		switch {
		case c.Make:
			made++
		case c.ends():
			ended++
		default:
			changed++
		}
	}
	return fmt.Sprintf("%d to make, %d to change, %d to make inactive, %d as they should be", made, changed, ended, p.Same)
}
