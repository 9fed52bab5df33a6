package ldap

import (
	"context"
	"crypto/tls"
	"encoding/hex"
	"errors"
	"fmt"
	"math"
	"net"
	"slices"
	"strings"
	"unicode/utf8"

	ber "github.com/go-asn1-ber/asn1-ber"
	"github.com/go-ldap/ldap/v3"

	"berth.dev/berth/internal/chassis"
	"berth.dev/berth/internal/fault"
)

const (
	// maxMessage bounds one message of a server, maxLoginBytes what it may send for a login, maxSyncBytes for the whole directory.
	maxMessage    = 16 << 20
	maxLoginBytes = 4 << 20
	maxSyncBytes  = 1 << 30
	// maxValue bounds an attribute, maxGroups the groups of one person.
	maxValue  = 1024
	maxGroups = 1000
	// maxEmpty is how many pages may hold nothing.
	maxEmpty = 1000
	// maxLogins is how many logins ask at one time; the others wait for their turn within their own time.
	maxLogins = 16
	// binaryID is the attribute of Active Directory whose values are 16 bytes.
	binaryID = "objectGUID"
)

func init() { ber.MaxPacketLengthBytes = maxMessage } // nothing else here reads this encoding

// ErrRefused says that nobody was let in: there is no such person, there are several, or the password is not theirs.
var ErrRefused = errors.New("the directory lets nobody in by that name and password")

// Person is an entry of the directory.
type Person struct {
	// DN is where the entry stands now, Subject what it keeps when it moves.
	DN, Subject               string
	Email, Username, FullName string
	// Groups are the names of groups, sorted; see Config.GroupBase.
	Groups []string
}

// Client asks a directory. It keeps no connection.
type Client struct {
	c         Config
	address   string
	encrypted bool
	tls       *tls.Config
	password  chassis.Secret
	turns     chan struct{}
	// groupBase is Config.GroupBase; nil without one.
	groupBase *ldap.DN
}

// New makes a client of a valid configuration.
func New(c Config) (*Client, error) {
	out := &Client{c: c, turns: make(chan struct{}, maxLogins)}
	out.address, out.encrypted = c.address()
	var err error
	if out.tls, err = c.tls(); err != nil {
		return nil, err
	}
	if out.password, err = c.secret(); err != nil {
		return nil, err
	}
	if c.GroupBase != "" {
		if out.groupBase, err = ldap.ParseDN(c.GroupBase); err != nil {
			return nil, fmt.Errorf("read the base of groups: %w", err)
		}
	}
	return out, nil
}

// Login finds the one person with this value of a login attribute and proves them by the password.
func (c *Client) Login(ctx context.Context, name string, password chassis.Secret) (Person, error) {
	if name == "" || len(name) > maxValue || !utf8.ValidString(name) {
		return Person{}, ErrRefused
	}
	return c.prove(ctx, c.loginFilter(name), password)
}

// LoginSubject proves the person with this subject by the password.
func (c *Client) LoginSubject(ctx context.Context, subject string, password chassis.Secret) (Person, error) {
	if subject == "" || len(subject) > maxValue {
		return Person{}, ErrRefused
	}
	return c.prove(ctx, c.subjectFilter(subject), password)
}

func (c *Client) loginFilter(name string) string {
	var any strings.Builder
	for _, a := range c.c.LoginAttributes {
		any.WriteString("(" + a + "=" + ldap.EscapeFilter(name) + ")")
	}
	return "(&" + c.c.UserFilter + "(|" + any.String() + "))"
}

func (c *Client) subjectFilter(subject string) string {
	value := ldap.EscapeFilter(subject)
	if strings.EqualFold(c.c.SubjectAttribute, binaryID) {
		raw, err := hex.DecodeString(subject)
		if err != nil {
			raw = nil // matches nobody
		}
		value = ""
		for _, b := range raw {
			value += fmt.Sprintf(`\%02x`, b)
		}
	}
	return "(&" + c.c.UserFilter + "(" + c.c.SubjectAttribute + "=" + value + "))"
}

