package tomlfile

import (
	"bytes"
	"encoding"
	"errors"
	"fmt"
	"reflect"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/pelletier/go-toml/v2"
	"github.com/pelletier/go-toml/v2/unstable"
)

// maxSyntax bounds how often the walk picks itself up after a fault of syntax; past it the list would be guesswork.
const maxSyntax = 20

var (
	headerLine    = regexp.MustCompile(`^\s*\[\[?[\pL\pN_."' -]+\]\]?\s*(#.*)?$`)
	statementLine = regexp.MustCompile(`^\s*[\pL\pN_."'-]+\s*=`)
)

// scan walks the file against the type, records the place of every key and every fault, and returns the content with the
// faulty statements blanked out, so that the rest can still be decoded.
func scan(p *Positions, root reflect.Type) []byte {
	data := bytes.Clone(p.data)
	var syntax Problems
	for {
		w := &walker{pos: p, root: root, data: data}
		p.keys, p.faulty, p.problems = map[string]int{}, map[string]bool{}, nil
		offset, what, ok := w.run()
		if ok {
			p.problems = append(syntax, p.problems...)
			return w.blanked()
		}
		line, column := p.place(offset)
		syntax = append(syntax, Problem{File: p.File, Line: line, Column: column, What: what})
		p.broken = true
		if len(syntax) == maxSyntax || !w.skipBroken(offset) {
			p.problems = append(syntax, p.problems...)
			return w.blanked()
		}
	}
}

// walker is one pass over the statements of a file.
type walker struct {
	pos  *Positions
	root reflect.Type
	data []byte

	parser unstable.Parser
	stmts  []statement
	elems  map[string]int // array of tables -> elements so far
	seen   map[string]int // key or table header -> offset of its first appearance

	table    string       // path of the current table
	typ      reflect.Type // its type; nil where it is unknown
	badTable bool         // the current table's header is faulty, so its keys are passed over
}

type statement struct {
	start  int    // offset of the line it begins on
	key    string // what it sets or opens
	header bool
	bad    bool
}

// run walks all statements; a fault of syntax ends it with its offset and text.
func (w *walker) run() (offset int, what string, ok bool) {
	w.elems, w.seen, w.typ = map[string]int{}, map[string]int{}, w.root
	w.parser.Reset(w.data)
	for w.parser.NextExpression() {
		n := w.parser.Expression()
		switch n.Kind {
		case unstable.Table, unstable.ArrayTable:
			w.header(n)
		case unstable.KeyValue:
			w.keyValue(n)
		}
	}
	err := w.parser.Error()
	if err == nil {
		return 0, "", true
	}
	var pe *unstable.ParserError
	if errors.As(err, &pe) {
		return w.offsetOf(pe.Highlight), tidy(pe.Message), false
	}
	return len(w.data), tidy(err.Error()), false
}

// offsetOf places a parser's highlight; the end of the file stands in for one that lies outside.
func (w *walker) offsetOf(highlight []byte) (off int) {
	defer func() {
		if recover() != nil { // Range panics on a slice that is not part of the input, which is the parser's business
			off = len(w.data)
		}
	}()
	if len(highlight) == 0 && cap(highlight) == 0 {
		return len(w.data)
	}
	return int(w.parser.Range(highlight).Offset)
}

// skipBroken blanks the statement that could not be parsed, up to the next line that looks like a statement of its own. A
// broken table header takes its whole table along: its keys would otherwise be blamed on the table before.
func (w *walker) skipBroken(offset int) bool {
	errLine, _ := w.pos.place(min(offset, max(len(w.data)-1, 0)))
	first := 1
	if n := len(w.stmts); n > 0 {
		line, _ := w.pos.place(w.stmts[n-1].start)
		first = line + 1
	}
	for first < errLine && !looksNew(w.line(first)) {
		first++
	}
	header := bytes.HasPrefix(bytes.TrimSpace(w.line(first)), []byte("["))
	last := max(first, min(errLine, len(w.pos.lines)))
	if errLine > first && looksNew(w.line(errLine)) {
		last = errLine - 1
	}
	for last < len(w.pos.lines) {
		next := w.line(last + 1)
		if headerLine.Match(next) || !header && statementLine.Match(next) {
			break
		}
		last++
	}
	return w.blank(w.pos.lines[first-1], w.lineEnd(last))
}

