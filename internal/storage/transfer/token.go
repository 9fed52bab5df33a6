package transfer

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net/http"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/golang-jwt/jwt/v5"

	"berth.dev/berth/internal/clientaddr"
	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/fault"
	"berth.dev/berth/internal/storage/volume"
	wire "berth.dev/berth/internal/wire/storage"
)

// fileMode is what uploaded files get; the volume decides their owner.
const fileMode = 0o644

// The operations of tokens.
const (
	opUpload   = "upload"
	opDownload = "download"
	opArchive  = "download-archive"
)

// Bounds of what a token may carry: it travels in a URL.
const (
	maxToken    = 48 << 10
	maxPaths    = 1000
	maxPathText = 24 << 10
)

// claims are what a token says, in the wire's names. Archives have their own names for two of them.
type claims struct {
	Op        string   `json:"op,omitempty"`
	Operation string   `json:"operation,omitempty"`
	Volume    string   `json:"volume"`
	VFID      string   `json:"vfid,omitempty"`
	FolderID  string   `json:"virtual_folder_id,omitempty"`
	RelPath   string   `json:"relpath,omitempty"`
	Size      int64    `json:"size,omitempty"`
	Session   string   `json:"session,omitempty"`
	Archive   bool     `json:"archive,omitempty"`
	Files     []string `json:"files,omitempty"`
	Filename  string   `json:"filename,omitempty"`
	// Rights are what managers have sent since version 2 of the protocol.
	Rights *wire.TokenRights `json:"rights,omitempty"`
	// Clients are the addresses and prefixes that the token is good from; none means all.
	Clients []string `json:"clients,omitempty"`
	jwt.RegisteredClaims
}

// grant is a token that was found to be good: everything in it is parsed and clean.
type grant struct {
	op       string
	volume   string
	folder   cluster.FolderRef
	path     string // upload, download
	size     int64  // upload
	session  string // upload
	archive  bool   // download
	paths    []string
	filename string
	clients  clientaddr.Networks
	expires  time.Time
	rights   *wire.TokenRights
}

type tokens struct {
	key    []byte
	now    func() time.Time
	random io.Reader
}

// id is 128 random bits in hex, for sessions and tokens.
func (t tokens) id() (string, error) {
	raw := make([]byte, 16)
	if _, err := io.ReadFull(t.random, raw); err != nil {
		return "", fmt.Errorf("draw an id: %w", err)
	}
	return hex.EncodeToString(raw), nil
}

func (t tokens) sign(c claims, life time.Duration) (string, error) {
	id, err := t.id()
	if err != nil {
		return "", err
	}
	now := t.now()
	c.RegisteredClaims = jwt.RegisteredClaims{ID: id, IssuedAt: jwt.NewNumericDate(now),
		ExpiresAt: jwt.NewNumericDate(now.Add(min(life, maxTokenLife)))}
	text, err := jwt.NewWithClaims(jwt.SigningMethodHS256, c).SignedString(t.key)
	if err != nil {
		return "", fmt.Errorf("sign a token: %w", err)
	}
	return text, nil
}

// badToken never repeats the token.
func badToken(why string) error {
	return fault.Invalidf("the token is not good here: %s", why).WithReason(reasonInvalidParams).
		WithNext("ask the manager for a new one, by starting the transfer again")
}

// verify reads a token for one operation.
func (t tokens) verify(text, op string) (grant, error) {
	switch {
	case text == "":
		return grant{}, badToken("there is none")
	case len(text) > maxToken:
		return grant{}, badToken("it is too long")
	}
	var c claims
	parser := jwt.NewParser(jwt.WithValidMethods([]string{"HS256"}), jwt.WithExpirationRequired(), jwt.WithTimeFunc(t.now))
	if _, err := parser.ParseWithClaims(text, &c, func(*jwt.Token) (any, error) { return t.key, nil }); err != nil {
		switch {
		case errors.Is(err, jwt.ErrTokenExpired):
			return grant{}, badToken("it has expired")
		case errors.Is(err, jwt.ErrTokenSignatureInvalid):
			return grant{}, badToken("it was not made for this storage proxy")
		}
		return grant{}, badToken("it cannot be read")
	}
	return c.grant(op)
}

