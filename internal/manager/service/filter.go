package service

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"
)

// The wire's mini-language for lists, compiled to SQL with parameters:
//
//	expr  = term { "|" term }     term = unary { "&" unary }     unary = "!" unary | "(" expr ")" | field op value
//	op    = == != > >= < <= contains in is isnot like ilike
//	value = "text" | number | null | true | false | [ value, ... ]
//
// Only fields of a list's table are accepted, so nothing of the text ever becomes SQL.

// The bounds of a filter.
const (
	maxFilterText  = 4096
	maxFilterTerms = 64
	maxFilterDepth = 32
	maxOrderFields = 8
)

type fieldKind int

const (
	fieldText fieldKind = iota
	fieldNumber
	fieldTime
	fieldBool
	fieldTexts // array of texts
	fieldOrderOnly
)

// listField is a field of the mini-language: an SQL expression of our own and how to compare it.
type listField struct {
	sql  string
	kind fieldKind
}

// sqlBuilder collects parameters.
type sqlBuilder struct{ args []any }

func (b *sqlBuilder) arg(v any) string {
	b.args = append(b.args, v)
	return "$" + strconv.Itoa(len(b.args))
}

func badFilter(format string, args ...any) error {
	return invalid("the filter cannot be read: "+format, args...).WithNext(`write for example: status == "RUNNING" & name like "a%%"`)
}

// compileFilter turns a filter into a condition; the empty filter is true.
func compileFilter(b *sqlBuilder, fields map[string]listField, text string) (string, error) {
	if strings.TrimSpace(text) == "" {
		return "true", nil
	}
	if len(text) > maxFilterText || !utf8.ValidString(text) || strings.ContainsRune(text, 0) {
		return "", badFilter("it is too long or not text")
	}
	p := &filterParser{b: b, fields: fields}
	if err := p.scan(text); err != nil {
		return "", err
	}
	sql, err := p.or(0)
	if err != nil {
		return "", err
	}
	if t := p.peek(); t.kind != tokenEnd {
		return "", badFilter("%q was not expected", t.text)
	}
	return sql, nil
}

// compileOrder turns "+name,-created_at" into an ORDER BY list that ends with the key, so that pages never overlap.
func compileOrder(fields map[string]listField, text, fallback, key string) (string, error) {
	if strings.TrimSpace(text) == "" {
		return fallback + ", " + key, nil
	}
	var out []string
	for item := range strings.SplitSeq(text, ",") {
		item = strings.TrimSpace(item)
		direction := "ASC"
		if rest, ok := strings.CutPrefix(item, "-"); ok {
			item, direction = rest, "DESC"
		} else {
			item = strings.TrimPrefix(item, "+")
		}
		f, ok := fields[strings.ToLower(item)]
		if !ok {
			return "", unknownField(item, fields)
		}
		if out = append(out, f.sql+" "+direction+" NULLS LAST"); len(out) > maxOrderFields {
			return "", invalid("a list may be ordered by %d fields at most", maxOrderFields)
		}
	}
	return strings.Join(append(out, key), ", "), nil
}

func unknownField(name string, fields map[string]listField) error {
	var names []string
	for n := range fields {
		names = append(names, n)
	}
	slices.Sort(names)
	return invalid("this list has no field %q", name).WithNext("use one of %s", strings.Join(names, ", "))
}

type tokenKind int

const (
	tokenEnd tokenKind = iota
	tokenWord
	tokenText
	tokenNumber
	tokenSign
)

type token struct {
	kind tokenKind
	text string
}

type filterParser struct {
	b      *sqlBuilder
	fields map[string]listField
	tokens []token
	terms  int
}

func (p *filterParser) peek() token {
	if len(p.tokens) == 0 {
		return token{tokenEnd, "the end"}
	}
	return p.tokens[0]
}

func (p *filterParser) next() token {
	t := p.peek()
	if len(p.tokens) > 0 {
		p.tokens = p.tokens[1:]
	}
	return t
}

func (p *filterParser) sign(text string) bool {
	if t := p.peek(); t.kind == tokenSign && t.text == text {
		p.next()
		return true
	}
	return false
}

