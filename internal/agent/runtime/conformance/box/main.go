// Command box is the only program of the images that the conformance suite and other tests
// build from nothing: static, without files of its own, with the few behaviours a test needs.
package main

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"syscall"
	"time"
)

func main() {
	args := os.Args[1:]
	if len(args) == 0 {
		return
	}
	switch verb, args := args[0], args[1:]; verb {
	case "true":
	case "exit": // CODE
		os.Exit(number(args))
	case "wait": // ends with 0 when it is asked to
		asked := make(chan os.Signal, 1)
		signal.Notify(asked, syscall.SIGTERM, syscall.SIGINT)
		fmt.Println("waiting")
		<-asked
		fmt.Println("asked to end")
	case "stubborn": // ignores every request to end
		signal.Ignore(syscall.SIGTERM, syscall.SIGINT)
		fmt.Println("staying")
		forever()
	case "print": // LINES to stdout and as many to stderr, then waits
		for i := range number(args) {
			fmt.Printf("out %d\n", i)
			fmt.Fprintf(os.Stderr, "err %d\n", i)
		}
		forever()
	case "tick": // a line whenever FILE gets one more byte
		var seen int64
		for {
			if st, err := os.Stat(args[0]); err == nil && st.Size() > seen {
				seen = st.Size()
				fmt.Printf("tick %d\n", seen)
			}
			time.Sleep(10 * time.Millisecond)
		}
	case "eat": // memory until it is killed, as soon as FILE is there
		for {
			if _, err := os.Stat(args[0]); err == nil {
				break
			}
			time.Sleep(10 * time.Millisecond)
		}
		var kept [][]byte
		for {
			b := make([]byte, 1<<20)
			for i := 0; i < len(b); i += 4096 {
				b[i] = 1
			}
			kept = append(kept, b)
			if len(kept)%8 == 0 {
				fmt.Printf("ate %d MiB\n", len(kept))
			}
		}
	case "write": // PATH TEXT, then waits
		if err := os.WriteFile(args[0], []byte(args[1]), 0o644); err != nil {
			fail(err)
		}
		fmt.Println("written")
		forever()
	case "facts": // what it sees of its surroundings
		facts()
	case "devices": // PATH...: what they are
		for _, path := range args {
			device(path)
		}
	case "networks": // the names of its interfaces
		list, err := net.Interfaces()
		if err != nil {
			fail(err)
		}
		for _, i := range list {
			fmt.Println(i.Name)
		}
	default:
		fail(fmt.Errorf("unknown verb %q", verb))
	}
}

func number(args []string) int {
	n, err := strconv.Atoi(strings.Join(args, " "))
	if err != nil {
		fail(err)
	}
	return n
}

func fail(err error) {
	fmt.Fprintln(os.Stderr, "box:", err)
	os.Exit(2)
}

func forever() {
	for {
		time.Sleep(time.Hour)
	}
}

// facts prints the process's status fields, limits, host name, environment and mounts.
func facts() {
	host, _ := os.Hostname()
	dir, _ := os.Getwd()
	fmt.Println("hostname", host)
	fmt.Println("dir", dir)
	fmt.Println("uid", os.Getuid())
	for _, kv := range os.Environ() {
		fmt.Println("env", kv)
	}
	show("status", "/proc/self/status", "CapEff", "CapBnd", "NoNewPrivs", "Seccomp", "Groups", "Cpus_allowed_list", "Mems_allowed_list")
	show("limits", "/proc/self/limits", "Max open files")
	show("mounts", "/proc/self/mounts", "")
}

// device prints the numbers of a device file.
func device(path string) {
	var st syscall.Stat_t
	switch err := syscall.Stat(path, &st); {
	case err == syscall.ENOENT:
		fmt.Println(path, "is not there")
	case err != nil:
		fail(err)
	case st.Mode&syscall.S_IFMT != syscall.S_IFCHR && st.Mode&syscall.S_IFMT != syscall.S_IFBLK:
		fmt.Println(path, "is no device")
	default:
		fmt.Printf("%s is device %d:%d\n", path, st.Rdev>>8&0xfff, st.Rdev&0xff)
	}
}

func show(kind, file string, prefixes ...string) {
	f, err := os.Open(file)
	if err != nil {
		fail(err)
	}
	defer f.Close()
	r := bufio.NewReader(f)
	for {
		line, err := r.ReadString('\n')
		for _, p := range prefixes {
			if strings.HasPrefix(line, p) {
				fmt.Println(kind, strings.Join(strings.Fields(line), " "))
			}
		}
		if err == io.EOF {
			return
		}
		if err != nil {
			fail(err)
		}
	}
}
