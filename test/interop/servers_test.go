package interop

import (
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// server is a Maestro of ours, as a process.
type server struct {
	world             *world
	broker, url, grpc string
	agents            string   // address of the gRPC API for agents, or ""
	platform          identity // of the one who may call
	http              *http.Client
}

// open gets the right to call.
func (s *server) open() error {
	var err error
	if s.platform, err = s.world.enrol("system:platform"); err != nil {
		return err
	}
	s.http = &http.Client{Timeout: waitLimit, Transport: &http.Transport{TLSClientConfig: &tls.Config{
		RootCAs: s.world.caPool, Certificates: []tls.Certificate{s.platform.pair},
	}}}
	return nil
}

func (s *server) start(dsn string) error {
	w := s.world
	var addrs [4]string
	for i := range addrs {
		var err error
		if addrs[i], err = freeAddress(); err != nil {
			return err
		}
	}
	token, err := w.token("system:maestro")
	if err != nil {
		return err
	}
	tokenFile := filepath.Join(w.dir, "maestro-token")
	if err := os.WriteFile(tokenFile, []byte(token), 0o600); err != nil {
		return err
	}
	s.url, s.grpc = "https://"+addrs[0], addrs[1]
	args := []string{"maestro", "--dsn", dsn, "--mqtt", s.broker, "--http", addrs[0], "--grpc", addrs[1], "--ops",
		addrs[2],
		"--identity", filepath.Join(w.dir, "maestro"), "--pki", w.pki, "--ca", w.ca, "--token-file", tokenFile}
	s.agents = addrs[3]
	args = append(args, "--grpc-broker", s.agents, "--heartbeat-check-interval", "2s")
	p, err := w.run("maestro", append([]string{programPath("ATOLL_BIN", "atoll")}, args...)...)
	if err != nil {
		return err
	}
	if err := await("Maestro on Mosquitto is ready", func() error {
		resp, err := http.Get("http://" + addrs[2] + "/readyz")
		if err != nil {
			return err
		}
		defer resp.Body.Close()
		body, _ := io.ReadAll(resp.Body)
		if resp.StatusCode != http.StatusOK {
			return fmt.Errorf("%s: %s", resp.Status, body)
		}
		return nil
	}); err != nil {
		return fmt.Errorf("%w; its log: %s", err, tail(p.log))
	}
	return s.open()
}

// startMosquitto starts Debian's broker in the usual configuration for agents: it requires client
// certificates, and their common name decides which topics they may write and read. It returns
// host:port.
func (w *world) startMosquitto(name string) (string, error) {
	program, err := exec.LookPath("mosquitto")
	if err != nil {
		if program, err = exec.LookPath("/usr/sbin/mosquitto"); err != nil {
			return "", errors.New("no mosquitto on this machine: scripts/ensure.sh mosquitto installs it")
		}
	}
	addr, err := freeAddress()
	if err != nil {
		return "", err
	}
	id, err := w.enrol("system:broker")
	if err != nil {
		return "", err
	}
	host, port, _ := strings.Cut(addr, ":")
	dir := filepath.Join(w.dir, name)
	if err := os.Mkdir(dir, 0o700); err != nil {
		return "", err
	}
	acl := filepath.Join(dir, "acl")
	config := filepath.Join(dir, "mosquitto.conf")
	err = errors.Join(os.WriteFile(acl, []byte(`user system:maestro
topic write sources/maestro/consumers/+/sourceevents
topic read sources/maestro/consumers/+/agentevents

user system:observer
topic read sources/#

pattern read sources/maestro/consumers/%u/sourceevents
pattern write sources/maestro/consumers/%u/agentevents
`), 0o600), os.WriteFile(config, fmt.Appendf(nil, `listener %s %s
cafile %s
certfile %s
keyfile %s
require_certificate true
use_identity_as_username true
allow_anonymous false
acl_file %s
user root
persistence false
max_queued_messages 0
log_dest stderr
log_type error
log_type warning
log_type notice
`, port, host, w.ca, id.cert, id.key, acl), 0o600))
	if err != nil {
		return "", err
	}
	p, err := w.run(name, program, "-c", config)
	if err != nil {
		return "", err
	}
	client, err := w.enrol("system:observer")
	if err != nil {
		return "", err
	}
	return addr, await("Mosquitto listens", func() error {
		select {
		case <-p.done:
			return fmt.Errorf("it ended: %s", tail(p.log))
		default:
		}
		conn, err := tls.Dial("tcp", addr, &tls.Config{RootCAs: w.caPool, Certificates: []tls.Certificate{client.pair}})
		if err != nil {
			return err
		}
		return conn.Close()
	})
}

// callREST sends a request with a method and a path below /api/maestro. It ends the test when the answer has another
// status, and decodes the answer's body into a value.
func (s *server) callREST(t *testing.T, method, path string, body string, status int, into any) {
	t.Helper()
	got, data := s.call(t, method, path, body)
	if got != status {
		t.Fatalf("%s %s: status %d, want %d: %s", method, path, got, status, data)
	}
	if into != nil {
		if err := json.Unmarshal(data, into); err != nil {
			t.Fatalf("%s %s: %v in %s", method, path, err, data)
		}
	}
}

func (s *server) call(t *testing.T, method, path, body string) (int, []byte) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, s.url+"/api/maestro"+path, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	resp, err := s.http.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	data, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, data
}

