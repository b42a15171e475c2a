package rpcauth

import (
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"testing"
)

// Whoever has copied the key of the agents' issuing CA can write organizations into a certificate. They are groups of
// the operator's rules only with a foreign CA.
func TestI10TheRegionsCAIssuesNoGroups(t *testing.T) {
	cs := &tls.ConnectionState{VerifiedChains: [][]*x509.Certificate{{
		{Subject: pkix.Name{CommonName: "edge-7", Organization: []string{"admins"}}}, {IsCA: true}}}}
	if c, ok := certified(cs, TrustRegionCA); !ok || c.Peer != "edge-7" || len(c.groups) > 0 {
		t.Errorf("with the region's CA: %+v %v", c, ok)
	}
	if c, ok := certified(cs, TrustForeignCA); !ok || c.Peer != "" || len(c.groups) != 1 {
		t.Errorf("with a foreign CA: %+v %v", c, ok)
	}
}