// prove finds one person by a filter and binds as that person.
func (c *Client) prove(ctx context.Context, filter string, password chassis.Secret) (Person, error) {
	// A server takes a bind without a password for an anonymous one, and says yes to it (RFC 4513, 5.1.2).
	if password.IsZero() {
		return Person{}, ErrRefused
	}
	ctx, cancel := context.WithTimeout(ctx, c.c.Timeout)
	defer cancel()
	select {
	case c.turns <- struct{}{}:
		defer func() { <-c.turns }()
	case <-ctx.Done():
		return Person{}, fault.Unavailablef("too many logins wait for the directory").WithNext("try again in a minute")
	}
	s, err := c.connect(ctx, maxLoginBytes)
	if err != nil {
		return Person{}, err
	}
	defer s.close()
	entries, err := s.search(c.c.UserBase, filter, c.personAttributes(), 2)
	switch {
	case err != nil:
		return Person{}, err
	case len(entries) != 1 || entries[0].DN == "": // several: which of them is meant is not guessed
		return Person{}, ErrRefused
	}
	person, err := c.person(entries[0])
	if err != nil {
		return Person{}, err
	}
	if err := s.bind(person.DN, password); err != nil {
		return Person{}, err
	}
	if c.c.MemberOf || c.groupBase == nil {
		return person, nil
	}
	// Groups are read by the account that may read them.
	if err := s.bindService(); err != nil {
		return Person{}, err
	}
	groups, err := s.search(c.c.GroupBase, "(&"+c.c.GroupFilter+"("+c.c.MemberAttribute+"="+ldap.EscapeFilter(person.DN)+"))", []string{
		"1.1"},
		maxGroups+1)
	if err != nil {
		return Person{}, err
	}
	for _, g := range groups {
		person.Groups = c.addGroup(person.Groups, g.DN)
	}
	return person, tidyGroups(&person)
}

// Check reaches the directory and proves the service account.
func (c *Client) Check(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, c.c.Timeout)
	defer cancel()
	s, err := c.connect(ctx, maxLoginBytes)
	if err != nil {
		return err
	}
	s.close()
	return nil
}

// Skipped is an entry that cannot be a person, and why. Subject is "" where it is not known who it is.
type Skipped struct{ Subject, Words string }

// All reads everybody, with their groups, ordered by subject, and tells what was skipped. An answer that is not complete is an error.
func (c *Client) All(ctx context.Context) (people []Person, skipped []Skipped, err error) {
	ctx, cancel := context.WithTimeout(ctx, c.c.SyncTimeout)
	defer cancel()
	s, err := c.connect(ctx, maxSyncBytes)
	if err != nil {
		return nil, nil, err
	}
	defer s.close()
	entries, err := s.pages(c.c.UserBase, c.c.UserFilter, c.personAttributes())
	if err != nil {
		return nil, nil, fmt.Errorf("read the people of the directory: %w", err)
	}
	members := map[string][]string{}
	if !c.c.MemberOf && c.groupBase != nil {
		if members, err = c.members(s); err != nil {
			return nil, nil, fmt.Errorf("read the groups of the directory: %w", err)
		}
	}
	seen := map[string]int{}
	for _, e := range entries {
		p, err := c.person(e)
		if err == nil {
			p.Groups = append(p.Groups, members[canonical(p.DN)]...)
			err = tidyGroups(&p)
		}
		if err != nil {
			skipped = append(skipped, Skipped{p.Subject, fault.Clip(err.Error(), 300)})
			continue
		}
		seen[p.Subject]++
		people = append(people, p)
	}
	people = slices.DeleteFunc(people, func(p Person) bool {
		if seen[p.Subject] > 1 {
			skipped = append(skipped, Skipped{p.Subject,
				fmt.Sprintf("%s: %d entries have its %s", fault.Clip(p.DN, 200), seen[p.Subject], c.c.SubjectAttribute)})
			return true
		}
		return false
	})
	slices.SortFunc(people, func(a, b Person) int { return strings.Compare(a.Subject, b.Subject) })
	slices.SortFunc(skipped, func(a, b Skipped) int { return strings.Compare(a.Words, b.Words) })
	return people, skipped, nil
}

// members are the groups by the DN of their members.
func (c *Client) members(s *session) (map[string][]string, error) {
	groups, err := s.pages(c.c.GroupBase, c.c.GroupFilter, []string{c.c.MemberAttribute})
	if err != nil {
		return nil, err
	}
	out := map[string][]string{}
	for _, g := range groups {
		for _, a := range g.Attributes {
			switch {
			case strings.EqualFold(a.Name, c.c.MemberAttribute):
				for _, dn := range a.Values {
					key := canonical(dn)
					out[key] = c.addGroup(out[key], g.DN)
				}
			case len(a.Values) > 0: // such as member;range=0-1499
				return nil, fault.Invalidf("the directory tells only a part of the members of %s (%s)", fault.Clip(g.DN, 200),
					fault.Clip(a.Name, 60)).
					WithNext("set member_of = true, so that groups are read from people")
			}
		}
	}
	return out, nil
}

