// Package seal keeps secrets: the master key file, sealing of stored secrets with it, and hashing of
// passwords. It knows no table and no user.
package seal

// Key is the master key.
type Key struct{}
