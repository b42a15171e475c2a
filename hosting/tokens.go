package hosting

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"

	"atoll.dev/hosting/controlplane"
	"atoll.dev/hosting/loop"
	"atoll.dev/internal/secreterror"
)

// tokensPage is the number of Secrets that renewStoredTokens reads at once.
const tokensPage = 50

// renewStoredTokens removes the tokens of service accounts in Secrets that were signed with another key than the
// plane's present one. The plane's controller then makes new ones. The call may be interrupted and repeated.
func renewStoredTokens(ctx context.Context, admin controlplane.Admin) error {
	config, err := admin.RESTConfig()
	if err != nil {
		return err
	}
	client, err := dynamic.NewForConfig(config)
	if err != nil {
		return err
	}
	present, err := presentKey(ctx, client)
	if err != nil {
		return err
	}
	secrets := client.Resource(schema.GroupVersionResource{Version: "v1", Resource: "secrets"})
	list := metav1.ListOptions{Limit: tokensPage, FieldSelector: "type=" + string(corev1.SecretTypeServiceAccountToken)}
	for {
		found, err := secrets.List(ctx, list)
		if err != nil {
			return fmt.Errorf("reading Secrets: %w", err)
		}
		for _, s := range found.Items {
			text, _, _ := unstructured.NestedString(s.Object, "data", corev1.ServiceAccountTokenKey)
			token, err := base64.StdEncoding.DecodeString(text)
			if err != nil || len(token) == 0 || keyOf(string(token)) == present {
				continue
			}
			body := fmt.Sprintf(`{"metadata":{"resourceVersion":%q},"data":{%q:null}}`, s.GetResourceVersion(),
				corev1.ServiceAccountTokenKey)
			_, err = secrets.Namespace(s.GetNamespace()).Patch(ctx, s.GetName(), types.MergePatchType, []byte(body),
				metav1.PatchOptions{})
			if err != nil && !loop.IsGone(err) {
				return fmt.Errorf("the token in Secret %s/%s: %w", s.GetNamespace(), s.GetName(), secreterror.Hide(err))
			}
		}
		if list.Continue = found.GetContinue(); list.Continue == "" {
			return nil
		}
	}
}

// presentKey returns the id of the key with which the plane signs tokens.
func presentKey(ctx context.Context, client dynamic.Interface) (string, error) {
	request := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest",
		"metadata": map[string]any{"name": "default"},
		"spec":     map[string]any{"expirationSeconds": int64(600)},
	}}
	made, err := client.Resource(schema.GroupVersionResource{Version: "v1", Resource: "serviceaccounts"}).
		Namespace(metav1.NamespaceSystem).Create(ctx, request, metav1.CreateOptions{}, "token")
	if err != nil {
		return "", fmt.Errorf("a token of the plane: %w", err)
	}
	token, _, _ := unstructured.NestedString(made.Object, "status", "token")
	key := keyOf(token)
	if key == "" {
		return "", errors.New("a token of the plane names no key")
	}
	return key, nil
}

// keyOf returns the id of the key that a token names; "" for a text that is no token.
func keyOf(token string) string {
	head, _, _ := strings.Cut(token, ".")
	text, err := base64.RawURLEncoding.DecodeString(head)
	if err != nil {
		return ""
	}
	var header struct {
		KeyID string `json:"kid"`
	}
	if json.Unmarshal(text, &header) != nil {
		return ""
	}
	return header.KeyID
}
