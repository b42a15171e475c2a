package rosa

import (
	"context"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/hex"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/google/uuid"

	"atoll.dev/api/clm"
	"atoll.dev/api/platform"
	"atoll.dev/client/clmclient"
	"atoll.dev/client/remote"
	"atoll.dev/cluster"
	"atoll.dev/cluster/progress"
	"atoll.dev/front/rosa/request"
	"atoll.dev/internal/rest"
)

// credentialSpec is the spec of a Credential. Nothing in it is secret: a
// certificate request has a public key. The lifecycle manager deletes the resource
// at its expiry.
type credentialSpec struct {
	Request           string    `json:"request"` // PEM
	ExpirationSeconds int64     `json:"expiration_seconds"`
	ExpiresAt         time.Time `json:"expires_at"`
	Username          string    `json:"username"`
	// Role is one of cluster.CredentialRoles. Credentials of before there were roles have none: they
	// are admin.
	Role cluster.CredentialRole `json:"role,omitempty"`
}

// createCredential orders a certificate and waits for it. When the request has no
// certificate request, it makes a key: that key is in the memory of this request
// and in its answer, and nowhere else (I11).
func (h *customerAPI) createCredential(c *exchange) error {
	id, err := c.readClusterID()
	if err != nil {
		return err
	}
	body, err := rest.ReadBody(c.r, maxBody)
	if err != nil {
		return err
	}
	want, problems, err := request.ReadCredential(body, h.credentialLifetime)
	if err := c.refusal(problems, err); err != nil {
		return err
	}
	cluster, err := h.cluster(c, id)
	if err != nil {
		return err
	}
	if err := c.checkSignable(cluster); err != nil {
		return err
	}
	var key []byte
	if want.CSR == "" {
		if key, want.CSR, err = newKey(string(c.caller.Principal)); err != nil {
			return err
		}
	}
	public, err := keyOf(want.CSR)
	if err != nil {
		return err
	}
	made, err := h.createCredentialResource(c, id, want)
	if err != nil {
		return err
	}
	signed, err := h.awaitCertificate(c, made.ID)
	if err == nil {
		err = signed.check(public)
	}
	if err != nil {
		h.deleteUnsigned(c, made.ID)
		return c.unsignedError(cluster.Name, err)
	}
	shown, err := toCredential(made)
	if err != nil {
		return err
	}
	if expires, err := time.Parse(time.RFC3339, signed.ExpiresAt); err == nil {
		shown.ExpiresAt = expires
	}
	config, err := kubeconfig(cluster.Name, shown.Username, signed, key)
	if err != nil {
		return err
	}
	shown.Kubeconfig = string(config)
	c.w.Header().Set("Location", c.r.URL.Path+"/"+made.ID)
	return c.write(http.StatusCreated, "", shown)
}

// checkSignable refuses a cluster that has no control plane to wait for.
func (c *exchange) checkSignable(of clmclient.Resource) error {
	status := progress.OfCluster(of.Resource, c.visibility)
	switch status.Phase {
	case progress.Deleting:
		return c.errorf(http.StatusConflict, codeBeingDeleted, "the cluster %s is being deleted", of.Name)
	case progress.WaitingForPlacement, progress.Failed:
		e := c.errorf(http.StatusServiceUnavailable, codeNotReady,
			"the cluster %s has no control plane yet, it is %s: %s", of.Name, status.Phase, status.Message)
		e.RetryAfter = 2 * time.Second
		return e
	}
	return nil
}

// newKey makes a private key, in PEM, and a certificate request for it.
func newKey(username string) (key []byte, csr string, err error) {
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, "", fmt.Errorf("making a key: %w", err)
	}
	der, err := x509.MarshalECPrivateKey(private)
	if err != nil {
		return nil, "", fmt.Errorf("making a key: %w", err)
	}
	request, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{
		Subject: pkix.Name{CommonName: username}}, private)
	if err != nil {
		return nil, "", fmt.Errorf("making a certificate request: %w", err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: der}),
		string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: request})), nil
}

