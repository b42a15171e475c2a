package drill

import (
	"context"
	"fmt"
	"net/http"
	"strconv"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/metadata"

	"atoll.dev/hosting/controlplane"
	"atoll.dev/internal/pause"
)

const (
	secretsPage = 500
	// secretsTries bounds the failed requests of a check.
	secretsTries = 5
)

// checkSecrets has the API server of a scratch plane decrypt all Secrets that the restored data has at a revision. It
// decrypts them to list them, and sends only their metadata: no value leaves the scratch plane.
func checkSecrets(ctx context.Context, admin controlplane.Admin, revision int64, want int) error {
	config, err := admin.RESTConfig()
	if err != nil {
		return err
	}
	client, err := metadata.NewForConfig(config)
	if err != nil {
		return err
	}
	secrets := client.Resource(schema.GroupVersionResource{Version: "v1", Resource: "secrets"})
	o := metav1.ListOptions{Limit: secretsPage, ResourceVersion: strconv.FormatInt(revision, 10),
		ResourceVersionMatch: metav1.ResourceVersionMatchExact}
	have := 0
	for tries := 1; ; {
		page, err := secrets.List(ctx, o)
		if status, isAnswer := err.(apierrors.APIStatus); isAnswer && status.Status().Code == http.StatusInternalServerError {
			return fmt.Errorf("%w (%w)", &errFailed{message: "not all Secrets of the restored data can be decrypted"}, err)
		}
		if err != nil && tries == secretsTries {
			return fmt.Errorf("listing the Secrets of the scratch plane: %w", err)
		}
		if err != nil {
			tries++
			if !pause.For(ctx, time.Second) {
				return ctx.Err()
			}
			continue
		}
		have += len(page.Items)
		if o = (metav1.ListOptions{Limit: secretsPage, Continue: page.GetContinue()}); o.Continue == "" {
			break
		}
	}
	if have != want {
		return &errFailed{message: fmt.Sprintf("the API server lists %d Secrets of the restored data, not %d", have, want)}
	}
	return nil
}
