package main

import (
	"fmt"
	"go/ast"
	"go/constant"
	"go/token"
	"go/types"
	"slices"
	"strconv"
	"strings"
)

// mutant is one change of the source: the bytes from start to end of a file become text.
type mutant struct {
	file     string // relative to the module, slash-separated
	source   []byte
	start    int
	end      int
	text     string
	operator string
	function string // "(*T).name", "name", or "" outside of functions
	line     int
	column   int
	host     host
	number   int // in a batch; 0 outside of one
}

// host is the whole expression or statement that a mutant changes: in a batch it becomes a choice between the original and its
// mutants.
type host struct {
	start, end int
	kind       hostKind
	typ        string // of an expression
}

type hostKind int

const (
	noHost hostKind = iota
	expression
	statement
	header // a statement in the header of a loop or branch
)

func (m *mutant) where() string { return fmt.Sprintf("%s:%d %s", m.file, m.line, m.function) }

// apply returns the mutated file.
func (m *mutant) apply() []byte {
	return slices.Concat(m.source[:m.start], []byte(m.text), m.source[m.end:])
}

// diff returns the lines that the mutant removes and those that it adds, without indentation.
func (m *mutant) diff() (removed, added []string) {
	from := strings.LastIndexByte(string(m.source[:m.start]), '\n') + 1
	to := len(m.source)
	if n := strings.IndexByte(string(m.source[m.end:]), '\n'); n >= 0 {
		to = m.end + n
	}
	removed = lines(string(m.source[from:to]))
	added = lines(string(m.source[from:m.start]) + m.text + string(m.source[m.end:to]))
	for len(removed) > 1 && len(added) > 1 && removed[0] == added[0] {
		removed, added = removed[1:], added[1:]
	}
	for len(removed) > 1 && len(added) > 1 && removed[len(removed)-1] == added[len(added)-1] {
		removed, added = removed[:len(removed)-1], added[:len(added)-1]
	}
	return removed, added
}

func lines(text string) []string {
	out := strings.Split(text, "\n")
	for i := range out {
		out[i] = strings.TrimSpace(out[i])
	}
	return out
}

func (m *mutant) report() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s: %s\n", m.where(), m.operator)
	removed, added := m.diff()
	for _, s := range removed {
		fmt.Fprintf(&b, "    - %s\n", s)
	}
	for _, s := range added {
		fmt.Fprintf(&b, "    + %s\n", s)
	}
	return b.String()
}

// swaps are the operators that replace one binary operator, assignment or step by another.
var swaps = map[token.Token][]token.Token{
	token.LSS: {token.LEQ, token.GEQ}, token.LEQ: {token.LSS, token.GTR},
	token.GTR: {token.GEQ, token.LEQ}, token.GEQ: {token.GTR, token.LSS},
	token.EQL: {token.NEQ}, token.NEQ: {token.EQL},
	token.ADD: {token.SUB}, token.SUB: {token.ADD}, token.MUL: {token.QUO}, token.QUO: {token.MUL}, token.REM: {token.MUL},
	token.AND: {token.OR}, token.OR: {token.AND}, token.XOR: {token.AND}, token.AND_NOT: {token.AND},
	token.SHL: {token.SHR}, token.SHR: {token.SHL},
	token.ADD_ASSIGN: {token.SUB_ASSIGN}, token.SUB_ASSIGN: {token.ADD_ASSIGN},
	token.MUL_ASSIGN: {token.QUO_ASSIGN}, token.QUO_ASSIGN: {token.MUL_ASSIGN},
	token.AND_ASSIGN: {token.OR_ASSIGN}, token.OR_ASSIGN: {token.AND_ASSIGN},
	token.INC: {token.DEC}, token.DEC: {token.INC},
}

// finder walks one file and collects its mutants.
type finder struct {
	p        *packageSource
	f        *fileSource
	function string
	results  []*ast.FuncType // of the functions around the present node, the innermost last
	stack    []ast.Node
	seen     map[[2]int][]string
	out      []*mutant
}

