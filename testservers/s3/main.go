// Command s3 is an object store in memory, for tests of what copies to and from object stores. It prints its URL on a line of
// standard output and ends when its standard input does.
package main

import (
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"os"

	"github.com/johannesboyne/gofakes3"
	"github.com/johannesboyne/gofakes3/backend/s3mem"
)

func main() {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		log.Fatalln("s3:", err)
	}
	go func() {
		log.Fatalln("s3:", http.Serve(l, gofakes3.New(s3mem.New(), gofakes3.WithLogger(gofakes3.DiscardLog())).Server()))
	}()
	fmt.Printf("http://%s\n", l.Addr())
	_, _ = io.Copy(io.Discard, os.Stdin) // the test is over
}