func looksNew(line []byte) bool { return headerLine.Match(line) || statementLine.Match(line) }

func (w *walker) line(n int) []byte {
	return bytes.TrimRight(w.data[w.pos.lines[n-1]:w.lineEnd(n)], "\r\n")
}

func (w *walker) lineEnd(n int) int {
	if n < len(w.pos.lines) {
		return w.pos.lines[n]
	}
	return len(w.data)
}

// blank overwrites a range with spaces, keeping line ends so that all places stay right; it reports whether that changed anything.
func (w *walker) blank(from, to int) (changed bool) {
	for i := from; i < to; i++ {
		if c := w.data[i]; c != '\n' && c != '\r' && c != ' ' {
			w.data[i] = ' '
			changed = true
		}
	}
	return changed
}

// blanked is the content without its faulty statements.
func (w *walker) blanked() []byte {
	for i, s := range w.stmts {
		if !s.bad {
			continue
		}
		end := len(w.data)
		for _, next := range w.stmts[i+1:] {
			if !s.header || next.header { // a faulty header goes with its keys
				end = next.start
				break
			}
		}
		w.blank(s.start, end)
	}
	return w.data
}

func (w *walker) begin(offset int, header bool) {
	line, _ := w.pos.place(offset)
	w.stmts = append(w.stmts, statement{start: w.pos.lines[line-1], header: header})
}

// fault reports a key and marks its whole statement as not to be decoded.
func (w *walker) fault(offset int, key, what, hint string) {
	w.pos.fault(offset, key, what, hint)
	s := &w.stmts[len(w.stmts)-1]
	s.bad = true
	if s.key != "" {
		w.pos.faulty[s.key] = true
	}
}

// header enters the table that a [table] or [[table]] line opens.
func (w *walker) header(n *unstable.Node) {
	segs := keyNodes(n)
	w.begin(segs[0].offset, true)
	path, t := "", w.root
	for i, s := range segs {
		last := i == len(segs)-1
		t = w.child(t, path, s)
		path = join(path, s.name)
		if t == nil {
			w.table, w.typ, w.badTable = path, nil, true
			return
		}
		if last && n.Kind == unstable.ArrayTable {
			w.openElement(path, t, s.offset)
			return
		}
		if count, isArray := w.elems[path]; isArray {
			path = fmt.Sprintf("%s[%d]", path, count-1)
			t = elemOf(t)
		}
		w.remember(path, s.offset)
		if last {
			w.openTable(path, t, s.offset)
		}
	}
}

func (w *walker) openElement(path string, t reflect.Type, offset int) {
	w.remember(path, offset)
	elem := fmt.Sprintf("%s[%d]", path, w.elems[path])
	w.elems[path]++
	w.pos.keys[elem] = offset
	w.table, w.badTable = elem, false
	w.typ = elemOf(t)
	if w.typ == nil {
		w.badTable = true
		w.fault(offset, path, "is "+describe(t)+", not a list of tables", fmt.Sprintf("write [%s] once, or a value", path))
	}
}

func (w *walker) openTable(path string, t reflect.Type, offset int) {
	w.table, w.typ, w.badTable = path, t, false
	if first, twice := w.seen["["+path]; twice {
		line, _ := w.pos.place(first)
		w.badTable = true
		w.fault(offset, path, fmt.Sprintf("the table is already opened in line %d", line), "keep one of the two")
		return
	}
	w.seen["["+path] = offset
	if elem := elemOf(t); elem != nil && t.Kind() != reflect.Interface {
		w.badTable = true
		w.fault(offset, path, "is a list of tables", fmt.Sprintf("write [[%s]]", path))
	} else if !isTable(t) {
		w.badTable = true
		w.fault(offset, path, "is "+describe(t)+", not a table", "")
	}
}

// remember keeps the first place of a key.
func (w *walker) remember(path string, offset int) {
	if _, ok := w.pos.keys[path]; !ok {
		w.pos.keys[path] = offset
	}
}

// keyValue checks one `key = value` line of the current table.
func (w *walker) keyValue(n *unstable.Node) {
	segs := keyNodes(n)
	w.begin(segs[0].offset, false)
	if !w.badTable {
		w.stmts[len(w.stmts)-1].key = pathOf(w.table, segs)
	}
	if !w.badTable {
		w.assign(n, w.table, w.typ)
	}
}

