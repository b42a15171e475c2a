package coldstart

import (
	"os"
	"os/exec"
	"runtime/debug"
	"strings"
	"testing"
)

// A test program is a program that has started. It runs itself without and with GOGC.
func TestTheCollectorRunsLessOftenUntilEnd(t *testing.T) {
	if want := os.Getenv("COLDSTART_WANT"); want != "" {
		before := debug.SetGCPercent(100)
		debug.SetGCPercent(before)
		End()
		after := debug.SetGCPercent(100)
		End()
		if last := debug.SetGCPercent(100); last != 100 {
			t.Errorf("the second End has set %d", last)
		}
		percents := map[[2]int]string{{400, 100}: "usual", {77, 77}: "user's"}[[2]int{before, after}]
		if percents != want {
			t.Errorf("%d percent before End and %d after, want the %s", before, after, want)
		}
		return
	}
	for gogc, want := range map[string]string{"": "usual", "GOGC=77": "user's"} {
		cmd := exec.Command(os.Args[0], "-test.run", t.Name())
		for _, e := range os.Environ() {
			if !strings.HasPrefix(e, "GOGC=") {
				cmd.Env = append(cmd.Env, e)
			}
		}
		cmd.Env = append(cmd.Env, "COLDSTART_WANT="+want)
		if gogc != "" {
			cmd.Env = append(cmd.Env, gogc)
		}
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("with %q: %v\n%s", gogc, err, out)
		}
	}
}