func (c claims) grant(op string) (grant, error) {
	g := grant{op: op, volume: c.Volume, size: c.Size, session: c.Session, archive: c.Archive, filename: c.Filename,
		clients: clientaddr.ParseNetworks(c.Clients), expires: c.ExpiresAt.Time, rights: c.Rights}
	got, vfid := c.Op, c.VFID
	if op == opArchive {
		got, vfid = c.Operation, c.FolderID
	}
	if got != op {
		return grant{}, badToken("it allows another operation")
	}
	var err error
	if g.folder, err = cluster.ParseFolderRef(vfid); err != nil {
		return grant{}, err
	}
	if op == opArchive {
		g.paths, err = cleanPaths(c.Files)
		return g, err
	}
	if g.path, err = volume.CleanPath(c.RelPath); err != nil {
		return grant{}, err
	}
	if op == opUpload && (g.size < 0 || g.path == "." || g.size > 0 && !isSession(g.session)) {
		return grant{}, badToken("it names no file to write")
	}
	return g, nil
}

func isSession(id string) bool {
	raw, err := hex.DecodeString(id)
	return err == nil && len(raw) == 16 && id == strings.ToLower(id)
}

// admit reads the token of a request for one operation. A token that names networks is good only in the hands of a client there.
func (s *Server) admit(r *http.Request, op string) (grant, error) {
	g, err := s.tokens.verify(tokenOf(r), op)
	if err != nil || !g.clients.Listed() {
		return g, err
	}
	from := s.o.Trusted.Client(clientaddr.Parse(r.RemoteAddr), r.Header.Values(clientaddr.ForwardedFor))
	if !g.clients.Admit(from) {
		return grant{}, fault.Deniedf("the token is not good for clients at %s", from).WithReason(reasonDenied).
			WithNext("use a network that your administrator allows")
	}
	return g, nil
}

// tokenOf takes the token of a request from its query or its Authorization header.
func tokenOf(r *http.Request) string {
	if scheme, text, ok := strings.Cut(r.Header.Get("Authorization"), " "); ok && strings.EqualFold(scheme, "Bearer") {
		return strings.TrimSpace(text)
	}
	return r.URL.Query().Get("token")
}

// lifeOf gives large files longer, as if the line moved 1 MiB a second.
func lifeOf(base time.Duration, size int64) time.Duration {
	return base + time.Duration(size>>20)*time.Second
}

// UploadToken makes the session of an upload, or finds the one to go on with, and its token. A file of size 0 is written at once, because
// clients send nothing for it. Errors: Invalid (path, size), NotFound (folder, the upload to go on with), Conflict (a directory has that
// path), Exhausted (quota, disk), Unavailable.
func (s *Server) UploadToken(ctx context.Context, q UploadRequest) (token, session string, err error) {
	p, err := cleanFile(q.Path)
	if err != nil {
		return "", "", err
	}
	if err := s.checkSize(q.Size, p); err != nil {
		return "", "", err
	}
	v, err := s.volume(q.Volume)
	if err != nil {
		return "", "", err
	}
	tree, err := v.OpenFolder(ctx, q.Folder)
	if err != nil {
		return "", "", fmt.Errorf("upload %s: %w", p, err)
	}
	defer tree.Close()
	if err := placeable(tree, p); err != nil {
		return "", "", err
	}
	if q.Size > 0 && q.Resume != "" {
		return s.resumeToken(ctx, v, q, p)
	}
	if err := v.Charge(ctx, q.Folder.Scope, q.Size); err != nil {
		return "", "", fmt.Errorf("upload %s of %d bytes: %w", p, q.Size, err)
	}
	if q.Size == 0 {
		if err := tree.WriteFile(ctx, p, strings.NewReader(""), fileMode); err != nil {
			return "", "", fmt.Errorf("upload %s: %w", p, err)
		}
		return s.signUpload(q, p, "")
	}
	if session, err = s.tokens.id(); err != nil {
		return "", "", err
	}
	staged, err := v.Stage(ctx, q.Folder, session, true)
	if err != nil {
		return "", "", fmt.Errorf("begin the upload of %s: %w", p, err)
	}
	defer staged.Close()
	return s.signUpload(q, p, session)
}

