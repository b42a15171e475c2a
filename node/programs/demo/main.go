// Command demo is the one program of the image atoll.dev/demo:v1. Without arguments it serves HTTP on port 8080: GET /
// answers with the pod's hostname. Its other commands serve tests of a cluster, which cannot pull images with a shell.
package main

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

const usage = `usage:
  demo [serve]                serve HTTP on port 8080: / has the hostname, /file/PATH a file, /env/NAME a variable
  demo hostname               print the hostname
  demo env NAME               print an environment variable
  demo cat FILE...            print files
  demo ls DIR                 print the names in a directory
  demo write FILE TEXT        write a file
  demo fetch URL              print the answer to a GET request
  demo resolve NAME           print the addresses of a DNS name
  demo cname NAME             print the canonical name of a DNS name
  demo srv NAME               print the ports and hosts of a DNS name's SRV records
  demo ptr ADDRESS            print the DNS names of an address
  demo id                     print the user and group
  demo echo TEXT              print a line
  demo copy                   copy the standard input to the standard output
  demo sleep DURATION         wait, as 10s
  demo allocate MEBIBYTES     use memory, then wait
  demo fork                   start processes until one is refused, print how many, then wait
  demo exit STATUS            end with a status
`

func main() {
	verb, args := "serve", []string(nil)
	if len(os.Args) > 1 {
		verb, args = os.Args[1], os.Args[2:]
	}
	command, found := commands[verb]
	if !found || len(args) < command.args {
		fmt.Fprint(os.Stderr, usage)
		os.Exit(2)
	}
	if err := command.run(args); err != nil {
		fmt.Fprintln(os.Stderr, "demo:", err)
		os.Exit(1)
	}
}

// commands are the functions that run a verb, with the number of arguments that it needs.
var commands = map[string]struct {
	args int
	run  func(args []string) error
}{
	"serve":    {0, serve},
	"hostname": {0, printHostname},
	"env":      {1, func(args []string) error { return printLine(os.Getenv(args[0])) }},
	"cat":      {1, printFiles},
	"ls":       {1, printNames},
	"write":    {2, func(args []string) error { return os.WriteFile(args[0], []byte(args[1]), 0o644) }},
	"fetch":    {1, fetch},
	"resolve":  {1, resolve},
	"cname":    {1, printCanonicalName},
	"srv":      {1, printServers},
	"ptr":      {1, printNamesOf},
	"id":       {0, func([]string) error { return printLine(fmt.Sprintf("%d:%d", os.Getuid(), os.Getgid())) }},
	"echo":     {1, func(args []string) error { return printLine(strings.Join(args, " ")) }},
	"copy":     {0, func([]string) error { _, err := io.Copy(os.Stdout, os.Stdin); return err }},
	"sleep":    {1, sleep},
	"allocate": {1, allocate},
	"fork":     {0, fork},
	"exit":     {1, exit},
}

func printLine(line string) error {
	_, err := fmt.Println(line)
	return err
}

// serve serves HTTP until the process gets SIGTERM or SIGINT.
func serve([]string) error {
	ctx, cancel := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer cancel()
	mux := http.NewServeMux()
	mux.HandleFunc("GET /{$}", func(w http.ResponseWriter, _ *http.Request) {
		name, err := os.Hostname()
		answer(w, []byte(name+"\n"), err)
	})
	mux.HandleFunc("GET /file/{path...}", func(w http.ResponseWriter, r *http.Request) {
		data, err := os.ReadFile(filepath.Join("/", r.PathValue("path")))
		answer(w, data, err)
	})
	mux.HandleFunc("GET /env/{name}", func(w http.ResponseWriter, r *http.Request) {
		answer(w, []byte(os.Getenv(r.PathValue("name"))+"\n"), nil)
	})
	server := &http.Server{Addr: ":8080", Handler: mux, ReadHeaderTimeout: 10 * time.Second}
	ended := make(chan error, 1)
	go func() { ended <- server.ListenAndServe() }()
	fmt.Println("serving on port 8080")
	select {
	case err := <-ended:
		return err
	case <-ctx.Done():
		return nil
	}
}

