// Package mosquitto runs Eclipse Mosquitto for tests and benchmarks that need a broker other than
// Atoll's: the installed program, with a configuration and a directory of its own, on loopback.
//
// The certificate of a client decides which topics it may read and write, as docs/brokers.md
// describes it for production. Only tests and benchmarks may import it.
package mosquitto

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"atoll.dev/internal/freeport"
)

// Options configure a Broker. All are optional.
type Options struct {
	Addr          string // host:port; default: a free port on loopback
	CA, Cert, Key []byte // PEM. Without a CA there is no TLS, and every client may use every topic
	MaestroName   string // common name of Maestro's certificate; default "system:maestro"
	Source        string // the part of topics after "sources/"; default "maestro"
	MaxPacket     int    // bytes; default: MQTT's own limit
}

// Broker is a process of Mosquitto that can be killed and started again.
type Broker struct {
	Addr string

	program string
	dir     string
	log     bytes.Buffer // of the present process; read only when it has exited
	cmd     *exec.Cmd
	exited  chan struct{}
}

// findProgram returns the path of the mosquitto program.
func findProgram() (string, error) {
	for _, name := range []string{"mosquitto", "/usr/sbin/mosquitto", "/usr/local/sbin/mosquitto"} {
		if path, err := exec.LookPath(name); err == nil {
			return path, nil
		}
	}
	return "", errors.New("no mosquitto on this machine; scripts/ensure.sh mosquitto installs it")
}

// Start starts a broker and returns when it listens. Close ends the process and removes its
// directory.
func Start(o Options) (*Broker, error) {
	program, err := findProgram()
	if err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp("", "atoll-mosquitto-")
	if err != nil {
		return nil, err
	}
	b := &Broker{Addr: o.Addr, program: program, dir: dir}
	err = b.configure(o)
	if err == nil {
		err = b.Start()
	}
	if err != nil {
		return nil, errors.Join(err, os.RemoveAll(dir))
	}
	return b, nil
}

// configure writes the configuration file, the certificates and the access rules.
func (b *Broker) configure(o Options) error {
	if o.MaestroName == "" {
		o.MaestroName = "system:maestro"
	}
	if o.Source == "" {
		o.Source = "maestro"
	}
	if b.Addr == "" {
		var err error
		if b.Addr, err = freeport.Address(); err != nil {
			return fmt.Errorf("starting Mosquitto: %w", err)
		}
	}
	host, port, err := net.SplitHostPort(b.Addr)
	if err != nil {
		return err
	}
	// Mosquitto silently drops messages above its limits in flight and in the queue of one client.
	// 0 is no limit.
	lines := []string{
		"per_listener_settings false", "persistence false", "log_dest stderr", "log_type error", "log_type warning",
		"listener " + port + " " + host, "set_tcp_nodelay true",
		"max_inflight_messages 0", "max_queued_messages 0", "max_queued_bytes 0",
	}
	if os.Geteuid() == 0 {
		lines = append(lines, "user root") // otherwise it changes its user and cannot read its files
	}
	if o.MaxPacket > 0 {
		lines = append(lines, fmt.Sprintf("max_packet_size %d", o.MaxPacket))
	}
	files := map[string][]byte{}
	if o.CA == nil {
		lines = append(lines, "allow_anonymous true")
	} else {
		lines = append(lines, "cafile "+b.path("ca.pem"), "certfile "+b.path("cert.pem"), "keyfile "+b.path("key.pem"),
			"require_certificate true", "use_identity_as_username true", "allow_anonymous false", "acl_file "+
				b.path("acl"))
		files["ca.pem"], files["cert.pem"], files["key.pem"] = o.CA, o.Cert, o.Key
		files["acl"] = fmt.Appendf(nil, `user %[1]s
topic write sources/%[2]s/consumers/+/sourceevents
topic read sources/%[2]s/consumers/+/agentevents

user system:clm
topic write clm/events/#
topic read clm/hello/#

user system:adapter
topic write clm/hello/#
topic read clm/events/#

pattern read sources/%[2]s/consumers/%%u/sourceevents
pattern write sources/%[2]s/consumers/%%u/agentevents
`, o.MaestroName, o.Source)
	}
	files["mosquitto.conf"] = []byte(strings.Join(lines, "\n") + "\n")
	for name, data := range files {
		if err := os.WriteFile(b.path(name), data, 0o600); err != nil {
			return err
		}
	}
	return nil
}

// path returns the path of a file in the broker's directory.
func (b *Broker) path(name string) string { return filepath.Join(b.dir, name) }

// Pid returns the id of the process, 0 while the broker is stopped.
func (b *Broker) Pid() int {
	if b.cmd == nil {
		return 0
	}
	return b.cmd.Process.Pid
}

// Start starts the broker again after Kill, on the same address, and returns when it listens.
func (b *Broker) Start() error {
	b.log.Reset()
	b.cmd = exec.Command(b.program, "-c", b.path("mosquitto.conf"))
	b.cmd.Stderr = &b.log
	dieWithParent(b.cmd)
	if err := b.cmd.Start(); err != nil {
		b.cmd = nil
		return fmt.Errorf("starting mosquitto: %w", err)
	}
	ended := make(chan struct{})
	b.exited = ended
	cmd := b.cmd
	go func() { defer close(ended); _ = cmd.Wait() }()
	for deadline := time.Now().Add(10 * time.Second); ; {
		conn, err := net.DialTimeout("tcp", b.Addr, time.Second)
		if err == nil {
			conn.Close()
			return nil
		}
		select {
		case <-ended:
			return fmt.Errorf("mosquitto exited at once: %s", strings.TrimSpace(b.log.String()))
		case <-time.After(5 * time.Millisecond):
		}
		if time.Now().After(deadline) {
			b.Kill()
			return fmt.Errorf("mosquitto does not listen on %s: %w", b.Addr, err)
		}
	}
}

// Kill sends SIGKILL to the process and returns when it has exited. It does nothing while the
// broker is stopped.
func (b *Broker) Kill() {
	if b.cmd == nil {
		return
	}
	_ = b.cmd.Process.Kill()
	<-b.exited
	b.cmd = nil
}

// Close ends the process and removes the broker's directory.
func (b *Broker) Close() error {
	b.Kill()
	return os.RemoveAll(b.dir)
}
