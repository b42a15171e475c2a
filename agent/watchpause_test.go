package agent

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// A kind that was removed for good costs one request a minute, and is watched again as soon as it is back.
func TestAMissingKindIsListedRarelyUntilKindsChange(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		begun := time.Now()
		changed := make(chan struct{})
		var at []time.Duration // of the lists
		var answer error = apierrors.NewNotFound(schema.GroupResource{Resource: "widgets"}, "")
		list := pauseWhileMissing(func(context.Context, metav1.ListOptions) (runtime.Object, error) {
			at = append(at, time.Since(begun))
			return nil, answer
		}, func() <-chan struct{} { return changed })
		for range 20 {
			_, _ = list(t.Context(), metav1.ListOptions{})
		}
		if n := len(at); at[n-1]-at[n-2] != missingPauseMax || at[1]-at[0] != missingPauseMin {
			t.Errorf("lists at %v", at)
		}
		before := time.Since(begun)
		close(changed)
		answer = nil
		for range 2 {
			if _, err := list(t.Context(), metav1.ListOptions{}); err != nil || time.Since(begun) != before {
				t.Errorf("after a change of kinds: %v after %v", err, time.Since(begun)-before)
			}
		}
	})
}

func TestThePauseOfAMissingKindEndsWithItsWatch(t *testing.T) {
	ctx, stop := context.WithCancel(t.Context())
	list := pauseWhileMissing(func(context.Context, metav1.ListOptions) (runtime.Object, error) {
		stop()
		return nil, apierrors.NewNotFound(schema.GroupResource{Resource: "widgets"}, "")
	}, func() <-chan struct{} { return nil })
	_, _ = list(ctx, metav1.ListOptions{})
	if _, err := list(ctx, metav1.ListOptions{}); err != context.Canceled {
		t.Errorf("error %v", err)
	}
}
