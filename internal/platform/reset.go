package platform

import (
	"context"
	"crypto/rand"
	"log/slog"
	"net/http"
	"os"
	"syscall"

	"berth.dev/berth/api/pin"
	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/fault"
	"berth.dev/berth/internal/manager"
	"berth.dev/berth/internal/manager/seal"
	"berth.dev/berth/internal/manager/store"
	"berth.dev/berth/internal/manager/tenancy"
)

// Login is what a reset tells.
type Login struct {
	Email    string `json:"email"`
	Password string `json:"password"`
}

// ResetPassword gives the first administrator a new password. It asks the process that `berth up` started.
func ResetPassword(ctx context.Context, dir StateDir) (Login, error) {
	if _, running := dir.Owner(); !running {
		return Login{}, fault.Unavailablef("no cluster runs in %s", dir).WithNext("berth up --detach --state-dir %s, then try again", dir)
	}
	var l Login
	err := dir.call(ctx, http.MethodPost, "/admin/reset-password", nil, &l)
	return l, err
}

// ResetPasswordInDatabase gives the first administrator a new password without the manager, on its database.
func ResetPasswordInDatabase(ctx context.Context, cfg manager.Config) (Login, error) {
	db, err := store.Open(ctx, store.Config{DSN: cfg.Postgres.DSN.Reveal(), SkipMigrations: true, MaxConns: 1},
		slog.New(slog.DiscardHandler))
	if err != nil {
		return Login{}, err
	}
	defer db.Close()
	email, password, err := tenancy.ResetAdminPassword(ctx, db, rand.Reader)
	return Login{email, password.Reveal()}, err
}

// Keep puts the password into a client.env of that administrator. The file keeps its owner. The error is os.ErrNotExist when the file
// is about nobody or somebody else.
func (l Login) Keep(path string) error {
	old, err := ReadEnvFile(path)
	if err != nil {
		return err
	}
	if old["BERTH_ADMIN_EMAIL"] != l.Email {
		return os.ErrNotExist // it is not about this administrator
	}
	info, err := os.Stat(path)
	if err != nil {
		return err
	}
	_, err = writeClientEnv(path, old["BACKEND_ENDPOINT"], old[pin.Env], tenancy.Credentials{
		Email: l.Email, Password: seal.Secret(l.Password),
		AccessKey: cluster.AccessKey(old["BACKEND_ACCESS_KEY"]), SecretKey: seal.Secret(old["BACKEND_SECRET_KEY"]),
	}, true)
	if err != nil {
		return err
	}
	if owner, ok := info.Sys().(*syscall.Stat_t); ok && os.Geteuid() == 0 {
		return os.Chown(path, int(owner.Uid), int(owner.Gid))
	}
	return nil
}
