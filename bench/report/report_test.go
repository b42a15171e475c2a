package report

import (
	"bytes"
	"encoding/json"
	"testing"
	"time"
)

func TestALineSaysWhereItWasMeasured(t *testing.T) {
	var b bytes.Buffer
	figures := map[string]any{}
	Percentiles(figures, "latency", []time.Duration{3 * time.Millisecond, time.Millisecond, 2 * time.Millisecond})
	if err := Line(&b, "x", map[string]any{"seed": 7}, figures); err != nil {
		t.Fatal(err)
	}
	var got line
	if err := json.Unmarshal(b.Bytes(), &got); err != nil {
		t.Fatal(err)
	}
	if got.Name != "x" || got.Figures["latency_p50_ms"] != 2.0 || got.Figures["latency_max_ms"] != 3.0 ||
		got.Machine.Cores == 0 || got.Commit == "" || got.Command == "" {
		t.Fatalf("%s", b.Bytes())
	}
}