func answer(w http.ResponseWriter, body []byte, err error) {
	if err != nil {
		http.Error(w, err.Error(), http.StatusNotFound)
		return
	}
	_, _ = w.Write(body)
}

func printHostname([]string) error {
	name, err := os.Hostname()
	if err != nil {
		return err
	}
	return printLine(name)
}

func printFiles(paths []string) error {
	for _, path := range paths {
		data, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		if _, err := os.Stdout.Write(data); err != nil {
			return err
		}
	}
	return nil
}

func printNames(args []string) error {
	entries, err := os.ReadDir(args[0])
	if err != nil {
		return err
	}
	for _, entry := range entries {
		fmt.Println(entry.Name())
	}
	return nil
}

func fetch(args []string) error {
	client := &http.Client{Timeout: 10 * time.Second}
	res, err := client.Get(args[0])
	if err != nil {
		return err
	}
	defer res.Body.Close()
	if _, err := io.Copy(os.Stdout, res.Body); err != nil {
		return err
	}
	if res.StatusCode >= 400 {
		return fmt.Errorf("%s: %s", args[0], res.Status)
	}
	return nil
}

// lookupLimit bounds each question to DNS.
const lookupLimit = 10 * time.Second

func resolve(args []string) error {
	ctx, cancel := context.WithTimeout(context.Background(), lookupLimit)
	defer cancel()
	addresses, err := net.DefaultResolver.LookupHost(ctx, args[0])
	if err != nil {
		return err
	}
	return printLine(strings.Join(addresses, " "))
}

func printCanonicalName(args []string) error {
	ctx, cancel := context.WithTimeout(context.Background(), lookupLimit)
	defer cancel()
	name, err := net.DefaultResolver.LookupCNAME(ctx, args[0])
	if err != nil {
		return err
	}
	return printLine(name)
}

func printServers(args []string) error {
	ctx, cancel := context.WithTimeout(context.Background(), lookupLimit)
	defer cancel()
	_, records, err := net.DefaultResolver.LookupSRV(ctx, "", "", args[0])
	if err != nil {
		return err
	}
	for _, record := range records {
		fmt.Println(record.Port, record.Target)
	}
	return nil
}

func printNamesOf(args []string) error {
	ctx, cancel := context.WithTimeout(context.Background(), lookupLimit)
	defer cancel()
	names, err := net.DefaultResolver.LookupAddr(ctx, args[0])
	if err != nil {
		return err
	}
	return printLine(strings.Join(names, " "))
}

func sleep(args []string) error {
	duration, err := time.ParseDuration(args[0])
	if err != nil {
		return err
	}
	ctx, cancel := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer cancel()
	select {
	case <-time.After(duration):
	case <-ctx.Done():
	}
	return nil
}

// allocate writes to every page, so that the memory is used, and waits until the process is ended.
func allocate(args []string) error {
	size, err := strconv.Atoi(args[0])
	if err != nil {
		return err
	}
	memory := make([]byte, size<<20)
	for i := 0; i < len(memory); i += 4096 {
		memory[i] = 1
	}
	fmt.Printf("allocated %d MiB\n", len(memory)>>20)
	return sleep([]string{"1000h"})
}

// fork starts copies of this program until one is refused, and waits until the process is ended. It uses one processor
// only, so that a copy needs few threads, and nobody waits for the copies: they are as many as permitted.
func fork([]string) error {
	for count := 0; ; count++ {
		cmd := exec.Command("/proc/self/exe", "sleep", "1000h")
		cmd.Env = []string{"GOMAXPROCS=1"}
		if err := cmd.Start(); err != nil {
			fmt.Printf("a process after %d others is refused: %v\n", count, err)
			return sleep([]string{"1000h"})
		}
	}
}

func exit(args []string) error {
	status, err := strconv.Atoi(args[0])
	if err != nil {
		return err
	}
	os.Exit(status)
	return nil
}
