package pki

import (
	"crypto/tls"
	"slices"
)

// publicSuites are the cipher suites of TLS 1.2 that PublicServerTLS accepts: those with forward secrecy and
// authenticated encryption. TLS 1.3 has no others.
var publicSuites = []uint16{
	tls.TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256, tls.TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256,
	tls.TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384, tls.TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384,
	tls.TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256, tls.TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256,
}

// PublicServerTLS returns the configuration of a server whose clients are outside the region and prove who they are by
// their requests. It is ServerTLS with CertificateOptional for clients that speak TLS 1.3. A client that speaks TLS 1.2
// at most is served with publicSuites, and is not asked for a certificate: certificates of the region count in TLS 1.3
// only. Older versions are refused.
func (id *Identity) PublicServerTLS() *tls.Config {
	outer := id.ServerTLS(CertificateOptional)
	outer.MinVersion, outer.CipherSuites = tls.VersionTLS12, publicSuites
	inner := outer.GetConfigForClient
	outer.GetConfigForClient = func(hello *tls.ClientHelloInfo) (*tls.Config, error) {
		c, err := inner(hello)
		if err != nil || slices.Contains(hello.SupportedVersions, tls.VersionTLS13) {
			return c, err
		}
		c.MinVersion, c.MaxVersion, c.CipherSuites = tls.VersionTLS12, tls.VersionTLS12, publicSuites
		c.ClientAuth, c.VerifyConnection = tls.NoClientCert, nil
		return c, nil
	}
	return outer
}
