package cluster

import (
	"strings"
	"testing"
	"time"
)

func TestTheTimeUntilLostClustersAreRecoveredIsNeverOrFiveMinutes(t *testing.T) {
	for text, want := range map[string]string{"0": "0", "0s": "0", "5m": "5m", "30m0s": "30m", "1800s": "30m",
		"1.5h": "1h30m", "90m": "1h30m", "60m": "1h", "48h": "48h", "+30m": "30m", "100h1m": "100h1m",
		"": "no time", "30": "no time", "soon": "no time", "4m": "too short", "4m59s": "too short", "1ns": "too short",
		"-1h": "too short", "5m1s": "take 6m", "59m30s": "take 1h", "1h0.5s": "take 1h1m"} {
		after, err := ParseRecoverLostAfter(text)
		if err != nil {
			if !strings.Contains(err.Error(), want) {
				t.Errorf("%q: %v, want %s", text, err, want)
			}
			continue
		}
		got := FormatRecoverLostAfter(after)
		if got != want {
			t.Errorf("%q is written %s, want %s", text, got, want)
		}
		if again, err := time.ParseDuration(got); err != nil || again != after {
			t.Errorf("%q is written %s, which is %s, %v", text, got, again, err)
		}
	}
}
