package rollout

import (
	"os"
	"testing"
)

func TestTheExampleIsAValidRollout(t *testing.T) {
	data, err := os.ReadFile("../examples/rollouts/atoll-1.5.0.yaml")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Parse("atoll-1.5.0.yaml", data); err != nil {
		t.Error(err)
	}
}