func (p *filterParser) scan(s string) error {
	for s != "" {
		r, size := utf8.DecodeRuneInString(s)
		switch {
		case unicode.IsSpace(r):
			s = s[size:]
		case r == '"' || r == '\'':
			text, rest, err := scanText(s)
			if err != nil {
				return err
			}
			p.tokens, s = append(p.tokens, token{tokenText, text}), rest
		case r == '_' || unicode.IsLetter(r):
			i := strings.IndexFunc(s, func(r rune) bool { return r != '_' && r != '.' && !unicode.IsLetter(r) && !unicode.IsDigit(r) })
			if i < 0 {
				i = len(s)
			}
			p.tokens, s = append(p.tokens, token{tokenWord, s[:i]}), s[i:]
		case r >= '0' && r <= '9' || r == '-' || r == '+':
			i := 1 + strings.IndexFunc(s[1:]+" ", func(r rune) bool { return (r < '0' || r > '9') && r != '.' && r != 'e' && r != 'E' })
			if _, err := strconv.ParseFloat(s[:i], 64); err != nil {
				return badFilter("%q is no number", s[:i])
			}
			p.tokens, s = append(p.tokens, token{tokenNumber, s[:i]}), s[i:]
		default:
			n := 1
			for _, two := range []string{"==", "!=", ">=", "<=", "&&", "||"} {
				if strings.HasPrefix(s, two) {
					n = 2
				}
			}
			if !strings.Contains("!&|()<>[],=", s[:1]) {
				return badFilter("%q was not expected", string(r))
			}
			text := s[:n]
			if text == "&&" || text == "||" {
				text = text[:1]
			}
			p.tokens, s = append(p.tokens, token{tokenSign, text}), s[n:]
		}
	}
	return nil
}

func scanText(s string) (text, rest string, err error) {
	quote := s[0]
	var b strings.Builder
	for i := 1; i < len(s); i++ {
		switch s[i] {
		case quote:
			return b.String(), s[i+1:], nil
		case '\\':
			if i++; i == len(s) {
				return "", "", badFilter("a text does not end")
			}
			if s[i] != quote && s[i] != '\\' {
				b.WriteByte('\\') // patterns of like keep their escapes
			}
		}
		b.WriteByte(s[i])
	}
	return "", "", badFilter("a text does not end")
}

func (p *filterParser) or(depth int) (string, error)  { return p.chain(depth, "|", " OR ", p.and) }
func (p *filterParser) and(depth int) (string, error) { return p.chain(depth, "&", " AND ", p.unary) }

func (p *filterParser) chain(depth int, sign, sql string, part func(int) (string, error)) (string, error) {
	var parts []string
	for {
		s, err := part(depth)
		if err != nil {
			return "", err
		}
		if parts = append(parts, s); !p.sign(sign) {
			return "(" + strings.Join(parts, sql) + ")", nil
		}
	}
}

func (p *filterParser) unary(depth int) (string, error) {
	if depth > maxFilterDepth {
		return "", badFilter("it is nested too deeply")
	}
	if p.sign("!") {
		s, err := p.unary(depth + 1)
		return "(" + s + ") IS NOT TRUE", err
	}
	if p.sign("(") {
		s, err := p.or(depth + 1)
		if err == nil && !p.sign(")") {
			err = badFilter("a bracket is not closed before %q", p.peek().text)
		}
		return s, err
	}
	return p.comparison()
}

func (p *filterParser) comparison() (string, error) {
	if p.terms++; p.terms > maxFilterTerms {
		return "", badFilter("it compares more than %d times", maxFilterTerms)
	}
	name := p.next()
	if name.kind != tokenWord {
		return "", badFilter("a field was expected instead of %q", name.text)
	}
	f, ok := p.fields[strings.ToLower(name.text)]
	if !ok || f.kind == fieldOrderOnly {
		return "", unknownField(name.text, p.fields)
	}
	op := p.next()
	word := strings.ToLower(op.text)
	if op.kind == tokenText || op.kind == tokenNumber || op.kind == tokenEnd {
		return "", badFilter("an operator was expected after %s", name.text)
	}
	v, err := p.value(0)
	if err != nil {
		return "", err
	}
	return compare(p.b, name.text, f, word, v)
}

