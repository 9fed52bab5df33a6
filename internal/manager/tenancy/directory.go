package tenancy

import (
	"context"
	"fmt"

	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/fault"
	"berth.dev/berth/internal/manager/seal"
	"berth.dev/berth/internal/manager/store"
	"berth.dev/berth/internal/manager/store/dbgen"
)

// Directory proves users who log in at a directory of the organisation. Nobody is asked for both: where somebody logs in is a fact of the
// user, and a directory that does not answer is Unavailable.
type Directory interface {
	// Prove decides about the password of a user who logs in at a directory.
	Prove(ctx context.Context, directory string, user cluster.UserID, password seal.Secret) error
	// Admit decides about somebody who typed a name that no account has, and tells the account. It may make one.
	Admit(ctx context.Context, name string, password seal.Secret) (cluster.UserID, error)
}

// atDirectory proves somebody by a directory. Of an unknown name row is empty.
func (s *Service) atDirectory(ctx context.Context, row dbgen.UserForLoginRow, domain, name string, password seal.Secret) (LoginKeypair,
	error) {
	if s.d.Directory == nil {
		return LoginKeypair{}, fault.Unavailablef("this account logs in at a directory, which is not configured here").WithNext("ask " +
			"an administrator")
	}
	if password == "" { // directories take that for nobody in particular, and say yes
		return LoginKeypair{}, AuthFailed()
	}
	switch {
	case row.ID == "":
		user, err := s.d.Directory.Admit(ctx, name, password)
		if err != nil {
			return LoginKeypair{}, err
		}
		u, err := s.d.Store.UserByRef(ctx, string(user))
		if err != nil {
			return LoginKeypair{}, fmt.Errorf("find user %s: %w", user, err)
		}
		if row, err = s.d.Store.UserForLogin(ctx, u.Email); err != nil {
			return LoginKeypair{}, fmt.Errorf("find user: %w", err)
		}
		if row.LoginDirectory == nil {
			return LoginKeypair{}, AuthFailed()
		}
	case row.Status != userActive || !row.DomainActive || row.DomainName != domain:
		return LoginKeypair{}, AuthFailed()
	default:
		if err := s.d.Directory.Prove(ctx, *row.LoginDirectory, cluster.UserID(row.ID), password); err != nil {
			return LoginKeypair{}, err
		}
	}
	if row.Status != userActive || !row.DomainActive || row.DomainName != domain || row.AccessKey == "" {
		return LoginKeypair{}, AuthFailed()
	}
	secret, err := s.d.Seal.Open(row.SecretSealed, keypairPurpose(row.AccessKey))
	if err != nil {
		return LoginKeypair{}, fmt.Errorf("open secret key: %w", err)
	}
	k := keypairOf(row, secret)
	k.elsewhere = true
	return k, nil
}

// elsewhere refuses what is about a password that is kept at a directory.
func elsewhere(email string, directory *string) error {
	if directory == nil {
		return nil
	}
	return fault.Conflictf("the password of %s is kept at the directory %q", email, store.Value(directory)).WithNext("change it there")
}