func (c *Client) personAttributes() []string {
	out := []string{c.c.SubjectAttribute, c.c.EmailAttribute, c.c.UsernameAttribute, c.c.NameAttribute}
	if c.c.MemberOf {
		out = append(out, "memberOf")
	}
	return out
}

// person reads an entry.
func (c *Client) person(e *ldap.Entry) (Person, error) {
	p := Person{DN: e.DN}
	bad := func(what string) error {
		return fault.Invalidf("%s: %s", fault.Clip(strings.ToValidUTF8(e.DN, "?"), 200), what)
	}
	if strings.EqualFold(c.c.SubjectAttribute, binaryID) {
		raw := e.GetEqualFoldRawAttributeValues(c.c.SubjectAttribute)
		if len(raw) != 1 || len(raw[0]) != 16 {
			return p, bad("it has not one " + c.c.SubjectAttribute)
		}
		p.Subject = hex.EncodeToString(raw[0])
	}
	for _, v := range []struct {
		to   *string
		name string
		one  bool
	}{{&p.Subject, c.c.SubjectAttribute, true}, {&p.Email, c.c.EmailAttribute, false}, {&p.Username, c.c.UsernameAttribute, false},
		{&p.FullName, c.c.NameAttribute, false}} {
		if *v.to != "" {
			continue
		}
		values := e.GetEqualFoldAttributeValues(v.name)
		switch {
		case v.one && len(values) != 1 || v.one && values[0] == "":
			return p, bad("it has not one " + v.name)
		case len(values) == 0:
			continue
		case len(values[0]) > maxValue || !utf8.ValidString(values[0]) || strings.ContainsRune(values[0], 0):
			return p, bad("its " + v.name + " is no text or too long")
		}
		*v.to = values[0] // of several, the first one, as everywhere with mail
	}
	if c.c.MemberOf {
		for _, a := range e.Attributes {
			if !strings.EqualFold(a.Name, "memberOf") && strings.HasPrefix(strings.ToLower(a.Name), "memberof;") && len(a.Values) > 0 {
				return p, bad("the directory tells only a part of its groups")
			}
		}
		for _, dn := range e.GetEqualFoldAttributeValues("memberOf") {
			p.Groups = c.addGroup(p.Groups, dn)
		}
	}
	return p, tidyGroups(&p)
}

// addGroup adds the name of a group, if it counts.
func (c *Client) addGroup(to []string, dn string) []string {
	if name := groupName(dn, c.groupBase); name != "" {
		return append(to, name)
	}
	return to
}

// groupName is what a group is called: directly below the base by its own name, else by its DN, so that nobody who may make groups
// elsewhere makes a second one of a name. It is "" for a group that is not below the base.
func groupName(text string, base *ldap.DN) string {
	dn, err := ldap.ParseDN(text)
	if err != nil || len(dn.RDNs) == 0 {
		return ""
	}
	switch {
	case base == nil:
		return canonical(text)
	case !base.AncestorOfFold(dn):
		return ""
	case len(dn.RDNs) == len(base.RDNs)+1 && len(dn.RDNs[0].Attributes) == 1:
		return dn.RDNs[0].Attributes[0].Value
	}
	return canonical(text)
}

// canonical is one text for all ways to write a DN.
func canonical(text string) string {
	dn, err := ldap.ParseDN(text)
	if err != nil {
		return strings.ToLower(text)
	}
	return strings.ToLower(dn.String())
}

func tidyGroups(p *Person) error {
	slices.Sort(p.Groups)
	if p.Groups = slices.Compact(p.Groups); len(p.Groups) > maxGroups {
		return fault.Invalidf("%s: it is in more than %d groups", fault.Clip(p.DN, 200), maxGroups)
	}
	return nil
}

// session is one connection, bound as the service account.
type session struct {
	c    *Client
	conn *ldap.Conn
	end  func()
}

func (c *Client) connect(ctx context.Context, most int64) (_ *session, err error) {
	raw, err := (&net.Dialer{}).DialContext(ctx, "tcp", c.address)
	if err != nil {
		return nil, c.away(err)
	}
	stop := context.AfterFunc(ctx, func() { _ = raw.Close() })
	defer func() {
		if err != nil {
			stop()
			_ = raw.Close()
		}
	}()
	if deadline, ok := ctx.Deadline(); ok {
		if err := raw.SetDeadline(deadline); err != nil {
			return nil, c.away(err)
		}
	}
	var conn net.Conn = &bounded{Conn: raw, left: most}
	if c.encrypted {
		secure := tls.Client(conn, c.tls)
		if err := secure.HandshakeContext(ctx); err != nil {
			return nil, c.away(err)
		}
		conn = secure
	}
	l := ldap.NewConn(conn, c.encrypted)
	l.SetTimeout(c.c.Timeout)
	l.Start()
	s := &session{c: c, conn: l, end: func() { stop(); _ = l.Close() }}
	if !c.encrypted && !c.c.Plain {
		if err := l.StartTLS(c.tls); err != nil {
			s.close()
			return nil, c.away(err)
		}
	}
	if err := s.bindService(); err != nil {
		s.close()
		return nil, err
	}
	return s, nil
}

