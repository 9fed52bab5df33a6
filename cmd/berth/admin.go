package main

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/fault"
	"berth.dev/berth/internal/manager/seal"
	"berth.dev/berth/internal/manager/store"
	"berth.dev/berth/internal/manager/tenancy"
)

// resetPatience bounds the work of a reset.
const resetPatience = 30 * time.Second

func newAdmin() *cobra.Command {
	c := &cobra.Command{Use: "admin", Short: "Help an administrator who has lost the way in"}
	c.AddCommand(newResetPassword())
	return c
}

// login is what a reset tells.
type login struct {
	Email    string `json:"email"`
	Password string `json:"password"`
}

func newResetPassword() *cobra.Command {
	var dirFlag, config string
	var asJSON bool
	c := &cobra.Command{
		Use: "reset-password", Short: "Give the first administrator a new password", Args: cobra.NoArgs,
		Long: "Give the first administrator a new, random password, print it and put it into client.env.\n" +
			"It needs no account, only the right to use the state directory of a running cluster, or with\n" +
			"--config the manager's configuration and database. Keypairs stay as they are.",
		Example: "  berth admin reset-password\n  berth admin reset-password --config manager.toml",
		RunE: func(cmd *cobra.Command, _ []string) (err error) {
			ctx, cancel := context.WithTimeout(cmd.Context(), resetPatience)
			defer cancel()
			var l login
			var dir stateDir
			if config != "" {
				l, dir, err = resetInDatabase(ctx, cmd, config)
			} else if dir, err = findStateDir(dirFlag); err == nil {
				l, err = resetInCluster(ctx, dir)
			}
			if err != nil {
				return err
			}
			// The old password has gone: the new one is shown whatever becomes of the file.
			switch err := replacePassword(dir.clientEnv(), l); {
			case errors.Is(err, os.ErrNotExist):
			case err != nil:
				say(cmd, "note: %s keeps the old password: %v", dir.clientEnv(), err)
			}
			if asJSON {
				return printJSON(cmd, l)
			}
			fmt.Fprintf(cmd.OutOrStdout(), "%s  %s\n", l.Email, l.Password)
			return nil
		},
	}
	c.Flags().StringVar(&dirFlag, "state-dir", "", "directory of the cluster")
	c.Flags().StringVar(&config, "config", "", "TOML file of a manager that runs alone")
	c.Flags().BoolVar(&asJSON, "json", false, "print JSON for programs")
	c.MarkFlagsMutuallyExclusive("state-dir", "config")
	return c
}

// resetInCluster asks the process that `berth up` started.
func resetInCluster(ctx context.Context, dir stateDir) (login, error) {
	if _, running := dir.owner(); !running {
		return login{}, fault.Unavailablef("no cluster runs in %s", dir).WithNext("berth up --detach --state-dir %s, then try again", dir)
	}
	var l login
	err := dir.call(ctx, http.MethodPost, "/admin/reset-password", &l)
	return l, err
}

// resetInDatabase works without the manager, on its database; dir is the manager's.
func resetInDatabase(ctx context.Context, cmd *cobra.Command, file string) (login, stateDir, error) {
	s, _, err := loadSettings(file, roleManager, cmd.ErrOrStderr())
	if err != nil {
		return login{}, "", err
	}
	db, err := store.Open(ctx, store.Config{DSN: s.Manager.Postgres.DSN.Reveal(), SkipMigrations: true, MaxConns: 1}, slog.New(slog.DiscardHandler))
	if err != nil {
		return login{}, "", err
	}
	defer db.Close()
	email, password, err := tenancy.ResetAdminPassword(ctx, db, rand.Reader)
	return login{email, password.Reveal()}, stateDir(s.Manager.StateDir), err
}

// serveReset answers on the control socket, which only the cluster's own user and root may open.
func (p *platform) serveReset(w http.ResponseWriter, r *http.Request) {
	p.mu.Lock()
	m := p.manager
	p.mu.Unlock()
	if m == nil {
		http.Error(w, "the cluster is still starting", http.StatusServiceUnavailable)
		return
	}
	email, password, err := m.manager.Nouns().Tenancy.ResetAdminPassword(r.Context())
	if err != nil {
		http.Error(w, err.Error(), http.StatusServiceUnavailable)
		return
	}
	p.log.Warn("the administrator's password was reset from this machine", "user", email)
	writeJSON(w, login{email, password.Reveal()})
}

// replacePassword puts a new password into a client.env of that administrator. The file keeps its owner.
func replacePassword(path string, l login) error {
	old, err := readEnvFile(path)
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
	_, err = writeClientEnv(path, old["BACKEND_ENDPOINT"], tenancy.Credentials{
		Email: l.Email, Password: seal.Secret(l.Password), AccessKey: cluster.AccessKey(old["BACKEND_ACCESS_KEY"]), SecretKey: seal.Secret(old["BACKEND_SECRET_KEY"]),
	}, true)
	if err != nil {
		return err
	}
	if owner, ok := info.Sys().(*syscall.Stat_t); ok && os.Geteuid() == 0 {
		return os.Chown(path, int(owner.Uid), int(owner.Gid))
	}
	return nil
}
