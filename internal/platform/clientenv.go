package platform

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"

	"berth.dev/berth/api/pin"
	"berth.dev/berth/internal/durable"
	"berth.dev/berth/internal/manager/tenancy"
)

// writeClientEnv writes what the official clients and the command line need to reach the
// cluster as its administrator, as lines for `set -a; . FILE`. The password is only known when
// the administrator has just been made; afterwards the one in the file stays.
func writeClientEnv(path, endpoint, fingerprint string, admin tenancy.Credentials, created bool) (password string, err error) {
	old, err := ReadEnvFile(path)
	if err != nil {
		return "", fmt.Errorf("read %s: %w", path, err)
	}
	if created {
		password = admin.Password.Reveal()
	} else if old["BACKEND_ACCESS_KEY"] == string(admin.AccessKey) {
		password = old["BERTH_ADMIN_PASSWORD"]
	}
	var b strings.Builder
	for _, kv := range [][2]string{
		{"BACKEND_ENDPOINT", endpoint},
		{"BACKEND_ENDPOINT_TYPE", "api"},
		{"BACKEND_ACCESS_KEY", string(admin.AccessKey)},
		{"BACKEND_SECRET_KEY", admin.SecretKey.Reveal()},
		{"BERTH_ADMIN_EMAIL", admin.Email},
		{"BERTH_ADMIN_PASSWORD", password},
		{pin.Env, fingerprint},
	} {
		if kv[0] == pin.Env && kv[1] == "" {
			continue
		}
		if strings.ContainsAny(kv[1], "'\n") {
			return "", fmt.Errorf("write %s: %s cannot be quoted", path, kv[0])
		}
		value := kv[1]
		if strings.Trim(value, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-.:/@+=") != "" {
			value = "'" + value + "'"
		}
		fmt.Fprintf(&b, "%s=%s\n", kv[0], value)
	}
	if err := durable.WriteFile(path, []byte(b.String()), 0o600); err != nil {
		return "", fmt.Errorf("write %s: %w", path, err)
	}
	return password, nil
}

// ReadEnvFile reads NAME=value lines; a missing file is empty.
func ReadEnvFile(path string) (map[string]string, error) {
	text, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return map[string]string{}, nil
	}
	if err != nil {
		return nil, err
	}
	out := map[string]string{}
	for line := range strings.Lines(string(text)) {
		if name, value, ok := strings.Cut(strings.TrimSpace(line), "="); ok && !strings.HasPrefix(name, "#") {
			out[name] = strings.Trim(value, `'`)
		}
	}
	return out, nil
}
