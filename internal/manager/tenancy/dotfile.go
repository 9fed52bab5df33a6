package tenancy

import (
	"context"
	"encoding/json"
	"fmt"
	"path"
	"slices"
	"strconv"
	"strings"

	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/fault"
	"berth.dev/berth/internal/manager/audit"
	"berth.dev/berth/internal/manager/authz"
	"berth.dev/berth/internal/manager/store"
)

// DotfileScope says whose dotfiles are meant: exactly one of the fields is set, or none for the actor's keypair.
type DotfileScope struct {
	Owner         cluster.AccessKey
	Domain        string
	Project       string // name or id; with ProjectDomain
	ProjectDomain string
}

// MaxScript bounds a bootstrap script, in bytes.
const MaxScript = 64 << 10

const (
	dotfileNoun     = "dotfile"
	maxDotfiles     = 100
	maxDotfileBytes = 64 << 10 // of one scope together
)

// dotfileStore reads and writes the dotfiles of one scope.
type dotfileStore struct {
	read  func(ctx context.Context, tx *store.Tx) (json.RawMessage, error)
	write func(ctx context.Context, tx *store.Tx, raw json.RawMessage) error
}

// dotfiles authorises the scope.
func (s *Service) dotfiles(ctx context.Context, a authz.Actor, scope DotfileScope) (dotfileStore, error) {
	if err := authz.Authenticated(a); err != nil {
		return dotfileStore{}, err
	}
	switch {
	case scope.Domain != "":
		if err := authz.Domains.Need(a, authz.Change, authz.Object{Domain: scope.Domain},
			"change the dotfiles of domain "+scope.Domain); err != nil {
			return dotfileStore{}, err
		}
		return dotfileStore{
			func(ctx context.Context, tx *store.Tx) (json.RawMessage, error) {
				raw, err := tx.DomainDotfiles(ctx, scope.Domain)
				if store.Missing(err) {
					err = authz.NotFound(domainNoun, scope.Domain)
				}
				return raw, err
			},
			func(ctx context.Context, tx *store.Tx, raw json.RawMessage) error {
				return tx.SetDomainDotfiles(ctx, scope.Domain, raw)
			},
		}, nil
	case scope.Project != "":
		domain := scope.ProjectDomain
		if domain == "" {
			domain = a.Domain
		}
		p, err := s.FindProject(ctx, scope.Project, domain)
		if err != nil {
			return dotfileStore{}, err
		}
		if err := authz.Projects.Check(a, authz.Change, ProjectObject(p, scope.Project)); err != nil {
			return dotfileStore{}, err
		}
		return dotfileStore{
			func(ctx context.Context, tx *store.Tx) (json.RawMessage, error) { return tx.ProjectDotfiles(ctx, p.ID) },
			func(ctx context.Context, tx *store.Tx, raw json.RawMessage) error {
				return tx.SetProjectDotfiles(ctx, p.ID, raw)
			},
		}, nil
	}
	owner, err := s.Owner(ctx, a, scope.Owner)
	if err != nil {
		return dotfileStore{}, err
	}
	return dotfileStore{
		func(ctx context.Context, tx *store.Tx) (json.RawMessage, error) {
			return tx.KeypairDotfiles(ctx, owner.AccessKey)
		},
		func(ctx context.Context, tx *store.Tx, raw json.RawMessage) error {
			return tx.SetKeypairDotfiles(ctx, owner.AccessKey, raw)
		},
	}, nil
}

