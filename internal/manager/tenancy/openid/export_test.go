package openid

import "time"

// A busy machine is no provider that does not answer.
func init() { patience = time.Minute }
