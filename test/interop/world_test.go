package interop

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	mathrand "math/rand/v2"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
)

// waitLimit ends a wait of a test with an error. A working program needs a small part of it.
const waitLimit = 3 * time.Minute

// world is shared by all tests: a region of ours on this machine (PostgreSQL, CA, embedded broker,
// Maestro, one management cluster with our agent), and beside it Debian's Mosquitto with a second
// Maestro.
type world struct {
	dir, home string
	pki, ca   string // URL of the CA, file of its certificate
	postgres  string // directory of the database server's socket
	caPool    *x509.CertPool
	embedded  *server // Maestro on the embedded broker
	mosquitto *server // Maestro on Mosquitto

	mu        sync.Mutex
	processes []*process
}

var shared struct {
	once  sync.Once
	world *world
	err   error
}

func TestMain(m *testing.M) {
	code := m.Run()
	if w := shared.world; w != nil {
		if err := w.end(); err != nil {
			fmt.Fprintln(os.Stderr, "ending the world:", err)
			code = 1
		}
	}
	os.Exit(code)
}

// sharedWorld starts the world at the first call.
func sharedWorld(t *testing.T) *world {
	t.Helper()
	shared.once.Do(func() {
		dir, err := os.MkdirTemp("", "atoll-interop-")
		if err != nil {
			shared.err = err
			return
		}
		shared.world = &world{dir: dir, home: filepath.Join(dir, "home")}
		shared.err = shared.world.start()
	})
	if shared.err != nil {
		t.Fatal(shared.err)
	}
	return shared.world
}

// programPath returns the path of a program of this repository: the value of an environment variable, or the file that
// "make build" writes.
func programPath(variable, name string) string {
	if path := os.Getenv(variable); path != "" {
		return path
	}
	path, _ := filepath.Abs("../../bin/" + name)
	return path
}

func (w *world) atoll(args ...string) (string, error) {
	cmd := exec.Command(programPath("ATOLL_BIN", "atoll"), append(args, "--home", w.home)...)
	cmd.Env = append(os.Environ(), "ATOLL_KUBE_BIN="+programPath("ATOLL_KUBE_BIN", "atoll-kube"))
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("atoll %s: %w: %s", strings.Join(args, " "), err, stderr.Bytes())
	}
	return string(out), nil
}

func (w *world) start() error {
	// Not detached: a region that this process started ends with it, however it ends.
	if _, err := w.run("region", programPath("ATOLL_BIN", "atoll"), "up", "--home", w.home, "--management-clusters",
		"1"); err != nil {
		return err
	}
	var status struct {
		Ready     bool
		Processes []struct{ Name, Address string }
		Endpoints map[string]string
	}
	if err := await("the region is ready", func() error {
		out, err := w.atoll("status", "-o", "json")
		if err == nil {
			err = json.Unmarshal([]byte(out), &status)
		}
		if err == nil && !status.Ready {
			err = errors.New("not yet")
		}
		return err
	}); err != nil {
		return err
	}
	for _, p := range status.Processes {
		switch p.Name {
		case "pki":
			w.pki = p.Address
		case "postgres":
			w.postgres = p.Address
		}
	}
	w.ca = filepath.Join(w.home, "ca.pem")
	pemData, err := os.ReadFile(w.ca)
	if err != nil {
		return err
	}
	w.caPool = x509.NewCertPool()
	if !w.caPool.AppendCertsFromPEM(pemData) {
		return fmt.Errorf("%s holds no certificate", w.ca)
	}
	w.embedded = &server{world: w, broker: strings.TrimPrefix(status.Endpoints["mqtt"], "mqtts://"),
		url: status.Endpoints["maestro_http"], grpc: status.Endpoints["maestro_grpc"]}
	if err := w.embedded.open(); err != nil {
		return err
	}
	return w.startOnMosquitto()
}

// startOnMosquitto starts Debian's broker, and a Maestro of ours with a database of its own that speaks to it.
func (w *world) startOnMosquitto() error {
	broker, err := w.startMosquitto("mosquitto")
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), waitLimit)
	defer cancel()
	conn, err := pgx.Connect(ctx, w.dsn("postgres", "postgres"))
	if err != nil {
		return err
	}
	defer conn.Close(ctx)
	if _, err := conn.Exec(ctx, "create database interop owner maestro"); err != nil {
		return err
	}
	w.mosquitto = &server{world: w, broker: broker}
	return w.mosquitto.start(w.dsn("maestro", "interop"))
}

func (w *world) dsn(user, database string) string {
	return "postgres://" + user + "@/" + database + "?port=5432&sslmode=disable&host=" + w.postgres
}

func (w *world) end() error {
	var err error
	if os.Getenv("ATOLL_KEEP") != "" {
		fmt.Fprintln(os.Stderr, "kept:", w.dir)
	} else {
		defer os.RemoveAll(w.dir)
	}
	w.mu.Lock()
	processes := w.processes
	w.mu.Unlock()
	for i := len(processes) - 1; i >= 0; i-- {
		err = errors.Join(err, processes[i].stop())
	}
	_, purged := w.atoll("down", "--purge")
	return errors.Join(err, purged)
}

