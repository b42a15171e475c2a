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

// Credential is the credential that a body requests.
type Credential struct {
	Lifetime time.Duration
	CSR      string // PEM; "" when the service makes the key
	Role     cluster.CredentialRole
}

// credentialRule returns the rule of a body, with the longest lifetime that the region allows.
func credentialRule(longest time.Duration) document.Rule {
	return document.Object(map[string]document.Rule{
		"kind": kindRule(kindCredential),
		"expiration_seconds": document.Integer(
			int64(cluster.MinCredentialLifetime/time.Second), int64(longest/time.Second)),
		"csr": document.String(cluster.CheckCertificateRequest),
		"role": document.OneOf(string(cluster.CredentialView), string(cluster.CredentialEdit),
			string(cluster.CredentialAdmin)),
	})
}

// ReadCredential reads the body of a request to create a credential, which may live at most for
// longest. An empty body asks for an admin's credential of the default lifetime.
func ReadCredential(body []byte, longest time.Duration) (Credential, document.Problems, error) {
	c := Credential{Lifetime: min(cluster.DefaultCredentialLifetime, longest), Role: cluster.CredentialAdmin}
	if len(bytes.TrimSpace(body)) == 0 {
		return c, nil, nil
	}
	doc, err := decodeObject(body)
	if err != nil {
		return c, nil, err
	}
	var p document.Problems
	document.DropNulls(doc)
	credentialRule(longest)(&p, "", doc)
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
	if role, given := doc["role"].(string); given {
		c.Role = cluster.CredentialRole(role)
	}
	return c, nil, nil
}
