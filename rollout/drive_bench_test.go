package rollout

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"atoll.dev/gitops"
	"atoll.dev/internal/gitrepo"
)

// BenchmarkDriveOfThousandRegions drives a rollout through 1,000 regions with 2 management clusters each, 50 at once,
// in a repository on this machine. It begins with rendered files. The processor time has that of git, too.
func BenchmarkDriveOfThousandRegions(b *testing.B) {
	for range b.N {
		b.StopTimer()
		d := newThousandRegions(b)
		before := processorTime(b)
		b.StartTimer()
		record, err := d.Run(b.Context())
		if err != nil || record.State.Phase != Done || record.Radius.Regions != 1000 {
			b.Fatal(record.State, err)
		}
		b.ReportMetric((processorTime(b) - before).Seconds(), "cpu-s/op")
		b.ReportMetric(float64(len(record.History)), "commits/op")
	}
}

func newThousandRegions(b *testing.B) *Driver {
	b.Helper()
	dir := b.TempDir()
	clone := filepath.Join(dir, "clone")
	write := func(name, text string) {
		file := filepath.Join(clone, name)
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			b.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
			b.Fatal(err)
		}
	}
	git := func(args ...string) {
		cmd := exec.Command("git", append([]string{"-C", dir, "-c", "user.name=ann", "-c", "user.email=ann@example.com"},
			args...)...)
		if out, err := cmd.CombinedOutput(); err != nil {
			b.Fatalf("git %v: %v: %s", args, err, out)
		}
	}
	git("init", "-q", "--bare", "-b", "main", "remote")
	git("clone", "-q", filepath.Join(dir, "remote"), clone)
	write("config/defaults.yaml", "git: {repository: https://example.com/p.git}\nversions: {atoll: '1'}\n")
	write("config/prod/environment.yaml", "sectors: [canary, main]\n")
	for i := range 1000 {
		sector := "main"
		if i < 10 {
			sector = "canary"
		}
		write(fmt.Sprintf("config/prod/regions/r%04d.yaml", i), fmt.Sprintf("sector: %s\nmanagementClusters:\n"+
			"  mc01: {}\n  mc02: {managementCluster: {capacity: {planes: %d}}}\n", sector, i))
	}
	write(rolloutFile, "environment: prod\nchange: {version: '2'}\nmaxInFlight: 50\nsettle: 1ms\n"+
		"gates: [{name: api, url: 'https://$region/ready'}]\n")
	fleet, err := gitops.Load(os.DirFS(filepath.Join(clone, "config")), "config")
	if err != nil {
		b.Fatal(err)
	}
	files, err := gitops.Render(fleet)
	if err != nil {
		b.Fatal(err)
	}
	for name, data := range files {
		write(filepath.Join("deploy", name), string(data))
	}
	git("-C", clone, "add", ".")
	git("-C", clone, "commit", "-q", "-m", "begin")
	git("-C", clone, "push", "-q", "origin", "HEAD:main")
	return &Driver{Repository: gitrepo.Branch{Dir: clone, Remote: "origin", Name: "main"}, Health: healthy{},
		File: rolloutFile, Config: "config", Rendered: "deploy", Interval: time.Millisecond}
}

// processorTime returns the processor time of this process and of those that it has run.
func processorTime(b *testing.B) (sum time.Duration) {
	for _, who := range []int{unix.RUSAGE_SELF, unix.RUSAGE_CHILDREN} {
		var used unix.Rusage
		if err := unix.Getrusage(who, &used); err != nil {
			b.Fatal(err)
		}
		sum += time.Duration(used.Utime.Nano() + used.Stime.Nano())
	}
	return sum
}
