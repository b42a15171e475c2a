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

// credentialSpec is the spec of a Credential. It has nothing secret: a request
// has a public key, and the lifecycle manager deletes what has expired.
type credentialSpec struct {
	Request           string    `json:"request"` // PEM
	ExpirationSeconds int64     `json:"expiration_seconds"`
	ExpiresAt         time.Time `json:"expires_at"`
	Username          string    `json:"username"`
}

// createCredential orders a certificate and waits for it. A key that is made
// here is in this request's memory and in its answer, and nowhere else (I11).
func (h *hosted) createCredential(c *exchange) error {
	id, err := c.id("cluster")
	if err != nil {
		return err
	}
	body, err := rest.ReadBody(c.r, maxBody)
	if err != nil {
		return err
	}
	want, problems, err := request.ReadCredential(body)
	switch {
	case err != nil:
		return c.unreadable(err)
	case len(problems) > 0:
		return c.invalid(problems)
	}
	cluster, err := h.cluster(c, id)
	if err != nil {
		return err
	}
	if err := c.canSign(cluster); err != nil {
		return err
	}
	var key []byte
	if want.CSR == "" {
		if key, want.CSR, err = newKey(c.who.Principal); err != nil {
			return err
		}
	}
	public, err := keyOf(want.CSR)
	if err != nil {
		return err
	}
	made, err := h.order(c, id, want)
	if err != nil {
		return err
	}
	signed, err := h.signature(c, made.ID)
	if err == nil {
		err = signed.check(public)
	}
	if err != nil {
		h.withdraw(c, made.ID)
		return c.unsigned(cluster.Name, err)
	}
	shown, err := credentialOf(made)
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
	return c.answer(http.StatusCreated, "", shown)
}

// canSign refuses at once where there is no control plane to wait for.
func (c *exchange) canSign(of clmclient.Resource) error {
	status := progress.OfCluster(of.Resource, c.visibility)
	switch status.Phase {
	case progress.Deleting:
		return c.fail(http.StatusConflict, codeGoing, "the cluster %s is being deleted", of.Name)
	case progress.WaitingForPlacement, progress.Failed:
		e := c.fail(http.StatusServiceUnavailable, codeNotReady,
			"the cluster %s has no control plane yet, it is %s: %s", of.Name, status.Phase, status.Message)
		e.RetryAfter = 2 * time.Second
		return e
	}
	return nil
}

// newKey makes a private key, PEM, and a request with its public half.
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

// keyOf is the public key of a request.
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

// order makes the Credential, which has a name of chance.
func (h *hosted) order(c *exchange, cluster string, want request.Credential) (clmclient.Resource, error) {
	s, err := json.Marshal(credentialSpec{
		Request: want.CSR, ExpirationSeconds: int64(want.Lifetime / time.Second),
		ExpiresAt: time.Now().UTC().Add(want.Lifetime).Truncate(time.Second), Username: c.who.Principal,
	})
	if err != nil {
		return clmclient.Resource{}, err
	}
	name := make([]byte, 8)
	if _, err := rand.Read(name); err != nil {
		return clmclient.Resource{}, err
	}
	// The key of the request lets it be repeated when an answer is lost.
	r, err := h.clm.Create(c.ctx, clusters.Below(cluster, credentials), clm.ResourceCreate{Kind: "Credential",
		Name: "c-" + hex.EncodeToString(name), Spec: s}, uuid.NewString())
	if remote.StatusOf(err) == http.StatusConflict {
		return r, c.fail(http.StatusConflict, codeGoing, "the cluster is being deleted").Because(err)
	}
	return r, explain(err, http.StatusNotFound, c.missing("cluster", cluster))
}

// errRefused is why a certificate does not come.
type errRefused struct{ reason, message string }

func (e *errRefused) Error() string { return e.reason + ": " + e.message }

