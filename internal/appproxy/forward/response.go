package forward

import "strings"

// response is the parsed head of an app's answer.
type response struct {
	status   int
	line     string // "200 OK": status and reason
	minor    int
	fields   []field
	framing  framing
	protocol string // Upgrade, in lower case
}

// parseResponse reads a complete head into r, whose memory it uses again.
func parseResponse(r *response, head string, most int) *problem {
	*r = response{fields: r.fields[:0]}
	end := strings.IndexByte(head, '\r')
	if end < 0 || end+1 >= len(head) || head[end+1] != '\n' {
		return malformed("the first line holds a lone CR")
	}
	line := head[:end]
	if len(line) < 12 || !strings.HasPrefix(line, "HTTP/1.") || line[7] != '0' && line[7] != '1' || line[8] != ' ' {
		return malformed("the first line is no status line of HTTP/1")
	}
	r.minor = int(line[7] - '0')
	r.line = line[9:]
	for _, c := range []byte(r.line[:3]) {
		if !isDigit(c) {
			return malformed("the status is no number")
		}
		r.status = r.status*10 + int(c-'0')
	}
	if r.status < 100 || r.status > 599 || len(r.line) > 3 && r.line[3] != ' ' || !isText(r.line) {
		return malformed("the status is none")
	}
	var bad *problem
	if r.fields, bad = parseFields(r.fields, head[end+2:], most); bad != nil {
		return bad
	}
	if r.framing, bad = readFraming(r.fields); bad != nil {
		return bad
	}
	if r.framing.chunked && r.minor == 0 {
		return malformed("HTTP/1.0 knows no Transfer-Encoding")
	}
	if r.framing.chunked && (r.status < 200 || r.status == 204) {
		return malformed("an answer without a body has a transfer coding")
	}
	for i := range r.fields {
		if r.fields[i].kind == upgradeField {
			r.protocol = strings.ToLower(r.fields[i].value)
		}
	}
	return nil
}

// bodyless reports whether no body follows, whatever the fields say.
func (r *response) bodyless(method string) bool {
	return method == "HEAD" || r.status < 200 || r.status == 204 || r.status == 304
}
