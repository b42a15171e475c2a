package operator

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"os/user"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"atoll.dev/access"
	"atoll.dev/cli/terminal"
	"atoll.dev/client/remote"
	"atoll.dev/internal/certfile"
	"atoll.dev/pki"
)

// operatorFlags select a service of the region and the identity of the operator who calls it.
type operatorFlags struct {
	service       string // the name in its certificate
	endpoint      string // "": that of the home
	ca, cert, key string
}

// addOperatorFlags gives cmd the flags of operatorFlags. what describes the service in their help.
func addOperatorFlags(cmd *cobra.Command, service, what string) *operatorFlags {
	o := &operatorFlags{service: service}
	cmd.Flags().StringVar(&o.endpoint, "endpoint", "", "URL of "+what+" (default: that of the region below --home)")
	cmd.Flags().StringVar(&o.ca, "ca", "", "with --endpoint: the region's CA")
	cmd.Flags().StringVar(&o.cert, "cert", "", "with --endpoint: the operator's certificate, common name "+string(
		access.Operator))
	cmd.Flags().StringVar(&o.key, "key", "", "with --endpoint: its key")
	return o
}

// asOperator returns a context whose calls carry the name of the local user, for the history.
func asOperator(ctx context.Context) context.Context {
	who := "cli"
	if u, err := user.Current(); err == nil {
		who = "cli:" + u.Username
	}
	return remote.WithActor(ctx, remote.Actor{Principal: who})
}

// operatorTLS returns the TLS configuration of an operator's connection. For a region on this
// machine it signs a certificate with the CA's key, which only the operator can read; the
// certificate lasts as long as the command. It returns nil for a plain endpoint, which needs no
// identity.
func operatorTLS(session *terminal.Session, o *operatorFlags) (*tls.Config, error) {
	switch {
	case o.endpoint == "":
		return localOperator(session, o.service)
	case strings.HasPrefix(o.endpoint, "http://") && o.cert == "":
		return nil, nil
	}
	pair, err := tls.LoadX509KeyPair(o.cert, o.key)
	if err != nil {
		return nil, fmt.Errorf("--cert and --key: %w", err)
	}
	pool, err := certfile.ReadPool(o.ca)
	if err != nil {
		return nil, fmt.Errorf("--ca: %w", err)
	}
	return &tls.Config{MinVersion: tls.VersionTLS13, Certificates: []tls.Certificate{pair}, RootCAs: pool,
		ServerName: o.service}, nil
}

// localOperator signs certificates of an operator with the CA of the region on this machine.
func localOperator(session *terminal.Session, service string) (*tls.Config, error) {
	ca, err := openCAOf(session, "")
	if err != nil {
		return nil, err
	}
	signer := &operatorSigner{ca: ca}
	if _, err := signer.certificate(nil); err != nil {
		return nil, err
	}
	return &tls.Config{MinVersion: tls.VersionTLS13, GetClientCertificate: signer.certificate, RootCAs: ca.Pool(),
		ServerName: service}, nil
}

// operatorSigner makes the operator's certificates of one command. Its certificates are short, and a command such as a
// watch may connect again later, so it makes another one when half of the life of the last one is over.
type operatorSigner struct {
	ca *pki.CA

	mu   sync.Mutex
	last *tls.Certificate
	made time.Time
}

// certificate is the GetClientCertificate of the command's connections.
func (s *operatorSigner) certificate(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.last != nil && time.Since(s.made) < pki.CommandValidity/2 {
		return s.last, nil
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	csr, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{}, key)
	if err != nil {
		return nil, err
	}
	cert, err := s.ca.SignForCommand(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: csr}),
		access.Operator)
	if err != nil {
		return nil, fmt.Errorf("making an operator's certificate: %w", err)
	}
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return nil, err
	}
	pair, err := tls.X509KeyPair(cert, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}))
	if err != nil {
		return nil, err
	}
	s.last, s.made = &pair, time.Now()
	return s.last, nil
}
