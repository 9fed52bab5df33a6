package ldap_test

import (
	"context"
	"net"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"berth.dev/berth/internal/chassis"
	"berth.dev/berth/internal/fault"
	"berth.dev/berth/internal/manager/ldap"
	"berth.dev/berth/internal/manager/ldap/ldaptest"
)

func secret(text string) chassis.Secret { return chassis.NewSecret(text) }

func open(t *testing.T, c ldap.Config) *ldap.Client {
	t.Helper()
	require.NoError(t, c.Validate("ldap"))
	out, err := ldap.New(c)
	require.NoError(t, err)
	return out
}

func within(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	t.Cleanup(cancel)
	return ctx
}

func TestConfigurationsThatCannotWork(t *testing.T) {
	t.Parallel()
	good := ldap.DefaultConfig()
	good.URL, good.UserBase = "ldaps://ldap.example.org", "ou=people,dc=example,dc=org"
	require.NoError(t, good.Validate("d"))
	require.NoError(t, ldap.Config{}.Validate("d"), "no directory")
	for name, change := range map[string]func(*ldap.Config){
		"d.url":              func(c *ldap.Config) { c.URL = "http://x" },
		"d.plain":            func(c *ldap.Config) { c.Plain = true },
		"d.bind_dn needs":    func(c *ldap.Config) { c.BindDN = "cn=x" },
		"d.bind_dn needs a":  func(c *ldap.Config) { c.BindDN, c.Password, c.PasswordFile = "cn=x", secret("x"), "/x" },
		"d.user_base":        func(c *ldap.Config) { c.UserBase = "" },
		"d.group_base":       func(c *ldap.Config) { c.GroupBase = "no name" },
		"d.user_filter":      func(c *ldap.Config) { c.UserFilter = "(objectClass=person" },
		"is no attribute":    func(c *ldap.Config) { c.LoginAttributes = []string{"uid)(x"} },
		"d.login_attributes": func(c *ldap.Config) { c.LoginAttributes = nil },
		"d.page_size":        func(c *ldap.Config) { c.PageSize = 0 },
		"d.timeout":          func(c *ldap.Config) { c.Timeout = 0 },
	} {
		c := good
		change(&c)
		err := c.Validate("d")
		require.ErrorContains(t, err, name)
		require.True(t, fault.Is(err, fault.Invalid), name)
		require.NotEmpty(t, fault.NextOf(err), name)
	}
}

// Groups outside of the base do not count, and only those directly below it go by their own names.
func TestNamesOfGroups(t *testing.T) {
	t.Parallel()
	for dn, want := range map[string]string{
		"cn=Staff,ou=groups,dc=example,dc=org":             "Staff",
		"CN=staff, OU=Groups, DC=example, DC=org":          "staff",
		"cn=staff,ou=mine,ou=groups,dc=example,dc=org":     "cn=staff,ou=mine,ou=groups,dc=example,dc=org",
		"cn=staff+ou=x,ou=groups,dc=example,dc=org":        "cn=staff+ou=x,ou=groups,dc=example,dc=org",
		"cn=staff,ou=people,dc=example,dc=org":             "",
		"cn=a\\,ou=groups\\,x,ou=groups,dc=example,dc=org": "a,ou=groups,x",
		"ou=groups,dc=example,dc=org":                      "",
		"nonsense":                                         "",
	} {
		require.Equal(t, want, ldap.GroupName(t, dn, "ou=groups,dc=example,dc=org"), dn)
	}
	require.Equal(t, "cn=a,dc=b", ldap.GroupName(t, "CN=A,DC=b", ""))
}

func TestLoginByBind(t *testing.T) {
	t.Parallel()
	s := ldaptest.Start(t)
	s.Person("ada", "ada-password")
	s.Person("a*(b)\\", "odd-password")
	s.Group("staff", "ada")
	c := open(t, s.Config())
	p, err := c.Login(within(t), "ada", secret("ada-password"))
	require.NoError(t, err)
	require.Equal(t, ldap.Person{DN: "uid=ada," + ldaptest.People, Subject: p.Subject, Email: "ada@example.org", Username: "ada",
		FullName: "The ada", Groups: []string{"staff"}}, p)
	require.Len(t, p.Subject, 36)
	again, err := c.Login(within(t), "ada@example.org", secret("ada-password"))
	require.NoError(t, err)
	require.Equal(t, p, again)
	odd, err := c.Login(within(t), "a*(b)\\", secret("odd-password"))
	require.NoError(t, err)
	require.Equal(t, "a*(b)\\", odd.Username)

	for name, attempt := range map[string][2]string{
		"wrong password": {"ada", "other"}, "unknown": {"eve", "ada-password"}, "a pattern": {"ad*", "ada-password"},
		"a filter": {"x)(uid=ada", "ada-password"}, "a NUL": {"ada\x00", "ada-password"}, "no password": {"ada", ""},
		"no name": {"", "ada-password"}, "everybody": {"*", "ada-password"}, "no text": {"ada\xff", "ada-password"},
		"long": {string(make([]byte, 100_000)), "ada-password"},
	} {
		_, err := c.Login(within(t), attempt[0], secret(attempt[1]))
		require.ErrorIs(t, err, ldap.ErrRefused, name)
	}

	// Who is renamed stays who they are.
	s.Rename("ada", "lovelace")
	p2, err := c.LoginSubject(within(t), p.Subject, secret("ada-password"))
	require.NoError(t, err)
	require.Equal(t, "lovelace", p2.Username)
	_, err = c.LoginSubject(within(t), "*", secret("ada-password"))
	require.ErrorIs(t, err, ldap.ErrRefused)

	// Two entries by one name let nobody in.
	s.Person("twin", "twin-password")
	s.Replace("uid=twin,"+ldaptest.People, "mail", "ada@example.org")
	_, err = c.Login(within(t), "ada@example.org", secret("twin-password"))
	require.ErrorIs(t, err, ldap.ErrRefused)
}

