package bus

import (
	"crypto/ecdsa"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/eclipse/paho.golang/packets"

	"atoll.dev/internal/quick"
	"atoll.dev/pki"
)

// A foreign broker takes our revocation list as it is: Mosquitto reads it from
// the file that docs/identity.md keeps fresh, at a start and on SIGHUP. The test also
// verifies the document's statement about open connections.
func TestMosquittoAcceptsTheRevocationList(t *testing.T) {
	quick.LeavesOut(t, "starts Mosquitto")
	program, err := exec.LookPath("mosquitto")
	if err != nil {
		if program, err = exec.LookPath("/usr/sbin/mosquitto"); err != nil {
			t.Fatalf("%v; scripts/ensure.sh installs it", err)
		}
	}
	e := newTestRegion(t, 0)
	dir, err := os.MkdirTemp("", "atoll-mosquitto-") // not t.TempDir: its parents are root's
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	write := func(name string, data []byte) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, data, 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	crl := func() string {
		data, _, err := e.region.CRL()
		if err != nil {
			t.Fatal(err)
		}
		return write("crl.pem", data)
	}
	pair := cert(t, e.region, "system:broker")
	key, err := x509.MarshalPKCS8PrivateKey(pair.PrivateKey.(*ecdsa.PrivateKey))
	if err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	addr := l.Addr().(*net.TCPAddr)
	l.Close()
	var chain []byte
	for _, der := range pair.Certificate {
		chain = append(chain, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})...)
	}
	config := fmt.Sprintf(
		"listener %d 127.0.0.1\ncafile %s\ncertfile %s\nkeyfile %s\ncrlfile %s\nrequire_certificate "+
			"true\nuse_identity_as_username true\nallow_anonymous true\n",
		addr.Port, write("ca.pem", e.region.CertPEM()), write("cert.pem", chain),
		write("key.pem", pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: key})), crl())
	if os.Geteuid() == 0 {
		config += "user root\n"
	}
	file := write("mosquitto.conf", []byte(config))

	connect := func(config *tls.Config, id string) (net.Conn, error) {
		conn, err := tls.Dial("tcp", addr.String(), config)
		if err != nil {
			return nil, err
		}
		t.Cleanup(func() { conn.Close() })
		conn.SetDeadline(time.Now().Add(hangLimit))
		hello := &packets.Connect{ProtocolName: "MQTT", ProtocolVersion: 5, ClientID: id, KeepAlive: 30,
			CleanStart: true, Properties: &packets.Properties{}}
		if _, err := hello.WriteTo(conn); err != nil {
			return nil, err
		}
		p, err := packets.ReadPacket(conn)
		if err != nil {
			return nil, err
		}
		if ack, ok := p.Content.(*packets.Connack); !ok || ack.ReasonCode != 0 {
			return nil, errors.New("refused")
		}
		return conn, nil
	}
	thief, honest := e.identity(t, "c1", t.TempDir()).ClientTLS("broker"), e.identity(t, "c2", t.TempDir()).ClientTLS(
		"broker")
	var cmd *exec.Cmd
	start := func() (stop func()) {
		cmd = exec.Command(program, "-c", file)
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		stop = func() { cmd.Process.Kill(); cmd.Wait() }
		for end := time.Now().Add(hangLimit); ; <-time.After(20 * time.Millisecond) {
			if _, err := connect(honest, "c2"); err == nil {
				return stop
			} else if time.Now().After(end) {
				stop()
				t.Fatalf("Mosquitto does not let anybody in: %v", err)
			}
		}
	}
	stop := start()
	defer func() { stop() }()
	stolen, err := connect(thief, "c1")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := e.region.Revoke("c1", pki.Command{}); err != nil {
		t.Fatal(err)
	}
	crl()
	if err := cmd.Process.Signal(syscall.SIGHUP); err != nil {
		t.Fatal(err)
	}
	for end := time.Now().Add(hangLimit); ; <-time.After(50 * time.Millisecond) {
		if _, err := connect(thief, "again"); err != nil {
			break
		}
		if time.Now().After(end) {
			t.Fatal("after SIGHUP the revoked one is let in")
		}
	}
	if _, err := connect(honest, "c2"); err != nil {
		t.Errorf("after SIGHUP another is refused: %v", err)
	}
	if _, err := (&packets.Pingreq{}).WriteTo(stolen); err != nil {
		t.Fatal(err)
	}
	if _, err := packets.ReadPacket(stolen); err != nil {
		t.Errorf("Mosquitto disconnects a revoked client (%v): correct docs/identity.md", err)
	}
	stop()
	stop = start()
	if _, err := connect(thief, "c1"); err == nil {
		t.Error("after a restart the revoked one is let in")
	}
}
