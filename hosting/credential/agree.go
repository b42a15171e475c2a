package credential

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	apihosting "atoll.dev/api/hosting"
	"atoll.dev/cluster"
	"atoll.dev/hosting/controlplane"
	"atoll.dev/hosting/loop"
)

// Agree makes the bindings in a plane agree with the Credentials of its cluster. After a restore the plane has the
// bindings of an earlier moment, or of another cluster: Agree makes those of credentials that were issued since, and
// takes credentials that were revoked since, or are another cluster's, out of all bindings. It may be repeated. Of o it
// uses Client and Longest.
func Agree(ctx context.Context, o Options, id controlplane.ID, admin controlplane.Admin) error {
	if o.Longest == 0 {
		o.Longest = cluster.MaxCredentialLifetime
	}
	list, err := o.Client.Resource(apihosting.Credentials()).Namespace(id.Namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		return fmt.Errorf("the credentials of %s: %w", id, err)
	}
	b, err := bindingsOf(admin)
	if err != nil {
		return err
	}
	var failed []error
	for i := range list.Items {
		c, err := loop.Decode[apihosting.Credential](&list.Items[i])
		if err != nil || !isLive(c, id, o.Longest) || c.Status.Certificate == "" {
			continue
		}
		w, err := parseCredential(c, o.Longest)
		if err == nil {
			err = b.grant(ctx, w)
		}
		failed = append(failed, err)
	}
	// A refused grant must not keep the rights of revoked credentials.
	r := revocations{o: o, cluster: id}
	for range revokePasses {
		changed, err := b.removeRevoked(ctx, &r)
		if err != nil || !changed {
			return errors.Join(append(failed, err)...)
		}
	}
	return errors.Join(append(failed, errors.New("somebody binds revoked credentials again and again"))...)
}

// isLive reports whether a Credential is one of a cluster's that has, or will have, rights.
func isLive(c *apihosting.Credential, id controlplane.ID, longest time.Duration) bool {
	if c.Spec.ClusterName != id.Name || c.DeletionTimestamp != nil {
		return false
	}
	w, err := parseCredential(c, longest)
	return err == nil && time.Now().Before(w.expires)
}

// revocations knows which credentials of a cluster are revoked. The zero value of its caches knows none.
type revocations struct {
	o       Options
	cluster controlplane.ID
	live    map[string]bool // ids that were live at the last list
	revoked map[string]bool // ids that were not: they never are again
}

// isRevoked reports whether a credential that a binding names is revoked. The caller has read the binding before, so a
// credential that is in no list now is not one that is being issued: its Credential is older than its binding.
func (r *revocations) isRevoked(ctx context.Context, credential string) (bool, error) {
	if r.live[credential] || r.revoked[credential] {
		return r.revoked[credential], nil
	}
	list, err := r.o.Client.Resource(apihosting.Credentials()).Namespace(r.cluster.Namespace).List(ctx,
		metav1.ListOptions{})
	if err != nil {
		return false, fmt.Errorf("the credentials of %s: %w", r.cluster, err)
	}
	r.live = map[string]bool{}
	for i := range list.Items {
		if c, err := loop.Decode[apihosting.Credential](&list.Items[i]); err == nil && isLive(c, r.cluster, r.o.Longest) {
			r.live[c.Spec.ID] = true
		}
	}
	if r.revoked == nil {
		r.revoked = map[string]bool{}
	}
	r.revoked[credential] = !r.live[credential]
	return r.revoked[credential], nil
}

// removeRevoked removes the bindings of revoked credentials, takes these credentials out of all other bindings, and
// reports whether a binding had one.
func (b bindings) removeRevoked(ctx context.Context, r *revocations) (changed bool, err error) {
	bound, err := b.resource("clusterrolebindings").List(ctx, metav1.ListOptions{LabelSelector: bindingLabel})
	if err != nil {
		return false, fmt.Errorf("the bindings of credentials: %w", err)
	}
	for _, binding := range bound.Items {
		credential, ours := strings.CutPrefix(binding.GetName(), apihosting.CredentialGroup(""))
		isRevoked := !ours
		if ours {
			if isRevoked, err = r.isRevoked(ctx, credential); err != nil {
				return changed, err
			}
		}
		if !isRevoked {
			continue
		}
		if err := b.remove(ctx, binding.GetName()); err != nil {
			return changed, err
		}
	}
	return b.removeSubjects(ctx, func(credential string) (bool, error) { return r.isRevoked(ctx, credential) })
}
