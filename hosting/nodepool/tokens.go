package nodepool

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"atoll.dev/hosting/loop"
)

const (
	// tokenSweepInterval is the shortest time between two removals of expired tokens in one plane.
	tokenSweepInterval = 10 * time.Minute
	// tokenGrace is how long an expired token is kept: the clocks of hosting and of the token's maker may differ.
	tokenGrace = 5 * time.Minute
	// Secrets of tokens read at once, and by one sweep: a customer may make any number, of a MiB each.
	tokenPage, tokenPages = 20, 25
)

// sweepTokens removes the Secrets of bootstrap tokens that have expired and that hosting or `atoll nodepool join-token`
// has made. The controller of Kubernetes for that is off by default. Tokens that the customer made stay.
func (s *watchedPlane) sweepTokens(ctx context.Context, now time.Time) error {
	s.mu.Lock()
	recent := now.Sub(s.tokensSwept) < tokenSweepInterval
	s.mu.Unlock()
	if recent {
		return nil
	}
	secrets := s.client.Resource(secretResource()).Namespace("kube-system")
	list := metav1.ListOptions{FieldSelector: "type=bootstrap.kubernetes.io/token", Limit: tokenPage}
	var problems []error
	for range tokenPages {
		page, err := secrets.List(ctx, list)
		if err != nil {
			return errors.Join(append(problems, fmt.Errorf("listing the bootstrap tokens of %s: %w", s.cluster, err))...)
		}
		for i := range page.Items {
			token := &page.Items[i]
			if !isExpiredToken(token, now) {
				continue
			}
			uid := token.GetUID()
			err := secrets.Delete(ctx, token.GetName(), metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &uid}})
			if err != nil && !loop.IsGone(err) {
				problems = append(problems, fmt.Errorf("deleting an expired bootstrap token of %s: %w", s.cluster, err))
			}
		}
		if list.Continue = page.GetContinue(); list.Continue == "" {
			break
		}
	}
	s.mu.Lock()
	s.tokensSwept = now
	s.mu.Unlock()
	return errors.Join(problems...)
}

// isExpiredToken reports whether a Secret is a bootstrap token for a node of hosting, and has expired.
func isExpiredToken(secret *unstructured.Unstructured, now time.Time) bool {
	value := func(key string) string {
		encoded, _, _ := unstructured.NestedString(secret.Object, "data", key)
		text, err := base64.StdEncoding.DecodeString(encoded)
		if err != nil {
			return ""
		}
		return string(text)
	}
	if !strings.HasPrefix(value("auth-extra-groups"), "system:bootstrappers:atoll:") {
		return false
	}
	expires, err := time.Parse(time.RFC3339, value("expiration"))
	return err == nil && now.Sub(expires) > tokenGrace
}
