// Package profile keeps what a client knows of several clusters: a directory with one file for each profile, and the name of the one in
// use. A file has lines of NAME=value, as the client.env of a state directory has.
package profile

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

// Env names the profile to use.
const Env = "BERTH_PROFILE"

const (
	// maxFile bounds a file in bytes, maxProfiles how many profiles are listed.
	maxFile     = 64 << 10
	maxProfiles = 1000

	suffix      = ".env"
	currentFile = "current"
)

var (
	// ErrNone means that there is no such profile.
	ErrNone = errors.New("no such profile")

	nameForm = regexp.MustCompile(`^[a-z0-9][a-z0-9._-]{0,63}$`)
)

// CheckName reports whether a profile may have the name.
func CheckName(name string) error {
	if !nameForm.MatchString(name) {
		return fmt.Errorf("%q is no name of a profile: use up to 64 small letters, digits, dots, dashes and underscores", name)
	}
	return nil
}

// Values are the lines of a file.
type Values map[string]string

// Get is the value of a name, "" when the file has none.
func (v Values) Get(name string) string { return v[name] }

// ReadFile reads a file of lines of NAME=value.
func ReadFile(path string) (Values, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	v, err := Parse(io.LimitReader(f, maxFile))
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return v, nil
}

// Parse reads lines of NAME=value as a shell would source them, without expansions.
func Parse(r io.Reader) (Values, error) {
	v := Values{}
	s := bufio.NewScanner(r)
	for n := 1; s.Scan(); n++ {
		line := strings.TrimSpace(s.Text())
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		line = strings.TrimPrefix(line, "export ")
		name, value, ok := strings.Cut(line, "=")
		name = strings.TrimSpace(name)
		if !ok || name == "" {
			return nil, fmt.Errorf("line %d is not NAME=value", n)
		}
		value = strings.TrimSpace(value)
		if len(value) >= 2 && (value[0] == '\'' || value[0] == '"') && value[len(value)-1] == value[0] {
			value = value[1 : len(value)-1]
		}
		v[name] = value
	}
	return v, s.Err()
}

// Store is the directory of the profiles. It is made when the first profile is written.
type Store struct{ Dir string }

// StoreOf is the directory of a user: berth/profiles in the directory of configurations. An empty one holds no profiles.
func StoreOf(getenv func(string) string, home string) Store {
	config := getenv("XDG_CONFIG_HOME")
	if config == "" && home != "" {
		config = filepath.Join(home, ".config")
	}
	if config == "" {
		return Store{}
	}
	return Store{filepath.Join(config, "berth", "profiles")}
}

// Path is where a profile is kept.
func (s Store) Path(name string) string { return filepath.Join(s.Dir, name+suffix) }

// Get reads a profile. The error is ErrNone when there is none.
func (s Store) Get(name string) (Values, error) {
	if err := CheckName(name); err != nil {
		return nil, err
	}
	v, err := ReadFile(s.Path(name))
	if s.Dir == "" || errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("%w: %s", ErrNone, name)
	}
	return v, err
}

// Put writes a profile as a whole; readers see the old one or the new one. Nobody but the user can read it.
func (s Store) Put(name string, v Values) error {
	if err := CheckName(name); err != nil {
		return err
	}
	var b strings.Builder
	for _, k := range slices.Sorted(maps.Keys(v)) {
		if strings.ContainsAny(v[k], "'\n\r\x00") {
			return fmt.Errorf("the value of %s has a quote or a line break", k)
		}
		if v[k] != "" {
			fmt.Fprintf(&b, "%s='%s'\n", k, v[k])
		}
	}
	return s.write(name+suffix, b.String())
}

// Remove forgets a profile; it is no error when there is none.
func (s Store) Remove(name string) error {
	if err := CheckName(name); err != nil {
		return err
	}
	if current, err := s.Current(); err == nil && current == name {
		if err := s.Use(""); err != nil {
			return err
		}
	}
	if err := os.Remove(s.Path(name)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// List tells the names of the profiles in order.
func (s Store) List() ([]string, error) {
	if s.Dir == "" {
		return nil, nil
	}
	d, err := os.Open(s.Dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer d.Close()
	files, err := d.Readdirnames(maxProfiles)
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, err
	}
	var names []string
	for _, f := range files {
		if name, ok := strings.CutSuffix(f, suffix); ok && CheckName(name) == nil {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names, nil
}

// Current is the profile in use, "" when there is none.
func (s Store) Current() (string, error) {
	if s.Dir == "" {
		return "", nil
	}
	f, err := os.Open(filepath.Join(s.Dir, currentFile))
	if errors.Is(err, fs.ErrNotExist) {
		return "", nil
	}
	if err != nil {
		return "", err
	}
	defer f.Close()
	raw, err := io.ReadAll(io.LimitReader(f, 1<<10))
	if err != nil {
		return "", err
	}
	name := strings.TrimSpace(string(raw))
	if name == "" {
		return "", nil
	}
	if err := CheckName(name); err != nil {
		return "", fmt.Errorf("%s: %w", f.Name(), err)
	}
	return name, nil
}

// Use makes a profile that is there the one in use; "" leaves none in use.
func (s Store) Use(name string) error {
	if name == "" {
		if err := os.Remove(filepath.Join(s.Dir, currentFile)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		return nil
	}
	if _, err := s.Get(name); err != nil {
		return err
	}
	return s.write(currentFile, name+"\n")
}

func (s Store) write(file, content string) error {
	if s.Dir == "" {
		return errors.New("there is no directory for profiles: set HOME or XDG_CONFIG_HOME")
	}
	if err := os.MkdirAll(s.Dir, 0o700); err != nil {
		return err
	}
	f, err := os.CreateTemp(s.Dir, ".new-*") // readable for the user alone
	if err != nil {
		return err
	}
	defer os.Remove(f.Name()) // after the rename there is nothing of that name
	_, err = f.WriteString(content)
	if e := f.Sync(); err == nil {
		err = e
	}
	if e := f.Close(); err == nil {
		err = e
	}
	if err != nil {
		return err
	}
	return os.Rename(f.Name(), filepath.Join(s.Dir, file))
}