func TestAllPeopleInPages(t *testing.T) {
	t.Parallel()
	s := ldaptest.Start(t)
	s.Many(130, "p") // more than a page, and more than the server tells at once
	s.Group("staff", "p0001", "p0002")
	s.Group("admins", "p0001")
	c := open(t, s.Config())
	people, skipped, err := c.All(within(t))
	require.NoError(t, err)
	require.Empty(t, skipped)
	require.Len(t, people, 130)
	groups := map[string][]string{}
	for _, p := range people {
		if len(p.Groups) > 0 {
			groups[p.Username] = p.Groups
		}
	}
	require.Equal(t, map[string][]string{"p0001": {"admins", "staff"}, "p0002": {"staff"}}, groups)

	// By memberOf it is the same.
	config := s.Config()
	config.MemberOf = true
	byAttribute, _, err := open(t, config).All(within(t))
	require.NoError(t, err)
	require.Equal(t, people, byAttribute)

	// What is not complete is an error, never a shorter list.
	config = s.Config()
	config.MaxEntries = 129
	_, _, err = open(t, config).All(within(t))
	require.True(t, fault.Is(err, fault.Invalid), "%v", err)
	config = s.Config()
	config.UserBase = "ou=gone," + ldaptest.Base
	_, _, err = open(t, config).All(within(t))
	require.True(t, fault.Is(err, fault.Unavailable), "%v", err)

	// An entry that cannot be read is told, with who it is.
	config = s.Config()
	config.SubjectAttribute = "employeeNumber"
	s.Replace("uid=p0001,"+ldaptest.People, "employeeNumber", "1")
	s.Replace("uid=p0002,"+ldaptest.People, "employeeNumber", "2")
	s.Replace("uid=p0003,"+ldaptest.People, "employeeNumber", "2")
	people, skipped, err = open(t, config).All(within(t))
	require.NoError(t, err)
	require.Len(t, people, 1)
	require.Len(t, skipped, 129)
	require.Equal(t, "2", skipped[2].Subject)
}

func TestADirectoryThatDoesNotAnswer(t *testing.T) {
	t.Parallel()
	s := ldaptest.Start(t)
	s.Person("ada", "ada-password")
	unavailable := func(name string, c ldap.Config) {
		t.Helper()
		_, err := open(t, c).Login(within(t), "ada", secret("ada-password"))
		require.True(t, fault.Is(err, fault.Unavailable), "%s: %v", name, err)
		require.NotErrorIs(t, err, ldap.ErrRefused, name)
		require.NotContains(t, err.Error(), "ada-password")
		require.NotContains(t, err.Error(), ldaptest.ReaderPassword)
		_, _, err = open(t, c).All(within(t))
		require.True(t, fault.Is(err, fault.Unavailable), "%s: %v", name, err)
		require.Error(t, open(t, c).Check(within(t)))
	}
	c := s.Config()
	c.CAFile = ""
	unavailable("a server that nobody vouches for", c)
	c = s.Config()
	c.ServerName = "other.example.org"
	unavailable("the certificate of another name", c)
	c = s.Config()
	c.Password = secret("wrong")
	unavailable("a wrong password of the service account", c)
	c = s.Config()
	c.URL = "ldaps://" + s.Address
	c.Timeout = 500 * time.Millisecond
	c.SyncTimeout = c.Timeout
	unavailable("no TLS there", c)

	// A server that takes connections and says nothing.
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer l.Close()
	c.URL = "ldap://" + l.Addr().String()
	unavailable("silence", c)

	// One that sends without an end.
	flood, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer flood.Close()
	go func() {
		for {
			conn, err := flood.Accept()
			if err != nil {
				return
			}
			go func() {
				defer conn.Close()
				_ = conn.SetDeadline(time.Now().Add(time.Minute))
				_, _ = conn.Write([]byte{0x30, 0x84, 0x7f, 0xff, 0xff, 0xff})
				for {
					if _, err := conn.Write(make([]byte, 1<<16)); err != nil {
						return
					}
				}
			}()
		}
	}()
	c.URL = "ldap://" + flood.Addr().String()
	unavailable("a message of two gigabytes", c)

	s.Down()
	unavailable("away", s.Config())
	s.Up()
	_, err = open(t, s.Config()).Login(within(t), "ada", secret("ada-password"))
	require.NoError(t, err)
}
