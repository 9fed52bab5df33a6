// Package list reads lists page by page. It compiles the mini-language of the wire's lists to SQL with parameters:
//
//	expr  = term { "|" term }     term = unary { "&" unary }     unary = "!" unary | "(" expr ")" | field op value
//	op    = == != > >= < <= contains in is isnot like ilike
//	value = "text" | number | null | true | false | [ value, ... ]
//
// and an order such as "+name,-created_at". Only fields of a list's own table are accepted and values become
// parameters, so nothing of a text ever becomes SQL. It knows no table and no database; the nouns call it.
package list

import (
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/fault"
)

// The bounds of a filter.
const (
	maxFilterText  = 4096
	maxFilterTerms = 64
	maxFilterDepth = 32
	maxOrderFields = 8
)

type kind int

const (
	kindText kind = iota
	kindNumber
	kindTime
	kindBool
	kindTexts
	kindOrder
	kindEnum
	kindID
)

// Field is a field of a list: an SQL expression of our own and how it may be compared.
type Field struct {
	sql  string
	kind kind
	// words are what is stored for what is written, in lower case; of kindEnum.
	words map[string]string
	// trigrams is the condition of Trigrams, "" where no index holds them.
	trigrams string
}

// Text is compared with strings, Number with numbers, Time with ISO times, Bool with true and false; Texts is an
// array that contains strings; OrderOnly can be ordered by and not compared.
func Text(sql string) Field { return Field{sql: sql, kind: kindText} }

// Number makes a field of numbers.
func Number(sql string) Field { return Field{sql: sql, kind: kindNumber} }

// Time makes a field of instants.
func Time(sql string) Field { return Field{sql: sql, kind: kindTime} }

// Bool makes a field of truth values.
func Bool(sql string) Field { return Field{sql: sql, kind: kindBool} }

// Texts makes a field that is an array of texts.
func Texts(sql string) Field { return Field{sql: sql, kind: kindTexts} }

// Enum makes a field of few words. It is compared with them in any case, with _ for -, and by the other names of names.
func Enum(sql string, words []string, names map[string]string) Field {
	f := Field{sql: sql, kind: kindEnum, words: map[string]string{}}
	for _, w := range words {
		f.words[enumWord(w)] = w
	}
	for name, w := range names {
		f.words[enumWord(name)] = w
	}
	return f
}

func enumWord(text string) string { return strings.ReplaceAll(strings.ToLower(text), "-", "_") }

// ID makes a field of UUIDs; they are compared with dashes or without, and with other texts as texts.
func ID(sql string) Field { return Field{sql: sql, kind: kindID} }

// OrderOnly makes a field to order by.
func OrderOnly(sql string) Field { return Field{sql: sql, kind: kindOrder} }

// Fields are the fields of one list by their wire names in lower case.
type Fields map[string]Field

// Builder collects parameters.
type Builder struct{ Args []any }

// Arg adds a parameter and returns its placeholder.
func (b *Builder) Arg(v any) string {
	b.Args = append(b.Args, v)
	return "$" + strconv.Itoa(len(b.Args))
}

func badFilter(format string, args ...any) error {
	return fault.Invalidf("the filter cannot be read: "+format, args...).WithNext(`write for example: status == "RUNNING" & name like "a%%"`)
}

// Filter turns a filter into a condition; the empty filter is true.
func Filter(b *Builder, fields Fields, text string) (string, error) {
	c, err := compile(b, fields, text, "")
	return c.sql, err
}

// compiled is a filter as a condition, and what is known of it.
type compiled struct {
	sql string
	// fields are those that it names.
	fields map[string]bool
	// words are what the watched field may be where the condition holds; nothing is known of them unless narrowed.
	words    []string
	narrowed bool
}

// compile is Filter that also finds out what it lets a field of kindEnum be, where watched names one.
func compile(b *Builder, fields Fields, text, watched string) (compiled, error) {
	p := &filterParser{b: b, fields: fields, watched: watched, used: map[string]bool{}, stored: fields[watched].stored()}
	if strings.TrimSpace(text) == "" {
		return compiled{sql: "true", fields: p.used, words: p.stored}, nil
	}
	if len(text) > maxFilterText || !utf8.ValidString(text) || strings.ContainsRune(text, 0) {
		return compiled{}, badFilter("it is too long or not text")
	}
	if err := p.scan(text); err != nil {
		return compiled{}, err
	}
	c, err := p.or(0)
	if err != nil {
		return compiled{}, err
	}
	if t := p.peek(); t.kind != tokenEnd {
		return compiled{}, badFilter("%q was not expected", t.text)
	}
	return compiled{c.sql, p.used, c.holds.of(p.stored), p.stored != nil && p.used[watched]}, nil
}

// Order turns "+name,-created_at" into an ORDER BY list that ends with the key, so that pages never overlap.
func Order(fields Fields, text, fallback, key string) (string, error) {
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
			return "", fault.Invalidf("a list may be ordered by %d fields at most", maxOrderFields)
		}
	}
	return strings.Join(append(out, key), ", "), nil
}