// ListDotfiles lists the files of a scope.
func (s *Service) ListDotfiles(ctx context.Context, a authz.Actor, scope DotfileScope) ([]cluster.Dotfile, error) {
	d, err := s.dotfiles(ctx, a, scope)
	if err != nil {
		return nil, err
	}
	var out []cluster.Dotfile
	err = s.d.Store.Tx(ctx, func(ctx context.Context, tx *store.Tx) error {
		raw, err := d.read(ctx, tx)
		out = ReadDotfiles(raw)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("read dotfiles: %w", err)
	}
	return out, nil
}

// GetDotfile returns one file.
func (s *Service) GetDotfile(ctx context.Context, a authz.Actor, scope DotfileScope, path string) (cluster.Dotfile, error) {
	all, err := s.ListDotfiles(ctx, a, scope)
	if err != nil {
		return cluster.Dotfile{}, err
	}
	if i := dotfileIndex(all, path); i >= 0 {
		return all[i], nil
	}
	return cluster.Dotfile{}, authz.NotFound(dotfileNoun, path)
}

// CreateDotfile adds a file.
func (s *Service) CreateDotfile(ctx context.Context, a authz.Actor, scope DotfileScope, f cluster.Dotfile) (err error) {
	ctx, end := audit.Begin(ctx, s.d.Store, a, "dotfile.create", f.Path)
	defer end(&err)
	audit.ActingFor(ctx, string(scope.Owner))
	if err := authz.Changing(a, authz.AreaTenancy); err != nil {
		return err
	}
	return s.changeDotfiles(ctx, a, scope, func(all []cluster.Dotfile) ([]cluster.Dotfile, error) {
		if dotfileIndex(all, f.Path) >= 0 {
			return nil, fault.Conflictf("dotfile %s exists already", f.Path).WithReason("generic-bad-request").WithNext("update it instead")
		}
		return append(all, f), checkDotfile(f)
	})
}

// UpdateDotfile replaces a file.
func (s *Service) UpdateDotfile(ctx context.Context, a authz.Actor, scope DotfileScope, f cluster.Dotfile) (err error) {
	ctx, end := audit.Begin(ctx, s.d.Store, a, "dotfile.update", f.Path)
	defer end(&err)
	audit.ActingFor(ctx, string(scope.Owner))
	if err := authz.Changing(a, authz.AreaTenancy); err != nil {
		return err
	}
	return s.changeDotfiles(ctx, a, scope, func(all []cluster.Dotfile) ([]cluster.Dotfile, error) {
		i := dotfileIndex(all, f.Path)
		if i < 0 {
			return nil, authz.NotFound(dotfileNoun, f.Path)
		}
		all[i] = f
		return all, checkDotfile(f)
	})
}

// DeleteDotfile removes a file.
func (s *Service) DeleteDotfile(ctx context.Context, a authz.Actor, scope DotfileScope, path string) (err error) {
	ctx, end := audit.Begin(ctx, s.d.Store, a, "dotfile.delete", path)
	defer end(&err)
	audit.ActingFor(ctx, string(scope.Owner))
	if err := authz.Changing(a, authz.AreaTenancy); err != nil {
		return err
	}
	return s.changeDotfiles(ctx, a, scope, func(all []cluster.Dotfile) ([]cluster.Dotfile, error) {
		i := dotfileIndex(all, path)
		if i < 0 {
			return nil, authz.NotFound(dotfileNoun, path)
		}
		return slices.Delete(all, i, i+1), nil
	})
}

func (s *Service) changeDotfiles(ctx context.Context, a authz.Actor, scope DotfileScope,
	change func([]cluster.Dotfile) ([]cluster.Dotfile, error)) error {
	d, err := s.dotfiles(ctx, a, scope)
	if err != nil {
		return err
	}
	err = s.d.Store.Tx(ctx, func(ctx context.Context, tx *store.Tx) error {
		raw, err := d.read(ctx, tx) // locks the row
		if err != nil {
			return err
		}
		all, err := change(ReadDotfiles(raw))
		if err != nil {
			return err
		}
		if raw, err = json.Marshal(all); err != nil {
			return err
		}
		if len(all) > maxDotfiles || len(raw) > maxDotfileBytes {
			return fault.Invalidf("dotfiles of one owner may have %d files and %d bytes together", maxDotfiles, maxDotfileBytes)
		}
		return d.write(ctx, tx, raw)
	})
	if err != nil {
		return fmt.Errorf("change dotfiles: %w", err)
	}
	return nil
}

func dotfileIndex(all []cluster.Dotfile, name string) int {
	return slices.IndexFunc(all, func(f cluster.Dotfile) bool { return f.Path == name })
}

func checkDotfile(f cluster.Dotfile) error {
	clean := path.Clean(f.Path)
	switch {
	case f.Path == "" || len(f.Path) > 255 || clean != f.Path || path.IsAbs(clean) || clean == "." || clean == ".." ||
		strings.HasPrefix(clean, "../"),
		strings.ContainsFunc(f.Path, func(r rune) bool { return r < ' ' || r == 0x7f }):
		return fault.Invalidf("dotfile path %q is not allowed", f.Path).WithNext("use a path below the home directory such as .vimrc")
	case clean == ".ssh/authorized_keys" || clean == ".ssh/id_rsa" || clean == ".ssh":
		return fault.Invalidf("dotfile path %q is made by the cluster", f.Path).WithNext("use the ssh keypair instead")
	case strings.ContainsRune(f.Data, 0):
		return fault.Invalidf("dotfile %s is not text", f.Path)
	}
	if mode, err := strconv.ParseUint(f.Perm, 8, 32); err != nil || mode > 0o777 || len(f.Perm) > 4 {
		return fault.Invalidf("permission %q of dotfile %s is not allowed", f.Perm, f.Path).WithNext("write three octal digits such as 755")
	}
	return nil
}

// BootstrapScript returns the script that runs first in every session of the actor's keypair.
func (s *Service) BootstrapScript(ctx context.Context, a authz.Actor) (string, error) {
	if err := authz.Authenticated(a); err != nil {
		return "", err
	}
	text, err := s.d.Store.GetBootstrapScript(ctx, string(a.AccessKey))
	if err != nil {
		return "", fmt.Errorf("read bootstrap script: %w", err)
	}
	return text, nil
}

// SetBootstrapScript replaces it; "" removes it.
func (s *Service) SetBootstrapScript(ctx context.Context, a authz.Actor, script string) (err error) {
	ctx, end := audit.Begin(ctx, s.d.Store, a, "keypair.set-bootstrap-script", string(a.AccessKey))
	defer end(&err)
	if err := authz.Keypairs.Need(a, authz.Change, authz.Object{Owner: a.UserID}, "change a bootstrap script"); err != nil {
		return err
	}
	if len(script) > MaxScript || strings.ContainsRune(script, 0) {
		return fault.Invalidf("a bootstrap script is text of %d bytes at most", MaxScript)
	}
	if err := s.d.Store.SetBootstrapScript(ctx, string(a.AccessKey), script); err != nil {
		return fmt.Errorf("store bootstrap script: %w", err)
	}
	return nil
}

// MergeDotfiles lays the scopes over each other: a user's file wins over a project's, that over a domain's.
func MergeDotfiles(scopes ...json.RawMessage) []cluster.Dotfile {
	byPath := map[string]cluster.Dotfile{}
	for _, raw := range scopes {
		for _, f := range ReadDotfiles(raw) {
			byPath[f.Path] = f
		}
	}
	out := make([]cluster.Dotfile, 0, len(byPath))
	for _, f := range byPath {
		out = append(out, f)
	}
	slices.SortFunc(out, func(a, b cluster.Dotfile) int { return strings.Compare(a.Path, b.Path) })
	return out
}

// ReadDotfiles reads a column of dotfiles; a broken one is empty.
func ReadDotfiles(raw json.RawMessage) []cluster.Dotfile {
	out := []cluster.Dotfile{}
	if err := json.Unmarshal(raw, &out); err != nil {
		return []cluster.Dotfile{}
	}
	return out
}
