package scim

import (
	"encoding/json"
	"slices"
	"strings"
	"unicode/utf8"
)

const (
	maxFilter = 4000
	maxDepth  = 16
	maxTerms  = 32
)

type valueKind int

const (
	valueText valueKind = iota
	valueBool
	valueNumber
	valueNull
)

type value struct {
	kind valueKind
	text string
}

// expression is a filter: a comparison, or and, or, not of others.
type expression struct {
	kind      string // compare, and, or, not
	parts     []expression
	attribute string // without capitals
	op        string
	value     value
}

// AttributeKind says how an attribute is compared.
type AttributeKind int

// The kinds: texts with capitals and without, truth values, times, sets of texts.
const (
	Exact AttributeKind = iota
	Folded
	Truth
	Time
	Set
)

// Attribute is an attribute that filters may name.
type Attribute struct {
	// Field is its name in the language of lists.
	Field string
	Kind  AttributeKind
}

// Filter turns a filter into one of the language of lists (store/list), which makes parameters of the values. attributes are those that
// may be named, without capitals. The empty filter is empty.
func Filter(text string, attributes map[string]Attribute) (string, error) {
	if strings.TrimSpace(text) == "" {
		return "", nil
	}
	e, err := parse(text)
	if err != nil {
		return "", err
	}
	return e.translate(attributes)
}

func badFilter(words string, args ...any) error { return bad(InvalidFilter, words, args...) }