// process is a child; its output goes to a file.
type process struct {
	name string
	log  string
	cmd  *exec.Cmd
	done chan struct{}
	err  error
}

func (w *world) run(name string, argv ...string) (*process, error) {
	p := &process{name: name, log: filepath.Join(w.dir, name+".log"), cmd: exec.Command(argv[0], argv[1:]...),
		done: make(chan struct{})}
	log, err := os.OpenFile(p.log, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return nil, err
	}
	defer log.Close()
	p.cmd.Stdout, p.cmd.Stderr = log, log
	p.cmd.Env = append(os.Environ(), "ATOLL_KUBE_BIN="+programPath("ATOLL_KUBE_BIN", "atoll-kube"))
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGTERM, Setpgid: true}
	started := make(chan error)
	// The kernel takes the death of the thread for the death of the parent: this one stays with its goroutine.
	go func() {
		runtime.LockOSThread()
		err := p.cmd.Start()
		started <- err
		if err == nil {
			p.err = p.cmd.Wait()
			close(p.done)
		}
	}()
	if err := <-started; err != nil {
		return nil, fmt.Errorf("starting %s: %w", name, err)
	}
	w.mu.Lock()
	w.processes = append(w.processes, p)
	w.mu.Unlock()
	return p, nil
}

// stop sends SIGTERM, and SIGKILL after a while.
func (p *process) stop() error {
	select {
	case <-p.done:
		return nil
	default:
	}
	p.cmd.Process.Signal(syscall.SIGTERM)
	select {
	case <-p.done:
		return nil
	case <-time.After(waitLimit):
		p.cmd.Process.Kill()
		<-p.done
		return fmt.Errorf("%s did not end when it was asked to; its log: %s", p.name, tail(p.log))
	}
}

func tail(file string) string {
	data, _ := os.ReadFile(file)
	return string(data[max(0, len(data)-4000):])
}

// await waits for a condition of another process.
func await(what string, check func() error) error {
	deadline := time.After(waitLimit)
	for {
		begun := time.Now()
		err := check()
		if err == nil {
			return nil
		}
		// As testsite.EventuallyWithin: a check that starts programs leaves the processors to others.
		pause := time.NewTimer(min(max(3*time.Since(begun), 20*time.Millisecond), time.Second))
		select {
		case <-deadline:
			pause.Stop()
			return fmt.Errorf("in vain: %s: %w", what, err)
		case <-pause.C:
		}
	}
}

func eventually(t *testing.T, what string, check func() error) {
	t.Helper()
	if err := await(what, check); err != nil {
		t.Fatal(err)
	}
}

// freeAddress returns an address of 127.0.0.1 on which nothing listens. (It does what atoll.dev/internal/freeport does;
// this module imports no package of atoll.dev.)
func freeAddress() (string, error) {
	var err error
	for range 1000 { // not one of the ports that the system gives to outgoing connections
		var l net.Listener
		if l, err = net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", 12000+mathrand.IntN(18000))); err == nil {
			defer l.Close()
			return l.Addr().String(), nil
		}
	}
	return "", err
}

// identity are files of a key and a certificate, as foreign programs want them.
type identity struct {
	cert, key string
	pair      tls.Certificate
}

// token makes a one-time join token.
func (w *world) token(name string) (string, error) {
	out, err := w.atoll("pki", "token", name)
	return strings.TrimSpace(out), err
}

// enrol gets a certificate of the region's CA as any program can: a token, a CSR, one POST.
func (w *world) enrol(name string) (identity, error) {
	token, err := w.token(name)
	if err != nil {
		return identity{}, err
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return identity{}, err
	}
	csr, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{}, key)
	if err != nil {
		return identity{}, err
	}
	body, err := json.Marshal(map[string]string{"token": token,
		"csr": string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: csr}))})
	if err != nil {
		return identity{}, err
	}
	transport := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: w.caPool}}
	defer transport.CloseIdleConnections()
	resp, err := (&http.Client{Transport: transport}).Post(w.pki+"/v1/sign", "application/json", bytes.NewReader(body))
	if err != nil {
		return identity{}, err
	}
	defer resp.Body.Close()
	var signed struct{ Certificate string }
	data, err := io.ReadAll(resp.Body)
	if err == nil && resp.StatusCode == http.StatusOK {
		err = json.Unmarshal(data, &signed)
	}
	if err != nil || signed.Certificate == "" {
		return identity{}, fmt.Errorf("enrolling %s: %s %s: %w", name, resp.Status, data, err)
	}
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return identity{}, err
	}
	keyPEM := pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der})
	dir, err := os.MkdirTemp(w.dir, "identity-")
	if err != nil {
		return identity{}, err
	}
	id := identity{cert: filepath.Join(dir, "tls.crt"), key: filepath.Join(dir, "tls.key")}
	if id.pair, err = tls.X509KeyPair([]byte(signed.Certificate), keyPEM); err != nil {
		return identity{}, err
	}
	return id, errors.Join(os.WriteFile(id.cert, []byte(signed.Certificate), 0o600), os.WriteFile(id.key, keyPEM,
		0o600))
}

func (w *world) identity(t *testing.T, name string) identity {
	t.Helper()
	id, err := w.enrol(name)
	if err != nil {
		t.Fatal(err)
	}
	return id
}