// assign checks `a.b = value` inside the table of that path and type.
func (w *walker) assign(n *unstable.Node, path string, t reflect.Type) {
	segs := keyNodes(n)
	for i, s := range segs {
		t = w.child(t, path, s)
		path = join(path, s.name)
		if t == nil {
			return
		}
		if i < len(segs)-1 {
			w.remember(path, s.offset)
			if !isTable(t) {
				w.fault(s.offset, path, "is "+describe(t)+", not a table", "")
				return
			}
		}
	}
	at := segs[len(segs)-1].offset
	if first, twice := w.seen[path]; twice {
		line, _ := w.pos.place(first)
		w.fault(at, path, fmt.Sprintf("is already set in line %d", line), "keep one of the two")
		return
	}
	w.seen[path] = at
	w.remember(path, at)
	w.value(n.Value(), path, t, at)
}

// value checks a value against its type; at is where its key stands.
func (w *walker) value(n *unstable.Node, path string, t reflect.Type, at int) {
	for t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	switch {
	case t.Kind() == reflect.Interface:
		return
	case isText(t):
		w.text(n, path, t, at)
	case n.Kind == unstable.InlineTable && isTable(t):
		for it := n.Children(); it.Next(); {
			w.assign(it.Node(), path, t)
		}
	case n.Kind == unstable.Array && (t.Kind() == reflect.Slice || t.Kind() == reflect.Array):
		i := 0
		for it := n.Children(); it.Next(); i++ {
			elem, child := fmt.Sprintf("%s[%d]", path, i), it.Node()
			off := at
			if child.Raw.Length > 0 {
				off = int(child.Raw.Offset)
			}
			w.pos.keys[elem] = off
			w.value(child, elem, t.Elem(), off)
		}
	case !fits(n, t):
		w.fault(at, path, fmt.Sprintf("is %s, not %s", found(n), describe(t)), "")
	}
}

// text checks a string that a type reads for itself, such as a duration or a hash.
func (w *walker) text(n *unstable.Node, path string, t reflect.Type, at int) {
	if n.Kind != unstable.String {
		w.fault(at, path, fmt.Sprintf("is %s, not a string in quotes", found(n)), "")
		return
	}
	into := reflect.New(t).Interface().(encoding.TextUnmarshaler)
	if err := into.UnmarshalText(n.Data); err != nil {
		w.fault(at, path, err.Error(), "")
	}
}

// child is the type of a key inside a table; nil after reporting a key that is not known.
func (w *walker) child(t reflect.Type, path string, s segment) reflect.Type {
	if t == nil {
		return nil
	}
	for t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	switch t.Kind() {
	case reflect.Interface:
		return t
	case reflect.Map:
		return t.Elem()
	case reflect.Struct:
		known := map[string]reflect.Type{}
		fields(t, known)
		if f, ok := known[s.name]; ok {
			return f
		}
		best, hint := suggest(s.name, known)
		w.fault(s.offset, join(path, s.name), "unknown key", hint)
		if best != "" {
			w.pos.faulty[join(path, best)] = true // the one that was meant is not also missing
		}
		return nil
	}
	w.fault(s.offset, path, "is "+describe(t)+", not a table", "")
	return nil
}

type segment struct {
	name   string
	offset int
}

// keyNodes reads the dotted key of a statement; strings are copied, as the parser reuses its memory.
func keyNodes(n *unstable.Node) []segment {
	var segs []segment
	for it := n.Key(); it.Next(); {
		k := it.Node()
		segs = append(segs, segment{name: string(k.Data), offset: int(k.Raw.Offset)})
	}
	return segs
}

func pathOf(path string, segs []segment) string {
	for _, s := range segs {
		path = join(path, s.name)
	}
	return path
}

// fields lists the keys of a struct as go-toml names them, promoted ones of untagged embedded structs included.
func fields(t reflect.Type, into map[string]reflect.Type) {
	for i := range t.NumField() {
		f := t.Field(i)
		tag, _, _ := strings.Cut(f.Tag.Get("toml"), ",")
		switch {
		case tag == "-" || !f.IsExported() && !f.Anonymous:
		case f.Anonymous && tag == "" && f.Type.Kind() == reflect.Struct:
			fields(f.Type, into)
		case tag != "":
			into[tag] = f.Type
		default:
			into[f.Name] = f.Type
		}
	}
}

