// Command modules looks at the Go modules that the binaries are built of: are their licences allowed, and which are they?
//
//	go run ./scripts/modules check
//	go run ./scripts/modules sbom -version V -out FILE
//
// check fails with a line for each module whose licence is missing, unclear or not allowed. sbom writes a software bill of
// materials in CycloneDX 1.6 JSON (https://cyclonedx.org/docs/1.6/json/) for a release.
package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"

	"github.com/CycloneDX/cyclonedx-go"
	"github.com/google/licensecheck"
)

// binaries are what a release ships.
var binaries = []string{"./cmd/berth", "./cmd/berth-runner", "./cmd/berth-nvml"}

// allowed are SPDX identifiers of licences under which a part of an Apache-2.0 program may be distributed.
var allowed = []string{"Apache-2.0", "MIT", "BSD-2-Clause", "BSD-3-Clause", "ISC", "0BSD", "Zlib", "Unlicense", "CC0-1.0", "MPL-2.0"}

// minCover is the least share of a licence file, in per cent, that must be the text of known licences.
const minCover = 60

// part is a module, or something else that the binaries carry.
type part struct {
	Path, Version, Dir string
	licences           []string // SPDX identifiers
}

// carried is what the binaries carry besides Go modules; the scripts that fetch it pin the versions.
var carried = []part{
	{Path: "PostgreSQL", Version: "18.4", licences: []string{"PostgreSQL"}},
}

func main() {
	if err := run(os.Args[1:], os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "modules:", err)
		os.Exit(1)
	}
}

func run(args []string, out io.Writer) error {
	if len(args) == 0 {
		return errors.New("use check or sbom")
	}
	flags := flag.NewFlagSet(args[0], flag.ContinueOnError)
	version, file := flags.String("version", "dev", "version of the release"), flags.String("out", "", "file of the bill of materials")
	if err := flags.Parse(args[1:]); err != nil {
		return err
	}
	parts, err := modules()
	if err != nil {
		return err
	}
	bad := examine(parts)
	switch args[0] {
	case "check":
		for _, b := range bad {
			fmt.Fprintln(out, b)
		}
		if len(bad) > 0 {
			return fmt.Errorf("%d of %d modules may not be shipped as they are", len(bad), len(parts))
		}
		return nil
	case "sbom":
		return write(*file, *version, append(parts, carried...))
	}
	return fmt.Errorf("%q is not a verb: use check or sbom", args[0])
}

// modules are those of which packages are built into the binaries.
func modules() ([]part, error) {
	const each = `{"Path":{{printf "%q" .Path}},"Version":{{printf "%q" .Version}},"Dir":{{printf "%q" .Dir}}}`
	list := exec.Command("go", append([]string{"list", "-deps", "-f", "{{with .Module}}{{if not .Main}}" + each + "{{end}}{{end}}"},
		binaries...)...)
	list.Env = append(os.Environ(), "CGO_ENABLED=1") // as berth-nvml is built
	var errs bytes.Buffer
	list.Stderr = &errs
	text, err := list.Output()
	if err != nil {
		return nil, fmt.Errorf("list modules: %w: %s", err, strings.TrimSpace(errs.String()))
	}
	var parts []part
	for decoder := json.NewDecoder(bytes.NewReader(text)); ; {
		var p part
		switch err := decoder.Decode(&p); {
		case errors.Is(err, io.EOF):
			slices.SortFunc(parts, func(a, b part) int { return strings.Compare(a.Path, b.Path) })
			return slices.CompactFunc(parts, func(a, b part) bool { return a.Path == b.Path }), nil
		case err != nil:
			return nil, fmt.Errorf("read the list of modules: %w", err)
		}
		parts = append(parts, p)
	}
}

// licenceFile is how a file with the licence of code is called. "LICENSE.docs" is not one.
var licenceFile = regexp.MustCompile(`(?i)^((un)?licen[cs]e|copying)([-.](md|txt|mit|apache|apache2|bsd|libyaml))?$`)

// examine finds the licences of parts and returns what is wrong with them.
func examine(parts []part) (bad []string) {
	for i := range parts {
		p := &parts[i]
		entries, err := os.ReadDir(p.Dir)
		if err != nil {
			bad = append(bad, fmt.Sprintf("%s %s: %v", p.Path, p.Version, err))
			continue
		}
		for _, e := range entries {
			if e.IsDir() || !licenceFile.MatchString(e.Name()) {
				continue
			}
			text, err := os.ReadFile(filepath.Join(p.Dir, e.Name()))
			if err != nil {
				bad = append(bad, fmt.Sprintf("%s %s: %v", p.Path, p.Version, err))
				continue
			}
			p.licences = append(p.licences, identify(text)...)
		}
		slices.Sort(p.licences)
		p.licences = slices.Compact(p.licences)
		if len(p.licences) == 0 {
			bad = append(bad, fmt.Sprintf("%s %s: no known licence in %s", p.Path, p.Version, p.Dir))
		}
		for _, l := range p.licences {
			if !slices.Contains(allowed, l) {
				bad = append(bad, fmt.Sprintf("%s %s: licence %s is not allowed", p.Path, p.Version, l))
			}
		}
	}
	return bad
}

// identify returns the licences of a text, nil when too little of it is known.
func identify(text []byte) []string {
	found := licensecheck.Scan(text)
	if found.Percent < minCover {
		return nil
	}
	var ids []string
	for _, m := range found.Match {
		if !m.IsURL {
			ids = append(ids, m.ID)
		}
	}
	return ids
}

func write(file, version string, parts []part) (err error) {
	if file == "" {
		return errors.New("name a file with -out")
	}
	bom := cyclonedx.NewBOM()
	bom.Metadata = &cyclonedx.Metadata{Component: &cyclonedx.Component{BOMRef: "berth", Name: "berth", Version: version,
		Type: cyclonedx.ComponentTypeApplication, Licenses: licences([]string{"Apache-2.0"})}}
	components := []cyclonedx.Component{{BOMRef: "go", Type: cyclonedx.ComponentTypePlatform, Name: "Go standard library",
		Version: strings.TrimPrefix(runtime.Version(), "go"), Licenses: licences([]string{"BSD-3-Clause"})}}
	for _, p := range parts {
		c := cyclonedx.Component{Type: cyclonedx.ComponentTypeLibrary, Name: p.Path, Version: p.Version, Licenses: licences(p.licences)}
		c.BOMRef = p.Path + "@" + p.Version
		if p.Dir != "" {
			c.PackageURL = "pkg:golang/" + p.Path + "@" + p.Version
		}
		components = append(components, c)
	}
	bom.Components = &components
	f, err := os.Create(file)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	return cyclonedx.NewBOMEncoder(f, cyclonedx.BOMFileFormatJSON).SetPretty(true).EncodeVersion(bom, cyclonedx.SpecVersion1_6)
}

func licences(ids []string) *cyclonedx.Licenses {
	var out cyclonedx.Licenses
	for _, id := range ids {
		out = append(out, cyclonedx.LicenseChoice{License: &cyclonedx.License{ID: id}})
	}
	return &out
}
