// Package ldaptest starts OpenLDAP's server for tests: an empty directory dc=example,dc=org with people and groups, TLS by a certificate of
// its own, and a service account.
package ldaptest

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/go-ldap/ldap/v3"
	"github.com/stretchr/testify/require"

	"berth.dev/berth/internal/chassis"
	client "berth.dev/berth/internal/manager/ldap"
	"berth.dev/berth/internal/testkit/address"
)

// Where things stand in the directory.
const (
	Base, People, Groups = "dc=example,dc=org", "ou=people," + Base, "ou=groups," + Base
	Root, RootPassword   = "cn=root," + Base, "root-password"
	// Reader may read everything and change nothing.
	Reader, ReaderPassword = "cn=reader," + Base, "reader-password"
)

// Server is a running slapd.
type Server struct {
	// Address is host:port of ldap://, with StartTLS; CAFile is what its certificate is checked with.
	Address, CAFile string
	t               testing.TB
	dir             string
	cmd             *exec.Cmd
}

// Start starts a server. The test leaves itself out where slapd is not installed; with the real engine it must be.
func Start(t testing.TB) *Server {
	t.Helper()
	if _, err := os.Stat("/usr/sbin/slapd"); err != nil {
		if os.Getenv("BERTH_TEST_ENGINE") != "" {
			t.Fatal("slapd is not installed; next: scripts/install-deps.sh test")
		}
		t.Skip("slapd is not installed (Debian: slapd)")
	}
	// A path of t.TempDir may be too long for some; the server's own account is the test's.
	s := &Server{t: t, dir: t.TempDir()}
	s.CAFile = s.certificate()
	s.Address = address.Hold(t)
	require.NoError(t, os.MkdirAll(filepath.Join(s.dir, "db"), 0o700))
	s.write("slapd.conf", fmt.Sprintf(`include /etc/ldap/schema/core.schema
include /etc/ldap/schema/cosine.schema
include /etc/ldap/schema/inetorgperson.schema
modulepath /usr/lib/ldap
moduleload back_mdb
moduleload memberof
pidfile %[1]s/pid
TLSCertificateFile %[1]s/cert.pem
TLSCertificateKeyFile %[1]s/key.pem
sizelimit 50
database mdb
maxsize 67108864
suffix "%[2]s"
rootdn "%[3]s"
rootpw %[5]s
limits dn.exact="%[4]s" size.soft=50 size.hard=50 size.prtotal=unlimited
directory %[1]s/db
index objectClass,uid,mail,entryUUID,member eq
overlay memberof
access to attrs=userPassword by anonymous auth by * none
access to * by dn.exact="%[4]s" read by * none
`, s.dir, Base, Root, Reader, RootPassword))
	s.Up()
	s.Add(Base, "dcObject,organization", "dc", "example", "o", "Example")
	s.Add(People, "organizationalUnit", "ou", "people")
	s.Add(Groups, "organizationalUnit", "ou", "groups")
	s.Add(Reader, "simpleSecurityObject,organizationalRole", "cn", "reader", "userPassword", ReaderPassword)
	return s
}

// Up starts the server again after Down, on the same address.
func (s *Server) Up() {
	s.t.Helper()
	log, err := os.Create(filepath.Join(s.dir, "log"))
	require.NoError(s.t, err)
	defer log.Close()
	cmd := exec.Command("/usr/sbin/slapd", "-f", filepath.Join(s.dir, "slapd.conf"), "-h", "ldap://"+s.Address, "-d", "0")
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	require.NoError(s.t, cmd.Start())
	s.cmd = cmd
	s.t.Cleanup(func() { s.stop(cmd) })
	require.Eventually(s.t, func() bool {
		c, err := net.DialTimeout("tcp", s.Address, time.Second)
		if err != nil {
			return false
		}
		_ = c.Close()
		return true
	}, time.Minute, 10*time.Millisecond, "slapd does not listen: %s", filepath.Join(s.dir, "log"))
}

// Down stops the server.
func (s *Server) Down() { s.stop(s.cmd) }

func (s *Server) stop(cmd *exec.Cmd) {
	_ = cmd.Process.Signal(syscall.SIGINT)
	late := time.AfterFunc(10*time.Second, func() { _ = cmd.Process.Kill() })
	defer late.Stop()
	_ = cmd.Wait()
}

