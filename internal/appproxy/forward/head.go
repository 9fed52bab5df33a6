package forward

import (
	"strings"
)

// Header is a read view of a head's fields, in the order and spelling in which they came.
type Header struct {
	fields []field
}

type field struct {
	name, value string
	kind        kind
}

// Get returns the first value of a field, "" when it is missing. Names are compared without case.
func (h Header) Get(name string) string {
	for i := range h.fields {
		if strings.EqualFold(h.fields[i].name, name) {
			return h.fields[i].value
		}
	}
	return ""
}

// Values returns all values of a field.
func (h Header) Values(name string) []string {
	var all []string
	for i := range h.fields {
		if strings.EqualFold(h.fields[i].name, name) {
			all = append(all, h.fields[i].value)
		}
	}
	return all
}

// Cookies returns all values that the request's cookies of one name have.
func (h Header) Cookies(name string) []string {
	var all []string
	for i := range h.fields {
		if !strings.EqualFold(h.fields[i].name, "Cookie") {
			continue
		}
		for pair := range strings.SplitSeq(h.fields[i].value, ";") {
			n, v, ok := strings.Cut(strings.Trim(pair, " \t"), "=")
			if ok && n == name {
				all = append(all, v)
			}
		}
	}
	return all
}

// kind is what a field means to a proxy.
type kind uint8

const (
	other kind = iota
	hostField
	connectionField
	lengthField
	codingField // Transfer-Encoding
	upgradeField
	teField
	expectField
	cookieField
	setCookieField
	authorizationField
	forwardedField // what proxies say about visitors
	hopField       // further fields that concern one connection only
	platformField  // ours, or one that an app must not say to browsers
)

// kindOf tells a field's kind. A name with underscores is what some servers cannot tell from the one with hyphens: if that
// one means anything to us the field is as unwanted as ours are.
func kindOf(name string) kind {
	if strings.IndexByte(name, '_') >= 0 {
		if kindOf(strings.ReplaceAll(name, "_", "-")) != other {
			return platformField
		}
		return other
	}
	is := func(s string) bool { return strings.EqualFold(name, s) }
	starts := func(s string) bool { return len(name) >= len(s) && strings.EqualFold(name[:len(s)], s) }
	switch name[0] | 0x20 {
	case 'a':
		if is("authorization") {
			return authorizationField
		}
		if is("alt-svc") { // the way in is the proxy's to say
			return platformField
		}
	case 'b':
		if starts("berth-") {
			return platformField
		}
	case 'c':
		switch {
		case is("cookie"):
			return cookieField
		case is("connection"):
			return connectionField
		case is("content-length"):
			return lengthField
		case is("clear-site-data"): // would empty what other apps of the domain keep
			return platformField
		}
	case 'e':
		if is("expect") {
			return expectField
		}
	case 'f':
		if is("forwarded") {
			return forwardedField
		}
	case 'h':
		switch {
		case is("host"):
			return hostField
		case is("http2-settings"):
			return hopField
		}
	case 'k':
		if is("keep-alive") {
			return hopField
		}
	case 'n':
		if is("nel") { // would have the browser report on the whole host, for long
			return platformField
		}
	case 'p':
		switch {
		case is("proxy-connection"), is("proxy-authenticate"), is("proxy-authorization"), is("proxy-authentication-info"):
			return hopField
		case is("proxy"): // becomes HTTP_PROXY in CGI programs
			return platformField
		case is("public-key-pins"):
			return platformField
		}
	case 'r':
		switch {
		case is("report-to"), is("reporting-endpoints"): // where browsers send what they learn about the host
			return platformField
		}
	case 's':
		switch {
		case is("set-cookie"):
			return setCookieField
		case is("strict-transport-security"): // would bind other ports of the host too
			return platformField
		}
	case 't':
		switch {
		case is("transfer-encoding"):
			return codingField
		case is("te"):
			return teField
		}
	case 'u':
		if is("upgrade") {
			return upgradeField
		}
	case 'x':
		switch {
		case starts("x-forwarded-"), is("x-real-ip"):
			return forwardedField
		case starts("x-backendai-"), starts("x-berth-"), starts("x-accel-") && !is("x-accel-buffering"), is("x-sendfile"):
			return platformField
		}
	}
	return other
}

// Bytes that may stand in names, and in values besides the tab.
var tokenByte, textByte [256]bool

func init() {
	for c := range 256 {
		switch {
		case c >= '0' && c <= '9', c >= 'a' && c <= 'z', c >= 'A' && c <= 'Z', strings.IndexByte("!#$%&'*+-.^_`|~", byte(c)) >= 0:
			tokenByte[c] = true
		}
		textByte[c] = c >= 0x20 && c != 0x7f
	}
}

func isToken(s string) bool {
	for i := range len(s) {
		if !tokenByte[s[i]] {
			return false
		}
	}
	return s != ""
}

