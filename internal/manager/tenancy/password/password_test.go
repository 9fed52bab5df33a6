package password_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"berth.dev/berth/internal/manager/tenancy/password"
)

func TestPasswords(t *testing.T) {
	t.Parallel()
	for _, bad := range []string{
		"", "short", "1234567", "12345678", "123456789", "1234567890", "87654321", "password", "Password1",
		"P@ssw0rd", "P4$$w0rd!", "passw0rd123",
		"qwertyui", "qwerty123", "1q2w3e4r", "1qaz2wsx", "asdfghjkl", "zxcvbnm1", "qazwsxedc", "abcdefgh", "aaaaaaaa", "abababab", "abcdabcd",
		"11111111", "12121212", "iloveyou", "iloveyou2", "Welcome1!", "welcome2026", "letmein1", "admin1234", "Administrator", "sunshine1",
		"princess!", "football99", "superman1", "trustno1!", "changeme", "Summer2026", "december24", "dragon123", "monkey12", "berth1234",
		"qwertz12", "azerty123", "000000000", "asdf1234", "abc12345", strings.Repeat("x", 1025),
	} {
		require.Error(t, password.Check(bad), bad)
	}
	for _, good := range []string{
		"correct horse battery", "tr0ub4dor&3", "mein Hund heißt Egon", "x7-kd92-qqlw", "pass the salt please",
		"abcdkxwq9", "ニシンの缶詰が三つ", "abcde-fghjk-mnpqr-stu22",
		"admin of nothing at all",
	} {
		require.NoError(t, password.Check(good), good)
	}
	for _, name := range []string{"grace.hopper@navy.example", "grace", "Grace Hopper", "HOPPER"} {
		require.Error(t, password.Check("ghx-hopper-GRACE-77", name), name)
	}
	require.NoError(t, password.Check("ghx-hopper-77", "abc", "al@x.org", ""))
}

// Nothing that somebody sends makes the check fail otherwise, and what is random is accepted.
func TestAnyText(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(rt *rapid.T) {
		text, name := rapid.String().Draw(rt, "text"), rapid.String().Draw(rt, "name")
		if err := password.Check(text, name); err == nil && len(text) < password.Shortest {
			rt.Fatalf("%q is accepted", text)
		}
	})
}
