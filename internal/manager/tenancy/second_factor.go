package tenancy

import (
	"context"
	"errors"

	"berth.dev/berth/internal/fault"
	"berth.dev/berth/internal/manager/authz"
)

// SecondFactor is something that a login asks for beside the password: a code, a key. Each is asked in its turn when the password was
// right and the address allowed; the first error ends the login. Without a second factor of that kind, the user passes.
type SecondFactor interface {
	// Check decides about a login of the actor. answers are what the client sent beside the password, such as "otp". It returns
	// OTPNeeded, OTPWrong or OTPRegistrationNeeded, which clients of the wire know, or another Unauthenticated error.
	Check(ctx context.Context, a authz.Actor, answers map[string]string) error
}

// The reasons of logins that the password alone does not open; slugs of the wire.
const (
	ReasonOTPNeeded       = "require-totp-authentication"
	ReasonOTPRegistration = "require-totp-registration"
)

// OTPNeeded asks for a one-time password. Official clients compare the text.
func OTPNeeded() error {
	return fault.New(fault.Unauthenticated, "OTP not provided").WithReason(ReasonOTPNeeded)
}

// ErrSecondFactor is the cause of refusals of second factors: whoever sent them knows the password. Its text is empty, so that it changes
// no answer.
var ErrSecondFactor = errors.New("")

// OTPWrong refuses a one-time password.
func OTPWrong() error {
	return fault.New(fault.Unauthenticated, "Invalid TOTP code provided").WithReason("auth-failed").WithCause(ErrSecondFactor)
}

// OTPRegistrationNeeded asks a user to enrol before the login; token lets the holder do so.
func OTPRegistrationNeeded(token string) error {
	return fault.New(fault.Unauthenticated, "You must register a one-time password").WithReason(ReasonOTPRegistration).
		WithData(map[string]string{"two_factor_registration_token": token})
}

// CheckSecondFactors asks the second factors about a login whose password was right.
func (s *Service) CheckSecondFactors(ctx context.Context, a authz.Actor, answers map[string]string) error {
	for _, f := range s.d.SecondFactors {
		if err := f.Check(ctx, a, answers); err != nil {
			return err
		}
	}
	return nil
}
