package arm

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"

	"sigs.k8s.io/yaml"

	"atoll.dev/api/clm"
	"atoll.dev/client/clmclient"
	"atoll.dev/client/remote"
	"atoll.dev/cluster"
	"atoll.dev/ops"
	"atoll.dev/store"
)

// credentialLifetime is how long a certificate of requestAdminCredential is valid.
const credentialLifetime = 24 * time.Hour

// requestAdminCredential accepts a certificate request of the customer. The private key never leaves the
// customer, so nothing in the operation and its result is secret. Api-versions before 2026-09-01 have no
// certificate request: the service makes a private key then, and stores it sealed (decision 106).
func (f *front) requestAdminCredential(x *exchange) error {
	if err := x.subscription.checkState(x.r.Method); err != nil {
		return err
	}
	r := x.resource
	if r == nil {
		return f.notFound(x, kindCluster)
	}
	var key sealedKey
	var err error
	if x.version < v20260901 {
		key, err = newSealedKey()
	} else {
		key.request, err = x.readCertificateRequest()
	}
	if err != nil {
		return err
	}
	order := f.newOrder(x, *r, requestCredential, func(p *parameters) { p.Request, p.Sealed = key.request, key.sealed })
	var op ops.State
	err = f.store.Tx(x.ctx, func(tx *store.Tx) (err error) {
		if err := lockCluster(x.ctx, tx, *r, "request credential"); err != nil {
			return err
		}
		switch _, err := f.engine.Active(x.ctx, tx, r.scope, revocationKey(*r)); {
		case err == nil:
			return withRetryAfter(revocationPause, conflict(r.spec.Path,
				"Cannot request credential while credentials are being revoked"))
		case !errors.Is(err, store.ErrNotFound):
			return err
		}
		op, err = f.engine.Begin(x.ctx, tx, order)
		return err
	})
	if err != nil {
		return err
	}
	x.unsealSecret = key.unsealSecret
	return f.writeAccepted(x, http.StatusAccepted, op, nil)
}

// readCertificateRequest reads the body of requestAdminCredential.
func (x *exchange) readCertificateRequest() (string, error) {
	body, err := x.readBody()
	if err != nil {
		return "", err
	}
	var p problems
	request, _ := body["certificateSigningRequest"].(string)
	if request == "" {
		p.add("certificateSigningRequest", "Required value")
	} else if wrong := cluster.CheckCertificateRequest(request); wrong != "" {
		p.add("certificateSigningRequest", "Invalid value: %s", wrong)
	}
	return request, invalid(p)
}

// credentialSpec is the spec of a Credential at the lifecycle manager.
type credentialSpec struct {
	Request           string    `json:"request"` // PEM
	ExpirationSeconds int64     `json:"expiration_seconds"`
	ExpiresAt         time.Time `json:"expires_at"`
	Username          string    `json:"username"`
}

// createCredential creates the Credential of an operation at the lifecycle manager, waits until the
// management cluster has signed its certificate, and returns the kubeconfig as the result. It may be called
// again at any time.
func (f *front) createCredential(ctx context.Context, s ops.State, p parameters) ops.Outcome {
	of, err := f.loadDocument(ctx, kindCluster, p.Document)
	if errors.Is(err, store.ErrNotFound) {
		return ops.Outcome{Event: ops.Event{Kind: ops.Fail, Error: &ops.Error{Code: codeResourceNotFound,
			Message: "The cluster was deleted.", Target: p.Path}}}
	}
	if err != nil {
		return failureOutcome(err)
	}
	user := string(principalOf(p.Account, p.Client))
	spec, err := json.Marshal(credentialSpec{Request: p.Request,
		ExpirationSeconds: int64(credentialLifetime / time.Second),
		ExpiresAt:         s.StartedAt.UTC().Add(credentialLifetime).Truncate(time.Second), Username: user})
	if err != nil {
		return failureOutcome(err)
	}
	page, err := f.clm.List(ctx, credentials, clmclient.ResourceQuery{Size: 1, Statuses: true,
		Search: remote.SearchEqual("labels."+labelDocument, s.ID)})
	if err != nil {
		return failureOutcome(err)
	}
	if len(page.Items) == 0 {
		labels := labelsOf(of)
		labels[labelDocument] = s.ID
		_, err := f.clm.Create(ctx, clusters.Below(of.status.Resource, credentials), clm.ResourceCreate{
			Kind: "Credential", Name: "a-" + strings.ReplaceAll(s.ID, "-", ""), Labels: labels, Spec: spec}, s.ID)
		if err != nil && remote.StatusOf(err) != http.StatusConflict {
			return failureOutcome(err)
		}
		return progressOutcome("Ordered", 20)
	}
	signed, done, refusal := readCredential(page.Items[0])
	if refusal != nil {
		return ops.Outcome{Event: ops.Event{Kind: ops.Fail, Error: refusal}}
	}
	if !done {
		return progressOutcome("Signing", 50)
	}
	config, err := kubeconfig(of.spec.Name, user, signed)
	if err != nil {
		return failureOutcome(err)
	}
	result, err := json.Marshal(map[string]string{"kubeconfig": string(config), "expirationTimestamp": signed.ExpiresAt})
	if err != nil {
		return failureOutcome(err)
	}
	return ops.Outcome{Event: ops.Event{Kind: ops.Succeed, Result: result}}
}

// readCredential reads the report on a credential. done is true when it has a certificate; refusal is
// not nil when none will come.
func readCredential(r clmclient.Resource) (signed cluster.CredentialData, done bool, refusal *ops.Error) {
	report, found := cluster.Reports(r.Statuses).Find(cluster.AdapterCredential)
	if !found {
		return signed, false, nil
	}
	available := cluster.Condition(report, cluster.ConditionAvailable)
	if available.Status == cluster.StatusFalse && cluster.Reason(available.Reason).IsUnsignable() {
		return signed, false, &ops.Error{Code: available.Reason, Message: "the control plane did not sign the certificate"}
	}
	if err := json.Unmarshal(report.Data, &signed); err != nil {
		return signed, false, nil // the adapter's next report may be readable
	}
	return signed, available.Status == cluster.StatusTrue && signed.Certificate != "", nil
}

// kubeconfig makes a kubeconfig without a private key: the customer adds it as client-key-data.
func kubeconfig(name, user string, s cluster.CredentialData) ([]byte, error) {
	type named map[string]any
	where := named{"server": s.Server, "certificate-authority-data": []byte(s.CABundle)}
	if s.TLSServerName != "" {
		where["tls-server-name"] = s.TLSServerName
	}
	out, err := yaml.Marshal(named{
		"apiVersion": "v1", "kind": "Config", "current-context": name,
		"clusters": []named{{"name": name, "cluster": where}},
		"users":    []named{{"name": user, "user": named{"client-certificate-data": []byte(s.Certificate)}}},
		"contexts": []named{{"name": name, "context": named{"cluster": name, "user": user}}},
	})
	if err != nil {
		return nil, fmt.Errorf("making a kubeconfig: %w", err)
	}
	return out, nil
}
