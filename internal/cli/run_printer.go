package cli

import (
	"encoding/base64"
	"fmt"
	"io"
	"mime"
	"os"
	"path/filepath"
	"strings"

	"berth.dev/berth/api"
	"berth.dev/berth/internal/cli/frame"
)

// printer prints the output of a program: text as it comes, rich output as a summary or
// into files.
type printer struct {
	out, err io.Writer
	// dir receives rich output; "" only tells about it.
	dir   string
	quiet bool
	saved int
	// within says that the last text on out did not end its line: the value of a cell does not.
	within bool
}

// end closes the last line, so that the prompt of a shell begins a line of its own.
func (c *printer) end() error {
	if !c.within {
		return nil
	}
	c.within = false
	_, err := io.WriteString(c.out, "\n")
	return err
}

func (c *printer) write(items []api.ConsoleItem) error {
	for _, i := range items {
		if err := c.item(i); err != nil {
			return fmt.Errorf("write output: %w", err)
		}
	}
	return nil
}

func (c *printer) item(i api.ConsoleItem) error {
	var err error
	switch i.Kind() {
	case "stdout":
		_, err = io.WriteString(c.out, i.Text())
		if i.Text() != "" {
			c.within = !strings.HasSuffix(i.Text(), "\n")
		}
	case "stderr", "log":
		_, err = io.WriteString(c.err, i.Text())
	case "html":
		return c.rich("text/html", []byte(i.Text()))
	case api.KindMedia:
		mime, data := i.Media()
		if mime == "text/plain" {
			_, err = io.WriteString(c.out, strings.TrimSuffix(data, "\n")+"\n")
			break
		}
		return c.rich(mime, mediaBytes(mime, data))
	}
	return err
}

func (c *printer) rich(kind string, data []byte) error {
	if c.dir == "" {
		if c.quiet {
			return nil
		}
		_, err := fmt.Fprintf(c.err, "[%s, %s; --save-media DIR keeps it]\n", kind, frame.BytesText(float64(len(data))))
		return err
	}
	if err := os.MkdirAll(c.dir, 0o755); err != nil {
		return err
	}
	for {
		c.saved++
		name := filepath.Join(c.dir, fmt.Sprintf("media-%d%s", c.saved, extension(kind)))
		f, err := os.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o644)
		if os.IsExist(err) {
			continue
		}
		if err != nil {
			return err
		}
		_, err = f.Write(data)
		if cerr := f.Close(); err == nil {
			err = cerr
		}
		if err == nil && !c.quiet {
			_, err = fmt.Fprintf(c.err, "[%s saved as %s]\n", kind, name)
		}
		return err
	}
}

// mediaBytes undoes the text forms in which binary media travel.
func mediaBytes(kind, data string) []byte {
	if rest, ok := strings.CutPrefix(data, "data:"); ok {
		if head, body, ok := strings.Cut(rest, ","); ok && strings.HasSuffix(head, ";base64") {
			kind, data = "", body
		}
	}
	if strings.HasPrefix(kind, "text/") || strings.HasSuffix(kind, "+xml") || strings.HasSuffix(kind, "json") {
		return []byte(data)
	}
	b, err := base64.StdEncoding.DecodeString(strings.Map(func(r rune) rune {
		if r == '\n' || r == '\r' || r == ' ' {
			return -1
		}
		return r
	}, data))
	if err != nil {
		return []byte(data)
	}
	return b
}

func extension(kind string) string {
	media, _, err := mime.ParseMediaType(kind)
	if err != nil {
		return ".bin"
	}
	switch media {
	case "image/png":
		return ".png"
	case "image/jpeg":
		return ".jpg"
	case "image/svg+xml":
		return ".svg"
	case "text/html":
		return ".html"
	case "application/json":
		return ".json"
	}
	if all, err := mime.ExtensionsByType(media); err == nil && len(all) > 0 {
		return all[0]
	}
	return ".bin"
}