func unknownField(name string, fields Fields) error {
	var names []string
	for n := range fields {
		names = append(names, n)
	}
	slices.Sort(names)
	return fault.Invalidf("this list has no field %q", name).WithNext("use one of %s", strings.Join(names, ", "))
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
	b      *Builder
	fields Fields
	tokens []token
	terms  int
	// watched is the field of which is found out what it may be, of the stored words; used are the fields that were named.
	watched string
	stored  []string
	used    map[string]bool
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

func (p *filterParser) or(depth int) (condition, error) {
	return p.chain(depth, "|", " OR ", p.and, condition.or)
}

func (p *filterParser) and(depth int) (condition, error) {
	return p.chain(depth, "&", " AND ", p.unary, condition.and)
}

func (p *filterParser) chain(depth int, sign, sql string, part func(int) (condition, error),
	join func(a, b condition) condition) (condition, error) {
	var all condition
	var parts []string
	for {
		c, err := part(depth)
		if err != nil {
			return condition{}, err
		}
		if parts = append(parts, c.sql); len(parts) == 1 {
			all = c
		} else {
			all = join(all, c)
		}
		if !p.sign(sign) {
			all.sql = "(" + strings.Join(parts, sql) + ")"
			return all, nil
		}
	}
}

func (p *filterParser) unary(depth int) (condition, error) {
	if depth > maxFilterDepth {
		return condition{}, badFilter("it is nested too deeply")
	}
	if p.sign("!") {
		c, err := p.unary(depth + 1)
		return condition{"(" + c.sql + ") IS NOT TRUE", c.fails, c.holds}, err
	}
	if p.sign("(") {
		c, err := p.or(depth + 1)
		if err == nil && !p.sign(")") {
			err = badFilter("a bracket is not closed before %q", p.peek().text)
		}
		return c, err
	}
	return p.comparison()
}

func (p *filterParser) comparison() (condition, error) {
	if p.terms++; p.terms > maxFilterTerms {
		return condition{}, badFilter("it compares more than %d times", maxFilterTerms)
	}
	name := p.next()
	if name.kind != tokenWord {
		return condition{}, badFilter("a field was expected instead of %q", name.text)
	}
	f, ok := p.fields[strings.ToLower(name.text)]
	if !ok || f.kind == kindOrder {
		return condition{}, unknownField(name.text, p.fields)
	}
	op := p.next()
	word := strings.ToLower(op.text)
	if op.kind == tokenText || op.kind == tokenNumber || op.kind == tokenEnd {
		return condition{}, badFilter("an operator was expected after %s", name.text)
	}
	v, err := p.value(0)
	if err != nil {
		return condition{}, err
	}
	sql, err := compare(p.b, name.text, f, word, v)
	if err != nil {
		return condition{}, err
	}
	p.used[strings.ToLower(name.text)] = true
	c := condition{sql, everything, everything}
	if strings.ToLower(name.text) == p.watched {
		c.holds, c.fails = f.possible(p.stored, word, v)
	}
	return c, nil
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

func compare(b *Builder, name string, f Field, op string, v any) (string, error) {
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
		if op != "in" || f.kind == kindTexts {
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
	case kindTexts:
		if text, ok := v.(string); ok && (op == "contains" || op == "==") {
			return b.Arg(text) + "::text = ANY(" + f.sql + ")", nil
		}
	case kindText:
		text, ok := v.(string)
		if !ok {
			return "", wrong
		}
		switch {
		case plain:
			return f.sql + " " + sign + " " + b.Arg(text) + "::text", nil
		case op == "contains":
			return f.lookUp(b, "strpos("+f.sql+", "+b.Arg(text)+"::text) > 0", op, text), nil
		case op == "like" || op == "ilike":
			if strings.HasSuffix(strings.ReplaceAll(text, `\\`, ""), `\`) {
				return "", badFilter("the pattern %q ends with a backslash", text)
			}
			return f.lookUp(b, f.sql+" "+strings.ToUpper(op)+" "+b.Arg(text)+"::text", op, text), nil
		}
	case kindEnum:
		text, ok := v.(string)
		if !ok {
			return "", wrong
		}
		if stored, known := f.words[enumWord(text)]; known && plain {
			text = stored
		}
		return compare(b, name, Text(f.sql), op, text)
	case kindID:
		if text, ok := v.(string); ok && plain && (sign == "=" || sign == "<>") {
			if id, isID := cluster.CanonicalUUID(text); isID {
				return f.sql + " " + sign + " " + b.Arg(id) + "::uuid", nil
			}
		}
		return compare(b, name, Text(f.sql+"::text"), op, v)
	case kindNumber:
		if n, ok := v.(float64); ok && plain {
			return f.sql + " " + sign + " " + b.Arg(n) + "::float8", nil
		}
	case kindBool:
		if t, ok := v.(bool); ok && plain && (sign == "=" || sign == "<>") {
			return f.sql + " " + sign + " " + b.Arg(t) + "::boolean", nil
		}
	case kindTime:
		text, ok := v.(string)
		if !ok || !plain {
			return "", wrong
		}
		t, err := parseTime(text)
		if err != nil {
			return "", badFilter("%q is not a time", text)
		}
		return f.sql + " " + sign + " " + b.Arg(t) + "::timestamptz", nil
	}
	return "", wrong
}

// parseTime reads ISO times; without a zone they are UTC.
func parseTime(text string) (time.Time, error) {
	var err error
	for _, layout := range []string{time.RFC3339Nano, "2006-01-02T15:04:05.999999999", "2006-01-02 15:04:05.999999999Z07:00",
		"2006-01-02 15:04:05.999999999", "2006-01-02"} {
		var t time.Time
		if t, err = time.Parse(layout, text); err == nil {
			return t, nil
		}
	}
	return time.Time{}, err
}