func (e expression) translate(attributes map[string]Attribute) (string, error) {
	var parts []string
	for _, p := range e.parts {
		one, err := p.translate(attributes)
		if err != nil {
			return "", err
		}
		parts = append(parts, one)
	}
	switch e.kind {
	case "and":
		return "(" + strings.Join(parts, " & ") + ")", nil
	case "or":
		return "(" + strings.Join(parts, " | ") + ")", nil
	case "not":
		return "!(" + parts[0] + ")", nil
	}
	a, ok := attributes[e.attribute]
	if !ok {
		return "", badFilter("%.60q cannot be in a filter here", e.attribute)
	}
	wrong := badFilter("%s cannot be compared by %s so", e.attribute, e.op)
	if e.op == "pr" || e.value.kind == valueNull {
		present := e.op == "pr" || e.op == "ne"
		switch {
		case e.op != "pr" && e.op != "eq" && e.op != "ne", a.Kind == Set:
			return "", wrong
		case a.Kind == Truth || a.Kind == Time:
			return map[bool]string{true: "!", false: ""}[present] + "(" + a.Field + " == null)", nil
		case present:
			return a.Field + ` != ""`, nil
		}
		return a.Field + ` == ""`, nil
	}
	v := e.value.text
	if a.Kind == Folded {
		v = strings.ToLower(v)
	}
	signs := map[string]string{"eq": "==", "ne": "!=", "gt": ">", "ge": ">=", "lt": "<", "le": "<="}
	switch a.Kind {
	case Truth:
		if v = strings.ToLower(v); (v != "true" && v != "false") || (e.op != "eq" && e.op != "ne") {
			return "", wrong
		}
		return a.Field + " " + signs[e.op] + " " + v, nil
	case Time:
		if signs[e.op] == "" || e.value.kind != valueText {
			return "", wrong
		}
		return a.Field + " " + signs[e.op] + " " + quote(v), nil
	case Set:
		if e.op != "eq" || e.value.kind != valueText {
			return "", wrong
		}
		return a.Field + " contains " + quote(strings.ToLower(v)), nil
	}
	if e.value.kind != valueText {
		return "", wrong
	}
	like := strings.NewReplacer(`\`, `\\`, `%`, `\%`, `_`, `\_`).Replace(v)
	switch {
	case signs[e.op] != "":
		return a.Field + " " + signs[e.op] + " " + quote(v), nil
	case e.op == "co":
		return a.Field + " contains " + quote(v), nil
	case e.op == "sw":
		return a.Field + " like " + quote(like+"%"), nil
	case e.op == "ew":
		return a.Field + " like " + quote("%"+like), nil
	}
	return "", wrong
}

// quote writes a text of the language of lists.
func quote(text string) string {
	return `"` + strings.NewReplacer(`\`, `\\`, `"`, `\"`).Replace(text) + `"`
}

// parser reads the grammar of RFC 7644, 3.4.2.2.
type parser struct {
	rest  string
	terms int
}

func parse(text string) (expression, error) {
	if len(text) > maxFilter || !utf8.ValidString(text) || strings.ContainsRune(text, 0) {
		return expression{}, badFilter("the filter has more than %d bytes or is no text", maxFilter)
	}
	p := &parser{rest: text}
	e, err := p.or(0)
	if err == nil && p.skip() != "" {
		err = badFilter("%.40q was not expected", p.rest)
	}
	return e, err
}

func (p *parser) skip() string {
	p.rest = strings.TrimLeft(p.rest, " \t")
	return p.rest
}

// word takes a word if it is the next one.
func (p *parser) word(w string) bool {
	rest := p.skip()
	if len(rest) < len(w) || !strings.EqualFold(rest[:len(w)], w) {
		return false
	}
	if after := rest[len(w):]; after != "" && !strings.ContainsRune(" \t()", rune(after[0])) {
		return false
	}
	p.rest = rest[len(w):]
	return true
}

func (p *parser) or(depth int) (expression, error)  { return p.chain(depth, "or", p.and) }
func (p *parser) and(depth int) (expression, error) { return p.chain(depth, "and", p.term) }

func (p *parser) chain(depth int, word string, part func(int) (expression, error)) (expression, error) {
	e := expression{kind: word}
	for {
		one, err := part(depth)
		if err != nil {
			return e, err
		}
		e.parts = append(e.parts, one)
		if !p.word(word) {
			break
		}
	}
	if len(e.parts) == 1 {
		return e.parts[0], nil
	}
	return e, nil
}

func (p *parser) term(depth int) (expression, error) {
	if depth > maxDepth {
		return expression{}, badFilter("the filter is nested too deeply")
	}
	negated := p.word("not")
	if strings.HasPrefix(p.skip(), "(") {
		p.rest = p.rest[1:]
		e, err := p.or(depth + 1)
		if err != nil {
			return e, err
		}
		if !strings.HasPrefix(p.skip(), ")") {
			return e, badFilter("a bracket is not closed")
		}
		p.rest = p.rest[1:]
		if negated {
			e = expression{kind: "not", parts: []expression{e}}
		}
		return e, nil
	}
	if negated {
		return expression{}, badFilter("a bracket was expected after not")
	}
	return p.comparison()
}

var operators = []string{"eq", "ne", "co", "sw", "ew", "pr", "gt", "ge", "lt", "le"}

func (p *parser) comparison() (expression, error) {
	e := expression{kind: "compare"}
	if p.terms++; p.terms > maxTerms {
		return e, badFilter("the filter compares more than %d times", maxTerms)
	}
	rest := p.skip()
	i := strings.IndexFunc(rest, func(r rune) bool {
		return !(r == '.' || r == ':' || r == '_' || r == '-' || r == '$' || r >= '0' && r <= '9' || r >= 'a' && r <= 'z' || r >= 'A' &&
			r <= 'Z')
	})
	if i < 0 {
		i = len(rest)
	}
	if i == 0 {
		return e, badFilter("an attribute was expected before %.40q", rest)
	}
	e.attribute, p.rest = attribute(rest[:i]), rest[i:]
	at := slices.IndexFunc(operators, p.word)
	if at < 0 {
		return e, badFilter("an operator such as eq was expected before %.40q", p.rest)
	}
	if e.op = operators[at]; e.op == "pr" {
		return e, nil
	}
	var err error
	e.value, err = p.value()
	return e, err
}

func (p *parser) value() (value, error) {
	rest := p.skip()
	if strings.HasPrefix(rest, `"`) {
		for i := 1; i < len(rest); i++ {
			switch rest[i] {
			case '\\':
				i++
			case '"':
				var text string
				if json.Unmarshal([]byte(rest[:i+1]), &text) != nil || strings.ContainsRune(text, 0) {
					return value{}, badFilter("a text of the filter cannot be read")
				}
				p.rest = rest[i+1:]
				return value{valueText, text}, nil
			}
		}
		return value{}, badFilter("a text of the filter does not end")
	}
	i := strings.IndexAny(rest, " \t)")
	if i < 0 {
		i = len(rest)
	}
	word := rest[:i]
	p.rest = rest[i:]
	switch strings.ToLower(word) {
	case "true", "false":
		return value{valueBool, word}, nil
	case "null":
		return value{valueNull, ""}, nil
	}
	var number json.Number
	if json.Unmarshal([]byte(word), &number) != nil {
		return value{}, badFilter("a value was expected instead of %.40q", word)
	}
	return value{valueNumber, word}, nil
}