// keyOf returns the public key of a certificate request.
func keyOf(csr string) (crypto.PublicKey, error) {
	block, _ := pem.Decode([]byte(csr))
	if block == nil {
		return nil, errors.New("the certificate request is not PEM")
	}
	r, err := x509.ParseCertificateRequest(block.Bytes)
	if err != nil {
		return nil, fmt.Errorf("reading the certificate request: %w", err)
	}
	return r.PublicKey, nil
}

// createCredentialResource creates the Credential with a random name.
func (h *customerAPI) createCredentialResource(c *exchange, id cluster.ID, want request.Credential) (
	clmclient.Resource, error) {
	s, err := json.Marshal(credentialSpec{
		Request: want.CSR, ExpirationSeconds: int64(want.Lifetime / time.Second),
		ExpiresAt: time.Now().UTC().Add(want.Lifetime).Truncate(time.Second), Username: string(c.caller.Principal),
		Role: want.Role,
	})
	if err != nil {
		return clmclient.Resource{}, err
	}
	name := make([]byte, 8)
	if _, err := rand.Read(name); err != nil {
		return clmclient.Resource{}, err
	}
	// With an idempotency key the client can send the request again when an
	// answer is lost.
	r, err := h.clm.Create(c.ctx, clusters.Below(string(id), credentials), clm.ResourceCreate{Kind: "Credential",
		Name: "c-" + hex.EncodeToString(name), Spec: s}, uuid.NewString())
	if remote.StatusOf(err) == http.StatusConflict {
		return r, c.errorf(http.StatusConflict, codeBeingDeleted, "the cluster is being deleted").Because(err)
	}
	return r, replaceStatus(err, http.StatusNotFound, c.notFound(nounCluster, string(id)))
}

// refusalError is the error when no certificate will come.
type refusalError struct{ reason, message string }

func (e *refusalError) Error() string { return e.reason + ": " + e.message }

// awaitCertificate watches a credential until the report with its certificate
// arrives, at most for patience.
func (h *customerAPI) awaitCertificate(c *exchange, id string) (s signedCredential, err error) {
	ctx, cancel := context.WithTimeout(c.ctx, h.patience)
	defer cancel()
	err = h.clm.Follow(ctx, credentials, remote.WatchOptions{Search: remote.SearchEqual("id", id), Statuses: true},
		func(e remote.Event) error {
			if e.Type != rest.Added && e.Type != rest.Modified {
				if e.Type == rest.Deleted {
					return &refusalError{"Deleted", "the credential was revoked before it was signed"}
				}
				return nil
			}
			r, err := clmclient.ResourceOf(e.Object)
			if err != nil {
				return err
			}
			done, err := s.read(r, c.visibility)
			if err == nil && done {
				err = errSigned
			}
			return err
		})
	if errors.Is(err, errSigned) {
		err = nil
	}
	return s, err
}

// errSigned ends the watch of awaitCertificate.
var errSigned = errors.New("it is signed")

// read reads the report on a credential; done is true when it has a certificate.
// A refusalError means that no certificate will come.
func (s *signedCredential) read(r clmclient.Resource, visibility progress.Visibility) (done bool, err error) {
	readable := progress.Filter(r.Statuses, visibility)
	for i, report := range r.Statuses {
		if report.Adapter != string(cluster.AdapterCredential) {
			continue
		}
		for j, is := range report.Conditions {
			if is.Type == string(cluster.ConditionAvailable) && is.Status == cluster.StatusFalse &&
				cluster.Reason(is.Reason).IsUnsignable() {
				return false, &refusalError{is.Reason, readable[i].Conditions[j].Message}
			}
			done = done || is.Type == string(cluster.ConditionAvailable) && is.Status == cluster.StatusTrue
		}
		if err := json.Unmarshal(report.Data, s); err != nil && done {
			return false, fmt.Errorf("reading the report on credential %s: %w", r.ID, err)
		}
	}
	return done && s.Certificate != "", nil
}

