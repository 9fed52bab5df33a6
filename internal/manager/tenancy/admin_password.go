package tenancy

import (
	"context"
	"fmt"
	"io"

	"berth.dev/berth/internal/fault"
	"berth.dev/berth/internal/manager/seal"
	"berth.dev/berth/internal/manager/store"
)

// ResetAdminPassword gives the first administrator a new password and returns it with the login. It is for an
// operator of the machine, who needs no account; keypairs stay as they are.
func ResetAdminPassword(ctx context.Context, db *store.Store, random io.Reader) (email string, password seal.Secret, err error) {
	if password, err = newPassword(random); err != nil {
		return "", "", err
	}
	// Hashing takes long: it stays out of the transaction.
	hash, err := seal.NewPasswords(1, seal.Cost{}, random).Hash(ctx, password)
	if err != nil {
		return "", "", err
	}
	err = db.Tx(ctx, func(ctx context.Context, tx *store.Tx) error {
		row, err := tx.FirstAdministrator(ctx)
		if store.Missing(err) {
			return fault.NotFoundf("there is no active administrator with a keypair")
		}
		if err != nil {
			return err
		}
		user, err := tx.UserForLogin(ctx, row.Email)
		if err != nil {
			return err
		}
		email = user.Email
		return tx.SetPassword(ctx, user.ID, &hash)
	})
	if err != nil {
		return "", "", fmt.Errorf("reset the administrator's password: %w", err)
	}
	return email, password, nil
}

// ResetAdminPassword calls the function of this name with the store of the service. It asks for no actor: only the machine's own
// administrator reaches it, never a request.
func (s *Service) ResetAdminPassword(ctx context.Context) (email string, password seal.Secret, err error) {
	return ResetAdminPassword(ctx, s.d.Store, s.d.Random)
}
