package testsite

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"sync"
	"testing"

	"atoll.dev/pki"
)

// childVariable makes the test program a child process. Its value is a child, as JSON.
const childVariable = "ATOLL_TEST_CHILD"

// child is what a test gives to its child process.
type child struct {
	Name        string
	IdentityDir string
	Config      json.RawMessage
}

// Main runs the tests of a package. In a child process, which Site.Process makes, it runs part with the child's config
// instead. Use it in TestMain:
//
//	func TestMain(m *testing.M) { os.Exit(testsite.Main(m.Run, runPart)) }
//
// part calls up when it is ready: then Process.Start returns. It runs until ctx is cancelled, when the test program has
// ended; most children are killed before. log goes to the standard error, which the test shows if it fails.
func Main[C any](tests func() int,
	part func(ctx context.Context, config C, id Identity, log *slog.Logger, up func()) error) (code int) {
	text := os.Getenv(childVariable)
	if text == "" {
		return tests()
	}
	if err := runChild(text, part); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

func runChild[C any](text string,
	part func(ctx context.Context, config C, id Identity, log *slog.Logger, up func()) error) error {
	var c child
	if err := json.Unmarshal([]byte(text), &c); err != nil {
		return err
	}
	var config C
	if err := json.Unmarshal(c.Config, &config); err != nil {
		return err
	}
	id, err := readIdentity(c.IdentityDir)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	go func() { // standard input ends with the test program
		_, _ = io.Copy(io.Discard, os.Stdin)
		cancel()
	}()
	log := slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn})).With("process", c.Name)
	return part(ctx, config, id, log, func() { fmt.Println("up") })
}

// Process is a part in a process of its own, which the test kills and starts again.
type Process struct {
	t     testing.TB
	child child

	cmd    *exec.Cmd // nil while it does not run
	stdin  io.Closer
	log    tail // of all its runs
	copied sync.WaitGroup
}

// Process returns a process that has an identity of the site and runs the part of config. Start starts it. It is killed
// when the test ends. The package must use Main.
func (s *Site) Process(name string, identity pki.Name, config any) *Process {
	s.T.Helper()
	p := &Process{t: s.T, child: child{Name: name, IdentityDir: s.T.TempDir()}}
	s.writeIdentity(p.child.IdentityDir, identity)
	p.Configure(config)
	s.T.Cleanup(func() {
		p.Kill()
		if text := p.log.String(); s.T.Failed() && text != "" {
			s.T.Logf("log of %s:\n%s", name, text)
		}
	})
	return p
}

// Configure replaces the part that the next Start runs.
func (p *Process) Configure(config any) {
	p.t.Helper()
	var err error
	if p.child.Config, err = json.Marshal(config); err != nil {
		p.t.Fatal(err)
	}
}

// Start starts the process and waits until its part is up.
func (p *Process) Start() {
	p.t.Helper()
	data, err := json.Marshal(p.child)
	if err != nil {
		p.t.Fatal(err)
	}
	cmd := exec.Command(os.Args[0], "-test.run=^$")
	cmd.Env = append(os.Environ(), childVariable+"="+string(data))
	out, err := cmd.StdoutPipe()
	if err != nil {
		p.t.Fatal(err)
	}
	errs, err := cmd.StderrPipe()
	if err != nil {
		p.t.Fatal(err)
	}
	if p.stdin, err = cmd.StdinPipe(); err != nil {
		p.t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		p.t.Fatal(err)
	}
	p.cmd = cmd
	p.copied.Go(func() { _, _ = io.Copy(&p.log, errs) })
	line, err := bufio.NewReader(out).ReadString('\n')
	if line != "up\n" {
		p.Kill()
		p.t.Fatalf("%s does not start: %v\n%s", p.child.Name, err, p.log.String())
	}
}

// Running reports whether the process was started and not killed since.
func (p *Process) Running() bool { return p.cmd != nil }

// PID returns the process id of the running process.
func (p *Process) PID() int { return p.cmd.Process.Pid }

// Kill ends the process with SIGKILL and waits for its end. It does nothing if the process does not run.
func (p *Process) Kill() {
	if p.cmd == nil {
		return
	}
	_ = p.cmd.Process.Kill()
	p.copied.Wait()
	_ = p.cmd.Wait()
	p.cmd = nil
}
