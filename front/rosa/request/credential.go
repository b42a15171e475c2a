package request

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strconv"
	"time"

	"atoll.dev/cluster"
	"atoll.dev/cluster/document"
)

// Credential is what a body asks for as a credential.
type Credential struct {
	Lifetime time.Duration
	CSR      string // PEM; "" when the service makes the key
}

var credentialRule = document.Object(map[string]document.Rule{
	"kind": kindRule(kindCredential),
	"expiration_seconds": document.Integer(
		int64(cluster.MinCredentialLifetime/time.Second), int64(cluster.MaxCredentialLifetime/time.Second)),
	"csr": document.String(cluster.CheckCertificateRequest),
})

// ReadCredential reads the body of a request to create a credential. An empty
// body asks for a credential of the default lifetime.
func ReadCredential(body []byte) (Credential, document.Problems, error) {
	c := Credential{Lifetime: cluster.DefaultCredentialLifetime}
	if len(bytes.TrimSpace(body)) == 0 {
		return c, nil, nil
	}
	doc, err := decodeObject(body)
	if err != nil {
		return c, nil, err
	}
	var p document.Problems
	document.DropNulls(doc)
	credentialRule(&p, "", doc)
	if len(p) > 0 {
		return Credential{}, p.Sorted(), nil
	}
	if n, given := doc["expiration_seconds"].(json.Number); given {
		seconds, err := strconv.Atoi(n.String())
		if err != nil {
			return c, nil, fmt.Errorf("reading expiration_seconds: %w", err)
		}
		c.Lifetime = time.Duration(seconds) * time.Second
	}
	c.CSR, _ = doc["csr"].(string)
	return c, nil, nil
}
