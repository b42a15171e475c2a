package gitops

import (
	"io/fs"
	"sync"
	"testing"
	"testing/fstest"
)

// countingFS counts the calls of Open and ReadFile for each file.
type countingFS struct {
	fs.FS
	mu    sync.Mutex // guards opens
	opens map[string]int
}

func (c *countingFS) count(name string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.opens[name]++
}

func (c *countingFS) Open(name string) (fs.File, error) {
	f, err := c.FS.Open(name)
	if err == nil {
		if info, statErr := f.Stat(); statErr == nil && !info.IsDir() {
			c.count(name)
		}
	}
	return f, err
}

func (c *countingFS) Stat(name string) (fs.FileInfo, error) { return fs.Stat(c.FS, name) }

func (c *countingFS) ReadFile(name string) ([]byte, error) {
	data, err := fs.ReadFile(c.FS, name)
	if err == nil {
		c.count(name)
	}
	return data, err
}

// TestARenderReadsEachFileOnce renders 40 regions with 10 management clusters: it reads each file of the configuration
// and each file of a chart once, and encodes equal documents once.
func TestARenderReadsEachFileOnce(t *testing.T) {
	const regions, clusters = 40, 10
	config := &countingFS{FS: bigTree(regions, clusters), opens: map[string]int{}}
	const chart = "deploy/charts/shared/a/"
	charts := &countingFS{opens: map[string]int{}, FS: fstest.MapFS{
		chart + "values.schema.json": {Data: []byte(`{"properties": {"logLevel": {"type": "string"}}}`)},
		chart + "values.yaml":        {Data: []byte("replicas: 2\n")},
	}}
	fleet, err := Load(config, "config")
	if err == nil {
		_, err = Repository{Files: charts}.CheckCharts(fleet)
	}
	if err != nil {
		t.Fatal(err)
	}
	for what, c := range map[string]*countingFS{"configuration": config, "charts": charts} {
		for name, n := range c.opens {
			if n != 1 {
				t.Errorf("%s: %s was read %d times", what, name, n)
			}
		}
	}
	if got, want := len(config.opens), regions+4; got != want || len(charts.opens) != 2 {
		t.Errorf("%d files of the configuration and %d of charts were read, want %d and 2", got, len(charts.opens), want)
	}
	var e encoder
	files, err := renderAll(fleet, &e)
	if err != nil || len(files) != regions*(5+4*clusters) {
		t.Fatalf("%d files: %v", len(files), err)
	}
	documents := 0
	e.known.Range(func(any, any) bool { documents++; return true })
	// Two of each cluster, one of each region, and the values of both types of clusters.
	if most := regions*(2*(clusters+1)+1) + 2; documents > most {
		t.Errorf("%d documents were encoded, at most %d differ", documents, most)
	}
}