// consumer registers a management cluster.
func (s *server) consumer(t *testing.T, name string) {
	t.Helper()
	s.callREST(t, "POST", "/v1/consumers", fmt.Sprintf(`{"name":%q}`, name), http.StatusCreated, nil)
}

// cluster is a Kubernetes API server of its own: kube-apiserver and its controllers, with the
// objects of our bootstrap.
type cluster struct {
	name, dir    string
	admin, agent string // kubeconfigs
}

func (w *world) cluster(t *testing.T, name string) *cluster {
	t.Helper()
	addr, err := freeAddress()
	if err != nil {
		t.Fatal(err)
	}
	c := &cluster{name: name, dir: filepath.Join(w.dir, name)}
	c.admin, c.agent = filepath.Join(c.dir, "admin.kubeconfig"), filepath.Join(w.dir, name+".kubeconfig")
	p, err := w.run(name, programPath("ATOLL_KUBE_BIN", "atoll-kube"), "serve", "--data-dir", c.dir, "--listen", addr,
		"--name", name)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { p.stop() })
	eventually(t, "cluster "+name+" is ready", func() error {
		_, err := os.Stat(filepath.Join(c.dir, "ready"))
		return err
	})
	if _, err := w.atoll("mc", "bootstrap", "--kubeconfig", c.admin, "--out", c.agent); err != nil {
		t.Fatal(err)
	}
	return c
}

// startAgent starts our agent; it ends with the test, or before by stop.
func (s *server) startAgent(t *testing.T, c *cluster) *process {
	t.Helper()
	w := s.world
	dir := filepath.Join(w.dir, c.name+"-agent")
	args := []string{"--mqtt", s.broker, "--identity", filepath.Join(dir, "identity"), "--pki", w.pki, "--ca", w.ca}
	if _, err := os.Stat(filepath.Join(dir, "identity")); err != nil {
		token, err := w.token(c.name)
		if err != nil {
			t.Fatal(err)
		}
		file := filepath.Join(w.dir, c.name+"-token")
		if err := os.WriteFile(file, []byte(token), 0o600); err != nil {
			t.Fatal(err)
		}
		args = append(args, "--token-file", file)
	}
	return w.startAgentOn(t, c, args...)
}

// startAgentOn is startAgent with flags that lead to any server.
func (w *world) startAgentOn(t *testing.T, c *cluster, flags ...string) *process {
	t.Helper()
	ops, err := freeAddress()
	if err != nil {
		t.Fatal(err)
	}
	args := append([]string{"agent", "--consumer-name", c.name, "--kubeconfig", c.agent, "--ops", ops,
		"--data-dir", filepath.Join(w.dir, c.name+"-agent", "store")}, flags...)
	p, err := w.run(c.name+"-agent", append([]string{programPath("ATOLL_BIN", "atoll")}, args...)...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := p.stop(); err != nil {
			t.Error(err)
		}
		if t.Failed() {
			t.Logf("our agent's log: %s", tail(p.log))
		}
	})
	client := &http.Client{Timeout: waitLimit}
	eventually(t, "our agent is ready", func() error {
		resp, err := client.Get("http://" + ops + "/readyz")
		if err != nil {
			return err
		}
		defer resp.Body.Close()
		if body, _ := io.ReadAll(resp.Body); resp.StatusCode != http.StatusOK {
			return fmt.Errorf("%s: %s", resp.Status, body)
		}
		return nil
	})
	return p
}
