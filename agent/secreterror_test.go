package agent

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// TestErrorsOfSecretsQuoteNoValue: what the status shows of a failed apply or read.
func TestErrorsOfSecretsQuoteNoValue(t *testing.T) {
	const value = "Value:4711"
	secret := objectKey{schema.GroupVersionResource{Version: "v1", Resource: "secrets"}, "ns", "s"}
	other := objectKey{configMaps, "ns", "s"}
	typed := "failed to create typed patch object (ns/s; /v1, Kind=Secret): .stringData.pin: expected string, got " +
		"&value.valueUnstructured{" + value + "}"
	for name, err := range map[string]error{
		"schema, internal":    apierrors.NewInternalError(errors.New(typed)),
		"schema, no status":   errors.New(typed),
		"bad request":         apierrors.NewBadRequest(value),
		"invalid":             apierrors.NewInvalid(schema.GroupKind{Kind: "Secret"}, value, nil),
		"invalid and wrapped": fmt.Errorf("metadata: %w", apierrors.NewInvalid(schema.GroupKind{}, value, nil)),
	} {
		t.Run(name, func(t *testing.T) {
			got := classifyApplyError(secret, err)
			if strings.Contains(got.message, "4711") || got.kind != classifyError(err).kind {
				t.Errorf("the error of a Secret is %+v", got)
			}
			if text := readMessage(secret, err); strings.Contains(text, "4711") {
				t.Errorf("the read error of a Secret is %q", text)
			}
			if text := classifyApplyError(other, err).message; !strings.Contains(text, value) {
				t.Errorf("the error of a ConfigMap is %q", text)
			}
		})
	}
	if classifyApplyError(secret, nil) != nil {
		t.Error("no error is an error")
	}
	denied := apierrors.NewForbidden(schema.GroupResource{Resource: "secrets"}, "s", errors.New("no right"))
	if text := classifyApplyError(secret, denied).message; !strings.Contains(text, "no right") {
		t.Errorf("the denial is %q", text)
	}
}
