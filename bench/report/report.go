// Package report prints the results of benchmarks as JSON lines, each complete in itself: what was measured, with which
// parameters and seed, by which command and commit, on which machine.
//
// Every program below bench uses it, so that results can be compared by a program. Nothing else imports it.
package report

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
)

// Machine has the properties of the machine on which a figure depends.
type Machine struct {
	OS     string `json:"os"`
	Arch   string `json:"arch"`
	CPU    string `json:"cpu"`
	Cores  int    `json:"cores"`
	Memory string `json:"memory"`
	Go     string `json:"go"`
}

type line struct {
	Name    string         `json:"name"`
	Params  map[string]any `json:"params,omitempty"`
	Figures map[string]any `json:"figures"`
	At      time.Time      `json:"at"`
	Command string         `json:"command"`
	Commit  string         `json:"commit"`
	Machine Machine        `json:"machine"`
}

// Line writes one result. Params say what was done, the seed included; the names of figures end in their unit:
// "writes_per_second", "p99_ms".
func Line(w io.Writer, name string, params, figures map[string]any) error {
	data, err := json.Marshal(line{
		Name: name, Params: params, Figures: figures, At: time.Now().UTC().Truncate(time.Second),
		Command: strings.Join(os.Args, " "), Commit: commit(), Machine: machine(),
	})
	if err != nil {
		return fmt.Errorf("reporting %s: %w", name, err)
	}
	_, err = w.Write(append(data, '\n'))
	return err
}

// Percentiles gives p50, p90, p99 and max of the durations in milliseconds, with the given prefix: "latency" makes
// "latency_p50_ms". It sorts d.
func Percentiles(figures map[string]any, prefix string, d []time.Duration) {
	if len(d) == 0 {
		return
	}
	slices.Sort(d)
	at := func(q float64) float64 {
		return float64(d[min(len(d)-1, int(q*float64(len(d))))].Microseconds()) / 1000
	}
	figures[prefix+"_p50_ms"], figures[prefix+"_p90_ms"], figures[prefix+"_p99_ms"], figures[prefix+"_max_ms"] = at(.5),
		at(.9), at(.99), at(1)
}

var commit = sync.OnceValue(func() string {
	if info, ok := debug.ReadBuildInfo(); ok {
		revision, modified := "", ""
		for _, s := range info.Settings {
			switch {
			case s.Key == "vcs.revision":
				revision = s.Value
			case s.Key == "vcs.modified" && s.Value == "true":
				modified = "+"
			}
		}
		if revision != "" {
			return revision + modified
		}
	}
	out, err := exec.Command("git", "rev-parse", "HEAD").Output() // go run does not stamp
	if err != nil {
		return "unknown"
	}
	revision := strings.TrimSpace(string(out))
	if status, _ := exec.Command("git", "status", "--porcelain", "--untracked-files=no").Output(); len(status) > 0 {
		revision += "+"
	}
	return revision
})

var machine = sync.OnceValue(func() Machine {
	return Machine{
		OS: runtime.GOOS, Arch: runtime.GOARCH, Cores: runtime.NumCPU(), Go: runtime.Version(),
		CPU: readProcField("/proc/cpuinfo", "model name"), Memory: totalMemory(),
	}
})

func totalMemory() string {
	kb, err := strconv.Atoi(strings.TrimSuffix(readProcField("/proc/meminfo", "MemTotal"), " kB"))
	if err != nil {
		return "unknown"
	}
	return fmt.Sprintf("%d GiB", (kb+1<<19)>>20)
}

func readProcField(file, name string) string {
	data, _ := os.ReadFile(file)
	for l := range strings.Lines(string(data)) {
		if k, v, ok := strings.Cut(l, ":"); ok && strings.TrimSpace(k) == name {
			return strings.TrimSpace(v)
		}
	}
	return "unknown"
}