// Config is how a client reads this directory.
func (s *Server) Config() client.Config {
	c := client.DefaultConfig()
	c.URL, c.CAFile = "ldap://"+s.Address, s.CAFile
	c.BindDN, c.Password = Reader, chassis.NewSecret(ReaderPassword)
	c.UserBase, c.GroupBase = People, Groups
	c.PageSize = 20
	c.Timeout = time.Minute // a busy machine is no directory that does not answer
	return c
}

// Conn is a connection of the directory's own administrator.
func (s *Server) Conn() *ldap.Conn {
	s.t.Helper()
	raw, err := net.DialTimeout("tcp", s.Address, time.Minute)
	require.NoError(s.t, err)
	require.NoError(s.t, raw.SetDeadline(time.Now().Add(time.Minute)))
	c := ldap.NewConn(raw, false)
	c.SetTimeout(time.Minute)
	c.Start()
	s.t.Cleanup(func() { _ = c.Close() })
	require.NoError(s.t, c.Bind(Root, RootPassword))
	return c
}

// Add adds an entry; pairs are attributes and values.
func (s *Server) Add(dn, classes string, pairs ...string) {
	s.t.Helper()
	c := s.Conn()
	defer c.Close()
	add(s.t, c, dn, classes, pairs...)
}

func add(t testing.TB, c *ldap.Conn, dn, classes string, pairs ...string) {
	t.Helper()
	r := ldap.NewAddRequest(dn, nil)
	r.Attribute("objectClass", strings.Split(classes, ","))
	values := map[string][]string{}
	for i := 0; i < len(pairs); i += 2 {
		values[pairs[i]] = append(values[pairs[i]], pairs[i+1])
	}
	for name, all := range values {
		r.Attribute(name, all)
	}
	require.NoError(t, c.Add(r))
}

// Person adds a person uid with the address uid@example.org.
func (s *Server) Person(uid, password string) {
	s.t.Helper()
	s.Add("uid="+ldap.EscapeDN(uid)+","+People, "inetOrgPerson", "uid", uid, "cn", "The "+uid, "sn", uid, "mail", uid+"@example.org",
		"userPassword", password)
}

// Many adds people in one connection.
func (s *Server) Many(n int, prefix string) {
	s.t.Helper()
	c := s.Conn()
	defer c.Close()
	for i := range n {
		uid := fmt.Sprintf("%s%04d", prefix, i)
		add(s.t, c, "uid="+uid+","+People, "inetOrgPerson", "uid", uid, "cn", uid, "sn", uid, "mail", uid+"@example.org")
	}
}

// Group adds a group with people in it.
func (s *Server) Group(name string, uids ...string) {
	s.t.Helper()
	pairs := []string{"cn", name}
	for _, uid := range uids {
		pairs = append(pairs, "member", "uid="+uid+","+People)
	}
	s.Add("cn="+name+","+Groups, "groupOfNames", pairs...)
}

// Remove removes an entry.
func (s *Server) Remove(dn string) {
	s.t.Helper()
	c := s.Conn()
	defer c.Close()
	require.NoError(s.t, c.Del(ldap.NewDelRequest(dn, nil)))
}

// Replace sets an attribute.
func (s *Server) Replace(dn, attribute string, values ...string) {
	s.t.Helper()
	c := s.Conn()
	defer c.Close()
	r := ldap.NewModifyRequest(dn, nil)
	r.Replace(attribute, values)
	require.NoError(s.t, c.Modify(r))
}

// Rename moves a person to another uid; the subject stays.
func (s *Server) Rename(uid, fresh string) {
	s.t.Helper()
	c := s.Conn()
	defer c.Close()
	require.NoError(s.t, c.ModifyDN(ldap.NewModifyDNRequest("uid="+uid+","+People, "uid="+fresh, true, "")))
}

func (s *Server) write(name, text string) {
	s.t.Helper()
	require.NoError(s.t, os.WriteFile(filepath.Join(s.dir, name), []byte(text), 0o600))
}

// certificate makes one for 127.0.0.1 that is its own authority.
func (s *Server) certificate() string {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(s.t, err)
	is := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "ldaptest"}, NotBefore: time.Now().Add(-time.Hour),
		NotAfter: time.Now().Add(24 * time.Hour), IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, IsCA: true, BasicConstraintsValid: true,
		KeyUsage:    x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}}
	der, err := x509.CreateCertificate(rand.Reader, is, is, key.Public(), key)
	require.NoError(s.t, err)
	raw, err := x509.MarshalPKCS8PrivateKey(key)
	require.NoError(s.t, err)
	s.write("cert.pem", string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})))
	s.write("key.pem", string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: raw})))
	return filepath.Join(s.dir, "cert.pem")
}
