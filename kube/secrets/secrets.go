// Package secrets encrypts the Secrets of a plane that were written before, or with an earlier key.
//
// The API server encrypts each Secret that it writes. A Secret that is written without a change is also
// encrypted again when its key is not the first of the configuration; that is upstream's way to change keys.
package secrets

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"

	"atoll.dev/kube/credentials"
)

const (
	page       = 50 // Secrets in memory, up to 1 MiB each
	firstPause = 10 * time.Second
	lastPause  = time.Hour
)

// Run encrypts all Secrets with the present key, unless they are already, and ends then or with ctx. The
// plane must be ready. It tries again after a failure: a webhook of the customer may refuse a write.
func Run(ctx context.Context, files credentials.Files, log *slog.Logger) {
	for pause := firstPause; ; pause = min(2*pause, lastPause) {
		err := encrypt(ctx, files, log)
		if err == nil || ctx.Err() != nil {
			return
		}
		log.Warn("not all Secrets are encrypted with the plane's key; this is tried again", "error", err)
		select {
		case <-ctx.Done():
			return
		case <-time.After(pause):
		}
	}
}

func encrypt(ctx context.Context, files credentials.Files, log *slog.Logger) error {
	want, err := files.EncryptionKey()
	if err != nil {
		return err
	}
	have, err := files.Encrypted()
	if err != nil || want == "" || have == want {
		return err
	}
	config, err := clientcmd.BuildConfigFromFlags("", files.AdminKubeconfig)
	if err != nil {
		return err
	}
	config.UserAgent = "atoll-kube/encryption"
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return err
	}
	written, failed, err := rewrite(ctx, client)
	if err != nil {
		return err
	}
	if failed != nil {
		return failed
	}
	if err := files.MarkEncrypted(want); err != nil {
		return err
	}
	log.Info("all Secrets are encrypted", "key", want, "written", written)
	return nil
}

// rewrite writes every Secret without a change. One that cannot be written does not keep it from the others:
// failed is the last such error.
func rewrite(ctx context.Context, client kubernetes.Interface) (written int, failed, err error) {
	list := metav1.ListOptions{Limit: page}
	for {
		found, err := client.CoreV1().Secrets(metav1.NamespaceAll).List(ctx, list)
		if apierrors.IsResourceExpired(err) && list.Continue != "" { // the list took longer than etcd keeps revisions
			list.Continue = ""
			continue
		}
		if err != nil {
			return written, failed, fmt.Errorf("reading Secrets: %w", err)
		}
		for i := range found.Items {
			s := &found.Items[i]
			_, err := client.CoreV1().Secrets(s.Namespace).Update(ctx, s, metav1.UpdateOptions{})
			switch {
			case err == nil:
				written++
			case apierrors.IsNotFound(err), apierrors.IsConflict(err): // whoever changed it meanwhile encrypted it
			default:
				failed = fmt.Errorf("writing Secret %s/%s: %w", s.Namespace, s.Name, err)
			}
		}
		if list.Continue = found.Continue; list.Continue == "" {
			return written, failed, nil
		}
	}
}