// deleteUnsigned deletes a credential whose certificate the client will not get.
// The deletion also revokes a certificate that is signed later.
func (h *customerAPI) deleteUnsigned(c *exchange, id string) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(c.ctx), 5*time.Second)
	defer cancel()
	// If the deletion fails, the lifecycle manager deletes the credential at its
	// expiry.
	_, _ = h.clm.Delete(ctx, credentials, id, "")
}

// unsignedError returns the answer when no certificate came: 503.
func (c *exchange) unsignedError(cluster string, err error) error {
	e := c.errorf(http.StatusServiceUnavailable, codeNotReady,
		"the control plane of the cluster %s did not sign the certificate in time; try again", cluster).Because(err)
	if refused, ok := errors.AsType[*refusalError](err); ok {
		e.Reason = fmt.Sprintf("the control plane of the cluster %s did not sign the certificate: %s", cluster,
			refused.message)
	} else if remote.StatusOf(err) != 0 {
		return err
	}
	e.RetryAfter = 2 * time.Second
	return e
}

// toCredential gives a resource the shape of the wire, without secrets.
func toCredential(r clmclient.Resource) (platform.Credential, error) {
	var s credentialSpec
	if err := json.Unmarshal(r.Spec, &s); err != nil {
		return platform.Credential{}, fmt.Errorf("reading the spec of credential %s: %w", r.ID, err)
	}
	if s.Role == "" {
		s.Role = cluster.CredentialAdmin
	}
	return platform.Credential{ID: r.ID, ClusterID: string(ownerOf(r)), Username: s.Username, CreatedAt: r.CreatedTime,
		ExpiresAt: s.ExpiresAt, Role: platform.CredentialRole(s.Role)}, nil
}

func (h *customerAPI) listCredentials(c *exchange) error {
	id, err := c.readClusterID()
	if err != nil {
		return err
	}
	list := platform.CredentialList{Items: []platform.Credential{}}
	now := time.Now()
	all := clmclient.ResourceQuery{Order: oldestFirst}
	for r, err := range h.clm.All(c.ctx, clusters.Below(string(id), credentials), all) {
		if err != nil {
			return replaceStatus(err, http.StatusNotFound, c.notFound(nounCluster, string(id)))
		}
		shown, err := toCredential(r)
		if err != nil {
			return err
		}
		if r.DeletedTime == nil && shown.ExpiresAt.After(now) {
			list.Items = append(list.Items, shown)
		}
	}
	return c.write(http.StatusOK, "", list)
}

// credential reads the credential that the path names. A revoked credential is
// 404.
func (h *customerAPI) credential(c *exchange) (clmclient.Resource, error) {
	id, err := c.readClusterID()
	if err != nil {
		return clmclient.Resource{}, err
	}
	cid := c.r.PathValue("cid")
	missing := c.errorf(http.StatusNotFound, codeMissing,
		"the cluster %s has no credential %s; GET /api/v0/clusters/%s/credentials lists those it has", id, quote(cid),
		id)
	if _, err := uuid.Parse(cid); err != nil {
		return clmclient.Resource{}, missing
	}
	r, err := h.clm.Get(c.ctx, clusters.Below(string(id), credentials), cid, "")
	if err == nil && r.DeletedTime != nil {
		return r, missing
	}
	return r, replaceStatus(err, http.StatusNotFound, missing)
}

func (h *customerAPI) getCredential(c *exchange) error {
	r, err := h.credential(c)
	if err != nil {
		return err
	}
	shown, err := toCredential(r)
	if err != nil {
		return err
	}
	return c.write(http.StatusOK, "", shown)
}

func (h *customerAPI) revokeCredential(c *exchange) error {
	r, err := h.credential(c)
	if err != nil {
		return err
	}
	if _, err := h.clm.Delete(c.ctx, credentials, r.ID, ""); err != nil && remote.StatusOf(err) != http.StatusNotFound {
		return err
	}
	c.w.WriteHeader(http.StatusNoContent)
	return nil
}