// signature follows a credential until its certificate is there.
func (h *hosted) signature(c *exchange, id string) (s signedCredential, err error) {
	ctx, cancel := context.WithTimeout(c.ctx, h.patience)
	defer cancel()
	err = h.clm.Follow(ctx, credentials, remote.WatchOptions{Search: remote.Equal("id", id), Statuses: true},
		func(e remote.Event) error {
			if e.Type != rest.Added && e.Type != rest.Modified {
				if e.Type == rest.Deleted {
					return &errRefused{"Deleted", "the credential was revoked before it was signed"}
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

// errSigned ends the following.
var errSigned = errors.New("it is signed")

// read takes what is reported of a credential and says whether that is all.
func (s *signedCredential) read(r clmclient.Resource, visibility progress.Visibility) (done bool, err error) {
	readable := progress.Filter(r.Statuses, visibility)
	for i, report := range r.Statuses {
		if report.Adapter != string(cluster.AdapterCredential) {
			continue
		}
		for j, is := range report.Conditions {
			if is.Type == string(cluster.ConditionAvailable) && is.Status == cluster.StatusFalse &&
				cluster.Reason(is.Reason).IsUnsignable() {
				return false, &errRefused{is.Reason, readable[i].Conditions[j].Message} // no certificate will come
			}
			done = done || is.Type == string(cluster.ConditionAvailable) && is.Status == cluster.StatusTrue
		}
		if err := json.Unmarshal(report.Data, s); err != nil && done {
			return false, fmt.Errorf("reading the report on credential %s: %w", r.ID, err)
		}
	}
	return done && s.Certificate != "", nil
}

// withdraw removes a credential that nobody will get. Its certificate, if it is
// signed after all, may then do nothing.
func (h *hosted) withdraw(c *exchange, id string) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(c.ctx), 5*time.Second)
	defer cancel()
	// When this fails, too, the lifecycle manager removes it at its expiry.
	_, _ = h.clm.Delete(ctx, credentials, id, "")
}

// unsigned is the answer when no certificate came.
func (c *exchange) unsigned(cluster string, err error) error {
	e := c.fail(http.StatusServiceUnavailable, codeNotReady,
		"the control plane of the cluster %s did not sign the certificate in time; try again", cluster).Because(err)
	if refused, ok := errors.AsType[*errRefused](err); ok {
		e.Reason = fmt.Sprintf("the control plane of the cluster %s did not sign the certificate: %s", cluster,
			refused.message)
	} else if remote.StatusOf(err) != 0 {
		return err
	}
	e.RetryAfter = 2 * time.Second
	return e
}

// credentialOf shows a resource as a credential, without secrets.
func credentialOf(r clmclient.Resource) (platform.Credential, error) {
	var s credentialSpec
	if err := json.Unmarshal(r.Spec, &s); err != nil {
		return platform.Credential{}, fmt.Errorf("reading the spec of credential %s: %w", r.ID, err)
	}
	return platform.Credential{ID: r.ID, ClusterID: ownerOf(r), Username: s.Username, CreatedAt: r.CreatedTime,
		ExpiresAt: s.ExpiresAt}, nil
}

func (h *hosted) listCredentials(c *exchange) error {
	id, err := c.id("cluster")
	if err != nil {
		return err
	}
	list := platform.CredentialList{Items: []platform.Credential{}}
	now := time.Now()
	for r, err := range h.clm.All(c.ctx, clusters.Below(id, credentials), clmclient.ResourceQuery{Order: oldestFirst}) {
		if err != nil {
			return explain(err, http.StatusNotFound, c.missing("cluster", id))
		}
		shown, err := credentialOf(r)
		if err != nil {
			return err
		}
		if r.DeletedTime == nil && shown.ExpiresAt.After(now) {
			list.Items = append(list.Items, shown)
		}
	}
	return c.answer(http.StatusOK, "", list)
}

// credential reads the credential that the path names. One that is revoked is
// not there.
func (h *hosted) credential(c *exchange) (clmclient.Resource, error) {
	id, err := c.id("cluster")
	if err != nil {
		return clmclient.Resource{}, err
	}
	cid := c.r.PathValue("cid")
	missing := c.fail(http.StatusNotFound, codeMissing,
		"the cluster %s has no credential %s; GET /api/v0/clusters/%s/credentials lists those it has", id, quote(cid),
		id)
	if _, err := uuid.Parse(cid); err != nil {
		return clmclient.Resource{}, missing
	}
	r, err := h.clm.Get(c.ctx, clusters.Below(id, credentials), cid, "")
	if err == nil && r.DeletedTime != nil {
		return r, missing
	}
	return r, explain(err, http.StatusNotFound, missing)
}

func (h *hosted) getCredential(c *exchange) error {
	r, err := h.credential(c)
	if err != nil {
		return err
	}
	shown, err := credentialOf(r)
	if err != nil {
		return err
	}
	return c.answer(http.StatusOK, "", shown)
}

func (h *hosted) revokeCredential(c *exchange) error {
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
