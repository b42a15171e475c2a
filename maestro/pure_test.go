package maestro

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"atoll.dev/api/work"
	"atoll.dev/maestro/bundle"
	"atoll.dev/store"
)

func documents(n int) []store.Document {
	docs := make([]store.Document, n)
	for i := range docs {
		docs[i] = store.Document{Kind: bundle.Kind, ID: fmt.Sprintf("d%d", i), Version: 1}
	}
	return docs
}

func TestHashesAreAskedForInBoundedBatchesAndNeverForAll(t *testing.T) {
	if batches := batchHashes(nil, 96<<10); len(batches) != 0 {
		t.Errorf("no bundle makes %d requests: an empty one asks for everything", len(batches))
	}
	var hashes []work.StatusHash
	for n := range 2500 {
		hashes = append(hashes, work.StatusHash{ID: fmt.Sprintf("%0253d", n), Hash: strings.Repeat("f", 64)})
	}
	total := 0
	for _, b := range batchHashes(hashes, 96<<10) {
		data, err := json.Marshal(work.StatusHashes{Hashes: b})
		if err != nil {
			t.Fatal(err)
		}
		if len(b) == 0 || len(b) > 1000 || len(data) > 96<<10 {
			t.Errorf("a batch of %d hashes, %d bytes", len(b), len(data))
		}
		total += len(b)
	}
	if total != len(hashes) {
		t.Errorf("%d of %d", total, len(hashes))
	}
}
