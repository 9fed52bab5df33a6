package main

import (
	"context"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/coder/websocket"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	pb "google.golang.org/grpc/interop/grpc_testing"
)

func TestPages(t *testing.T) {
	t.Parallel()
	s := httptest.NewServer(pages())
	defer s.Close()
	get := func(path string) (int, string) {
		r, err := http.Get(s.URL + path)
		require.NoError(t, err)
		defer r.Body.Close()
		b, err := io.ReadAll(r.Body)
		require.NoError(t, err)
		return r.StatusCode, string(b)
	}
	for path, want := range map[string]string{
		"/": "It works", "/attack": "hostile", "/headers?a=1": `"target":"/headers?a=1"`, "/sse?n=2&every=1": "data: 2",
		"/slow?line=1&n=2":                    "line 2",
		"/cookies?domain=x.test&name=berth-1": "berth-1=forged", "/hop": "hop", "/trailers": "",
		"/raw?kind=to-the-end": "until the connection ends",
	} {
		code, text := get(path)
		require.Equal(t, 200, code, path)
		require.Contains(t, text, want, path)
	}
	_, text := get("/bytes?n=100000")
	require.Len(t, text, 100000)
	code, _ := get("/status?code=418")
	require.Equal(t, 418, code)
	r, err := http.Post(s.URL+"/upload", "text/plain", strings.NewReader("hello"))
	require.NoError(t, err)
	b, _ := io.ReadAll(r.Body)
	_ = r.Body.Close()
	require.Contains(t, string(b), `"bytes":5`)

	c, _, err := websocket.Dial(context.Background(), s.URL+"/ws", nil)
	require.NoError(t, err)
	require.NoError(t, c.Write(context.Background(), websocket.MessageText, []byte("hi")))
	_, m, err := c.Read(context.Background())
	require.NoError(t, err)
	require.Equal(t, "hi", string(m))
	_ = c.CloseNow()
}

func TestEchoAndCalls(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer l.Close()
	go func() { _ = serveEcho(l) }()
	c, err := net.Dial("tcp", l.Addr().String())
	require.NoError(t, err)
	_, _ = io.WriteString(c, "over and out")
	_ = c.(*net.TCPConn).CloseWrite()
	b, err := io.ReadAll(c)
	require.NoError(t, err)
	require.Equal(t, "over and out", string(b))

	g, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer g.Close()
	go func() { _ = serveGRPC(g) }()
	cc, err := grpc.NewClient(g.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	require.NoError(t, err)
	defer cc.Close()
	client := pb.NewTestServiceClient(cc)
	out, err := client.UnaryCall(context.Background(), &pb.SimpleRequest{Payload: &pb.Payload{Body: []byte("x")}})
	require.NoError(t, err)
	require.Equal(t, "x", string(out.GetPayload().GetBody()))
}
