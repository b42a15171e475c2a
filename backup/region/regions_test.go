package region

import (
	"context"
	"slices"
	"testing"
)

// directoryStore has the directories of two regions below prefix. It cannot list objects.
type directoryStore struct{ prefix string }

func (s directoryStore) ListDirectories(_ context.Context, prefix string) ([]string, error) {
	if prefix != s.prefix {
		return nil, nil
	}
	return []string{"eu-west-1", "us-east-1"}, nil
}

// Regions needs no list of the objects of a region, of which each has some 17,000 a day.
func TestRegionsListsNoObjects(t *testing.T) {
	got, err := Regions(t.Context(), directoryStore{prefix: ".regions/"})
	if err != nil || !slices.Equal(got, []string{"eu-west-1", "us-east-1"}) {
		t.Errorf("regions %q, %v", got, err)
	}
}
