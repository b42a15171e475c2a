package pause

import (
	"context"
	"testing"
	"testing/synctest"
	"time"
)

func TestForWaitsForTheTimeOrTheEndOfTheContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		begun := time.Now()
		if !For(t.Context(), time.Minute) || time.Since(begun) != time.Minute {
			t.Errorf("a pause of a minute ended after %s", time.Since(begun))
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		begun = time.Now()
		if For(ctx, time.Minute) || time.Since(begun) != time.Second {
			t.Errorf("a pause whose context ended after a second ended after %s", time.Since(begun))
		}
	})
}
