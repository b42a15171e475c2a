package credential

import (
	"context"
	"errors"
	"fmt"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	apihosting "atoll.dev/api/hosting"
	"atoll.dev/hosting/controlplane"
)

const (
	bindingPage = 500 // bindings in one answer
	// revokePasses bounds the searches of one call. A holder who still has rights may bind its user
	// again meanwhile; each search takes away what the holder did before it.
	revokePasses = 5
)

// revoke takes every right of a credential's user and group away, in a plane that runs. Rights that the
// holder gave to others, or to all authenticated users, stay: docs/security.md lists them.
func revoke(ctx context.Context, admin controlplane.Admin, id string) error {
	b, err := bindingsOf(admin)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, removeLimit)
	defer cancel()
	if err := b.remove(ctx, apihosting.CredentialGroup(id)); err != nil {
		return err
	}
	for range revokePasses {
		changed, err := b.removeSubjects(ctx, func(credential string) (bool, error) { return credential == id, nil })
		if err != nil || !changed {
			return err
		}
	}
	return errors.New("somebody binds a revoked credential again and again")
}

// removeSubjects takes the users and groups of credentials that isRevoked names out of all bindings of the plane, and
// reports whether a binding had one of them.
func (b bindings) removeSubjects(ctx context.Context, isRevoked func(credential string) (bool, error)) (changed bool,
	err error) {
	for _, kind := range []string{"clusterrolebindings", "rolebindings"} {
		page := metav1.ListOptions{Limit: bindingPage}
		for {
			list, err := b.resource(kind).List(ctx, page)
			if err != nil {
				return changed, fmt.Errorf("reading the bindings of a revoked credential: %w", err)
			}
			for i := range list.Items {
				dropped, err := dropSubjects(&list.Items[i], isRevoked)
				if err != nil {
					return changed, err
				}
				if !dropped {
					continue
				}
				changed = true
				_, err = b.resource(kind).Namespace(list.Items[i].GetNamespace()).Update(ctx, &list.Items[i],
					metav1.UpdateOptions{})
				if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) { // the next pass reads it again
					return changed, fmt.Errorf("removing a revoked credential from a binding: %w", err)
				}
			}
			if page.Continue = list.GetContinue(); page.Continue == "" {
				break
			}
		}
	}
	return changed, nil
}

// dropSubjects removes the users and groups of revoked credentials from the subjects of a binding, and reports whether
// the binding had one of them.
func dropSubjects(binding *unstructured.Unstructured, isRevoked func(credential string) (bool, error)) (bool, error) {
	subjects, _, _ := unstructured.NestedSlice(binding.Object, "subjects")
	var kept []any
	for _, s := range subjects {
		if credential, ours := credentialOf(s); ours {
			revoked, err := isRevoked(credential)
			if err != nil {
				return false, err
			}
			if revoked {
				continue
			}
		}
		kept = append(kept, s)
	}
	if len(kept) == len(subjects) {
		return false, nil
	}
	binding.Object["subjects"] = kept
	return true, nil
}

// credentialOf returns the id of the credential whose user or group a subject is.
func credentialOf(subject any) (id string, ours bool) {
	fields, _ := subject.(map[string]any)
	name, _ := fields["name"].(string)
	switch fields["kind"] {
	case "User":
		return strings.CutPrefix(name, apihosting.CredentialUser(""))
	case "Group":
		return strings.CutPrefix(name, apihosting.CredentialGroup(""))
	}
	return "", false
}