// mutants lists the mutants of a package in source order. Some of them do not compile.
func (p *packageSource) mutants() []*mutant {
	var out []*mutant
	for _, f := range p.files {
		if ast.IsGenerated(f.syntax) {
			continue
		}
		w := &finder{p: p, f: f, seen: map[[2]int][]string{}}
		for _, d := range f.syntax.Decls {
			w.declaration(d)
		}
		slices.SortStableFunc(w.out, func(a, b *mutant) int { return a.start - b.start })
		out = append(out, w.out...)
	}
	return out
}

// silent are the methods whose results are text for people.
var silent = []string{"String", "GoString", "Error", "LogValue"}

func (w *finder) declaration(d ast.Decl) {
	w.function, w.results = "", nil
	switch d := d.(type) {
	case *ast.GenDecl:
		if d.Tok != token.CONST && d.Tok != token.VAR {
			return
		}
	case *ast.FuncDecl:
		if d.Body == nil || d.Recv != nil && slices.Contains(silent, d.Name.Name) {
			return
		}
		w.function = d.Name.Name
		if d.Recv != nil && len(d.Recv.List) == 1 {
			w.function = "(" + receiver(d.Recv.List[0].Type) + ")." + w.function
		}
	}
	ast.Inspect(d, func(n ast.Node) bool {
		if n == nil {
			last := w.stack[len(w.stack)-1]
			switch last.(type) {
			case *ast.FuncDecl, *ast.FuncLit:
				w.results = w.results[:len(w.results)-1]
			}
			w.stack = w.stack[:len(w.stack)-1]
			return true
		}
		if w.ignored(n) {
			return false
		}
		w.stack = append(w.stack, n)
		switch n := n.(type) {
		case *ast.FuncDecl:
			w.results = append(w.results, n.Type)
		case *ast.FuncLit:
			w.results = append(w.results, n.Type)
		}
		w.node(n)
		return true
	})
}

// receiver writes a receiver's type without its type parameters.
func receiver(e ast.Expr) string {
	switch e := e.(type) {
	case *ast.StarExpr:
		return "*" + receiver(e.X)
	case *ast.IndexExpr:
		return receiver(e.X)
	case *ast.IndexListExpr:
		return receiver(e.X)
	case *ast.Ident:
		return e.Name
	}
	return "?"
}

// ignored reports whether nothing below a node is mutated: panics, logging, capacities, and the lengths of durations.
func (w *finder) ignored(n ast.Node) bool {
	if e, ok := n.(ast.Expr); ok && len(w.stack) > 0 {
		if call, ok := w.stack[len(w.stack)-1].(*ast.CallExpr); ok && w.capacity(call, e) {
			return true
		}
	}
	switch n := n.(type) {
	case *ast.CallExpr:
		return w.isPanic(n) || w.isLog(n)
	case *ast.BinaryExpr:
		// "30 * time.Second": a test could only repeat the number.
		if n.Op == token.MUL {
			_, x := ast.Unparen(n.X).(*ast.BasicLit)
			_, y := ast.Unparen(n.Y).(*ast.BasicLit)
			return (x || y) && w.isDuration(n) && w.p.info.Types[n].Value != nil
		}
	}
	return false
}

func (w *finder) isDuration(e ast.Expr) bool {
	t := w.p.info.TypeOf(e)
	return t != nil && t.String() == "time.Duration"
}

// capacity reports whether an argument of make is only a hint about space.
func (w *finder) capacity(call *ast.CallExpr, arg ast.Expr) bool {
	id, ok := call.Fun.(*ast.Ident)
	if !ok || id.Name != "make" || len(call.Args) < 2 {
		return false
	}
	if _, builtin := w.p.info.Uses[id].(*types.Builtin); !builtin {
		return false
	}
	if len(call.Args) == 3 && arg == call.Args[2] {
		return true
	}
	t := w.p.info.TypeOf(call.Args[0])
	if t == nil {
		return false
	}
	_, isMap := t.Underlying().(*types.Map)
	return isMap && arg == call.Args[1]
}

