package gitops

import (
	"context"
	"os"
	"testing"
)

// example returns the fleet of examples/config.
func example(t *testing.T) Fleet {
	t.Helper()
	f, err := Load(os.DirFS("../examples/config"), "config")
	if err != nil {
		t.Fatal(err)
	}
	return f
}

// TestTheExampleIsRendered holds examples/deploy, the golden files, against examples/config.
func TestTheExampleIsRendered(t *testing.T) {
	files, err := Render(example(t))
	if err != nil {
		t.Fatal(err)
	}
	golden := Directory("../examples/deploy")
	if *update {
		if _, err := golden.Write(context.Background(), files); err != nil {
			t.Fatal(err)
		}
	}
	differences, err := golden.Compare(files)
	if err != nil {
		t.Fatal(err)
	}
	for _, d := range differences {
		t.Errorf("%s", d.Text())
	}
}
