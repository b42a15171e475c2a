package pki

import (
	"crypto/tls"
	"errors"
	"testing"
)

// Clients of the region's own servers speak TLS 1.3. Those of a public server may speak TLS 1.2, with good cipher
// suites, and then have no certificate of the region.
func TestWhichTLSServersSpeak(t *testing.T) {
	ca := openCA(t)
	url := serveCA(t, ca)
	server, err := OpenIdentity(t.Context(), options(t, ca, url, "system:platform"))
	if err != nil {
		t.Fatal(err)
	}
	agent, err := OpenIdentity(t.Context(), options(t, ca, url, "management-01"))
	if err != nil {
		t.Fatal(err)
	}
	knowCRL(t, ca, server)
	public, region := server.PublicServerTLS(), server.ServerTLS(CertificateOptional)
	const gcm256 = tls.TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384
	with := func(version uint16, suites ...uint16) *tls.Config {
		c := agent.ClientTLS("platform")
		c.MinVersion, c.MaxVersion, c.CipherSuites = tls.VersionTLS10, version, suites
		return c
	}
	for name, tc := range map[string]struct {
		server, client *tls.Config
		want           Name
		refused        bool
	}{
		"public, TLS 1.3":              {public, with(tls.VersionTLS13), "management-01", false},
		"public, TLS 1.2":              {public, with(tls.VersionTLS12), "", false},
		"public, TLS 1.2, AES-256-GCM": {public, with(tls.VersionTLS12, gcm256), "", false},
		"public, TLS 1.2, CBC":         {public, with(tls.VersionTLS12, tls.TLS_ECDHE_ECDSA_WITH_AES_128_CBC_SHA), "", true},
		"public, TLS 1.2, RSA":         {public, with(tls.VersionTLS12, tls.TLS_RSA_WITH_AES_128_GCM_SHA256), "", true},
		"public, TLS 1.1":              {public, with(tls.VersionTLS11), "", true},
		"public, TLS 1.0":              {public, with(tls.VersionTLS10), "", true},
		"region, TLS 1.3":              {region, with(tls.VersionTLS13), "management-01", false},
		"region, TLS 1.2":              {region, with(tls.VersionTLS12), "", true},
	} {
		got, err := handshake(t, tc.server, tc.client)
		noPeer := errors.Is(err, ErrNoPeer) // the handshake succeeds without a certificate of the client
		refused := err != nil && !noPeer
		if got != tc.want || refused != tc.refused || !refused && noPeer != (tc.want == "") {
			t.Errorf("%s: name %q, %v; want %q, refused %t", name, got, err, tc.want, tc.refused)
		}
	}
}
