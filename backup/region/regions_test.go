package region

import (
	"context"
	"errors"
	"slices"
	"testing"

	"atoll.dev/backup"
)

// directoryStore lists directories and no objects.
type directoryStore struct {
	backup.Store
	prefix string
}

func (directoryStore) List(context.Context, string) ([]string, error) {
	return nil, errors.New("a list of all objects of all regions")
}

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