func (w *finder) isPanic(call *ast.CallExpr) bool {
	id, ok := call.Fun.(*ast.Ident)
	return ok && id.Name == "panic"
}

func (w *finder) isLog(call *ast.CallExpr) bool {
	sel, ok := call.Fun.(*ast.SelectorExpr)
	if !ok {
		return false
	}
	if id, ok := sel.X.(*ast.Ident); ok {
		if name, ok := w.p.info.Uses[id].(*types.PkgName); ok {
			path := name.Imported().Path()
			return path == "log" || path == "log/slog"
		}
	}
	t := w.p.info.TypeOf(sel.X)
	return t != nil && t.String() == "*log/slog.Logger"
}

// add records a mutant of a host that replaces the source between two positions.
func (w *finder) add(h host, from, to token.Pos, text, operator string) {
	at := w.p.set.Position(from)
	start, end := at.Offset, w.p.set.Position(to).Offset
	if string(w.f.source[start:end]) == text || slices.Contains(w.seen[[2]int{start, end}], text) {
		return
	}
	w.seen[[2]int{start, end}] = append(w.seen[[2]int{start, end}], text)
	w.out = append(w.out, &mutant{
		file: w.f.path, source: w.f.source, start: start, end: end, text: text, operator: operator,
		function: w.function, line: at.Line, column: at.Column, host: h,
	})
}

// value is the host of an expression.
func (w *finder) value(e ast.Expr) host { return w.typed(e, w.p.info.TypeOf(e)) }

func (w *finder) typed(e ast.Expr, t types.Type) host {
	if t == nil || w.function == "" {
		return host{}
	}
	known := true
	name := types.TypeString(types.Default(t), func(other *types.Package) string {
		if other.Path() == w.p.path {
			return ""
		}
		for _, i := range w.f.syntax.Imports {
			if path, _ := strconv.Unquote(i.Path.Value); path == other.Path() {
				if i.Name != nil {
					return i.Name.Name
				}
				return other.Name()
			}
		}
		known = false
		return ""
	})
	if !known {
		return host{}
	}
	return host{start: w.p.set.Position(e.Pos()).Offset, end: w.p.set.Position(e.End()).Offset, kind: expression, typ: name}
}

// stmt is the host of a statement.
func (w *finder) stmt(n ast.Node) host {
	kind := statement
	if w.inHeader(n) {
		kind = header
	}
	return host{start: w.p.set.Position(n.Pos()).Offset, end: w.p.set.Position(n.End()).Offset, kind: kind}
}

func (w *finder) inHeader(n ast.Node) bool {
	switch p := w.parent().(type) {
	case *ast.IfStmt, *ast.ForStmt, *ast.SwitchStmt, *ast.TypeSwitchStmt, *ast.LabeledStmt:
		return true
	case *ast.CommClause:
		return p.Comm == n
	}
	return false
}

func (w *finder) text(n ast.Node) string {
	return string(w.f.source[w.p.set.Position(n.Pos()).Offset:w.p.set.Position(n.End()).Offset])
}

func (w *finder) parent() ast.Node {
	if len(w.stack) < 2 {
		return nil
	}
	return w.stack[len(w.stack)-2]
}

