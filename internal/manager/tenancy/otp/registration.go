package otp

import (
	"context"
	"encoding/base64"
	"fmt"
	"strconv"
	"strings"

	"berth.dev/berth/internal/fault"
	"berth.dev/berth/internal/manager/audit"
	"berth.dev/berth/internal/manager/authz"
	"berth.dev/berth/internal/manager/seal"
	"berth.dev/berth/internal/manager/store"
	"berth.dev/berth/internal/manager/store/dbgen"
	"berth.dev/berth/internal/manager/tenancy"
)

// Whoever has to have a second factor and has none may enrol before the login: the password was right, and a registration token says so.
// The token is sealed text with a user and a moment. It is good for five minutes, and only while the user has no second factor.

const registrationPurpose = "totp registration"

func (s *Service) registration(user string) (string, error) {
	ends := s.d.Clock().Add(registrationLife).Unix()
	sealed, err := s.d.Seal.Seal(seal.Secret(user+" "+strconv.FormatInt(ends, 10)), registrationPurpose)
	if err != nil {
		return "", fmt.Errorf("make a registration token: %w", err)
	}
	return base64.RawURLEncoding.EncodeToString(sealed), nil
}

// registered finds the user of a registration token.
func (s *Service) registered(ctx context.Context, token string) (dbgen.OTPOfRow, error) {
	var none dbgen.OTPOfRow
	sealed, err := base64.RawURLEncoding.DecodeString(token)
	if err != nil || len(token) > 1024 {
		return none, tenancy.AuthFailed()
	}
	text, err := s.d.Seal.Open(sealed, registrationPurpose)
	if err != nil {
		return none, tenancy.AuthFailed()
	}
	user, end, _ := strings.Cut(text.Reveal(), " ")
	ends, err := strconv.ParseInt(end, 10, 64)
	if err != nil || s.d.Clock().Unix() >= ends {
		return none, fault.New(fault.Unauthenticated, "the time to register a one-time password is over").WithReason("auth-failed").
			WithNext("log in again")
	}
	row, err := s.d.Store.OTPOf(ctx, user)
	if store.Missing(err) {
		return none, tenancy.AuthFailed()
	}
	if err != nil {
		return none, fmt.Errorf("read the second factor: %w", err)
	}
	if row.Status != "active" || row.TotpActivated {
		return none, tenancy.AuthFailed()
	}
	return row, nil
}

func actorOf(r dbgen.OTPOfRow) authz.Actor {
	return authz.Actor{Email: r.Email, Role: authz.Role(r.Role), Domain: r.DomainName}
}

// EnrolBefore is Enrol for the holder of a registration token (public).
func (s *Service) EnrolBefore(ctx context.Context, token string) (_ Enrolment, err error) {
	row, err := s.registered(ctx, token)
	if err != nil {
		return Enrolment{}, err
	}
	ctx, end := audit.Begin(ctx, s.d.Store, actorOf(row), "user.enrol-otp", row.Email)
	defer end(&err)
	return s.enrol(ctx, row.ID, row.Email)
}

// ConfirmBefore is Confirm for the holder of a registration token (public).
func (s *Service) ConfirmBefore(ctx context.Context, token, code string) (_ []string, err error) {
	row, err := s.registered(ctx, token)
	if err != nil {
		return nil, err
	}
	ctx, end := audit.Begin(ctx, s.d.Store, actorOf(row), "user.confirm-otp", row.Email)
	defer end(&err)
	return s.confirm(ctx, row.ID, code)
}

// Reseal seals all secrets with the current master key and returns how many it changed.
func Reseal(ctx context.Context, db *store.Store, key *seal.Key) (changed int, err error) {
	return store.Reseal(ctx, db, store.BeforeAllUUIDs,
		func(ctx context.Context, tx *store.Tx, after string, limit int32) ([]dbgen.SealedOfOTPRow, error) {
			return tx.SealedOfOTP(ctx, after, limit)
		},
		func(ctx context.Context, tx *store.Tx, r dbgen.SealedOfOTPRow) (string, bool, error) {
			fresh, is, err := key.Reseal(r.SecretSealed, purpose(r.UserID))
			if err != nil || !is {
				return r.UserID, false, err
			}
			return r.UserID, true, tx.ResealOTP(ctx, fresh, r.UserID)
		})
}