func (s *session) close() { s.end() }

// away says that the directory did not do its part.
func (c *Client) away(err error) error {
	return fault.Unavailablef("the directory of users does not answer as it should").WithCause(fmt.Errorf("ask %s: %w", c.address, err)).
		WithNext("try again in a minute; users with a local password can log in meanwhile")
}

// bindService proves the service account. A wrong password there is no wrong password of a person.
func (s *session) bindService() error {
	var err error
	if s.c.c.BindDN == "" {
		err = s.conn.UnauthenticatedBind("")
	} else {
		err = s.conn.Bind(s.c.c.BindDN, s.c.password.Reveal())
	}
	if err != nil {
		return s.c.away(fmt.Errorf("bind as the service account: %w", err))
	}
	return nil
}

// refusals are the results of a bind that say no for good: wrong password, no such entry, entry without a password, and what servers say of
// locked and expired accounts.
var refusals = []uint16{ldap.LDAPResultInvalidCredentials, ldap.LDAPResultNoSuchObject, ldap.LDAPResultInappropriateAuthentication,
	ldap.LDAPResultUnwillingToPerform, ldap.LDAPResultConstraintViolation, ldap.LDAPResultInvalidDNSyntax,
	ldap.LDAPResultInsufficientAccessRights}

func (s *session) bind(dn string, password chassis.Secret) error {
	err := s.conn.Bind(dn, password.Reveal())
	switch {
	case err == nil:
		return nil
	case ldap.IsErrorAnyOf(err, refusals...):
		return ErrRefused
	}
	return s.c.away(err)
}

func (s *session) request(base, filter string, attributes []string, most int) *ldap.SearchRequest {
	seconds := int(math.Ceil(s.c.c.Timeout.Seconds()))
	return ldap.NewSearchRequest(base, ldap.ScopeWholeSubtree, ldap.NeverDerefAliases, most, seconds, false, filter, attributes, nil)
}

// search asks for at most so many entries; that there are more is the same as that many.
func (s *session) search(base, filter string, attributes []string, most int) ([]*ldap.Entry, error) {
	found, err := s.conn.Search(s.request(base, filter, attributes, most))
	if ldap.IsErrorWithCode(err, ldap.LDAPResultSizeLimitExceeded) && found != nil && len(found.Entries) >= most {
		return found.Entries, nil
	}
	if err != nil {
		return nil, s.c.away(err)
	}
	return found.Entries, nil
}

// pages asks for everything, page by page.
func (s *session) pages(base, filter string, attributes []string) ([]*ldap.Entry, error) {
	paging := ldap.NewControlPaging(uint32(s.c.c.PageSize))
	var out []*ldap.Entry
	empty := 0
	for {
		request := s.request(base, filter, attributes, 0)
		request.Controls = []ldap.Control{paging}
		found, err := s.conn.Search(request)
		if err != nil {
			return nil, s.c.away(err)
		}
		if out = append(out, found.Entries...); len(out) > s.c.c.MaxEntries {
			return nil, fault.Invalidf("the directory has more than %d entries below %s", s.c.c.MaxEntries, base).
				WithNext("narrow the filter, or raise max_entries")
		}
		answer, ok := ldap.FindControl(found.Controls, ldap.ControlTypePaging).(*ldap.ControlPaging)
		if !ok || len(answer.Cookie) == 0 {
			return out, nil
		}
		if len(found.Entries) == 0 {
			if empty++; empty > maxEmpty {
				return nil, s.c.away(errors.New("its pages do not end"))
			}
		}
		paging.SetCookie(answer.Cookie)
	}
}

// bounded is a connection that reads only so much.
type bounded struct {
	net.Conn
	left int64
}

func (b *bounded) Read(to []byte) (int, error) {
	if b.left <= 0 {
		return 0, errors.New("the directory sent more than is taken")
	}
	if int64(len(to)) > b.left {
		to = to[:b.left]
	}
	n, err := b.Conn.Read(to)
	b.left -= int64(n)
	return n, err
}