func (w *finder) node(n ast.Node) {
	switch n := n.(type) {
	case *ast.BinaryExpr:
		w.binary(n)
	case *ast.UnaryExpr:
		if n.Op == token.NOT {
			w.add(w.value(n), n.Pos(), n.End(), w.text(n.X), "remove a negation")
		}
	case *ast.Ident:
		if c, ok := w.p.info.Uses[n].(*types.Const); ok && c.Parent() == types.Universe && c.Val().Kind() == constant.Bool {
			w.add(w.value(n), n.Pos(), n.End(), strconv.FormatBool(n.Name != "true"), "flip a boolean")
		}
	case *ast.BasicLit:
		if n.Kind == token.INT {
			if v, err := strconv.ParseInt(n.Value, 0, 64); err == nil {
				w.add(w.value(n), n.Pos(), n.End(), strconv.FormatInt(v+1, 10), "increase an integer")
				if v != 0 || !w.beside("len", n) {
					w.add(w.value(n), n.Pos(), n.End(), strconv.FormatInt(v-1, 10), "decrease an integer")
				}
			}
		}
	case *ast.IncDecStmt:
		w.swap(w.stmt(n), n.TokPos, n.Tok, "arithmetic")
		w.remove(n)
	case *ast.AssignStmt:
		if n.Tok == token.DEFINE || blank(n) {
			return
		}
		w.swap(w.stmt(n), n.TokPos, n.Tok, "arithmetic")
		w.remove(n)
	case *ast.ExprStmt:
		if call, ok := n.X.(*ast.CallExpr); ok && !w.isPanic(call) && !w.isLog(call) {
			w.remove(n)
		}
	case *ast.SendStmt, *ast.GoStmt, *ast.DeferStmt, *ast.RangeStmt:
		w.remove(n)
	case *ast.ForStmt:
		if n.Cond != nil {
			w.never(n.Cond, "skip a loop")
		}
	case *ast.IfStmt:
		w.never(n.Cond, "skip the body of an if")
		if n.Else != nil {
			w.add(w.value(n.Cond), n.Cond.Pos(), n.Cond.End(), "true || ("+w.text(n.Cond)+")", "skip the else")
		}
	case *ast.CaseClause:
		w.clause(n)
	case *ast.BranchStmt:
		switch n.Tok {
		case token.BREAK:
			w.add(w.stmt(n), n.Pos(), n.Pos()+token.Pos(len("break")), "continue", "continue instead of break")
		case token.CONTINUE:
			w.add(w.stmt(n), n.Pos(), n.Pos()+token.Pos(len("continue")), "break", "break instead of continue")
		}
	case *ast.ReturnStmt:
		w.returned(n)
	}
}

func (w *finder) binary(n *ast.BinaryExpr) {
	switch n.Op {
	case token.LAND, token.LOR:
		other := token.LOR
		if n.Op == token.LOR {
			other = token.LAND
		}
		if _, inside := w.parent().(*ast.BinaryExpr); inside {
			w.add(w.value(n), n.Pos(), n.End(), fmt.Sprintf("(%s %s %s)", w.text(n.X), other, w.text(n.Y)), "logical operator")
			return
		}
		w.add(w.value(n), n.OpPos, n.OpPos+2, other.String(), "logical operator")
	case token.LSS, token.LEQ, token.GTR, token.GEQ, token.EQL, token.NEQ:
		w.swap(w.value(n), n.OpPos, n.Op, "comparison")
	default:
		w.swap(w.value(n), n.OpPos, n.Op, "arithmetic")
	}
}

// beside reports whether an expression is compared with a call of a built-in function.
func (w *finder) beside(name string, e ast.Expr) bool {
	b, ok := w.parent().(*ast.BinaryExpr)
	if !ok {
		return false
	}
	other := b.X
	if other == e {
		other = b.Y
	}
	call, ok := ast.Unparen(other).(*ast.CallExpr)
	if !ok {
		return false
	}
	id, ok := call.Fun.(*ast.Ident)
	return ok && id.Name == name
}

func (w *finder) swap(h host, at token.Pos, op token.Token, operator string) {
	for _, other := range swaps[op] {
		w.add(h, at, at+token.Pos(len(op.String())), other.String(), operator)
	}
}

// remove skips a statement. The statement stays in the source, so that what it uses still counts as used.
func (w *finder) remove(n ast.Node) {
	if w.inHeader(n) {
		return
	}
	w.add(w.stmt(n), n.Pos(), n.End(), "if false { "+w.text(n)+" }", "skip a statement")
}

func (w *finder) never(cond ast.Expr, operator string) {
	w.add(w.value(cond), cond.Pos(), cond.End(), "false && ("+w.text(cond)+")", operator)
}

