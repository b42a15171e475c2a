package agent

import (
	"encoding/json"
	"strings"
	"testing"
)

// A Maestro that does not check the names of members may send a manifest that is a Secret only for encoding/json.
func TestI11AManifestWithAnotherKindIsRejected(t *testing.T) {
	m := parseManifest(0, json.RawMessage(
		`{"apiVersion":"v1","Kind":"Secret","metadata":{"name":"a"},"data":{"pin":"aHVudGVyMg=="}}`))
	if !strings.Contains(m.rejected, `"Kind"`) || strings.Contains(m.rejected, "aHVudGVyMg") {
		t.Errorf("rejected: %q", m.rejected)
	}
}
