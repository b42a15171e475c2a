package agent

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"google.golang.org/grpc/keepalive"

	"atoll.dev/internal/strictyaml"
)

// GRPCConfig is the file of --workload-source-config when the driver is grpc,
// in the form of Open Cluster Management. Data may be PEM or base64 of it.
type GRPCConfig struct {
	URL string `yaml:"url"`

	CAFile         string `yaml:"caFile"`
	CAData         string `yaml:"caData"`
	ClientCertFile string `yaml:"clientCertFile"`
	ClientCertData string `yaml:"clientCertData"`
	ClientKeyFile  string `yaml:"clientKeyFile"`
	ClientKeyData  string `yaml:"clientKeyData"`
	TokenFile      string `yaml:"tokenFile"`
	Token          string `yaml:"token"`

	KeepAlive struct {
		Enable              bool          `yaml:"enable"`
		Time                time.Duration `yaml:"time"`
		Timeout             time.Duration `yaml:"timeout"`
		PermitWithoutStream bool          `yaml:"permitWithoutStream"`
	} `yaml:"keepAliveConfig"`
	Health time.Duration `yaml:"serverHealthinessTimeout"`
}

// ParseGRPCConfig parses the content of such a file. Its errors name the line.
func ParseGRPCConfig(data []byte) (GRPCConfig, error) {
	var c GRPCConfig
	if len(bytes.TrimSpace(data)) == 0 {
		return c, errors.New("the file is empty; url is needed")
	}
	if err := strictyaml.Decode("", data, &c, strictyaml.Options{}); err != nil {
		return c, err
	}
	files := []string{c.CAFile + c.CAData, c.ClientCertFile + c.ClientCertData, c.ClientKeyFile + c.ClientKeyData}
	switch {
	case c.URL == "":
		return c, errors.New("url is missing; it is host:port of the server")
	case strings.Contains(c.URL, "://"):
		return c, fmt.Errorf("url %.100q is not host:port", c.URL)
	case (files[1] == "") != (files[2] == ""):
		return c, errors.New("a client certificate needs its key, and a key its certificate")
	case files[0] == "" && (files[1] != "" || c.Token+c.TokenFile != ""):
		return c, errors.New("a client certificate or a token needs caFile: it is shown to a server that is known only")
	case c.KeepAlive.Time < 0 || c.KeepAlive.Timeout < 0 || c.Health < 0:
		return c, errors.New("a time is negative")
	}
	return c, nil
}

// Options returns the options of a link. When the file names no CA, the link uses
// identity, or no TLS when identity is nil. The link reads files for each connection, so
// that it uses renewed files.
func (c GRPCConfig) Options(identity *tls.Config) (GRPCOptions, error) {
	o := GRPCOptions{URL: c.URL, TLS: identity, Health: c.Health}
	if k := c.KeepAlive; k.Enable {
		o.KeepAlive = &keepalive.ClientParameters{Time: k.Time, Timeout: k.Timeout,
			PermitWithoutStream: k.PermitWithoutStream}
		if k.Time == 0 {
			o.KeepAlive.Time = 30 * time.Second
		}
		if k.Timeout == 0 {
			o.KeepAlive.Timeout = 10 * time.Second
		}
	}
	if c.Token+c.TokenFile != "" {
		o.Token = c.token
	}
	if c.CAFile+c.CAData == "" {
		return o, nil
	}
	ca, err := fileOrData(c.CAFile, c.CAData)
	if err != nil {
		return o, err
	}
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(ca) {
		return o, errors.New("the CA has no certificates")
	}
	o.TLS = &tls.Config{MinVersion: tls.VersionTLS13, RootCAs: roots}
	if c.ClientCertFile+c.ClientCertData == "" {
		return o, nil
	}
	if _, err := c.pair(nil); err != nil {
		return o, err
	}
	o.TLS.GetClientCertificate = c.pair
	return o, nil
}

func (c GRPCConfig) pair(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
	cert, err := fileOrData(c.ClientCertFile, c.ClientCertData)
	if err != nil {
		return nil, err
	}
	key, err := fileOrData(c.ClientKeyFile, c.ClientKeyData)
	if err != nil {
		return nil, err
	}
	pair, err := tls.X509KeyPair(cert, key)
	if err != nil {
		return nil, fmt.Errorf("the client certificate: %w", err)
	}
	return &pair, nil
}

func (c GRPCConfig) token() (string, error) {
	if c.Token != "" {
		return c.Token, nil
	}
	data, err := os.ReadFile(c.TokenFile)
	if err != nil {
		return "", fmt.Errorf("the token: %w", err)
	}
	return strings.TrimSpace(string(data)), nil
}

func fileOrData(path, data string) ([]byte, error) {
	if data == "" {
		return os.ReadFile(path)
	}
	if strings.Contains(data, "-----BEGIN") {
		return []byte(data), nil
	}
	raw, err := base64.StdEncoding.DecodeString(strings.Join(strings.Fields(data), ""))
	if err != nil {
		return nil, fmt.Errorf("neither PEM nor base64 of it: %w", err)
	}
	return raw, nil
}