// resumeToken makes another token for an upload of the folder. What came of it is charged already and stays. Who asks has the right to
// write into the folder anew; that they know the upload's name gives them nothing.
func (s *Server) resumeToken(ctx context.Context, v volume.Volume, q UploadRequest, p string) (token, session string, err error) {
	g := grant{op: opUpload, volume: q.Volume, folder: q.Folder, path: p, size: q.Size, session: q.Resume}
	if !isSession(q.Resume) {
		return "", "", noSession(g, "its name is none of an upload")
	}
	staged, err := v.Stage(ctx, q.Folder, q.Resume, false)
	if fault.Is(err, fault.NotFound) {
		u := &upload{v: v, g: g, target: p}
		if err := u.gone(ctx); err != nil {
			return "", "", err
		}
		return s.signUpload(q, p, q.Resume) // it is complete, and the client hears that
	}
	if err != nil {
		return "", "", fmt.Errorf("continue the upload of %s: %w", p, err)
	}
	defer staged.Close()
	size, _, err := verifiedSize(staged)
	if err != nil {
		return "", "", err
	}
	if size > q.Size {
		return "", "", fault.Invalidf("the upload of %s holds %d bytes already, and its file has %d", p, size, q.Size).
			WithReason(reasonInvalidParams).WithNext("begin a new upload: it is another file")
	}
	return s.signUpload(q, p, q.Resume)
}

func (s *Server) signUpload(q UploadRequest, p, session string) (string, string, error) {
	c := claims{Op: opUpload, Volume: q.Volume, VFID: q.Folder.String(), RelPath: p, Size: q.Size, Session: session, Clients: q.Clients,
		Rights: q.Rights}
	text, err := s.tokens.sign(c, lifeOf(s.o.UploadLife, q.Size))
	return text, session, err
}

// placeable refuses a path where something is that is no file, or whose directory is a file or, because writing never follows one,
// a link: better before hours of sending than after. What is missing on the way is made in the end.
func placeable(tree volume.Tree, p string) error {
	for i, c := range p {
		if c != '/' {
			continue
		}
		e, err := tree.Stat(p[:i])
		switch {
		case fault.Is(err, fault.NotFound):
			return nil
		case err != nil:
			return fmt.Errorf("upload %s: %w", p, err)
		case e.Kind != volume.KindDirectory:
			return fault.Conflictf("%s is no directory, so %s cannot be put into it", p[:i], path.Base(p)).WithReason(reasonInvalidParams).
				WithNext("name another directory; links are not followed when a file is written")
		}
	}
	if e, err := tree.Stat(p); err == nil && e.Kind != volume.KindFile {
		return fault.Conflictf("%s is there and is no regular file", p).WithReason(reasonInvalidParams).
			WithNext("upload under another name, or remove what is there first")
	}
	return nil
}

// DownloadToken makes a token that reads a file, or a directory as an archive. Errors: Invalid, NotFound, Unavailable.
func (s *Server) DownloadToken(ctx context.Context, q DownloadRequest) (string, error) {
	p, err := volume.CleanPath(q.Path)
	if err != nil {
		return "", err
	}
	entries, err := s.lookUp(ctx, q.Volume, q.Folder, []string{p})
	if err != nil {
		return "", err
	}
	c := claims{Op: opDownload, Volume: q.Volume, VFID: q.Folder.String(), RelPath: p, Archive: q.Archive, Clients: q.Clients,
		Rights: q.Rights}
	return s.tokens.sign(c, lifeOf(s.o.DownloadLife, entries[0].Size))
}

