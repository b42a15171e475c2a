package interop

import (
	"strconv"
	"testing"

	"github.com/bwmarrin/snowflake"
	cloudevents "github.com/cloudevents/sdk-go/v2"

	"open-cluster-management.io/sdk-go/pkg/cloudevents/clients/statushash"
	sourcecodec "open-cluster-management.io/sdk-go/pkg/cloudevents/clients/work/source/codec"
)

// checkStatusHash reads a status as a source does and computes its hash again: a source that
// compares hashes in a resync must find our agent's equal.
func checkStatusHash(t *testing.T, e *cloudevents.Event) {
	t.Helper()
	work, err := sourcecodec.NewManifestBundleCodec().Decode(e)
	if err != nil {
		t.Fatal(err)
	}
	want, err := statushash.StatusHash(work)
	if err != nil {
		t.Fatal(err)
	}
	if got := e.Extensions()["statushash"]; got != want {
		t.Errorf("status hash %v, OCM's SDK computes %s of %s", got, want, e.Data())
	}
	sequence, err := snowflake.ParseString(e.Extensions()["sequenceid"].(string))
	if err != nil || sequence.Node() != 1 {
		t.Errorf("sequence id %v has node %d (%v): OCM compares those of node 1 only", e.Extensions()["sequenceid"],
			sequence.Node(), err)
	}
	if _, err := strconv.ParseInt(sequence.String(), 10, 64); err != nil {
		t.Error(err)
	}
}
