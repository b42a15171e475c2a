package credential

import (
	"bytes"
	"crypto/x509"
	"encoding/pem"
	"net"
	"slices"
	"strconv"

	"k8s.io/apimachinery/pkg/api/meta"

	apihosting "atoll.dev/api/hosting"
	"atoll.dev/api/hypershift"
)

// isIssued reports whether the status has the ordered certificate. Certificates of earlier
// versions of hosting name the principal as their user. They stay, because their bindings are of the
// group: another certificate would wake the plane and reach nobody.
func isIssued(c *apihosting.Credential, w order) bool {
	if !meta.IsStatusConditionTrue(c.Status.Conditions, apihosting.Issued) {
		return false
	}
	block, _ := pem.Decode([]byte(c.Status.Certificate))
	if block == nil {
		return false
	}
	cert, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		return false
	}
	want, err := x509.MarshalPKIXPublicKey(w.key)
	return err == nil && bytes.Equal(cert.RawSubjectPublicKeyInfo, want) &&
		(cert.Subject.CommonName == w.user || cert.Subject.CommonName == w.principal) &&
		slices.Equal(cert.Subject.Organization, []string{w.group}) &&
		!cert.NotAfter.After(w.expires)
}

func endpointURL(e hypershift.APIEndpoint) string {
	return "https://" + net.JoinHostPort(e.Host, strconv.Itoa(int(e.Port)))
}
