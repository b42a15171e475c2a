package maestro

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"os"
	"path/filepath"
	"testing"

	dto "github.com/prometheus/client_model/go"

	"atoll.dev/pki"
)

// writeChildTLS leaves an identity of Maestro for a process to find.
func (s *site) writeChildTLS(dir string) {
	s.t.Helper()
	pair := s.certificate(pki.ServiceName("maestro"))
	key, err := x509.MarshalPKCS8PrivateKey(pair.PrivateKey)
	if err != nil {
		s.t.Fatal(err)
	}
	text := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: pair.Certificate[0]})
	text = append(text, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: key})...)
	if err := errors.Join(os.WriteFile(filepath.Join(dir, "pair.pem"), text, 0o600),
		os.WriteFile(filepath.Join(dir, "ca.pem"), s.ca.CertPEM(), 0o600)); err != nil {
		s.t.Fatal(err)
	}
}

// childTLS returns configurations made of it: for connections to a service, or
// for a port.
func childTLS(dir string) (func(service string) *tls.Config, error) {
	pair, err := tls.LoadX509KeyPair(filepath.Join(dir, "pair.pem"), filepath.Join(dir, "pair.pem"))
	if err != nil {
		return nil, err
	}
	ca, err := os.ReadFile(filepath.Join(dir, "ca.pem"))
	if err != nil {
		return nil, err
	}
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(ca)
	return func(service string) *tls.Config {
		c := &tls.Config{MinVersion: tls.VersionTLS13, Certificates: []tls.Certificate{pair}}
		if service == "" {
			c.ClientAuth, c.ClientCAs = tls.RequireAndVerifyClientCert, pool
		} else {
			c.RootCAs, c.ServerName = pool, service
		}
		return c
	}, nil
}

// counter reads a counter with one label.
func counter(t *testing.T, m *instance, name, label, value string) float64 {
	t.Helper()
	families, err := m.reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		if f.GetName() != name {
			continue
		}
		for _, c := range f.GetMetric() {
			if has(c, label, value) {
				return c.GetCounter().GetValue()
			}
		}
	}
	return 0
}

func gauge(t testing.TB, m *instance, name string) float64 {
	t.Helper()
	families, err := m.reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		if f.GetName() == name {
			return f.GetMetric()[0].GetGauge().GetValue()
		}
	}
	t.Fatalf("there is no %s", name)
	return 0
}

func has(m *dto.Metric, label, value string) bool {
	for _, l := range m.GetLabel() {
		if l.GetName() == label && l.GetValue() == value {
			return true
		}
	}
	return false
}