// isText reports whether s may be a value or a reason phrase: no control character but the tab.
func isText(s string) bool {
	for i := range len(s) {
		if !textByte[s[i]] && s[i] != '\t' {
			return false
		}
	}
	return true
}

// headEnd looks for the end of a head in b. It returns the head's length including the empty line, 0 when it is not complete,
// and remembers in scan (0 at first) how far it has looked. A line that does not end with CR LF is an error.
func headEnd(b []byte, scan int) (end, next int, err *problem) {
	for {
		i := scan
		for i < len(b) && b[i] != '\n' { // lines are short: a call costs more than the loop
			i++
		}
		if i == len(b) {
			return 0, scan, nil
		}
		if i == 0 || b[i-1] != '\r' {
			return 0, 0, malformed("a line does not end with CR LF")
		}
		if i == scan+1 {
			return i + 1, 0, nil
		}
		scan = i + 1
	}
}

// parseFields reads the lines of a head after its first, or of trailers: head begins with a field or with the empty line that
// ends it.
func parseFields(fields []field, head string, most int) ([]field, *problem) {
	for {
		end := strings.IndexByte(head, '\r')
		if end < 0 || end+1 >= len(head) || head[end+1] != '\n' {
			return nil, malformed("a line holds a lone CR")
		}
		if end == 0 {
			return fields, nil
		}
		line := head[:end]
		head = head[end+2:]
		colon := 0
		for colon < len(line) && tokenByte[line[colon]] {
			colon++
		}
		switch {
		case colon == 0 && (line[0] == ' ' || line[0] == '\t'):
			return nil, malformed("a field goes on in a second line")
		case colon == 0 || colon == len(line) || line[colon] != ':':
			return nil, malformed("a field's name holds characters that it must not")
		case len(fields) == most:
			return nil, tooManyFields(most)
		}
		value := strings.Trim(line[colon+1:], " \t")
		if !isText(value) {
			return nil, malformed("a field's value holds control characters")
		}
		fields = append(fields, field{line[:colon], value, kindOf(line[:colon])})
	}
}

// framing is what the fields of a head say about its body and its connection.
type framing struct {
	length     int64 // of the body; -1 when the head does not say
	chunked    bool
	close      bool // Connection: close
	keepAlive  bool // Connection: keep-alive
	upgrade    bool // Connection: upgrade
	trailersOK bool // TE: trailers
	named      []string
}

// readFraming checks and collects the fields that frame a message, and marks those that its Connection names as hopField.
func readFraming(fields []field) (framing, *problem) {
	f := framing{length: -1}
	lengths, codings := 0, 0
	for i := range fields {
		v := fields[i].value
		switch fields[i].kind {
		case lengthField:
			n, ok := parseLength(v)
			if !ok {
				return f, malformed("Content-Length is no number")
			}
			f.length = n
			lengths++
		case codingField:
			codings++
			if !strings.EqualFold(v, "chunked") {
				return f, trouble(501, "transfer-coding", "The only transfer coding that is understood is chunked.")
			}
			f.chunked = true
		case connectionField:
			for t := range strings.SplitSeq(v, ",") {
				t = strings.Trim(t, " \t")
				switch {
				case t == "":
				case strings.EqualFold(t, "close"):
					f.close = true
				case strings.EqualFold(t, "keep-alive"):
					f.keepAlive = true
				case strings.EqualFold(t, "upgrade"):
					f.upgrade = true
				case !isToken(t):
					return f, malformed("Connection names no field")
				default:
					f.named = append(f.named, t)
				}
			}
		case teField:
			for t := range strings.SplitSeq(v, ",") {
				f.trailersOK = f.trailersOK || strings.EqualFold(strings.Trim(t, " \t"), "trailers")
			}
		}
	}
	switch {
	case lengths > 1:
		return f, malformed("there is more than one Content-Length")
	case codings > 1:
		return f, malformed("there is more than one Transfer-Encoding")
	case lengths == 1 && codings == 1:
		return f, malformed("there are both Content-Length and Transfer-Encoding")
	}
	for _, name := range f.named {
		switch kindOf(name) {
		case hostField, lengthField, codingField:
			return f, malformed("Connection names a field that frames the message")
		}
		for i := range fields {
			if strings.EqualFold(fields[i].name, name) && fields[i].kind != teField {
				fields[i].kind = hopField
			}
		}
	}
	return f, nil
}

// parseLength reads a Content-Length: digits, and few enough that sums do not overflow.
func parseLength(s string) (int64, bool) {
	if s == "" || len(s) > 18 {
		return 0, false
	}
	var n int64
	for i := range len(s) {
		if s[i] < '0' || s[i] > '9' {
			return 0, false
		}
		n = n*10 + int64(s[i]-'0')
	}
	return n, true
}
