package rosa_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"

	"atoll.dev/api/platform"
	"atoll.dev/client/remote"
	"atoll.dev/cluster"
)

// A customer orders the two steps of a rotation in their order. The orders are stored in the cluster's spec, which
// customers neither see nor change, and a repeated request makes no second one.
func TestACustomerRotatesKeysInTwoSteps(t *testing.T) {
	l := startLifecycle(t)
	ctx, p := t.Context(), l.as(operator)
	made, err := p.CreateCluster(ctx, named("demo", ""))
	if err != nil {
		t.Fatal(err)
	}
	id := cluster.ID(made.ID)
	const key = platform.RotatedKeyEncryption
	const first, second = platform.RotationRequestStepPrepare, platform.RotationRequestStepComplete
	rotate := func(step platform.RotationRequestStep) (platform.Rotation, error) {
		return l.once(operator).RotateKey(ctx, id, platform.RotationRequest{Key: key, Step: step})
	}
	refuse := func(what string, r platform.RotationRequest, status int, code, word string) {
		t.Helper()
		_, err := l.once(operator).RotateKey(ctx, id, r)
		e, ok := errors.AsType[*remote.Error](err)
		if !ok || e.Status != status || e.Code != "CLUSTERS-MGMT-"+code || !strings.Contains(e.Reason, word) {
			t.Errorf("%s: %v, want %d %s with %q", what, err, status, code, word)
		}
	}
	accept := func(what string, step platform.RotationRequestStep, phase platform.RotationPhase) platform.Rotation {
		t.Helper()
		r, err := rotate(step)
		if err != nil || r.Phase != phase || r.Key != key {
			t.Errorf("%s: %+v, %v, want %s", what, r, err, phase)
		}
		return r
	}
	report := func(id, phase string) {
		t.Helper()
		l.report("clusters", made.ID, "hosted-cluster", fmt.Sprintf(`{"rotations":{"encryption":{"id":%q,"phase":%q,
			"message":"why","preparingAt":"2027-01-02T15:04:05Z","completedAt":null}}}`, id, phase), "Available=True")
	}
	of := func(phase platform.RotationPhase) platform.Rotation {
		t.Helper()
		c, err := p.Cluster(ctx, id)
		if err != nil || len(c.Status.Rotations) != 1 || c.Status.Rotations[0].Phase != phase {
			t.Fatalf("%+v, %v, want %s", c.Status.Rotations, err, phase)
		}
		return c.Status.Rotations[0]
	}

	refuse("an unknown key", platform.RotationRequest{Key: "ssh", Step: first}, 422, "VALIDATION-001", "key")
	refuse("no step", platform.RotationRequest{Key: key}, 422, "VALIDATION-001", "step")
	refuse("the second step first", platform.RotationRequest{Key: key, Step: second}, 409, "ROTATE-013", "prepare first")

	one := accept("the first step", first, platform.RotationPhasePreparing)
	refuse("the first step twice", platform.RotationRequest{Key: key, Step: first}, 409, "ROTATE-013", "Preparing")
	refuse("the second step too early", platform.RotationRequest{Key: key, Step: second}, 409, "ROTATE-013", "wait for")
	of(platform.RotationPhasePreparing)
	if _, err := p.UpdateCluster(ctx, id, json.RawMessage(`{"spec":{"displayName":"x"}}`), ""); err != nil {
		t.Fatal(err)
	}
	if _, err := p.UpdateCluster(ctx, id, json.RawMessage(`{"spec":{"rotations":{}}}`), ""); err == nil {
		t.Error("a customer wrote an order into the spec")
	}
	report("another", "Completed")
	of(platform.RotationPhasePreparing)
	report(one.ID, "Prepared")
	if r := of(platform.RotationPhasePrepared); r.ID != one.ID || r.Message != "why" || r.PreparingAt == nil ||
		r.CompletedAt != nil {
		t.Errorf("prepared: %+v", r)
	}
	if r := accept("the second step", second, platform.RotationPhaseCompleting); r.ID != one.ID {
		t.Errorf("the second step: %+v, want %s", r, one.ID)
	}
	accept("the second step again", second, platform.RotationPhaseCompleting)
	refuse("another rotation too early", platform.RotationRequest{Key: key, Step: first}, 409, "ROTATE-013", "Completing")
	report(one.ID, "Completed")
	of(platform.RotationPhaseCompleted)
	if two := accept("another rotation", first, platform.RotationPhasePreparing); two.ID == one.ID {
		t.Errorf("another rotation has the id of the first: %+v", two)
	}

	send := func(key, body string) (r platform.Rotation, status int) {
		t.Helper()
		answer, status := l.curl(t, "POST", "/prod/api/v0/clusters/"+made.ID+"/rotate", body, "Idempotency-Key: "+key)
		_ = json.Unmarshal(answer, &r)
		return r, status
	}
	const body = `{"key":"service-account","step":"prepare"}`
	three, status := send("k1", body)
	again, repeated := send("k1", body)
	if status != 202 || repeated != 202 || three.ID == "" || again.ID != three.ID {
		t.Errorf("repeated: %d %+v, then %d %+v", status, three, repeated, again)
	}
	if c, err := p.Cluster(ctx, id); err != nil || len(c.Status.Rotations) != 2 ||
		c.Status.Rotations[0].Key != platform.RotatedKeyServiceAccount {
		t.Errorf("both keys: %+v, %v", c.Status.Rotations, err)
	}
	if r, status := send("k2", `{"key":"ca","step":"prepare"}`); status != 202 || r.Key != platform.RotatedKeyCa ||
		r.Phase != platform.RotationPhasePreparing {
		t.Errorf("the first step of the CA: %d %+v", status, r)
	}
}