// clause skips a case: by its condition where the switch has no tag, else by its body.
func (w *finder) clause(n *ast.CaseClause) {
	if len(w.stack) >= 3 && len(n.List) > 0 {
		if s, ok := w.stack[len(w.stack)-3].(*ast.SwitchStmt); ok && s.Tag == nil {
			for _, e := range n.List {
				w.never(e, "skip a case")
			}
			return
		}
	}
	if len(n.Body) > 0 {
		from, to := n.Body[0].Pos(), n.Body[len(n.Body)-1].End()
		body := string(w.f.source[w.p.set.Position(from).Offset:w.p.set.Position(to).Offset])
		h := host{start: w.p.set.Position(from).Offset, end: w.p.set.Position(to).Offset, kind: statement}
		w.add(h, from, to, "if false { "+body+" }", "skip a case")
	}
}

func blank(n *ast.AssignStmt) bool {
	for _, e := range n.Lhs {
		if id, ok := e.(*ast.Ident); !ok || id.Name != "_" {
			return false
		}
	}
	return true
}

// returned replaces the values of a return statement one by one.
func (w *finder) returned(n *ast.ReturnStmt) {
	if len(w.results) == 0 {
		return
	}
	list := w.results[len(w.results)-1].Results
	if list == nil {
		return
	}
	var wanted []ast.Expr // the type of each result
	for _, field := range list.List {
		for range max(1, len(field.Names)) {
			wanted = append(wanted, field.Type)
		}
	}
	if len(wanted) != len(n.Results) {
		return
	}
	for i, e := range n.Results {
		t := w.p.info.TypeOf(wanted[i])
		if t == nil || w.isZero(e) {
			continue
		}
		basic, _ := t.Underlying().(*types.Basic)
		switch {
		case basic != nil && basic.Info()&types.IsBoolean != 0:
			switch x := ast.Unparen(e).(type) {
			case *ast.Ident:
				if x.Name == "true" {
					continue // flipped as a literal
				}
			case *ast.UnaryExpr:
				continue // its negation is removed
			case *ast.BinaryExpr:
				if x.Op == token.EQL || x.Op == token.NEQ {
					continue // negated as a comparison
				}
			}
			w.add(w.typed(e, t), e.Pos(), e.End(), "!("+w.text(e)+")", "negate a result")
		case basic != nil && basic.Info()&types.IsString != 0:
			w.add(w.typed(e, t), e.Pos(), e.End(), `""`, "return an empty text")
		case basic != nil && basic.Info()&types.IsNumeric != 0:
			w.add(w.typed(e, t), e.Pos(), e.End(), "0", "return zero")
		case nillable(t):
			w.add(w.typed(e, t), e.Pos(), e.End(), "nil", "return nil")
		default:
			w.add(w.typed(e, t), e.Pos(), e.End(), "*new("+w.text(wanted[i])+")", "return the zero value")
		}
	}
}

func nillable(t types.Type) bool {
	if _, parameter := t.(*types.TypeParam); parameter {
		return false
	}
	switch t.Underlying().(type) {
	case *types.Pointer, *types.Slice, *types.Map, *types.Chan, *types.Signature, *types.Interface:
		return true
	}
	return false
}

// isZero reports whether an expression is written as the zero value.
func (w *finder) isZero(e ast.Expr) bool {
	e = ast.Unparen(e)
	tv := w.p.info.Types[e]
	if tv.IsNil() {
		return true
	}
	if tv.Value != nil {
		switch tv.Value.Kind() {
		case constant.Bool:
			return !constant.BoolVal(tv.Value)
		case constant.String:
			return constant.StringVal(tv.Value) == ""
		default:
			return constant.Sign(tv.Value) == 0
		}
	}
	if lit, ok := e.(*ast.CompositeLit); ok && len(lit.Elts) == 0 {
		switch tv.Type.Underlying().(type) {
		case *types.Struct, *types.Array:
			return true
		}
	}
	return false
}