// value reads a literal: string, float64, bool, nil or []any.
func (p *filterParser) value(depth int) (any, error) {
	t := p.next()
	switch {
	case t.kind == tokenText:
		return t.text, nil
	case t.kind == tokenNumber:
		return strconv.ParseFloat(t.text, 64)
	case t.kind == tokenWord && strings.EqualFold(t.text, "null"):
		return nil, nil
	case t.kind == tokenWord && strings.EqualFold(t.text, "true"):
		return true, nil
	case t.kind == tokenWord && strings.EqualFold(t.text, "false"):
		return false, nil
	case t.kind == tokenSign && t.text == "[" && depth == 0:
		list := []any{}
		for !p.sign("]") {
			v, err := p.value(1)
			if err != nil {
				return nil, err
			}
			if list = append(list, v); len(list) > 1000 {
				return nil, badFilter("a list has more than 1000 items")
			}
			if !p.sign(",") && p.peek().text != "]" {
				return nil, badFilter("a list does not end")
			}
		}
		return list, nil
	}
	return nil, badFilter("a value was expected instead of %q", t.text)
}

func compare(b *sqlBuilder, name string, f listField, op string, v any) (string, error) {
	wrong := badFilter("%s cannot be compared with %v by %s", name, v, op)
	if v == nil {
		switch op {
		case "==", "is":
			return f.sql + " IS NULL", nil
		case "!=", "isnot":
			return f.sql + " IS NOT NULL", nil
		}
		return "", wrong
	}
	if list, ok := v.([]any); ok {
		if op != "in" || f.kind == fieldTexts {
			return "", wrong
		}
		var parts []string
		for _, one := range list {
			s, err := compare(b, name, f, "==", one)
			if err != nil {
				return "", err
			}
			parts = append(parts, s)
		}
		if len(parts) == 0 {
			return "false", nil
		}
		return "(" + strings.Join(parts, " OR ") + ")", nil
	}
	signs := map[string]string{"==": "=", "=": "=", "is": "=", "!=": "<>", "isnot": "<>", ">": ">", ">=": ">=", "<": "<", "<=": "<="}
	sign, plain := signs[op]
	switch f.kind {
	case fieldTexts:
		if text, ok := v.(string); ok && (op == "contains" || op == "==") {
			return b.arg(text) + "::text = ANY(" + f.sql + ")", nil
		}
	case fieldText:
		text, ok := v.(string)
		if !ok {
			return "", wrong
		}
		switch {
		case plain:
			return f.sql + " " + sign + " " + b.arg(text) + "::text", nil
		case op == "contains":
			return "strpos(" + f.sql + ", " + b.arg(text) + "::text) > 0", nil
		case op == "like" || op == "ilike":
			if strings.HasSuffix(strings.ReplaceAll(text, `\\`, ""), `\`) {
				return "", badFilter("the pattern %q ends with a backslash", text)
			}
			return f.sql + " " + strings.ToUpper(op) + " " + b.arg(text) + "::text", nil
		}
	case fieldNumber:
		if n, ok := v.(float64); ok && plain {
			return f.sql + " " + sign + " " + b.arg(n) + "::float8", nil
		}
	case fieldBool:
		if t, ok := v.(bool); ok && plain && (sign == "=" || sign == "<>") {
			return f.sql + " " + sign + " " + b.arg(t) + "::boolean", nil
		}
	case fieldTime:
		text, ok := v.(string)
		if !ok || !plain {
			return "", wrong
		}
		t, err := startsAt(text, time.Time{})
		if err != nil || t == nil || t.Year() < 1900 {
			return "", badFilter("%q is not a time", text)
		}
		return f.sql + " " + sign + " " + b.arg(*t) + "::timestamptz", nil
	}
	return "", wrong
}

// check fills in the defaults of a page.
func (q *ListQuery) check() error {
	if q.Limit == 0 {
		q.Limit = 20
	}
	if q.Limit < 1 || q.Limit > 100 {
		return invalid("a page has 1 to 100 items, not %d", q.Limit)
	}
	if q.Offset < 0 || q.Offset > 10_000_000 {
		return invalid("offset %d is not allowed", q.Offset)
	}
	return nil
}

// listSpec describes a list for page.
type listSpec struct {
	from     string // SQL of our own
	key      string // expression of the text key
	fields   map[string]listField
	order    string // default
	b        sqlBuilder
	where    []string
	keyOrder string
}

// and adds a condition; %s stands for the parameter.
func (l *listSpec) and(sql string, v any) {
	l.where = append(l.where, fmt.Sprintf(sql, l.b.arg(v)))
}
