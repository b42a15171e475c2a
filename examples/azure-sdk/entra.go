package main

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"time"

	"github.com/Azure/azure-sdk-for-go/sdk/azcore/policy"
	"github.com/Azure/azure-sdk-for-go/sdk/azcore/to"

	"atoll.dev/examples/azure-sdk/hcp"
)

// keysLimit bounds how long the program waits until the cluster's API has the keys of a new issuer.
const keysLimit = time.Minute

// checkEntraTrust makes a cluster trust the tokens of Entra with an external authentication, asks the cluster's API
// who the bearer of such a token is, and ends the trust. It returns the name of the user.
func (c *client) checkEntraTrust(ctx context.Context, a account, cluster string, config kubeconfig) (string, error) {
	ca, err := os.ReadFile(a.CA)
	if err != nil {
		return "", err
	}
	auth := hcp.ExternalAuth{Properties: &hcp.ExternalAuthProperties{
		Issuer: hcp.TokenIssuer{URL: a.Authority + "/" + a.Tenant + "/v2.0", Audiences: []string{a.Endpoint},
			Ca: to.Ptr(string(ca))},
		Claim: hcp.ExternalAuthClaim{
			Mappings: hcp.ClaimMappings{Username: hcp.UsernameClaim{Claim: "oid", Prefix: to.Ptr("entra:")}},
			ValidationRules: &[]hcp.ClaimValidationRule{{RequiredClaim: hcp.RequiredClaim{Claim: "tid",
				RequiredValue: a.Tenant}}}},
	}}
	answer, err := c.send(ctx, http.MethodPut, cluster+"/externalAuths/entra", auth, http.StatusCreated, http.StatusOK)
	if err != nil {
		return "", err
	}
	if _, err := await[hcp.ExternalAuth](ctx, c, answer, ""); err != nil {
		return "", err
	}
	credential, _, err := a.connect()
	if err != nil {
		return "", err
	}
	token, err := credential.GetToken(ctx, policy.TokenRequestOptions{Scopes: []string{a.Endpoint + "/.default"}})
	if err != nil {
		return "", err
	}
	user, err := config.awaitUser(ctx, token.Token)
	if err != nil {
		return "", err
	}
	if answer, err = c.send(ctx, http.MethodDelete, cluster+"/externalAuths/entra", nil, http.StatusAccepted); err != nil {
		return "", err
	}
	if _, err := await[struct{}](ctx, c, answer, "location"); err != nil {
		return "", err
	}
	return user, config.awaitRefusal(ctx, token.Token)
}

// errUnauthorized: the cluster's API refuses a token.
var errUnauthorized = errors.New("the cluster's API does not take the token")

// awaitUser asks until the cluster's API takes a token, and returns the name of its user.
func (k kubeconfig) awaitUser(ctx context.Context, token string) (user string, err error) {
	err = repeat(ctx, func() (bool, error) {
		user, err = k.askUser(ctx, token)
		return err == nil, err
	})
	return user, err
}

// awaitRefusal asks until the cluster's API does not take a token.
func (k kubeconfig) awaitRefusal(ctx context.Context, token string) error {
	return repeat(ctx, func() (bool, error) {
		user, err := k.askUser(ctx, token)
		if err == nil {
			return false, fmt.Errorf("the cluster's API still takes the token of %s", user)
		}
		return errors.Is(err, errUnauthorized), err
	})
}

// repeat calls try every second until it is done, for keysLimit at most. It returns the last error.
func repeat(ctx context.Context, try func() (isDone bool, err error)) error {
	ctx, cancel := context.WithTimeout(ctx, keysLimit)
	defer cancel()
	for {
		isDone, err := try()
		if isDone {
			return nil
		}
		select {
		case <-ctx.Done():
			return err
		case <-time.After(time.Second):
		}
	}
}

// askUser asks the cluster's API for the user of a token.
func (k kubeconfig) askUser(ctx context.Context, token string) (string, error) {
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(k.ca)
	transport := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots, ServerName: k.serverName}}
	defer transport.CloseIdleConnections()
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, k.server+
		"/apis/authentication.k8s.io/v1/selfsubjectreviews", bytes.NewReader([]byte(
		`{"apiVersion":"authentication.k8s.io/v1","kind":"SelfSubjectReview"}`)))
	if err != nil {
		return "", err
	}
	r.Header.Set("Authorization", "Bearer "+token)
	r.Header.Set("Content-Type", "application/json")
	answer, err := (&http.Client{Timeout: 30 * time.Second, Transport: transport}).Do(r)
	if err != nil {
		return "", err
	}
	defer answer.Body.Close()
	switch answer.StatusCode {
	case http.StatusCreated:
	case http.StatusUnauthorized:
		return "", errUnauthorized
	default:
		text, _ := io.ReadAll(io.LimitReader(answer.Body, 1<<10))
		return "", fmt.Errorf("the cluster's API answers %s: %s", answer.Status, text)
	}
	var review struct {
		Status struct{ UserInfo struct{ Username string } }
	}
	if err := json.NewDecoder(answer.Body).Decode(&review); err != nil {
		return "", err
	}
	return review.Status.UserInfo.Username, nil
}
