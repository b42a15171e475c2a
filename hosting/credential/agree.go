package credential

import (
	"context"
	"fmt"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	apihosting "atoll.dev/api/hosting"
	"atoll.dev/cluster"
	"atoll.dev/hosting/controlplane"
	"atoll.dev/hosting/loop"
)

// Agree makes the bindings in a plane agree with the Credentials of its cluster. After a restore the plane has the
// bindings of an earlier moment, or of another cluster: Agree makes those of credentials that were issued since, and
// removes those of credentials that were revoked since. It may be repeated. Of o it uses Client and Longest.
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
	groups, now := map[string]bool{}, time.Now()
	for i := range list.Items {
		c, err := loop.Decode[apihosting.Credential](&list.Items[i])
		if err != nil || c.Spec.ClusterName != id.Name || c.DeletionTimestamp != nil || c.Status.Certificate == "" {
			continue
		}
		w, err := check(c, o.Longest)
		if err != nil || !now.Before(w.expires) {
			continue
		}
		groups[w.group] = true
		if err := b.grant(ctx, w); err != nil {
			return err
		}
	}
	bound, err := b.resource("clusterrolebindings").List(ctx, metav1.ListOptions{LabelSelector: bindingLabel})
	if err != nil {
		return fmt.Errorf("the bindings of credentials: %w", err)
	}
	for _, binding := range bound.Items {
		if groups[binding.GetName()] {
			continue
		}
		if err := b.remove(ctx, binding.GetName()); err != nil {
			return err
		}
	}
	return nil
}