// ArchiveToken makes a token that reads several paths as one archive. Errors: Invalid, NotFound, Unavailable.
func (s *Server) ArchiveToken(ctx context.Context, q ArchiveRequest) (string, error) {
	paths, err := cleanPaths(q.Paths)
	if err != nil {
		return "", err
	}
	if _, err := s.lookUp(ctx, q.Volume, q.Folder, paths); err != nil {
		return "", err
	}
	c := claims{Operation: opArchive, Volume: q.Volume, FolderID: q.Folder.String(), Files: paths, Filename: q.Filename, Clients: q.Clients,
		Rights: q.Rights}
	return s.tokens.sign(c, s.o.DownloadLife)
}

// lookUp finds paths that a client is about to read, so that it hears of a wrong name before it opens a stream.
func (s *Server) lookUp(ctx context.Context, name string, f cluster.FolderRef, paths []string) ([]volume.Entry, error) {
	v, err := s.volume(name)
	if err != nil {
		return nil, err
	}
	tree, err := v.OpenFolder(ctx, f)
	if err != nil {
		return nil, fmt.Errorf("download: %w", err)
	}
	defer tree.Close()
	found := make([]volume.Entry, len(paths))
	for i, p := range paths {
		if found[i], err = tree.Stat(p); err != nil {
			return nil, fmt.Errorf("download %s: %w", p, err)
		}
	}
	return found, nil
}

func (s *Server) checkSize(size int64, p string) error {
	switch {
	case size < 0:
		return fault.Invalidf("the size of %s is negative", p).WithReason(reasonInvalidParams).WithNext("give its size in bytes")
	case size > s.o.MaxUploadSize:
		return fault.Invalidf("%s has %d bytes and one file may have %d here", p, size, s.o.MaxUploadSize).WithReason(reasonTooLarge).
			WithNext("split the file, or ask your administrator to raise max_upload_size")
	}
	return nil
}

// cleanFile is CleanPath for something that must be a file in the folder.
func cleanFile(p string) (string, error) {
	clean, err := volume.CleanPath(p)
	if err != nil {
		return "", err
	}
	if clean == "." || strings.HasSuffix(p, "/") {
		return "", fault.Invalidf("path %q names a directory", p).WithReason(reasonInvalidParams).WithNext("name the file to write")
	}
	return clean, nil
}

// cleanPaths cleans and sorts the paths of an archive and drops those that lie below others.
func cleanPaths(paths []string) ([]string, error) {
	if len(paths) == 0 || len(paths) > maxPaths {
		return nil, fault.Invalidf("an archive of %d paths is not possible", len(paths)).WithReason(reasonInvalidParams).
			WithNext("name 1 to %d files or directories", maxPaths)
	}
	clean := make([]string, 0, len(paths))
	total := 0
	for _, p := range paths {
		c, err := volume.CleanPath(p)
		if err != nil {
			return nil, err
		}
		total += len(c)
		clean = append(clean, c)
	}
	if total > maxPathText {
		return nil, fault.Invalidf("the names of an archive's paths are %d bytes and may be %d together", total, maxPathText).
			WithReason(reasonInvalidParams).WithNext("name the directory that holds them")
	}
	slices.Sort(clean)
	roots := clean[:0]
	for _, c := range clean {
		if !slices.ContainsFunc(roots, func(root string) bool { return within(c, root) }) {
			roots = append(roots, c)
		}
	}
	return roots, nil
}

// within reports whether clean path p is root or lies below it.
func within(p, root string) bool {
	return root == "." || p == root || strings.HasPrefix(p, root+"/")
}

// join puts a client's dst_dir before a clean path.
func join(dir, p string) (string, error) {
	if dir == "" {
		return p, nil
	}
	d, err := volume.CleanPath(dir)
	if err != nil {
		return "", err
	}
	return volume.CleanPath(path.Join(d, p))
}
