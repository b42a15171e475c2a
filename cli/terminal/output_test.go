package terminal

import (
	"testing"
	"time"
)

func TestAgoAndTook(t *testing.T) {
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	for d, want := range map[time.Duration]string{
		-time.Second: "0s", 0: "0s", 119 * time.Second: "119s", 2 * time.Minute: "2m", 3 * time.Hour: "3h",
		72 * time.Hour: "3d",
	} {
		if got := FormatAge(now.Add(-d), now); got != want {
			t.Errorf("ago(%s) = %s, want %s", d, got, want)
		}
	}
	if got := FormatAge(time.Time{}, now); got != "never" {
		t.Errorf("ago of no time = %s", got)
	}
	for d, want := range map[time.Duration]string{1234 * time.Nanosecond: "0s", 12345 * time.Microsecond: "12ms",
		1234567 * time.Microsecond: "1.23s"} {
		if got := FormatDuration(d); got != want {
			t.Errorf("took(%s) = %s, want %s", d, got, want)
		}
	}
}

func TestExportsAreQuoted(t *testing.T) {
	for s, want := range map[string]string{"": "''", "plain/Value+=": "plain/Value+=", "with space": "'with space'",
		"it's": `'it'\''s'`, "$(rm)": "'$(rm)'"} {
		if got := ShellQuote(s); got != want {
			t.Errorf("shellQuote(%q) = %s, want %s", s, got, want)
		}
	}
}