var (
	textType = reflect.TypeFor[encoding.TextUnmarshaler]()
	timeType = reflect.TypeFor[time.Time]()
	dateType = reflect.TypeFor[toml.LocalDate]()
	hourType = reflect.TypeFor[toml.LocalTime]()
	bothType = reflect.TypeFor[toml.LocalDateTime]()
)

func isInt(t reflect.Type) bool  { return t.Kind() >= reflect.Int && t.Kind() <= reflect.Int64 }
func isUint(t reflect.Type) bool { return t.Kind() >= reflect.Uint && t.Kind() <= reflect.Uint64 }

func isTime(t reflect.Type) bool {
	return t == timeType || t == dateType || t == hourType || t == bothType
}

func isText(t reflect.Type) bool { return !isTime(t) && reflect.PointerTo(t).Implements(textType) }

func isTable(t reflect.Type) bool {
	for t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	return t.Kind() == reflect.Map || t.Kind() == reflect.Interface || t.Kind() == reflect.Struct && !isTime(t) && !isText(t)
}

// elemOf is the element type of a list of tables, nil where t is none.
func elemOf(t reflect.Type) reflect.Type {
	for t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	switch t.Kind() {
	case reflect.Interface:
		return t
	case reflect.Slice, reflect.Array:
		if isTable(t.Elem()) {
			return t.Elem()
		}
	}
	return nil
}

// fits reports whether a plain value can be held by t.
func fits(n *unstable.Node, t reflect.Type) bool {
	switch n.Kind {
	case unstable.String:
		return t.Kind() == reflect.String
	case unstable.Bool:
		return t.Kind() == reflect.Bool
	case unstable.Float:
		return t.Kind() == reflect.Float64 || t.Kind() == reflect.Float32
	case unstable.Integer:
		return fitsInteger(string(n.Data), t)
	case unstable.DateTime:
		return t == timeType
	case unstable.LocalDateTime:
		return t == timeType || t == bothType
	case unstable.LocalDate:
		return t == timeType || t == dateType
	case unstable.LocalTime:
		return t == hourType
	}
	return false
}

func fitsInteger(text string, t reflect.Type) bool {
	if t.Kind() == reflect.Float64 || t.Kind() == reflect.Float32 {
		return true
	}
	text = strings.TrimPrefix(text, "+")
	switch {
	case isInt(t):
		i, err := strconv.ParseInt(text, 0, 64)
		return err == nil && !t.OverflowInt(i)
	case isUint(t):
		u, err := strconv.ParseUint(text, 0, 64)
		return err == nil && !t.OverflowUint(u)
	}
	return false
}

// found names what stands in the file. It never quotes the value: a file may hold what must not be printed.
func found(n *unstable.Node) string {
	switch n.Kind {
	case unstable.String:
		return "a string"
	case unstable.Bool:
		return "true or false"
	case unstable.Float:
		return "a number with a fraction"
	case unstable.Integer:
		return "the number " + string(n.Data)
	case unstable.Array:
		return "a list"
	case unstable.InlineTable:
		return "a table"
	}
	return "a date or time"
}

// describe names what a type wants, in an operator's words.
func describe(t reflect.Type) string {
	for t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	switch {
	case isTime(t):
		return "a date or time"
	case isText(t) || t.Kind() == reflect.String:
		return "a string in quotes"
	case t.Kind() == reflect.Bool:
		return "true or false"
	case isUint(t):
		return fmt.Sprintf("a whole number from 0 to %d", ^uint64(0)>>(64-t.Bits()))
	case isInt(t):
		return fmt.Sprintf("a whole number from %d to %d", int64(-1)<<(t.Bits()-1), ^uint64(0)>>(65-t.Bits()))
	case t.Kind() == reflect.Float64 || t.Kind() == reflect.Float32:
		return "a number"
	case t.Kind() == reflect.Slice || t.Kind() == reflect.Array:
		if isTable(t.Elem()) {
			return "a list of tables"
		}
		return "a list"
	}
	return "a table"
}
