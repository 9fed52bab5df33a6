package credentials

import (
	"berth.dev/berth/api/credential"
	"berth.dev/berth/internal/manager/httpapi/route"
	"berth.dev/berth/internal/manager/tenancy/otp"
)

func (h *Handlers) otpStatus(c route.Call) error {
	s, err := h.OTP.Status(c.Context(), c.Actor())
	if err != nil {
		return err
	}
	return route.OK(c, credential.OTPStatus{Activated: s.Activated, Required: s.Required, RecoveryCodes: s.RecoveryCodes})
}

func enrolment(c route.Call, e otp.Enrolment, err error) error {
	if err != nil {
		return err
	}
	return route.OK(c, credential.OTPEnrolment{Key: e.Key.Reveal(), URI: e.URI.Reveal()})
}

func (h *Handlers) otpEnrol(c route.Call) error {
	e, err := h.OTP.Enrol(c.Context(), c.Actor())
	return enrolment(c, e, err)
}

func (h *Handlers) otpEnrolBefore(c route.Call) error {
	p, err := c.Params()
	if err != nil {
		return err
	}
	token := p.Need("registration_token|two_factor_registration_token|token")
	if err := p.Err(); err != nil {
		return err
	}
	e, err := h.OTP.EnrolBefore(c.Context(), token)
	return enrolment(c, e, err)
}

func recoveryCodes(c route.Call, codes []string, err error) error {
	if err != nil {
		return err
	}
	return route.OK(c, credential.OTPConfirmed{Success: true, RecoveryCodes: codes})
}

func (h *Handlers) otpConfirm(c route.Call) error {
	p, err := c.Params()
	if err != nil {
		return err
	}
	code := p.Need("otp")
	if err := p.Err(); err != nil {
		return err
	}
	codes, err := h.OTP.Confirm(c.Context(), c.Actor(), code)
	return recoveryCodes(c, codes, err)
}

func (h *Handlers) otpConfirmBefore(c route.Call) error {
	p, err := c.Params()
	if err != nil {
		return err
	}
	token, code := p.Need("registration_token|two_factor_registration_token|token"), p.Need("otp")
	if err := p.Err(); err != nil {
		return err
	}
	codes, err := h.OTP.ConfirmBefore(c.Context(), token, code)
	return recoveryCodes(c, codes, err)
}

func (h *Handlers) otpRecoveryCodes(c route.Call) error {
	p, err := c.Params()
	if err != nil {
		return err
	}
	code := p.Need("otp")
	if err := p.Err(); err != nil {
		return err
	}
	codes, err := h.OTP.RenewRecoveryCodes(c.Context(), c.Actor(), code)
	return recoveryCodes(c, codes, err)
}

func (h *Handlers) otpRemove(c route.Call) error {
	p, err := c.Params()
	if err != nil {
		return err
	}
	email := p.Text("email", "")
	if err := p.Err(); err != nil {
		return err
	}
	if err := h.OTP.Remove(c.Context(), c.Actor(), email); err != nil {
		return err
	}
	return route.OK(c, map[string]bool{"success": true})
}
