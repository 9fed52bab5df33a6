package httpapi

import (
	"bytes"
	"errors"
	"mime"
	"net/http"
	"strings"
	"time"

	"berth.dev/berth/internal/fault"
	"berth.dev/berth/internal/manager/httpapi/params"
)

const (
	// maxBody bounds a JSON body: a code cell may carry a notebook's worth of text.
	maxBody = 20 << 20
	// bodyPatience is how long a JSON body may take to arrive, and how long an upload may pause.
	bodyPatience = time.Minute
)

// params reads the request's parameters.
func (c *call) params() (*params.Set, error) {
	p := params.New(c.r.URL.Query(), nil)
	if c.r.ContentLength == 0 || c.r.Body == nil || c.r.Body == http.NoBody {
		return p, nil
	}
	if t, _, _ := mime.ParseMediaType(c.r.Header.Get("Content-Type")); strings.HasPrefix(t, "multipart/") || t == "application/x-tar" {
		return p, nil
	}
	raw, err := c.readBody(maxBody)
	if err != nil {
		return nil, err
	}
	body, err := params.ParseBody(raw)
	return params.New(c.r.URL.Query(), body), err
}

// readBody reads a whole body within the deadline of small ones.
func (c *call) readBody(limit int64) ([]byte, error) {
	rc := http.NewResponseController(c.w.ResponseWriter)
	if rc.SetReadDeadline(time.Now().Add(bodyPatience)) == nil {
		defer func() { _ = rc.SetReadDeadline(time.Time{}) }()
	}
	var buf bytes.Buffer
	if n := c.r.ContentLength; n > 0 && n <= 64<<10 {
		buf.Grow(int(n) + bytes.MinRead)
	}
	if _, err := buf.ReadFrom(http.MaxBytesReader(c.w.ResponseWriter, c.r.Body, limit)); err != nil {
		var tooLarge *http.MaxBytesError
		if errors.As(err, &tooLarge) {
			return nil, err
		}
		return nil, fault.Invalidf("the request's body broke off").WithCause(err)
	}
	return buf.Bytes(), nil
}
